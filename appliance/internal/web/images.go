package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/images"
	"firstlight/imagebuild/manifest"
)

// maxManifest bounds the manifest that a browser sends, as JSON with base64.
const maxManifest = manifest.MaxBody*4/3 + 4096

type imagesPage struct {
	Images []imageView
}

// imageView is an image as it is shown.
type imageView struct{ images.Image }

// RawSizeU and StoredSizeU are its sizes in bytes.
func (i imageView) RawSizeU() uint64    { return uint64(max(i.RawSize, 0)) }
func (i imageView) StoredSizeU() uint64 { return uint64(max(i.StoredSize, 0)) }

// AddedAt is when it was added.
func (i imageView) AddedAt() fleet.Time { return fleet.At(i.Added) }

// RemoveURL is where to remove it.
func (i imageView) RemoveURL() string { return "/images/" + url.PathEscape(i.Name) + "/remove" }

func imageViews(all []images.Image) []imageView {
	out := make([]imageView, len(all))
	for i := range all {
		out[i] = imageView{all[i]}
	}
	return out
}

func (s *Server) images(v *visit) error {
	all, err := s.cfg.API.Images(v.ctx())
	if err != nil {
		return err
	}
	return v.show("images", "Images", http.StatusOK, imagesPage{imageViews(all)})
}

// json answers a script.
func (v *visit) json(code int, val any) error {
	body, err := json.Marshal(val)
	if err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	v.w.Header().Set("Content-Type", "application/json")
	v.w.WriteHeader(code)
	v.w.Write(append(body, '\n'))
	return nil
}

// beginUpload begins to take an image, or goes on where an earlier try ended.
func (s *Server) beginUpload(v *visit) error {
	var in api.BeginUpload
	d := json.NewDecoder(http.MaxBytesReader(v.w, v.r.Body, maxManifest))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return fault.New(fault.Usage, "add image", "", err, "load the page again")
	}
	up, err := s.cfg.API.BeginUpload(v.ctx(), in)
	if err != nil {
		return err
	}
	return v.json(http.StatusOK, up)
}

func (s *Server) putBlob(v *visit) error {
	if v.r.ContentLength < 0 || v.r.ContentLength > manifest.MaxChunkSize {
		return fault.New(fault.Usage, "add image", "", errors.New("a part without a size, or a larger one than any image has"), "make the image again with `imagebuild pack`")
	}
	body := io.LimitReader(v.r.Body, manifest.MaxChunkSize)
	up, err := s.cfg.API.PutBlob(v.ctx(), v.r.PathValue("id"), v.r.PathValue("sha256"), v.r.ContentLength, body)
	if err != nil {
		return err
	}
	up.Missing = nil
	return v.json(http.StatusOK, up)
}

func (s *Server) finishUpload(v *visit) error {
	img, err := s.cfg.API.FinishUpload(v.ctx(), v.r.PathValue("id"))
	if err != nil {
		return err
	}
	return v.json(http.StatusOK, img)
}

// sure is a question before something is done that has no disks.
type sure struct {
	Title, Object, Explain, Verb, Path, Back, Key string
	// Name: the object's name must be typed. Reason: one may be given.
	Name, Reason bool
	// Hidden are more values of the form.
	Hidden  map[string]string
	Refused *three
}

// ask shows a question; err is why it was refused, nil at first.
func (v *visit) ask(q sure, err error) error {
	q.Key, q.Path = newKey(), orElse(q.Path, v.r.URL.Path)
	if err == nil {
		return v.show("sure", q.Title+" "+attr(q.Object), http.StatusOK, q)
	}
	t := threeOf(err)
	q.Refused = &t
	return v.show("sure", q.Title+" "+attr(q.Object), status(fault.Of(err, "", "").Kind), q)
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// need says whether the person may do something that a page is about, as the API would.
func (v *visit) need(p auth.Permission, op string) error {
	if v.can(p) {
		return nil
	}
	return fault.New(fault.Denied, op, "", fmt.Errorf("the role %s may not do this", v.session.Principal.Role),
		"ask somebody whose role may, or an administrator for another role")
}

// typed says whether the name was typed that must be.
func (v *visit) typed(op, name string) error {
	if strings.TrimSpace(v.r.PostFormValue("typed")) == name {
		return nil
	}
	return fault.New(fault.Invalid, op, name, errors.New("the name that was typed is not this one"), "type it exactly as it is shown, or leave it")
}

func removeImageQuestion(name string) sure {
	return sure{Title: "Remove the image", Object: name, Verb: "Remove it", Back: "/images", Name: true,
		Explain: "It can not be installed any more. Machines that run it go on; one that is being installed with it stops this from happening."}
}

func (s *Server) confirmImage(v *visit) error {
	if err := v.need(auth.PermManage, "remove image"); err != nil {
		return err
	}
	return v.ask(removeImageQuestion(v.r.PathValue("name")), nil)
}

func (s *Server) removeImage(v *visit) error {
	name := v.r.PathValue("name")
	err := v.typed("remove image", name)
	if err == nil {
		_, err = s.cfg.API.RemoveImage(api.WithKey(v.ctx(), v.r.PostFormValue("key")), name)
	}
	if err != nil {
		return v.ask(removeImageQuestion(name), err)
	}
	v.to("/images")
	return nil
}
