package api

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/images"
	"firstlight/imagebuild/manifest"
)

const (
	// maxManifest bounds a request that begins an upload: the manifest in base64, with its name.
	maxManifest = manifest.MaxBody*4/3 + 64<<10
	// maxBlob bounds a blob's body.
	maxBlob = manifest.MaxChunkSize + manifest.MaxChunkSize/64
)

func (s *Server) listImages(r *http.Request) (any, error) {
	all, err := s.cfg.Images.List(r.Context())
	if err != nil {
		return nil, fault.Of(err, "list images", "")
	}
	return all, nil
}

// addImage takes an image from a directory of this host, which only somebody at this host may name.
func (s *Server) addImage(r *http.Request) (any, error) {
	const op = "add image"
	in, err := asked[AddImage](r, op, "")
	if err != nil {
		return nil, err
	}
	note(r, in.Name, "")
	if p, _ := auth.PrincipalOf(r.Context()); p.Kind != auth.KindLocal {
		return nil, fault.New(fault.Denied, op, in.Name, errors.New("a directory of the appliance's host may only be named by its own command"),
			"send the image: firstlight images add NAME DIR")
	}
	img, err := s.cfg.Images.Add(r.Context(), in.Name, in.Dir)
	if err != nil {
		return nil, imageFault(op, in.Name, err)
	}
	s.added(r, img)
	return img, nil
}

func (s *Server) added(r *http.Request, img images.Image) {
	note(r, img.Name, "manifest "+img.ManifestSHA256)
	s.emit(r, fleet.Event{Kind: "image.added", Fields: map[string]string{"image": img.Name, "manifest_sha256": img.ManifestSHA256},
		Message: "image " + img.Name + " was added by " + by(r)})
}

// removeImage forgets an image unless an open workflow still fetches it. No workflow begins with it meanwhile.
func (s *Server) removeImage(r *http.Request) (any, error) {
	const op = "remove image"
	name := r.PathValue("name")
	s.inUse.Lock()
	defer s.inUse.Unlock()
	var users []string
	for _, x := range s.cfg.Roster.Rows(func(m *fleet.Machine) bool { return m.Image == name && m.Workflow != nil && m.Workflow.State.Open() }) {
		users = append(users, x.Machine.Name)
	}
	if n := len(users); n > 0 {
		return nil, fault.New(fault.Conflict, op, name, fmt.Errorf("%d machines are being installed with it: %s", n, short(users)),
			"wait for them to end, or cancel them")
	}
	if err := s.cfg.Images.Remove(r.Context(), name); err != nil {
		return nil, imageFault(op, name, err)
	}
	s.emit(r, fleet.Event{Kind: "image.removed", Fields: map[string]string{"image": name}, Message: "image " + name + " was removed by " + by(r)})
	return Removed{Name: name}, nil
}

// short names the first few.
func short(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
}

func uploadOf(u images.Upload) Upload {
	out := Upload{ID: u.ID, Name: u.Name, Total: u.Total, Have: u.Have, Began: fleet.At(u.Began), Image: u.Image, Missing: make([]string, len(u.Missing))}
	for i, d := range u.Missing {
		out.Missing[i] = d.String()
	}
	return out
}

func (s *Server) beginUpload(r *http.Request) (any, error) {
	const op = "add image"
	in, err := asked[BeginUpload](r, op, "")
	if err != nil {
		return nil, err
	}
	note(r, in.Name, "")
	u, err := s.cfg.Images.BeginUpload(r.Context(), in.Name, in.Manifest)
	if err != nil {
		return nil, imageFault(op, in.Name, err)
	}
	return uploadOf(u), nil
}

func (s *Server) showUpload(r *http.Request) (any, error) {
	u, err := s.cfg.Images.Upload(r.PathValue("id"))
	if err != nil {
		return nil, uploadFault("show upload", r, err)
	}
	return uploadOf(u), nil
}

func (s *Server) putBlob(r *http.Request) (any, error) {
	const op = "add image"
	d, err := manifest.ParseDigest(r.PathValue("sha256"))
	if err != nil {
		return nil, fault.New(fault.Usage, op, "", fmt.Errorf("blob %.80q is not a SHA-256 in hex", r.PathValue("sha256")), "name the blob by its digest")
	}
	select {
	case s.blobs <- struct{}{}:
		defer func() { <-s.blobs }()
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	u, err := s.cfg.Images.PutBlob(r.Context(), r.PathValue("id"), d, r.Body)
	if err != nil {
		return nil, uploadFault(op, r, err)
	}
	return uploadOf(u), nil
}

func (s *Server) finishUpload(r *http.Request) (any, error) {
	const op = "add image"
	img, err := s.cfg.Images.FinishUpload(r.Context(), r.PathValue("id"))
	if err != nil {
		return nil, uploadFault(op, r, err)
	}
	s.added(r, img)
	return img, nil
}

func (s *Server) dropUpload(r *http.Request) (any, error) {
	id := r.PathValue("id")
	if err := s.cfg.Images.DropUpload(r.Context(), id); err != nil {
		return nil, uploadFault("drop upload", r, err)
	}
	note(r, id, "")
	return Removed{Name: id}, nil
}

func uploadFault(op string, r *http.Request, err error) error {
	id := r.PathValue("id")
	if errors.Is(err, images.ErrUnknown) {
		return fault.New(fault.NotFound, op, id, errors.New("there is no such upload"), "begin it again: what arrived is not sent twice")
	}
	return imageFault(op, id, err)
}
