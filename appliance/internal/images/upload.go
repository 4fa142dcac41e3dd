package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"firstlight/imagebuild/manifest"
)

// Bounds of uploads.
const (
	// MaxUploads bounds the uploads that are not finished.
	MaxUploads = 16
	// UploadLife is how long an upload is kept after its last blob came.
	UploadLife = 7 * 24 * time.Hour
	// uploadsAtOnce bounds the blobs that are verified at one time: each takes the memory of a chunk and of its blob.
	uploadsAtOnce = 4
	// idLen is the length of an upload's id, hex.
	idLen = 32
)

// Upload is an image whose blobs come one by one.
type Upload struct {
	ID, Name string
	// Missing are the blobs that are not here, in the manifest's order.
	Missing []manifest.Digest
	// Total and Have are bytes of blobs.
	Total, Have int64
	Began       time.Time
	// Image is the image when it is known already, and else nil.
	Image *Image
}

// upload is what is kept of one. Its file has the exported part; what is missing is found again from the blobs.
type upload struct {
	Name     string    `json:"name"`
	Began    time.Time `json:"began"`
	Manifest []byte    `json:"manifest"`

	id       string
	manifest *manifest.Manifest
	chunks   map[manifest.Digest]manifest.Chunk

	// mu guards missing and have.
	mu          sync.Mutex
	missing     map[manifest.Digest]bool
	total, have int64
}

// openUploads reads what a restart left. A file that does not read is removed: its upload begins again.
func (l *Library) openUploads() error {
	if err := os.MkdirAll(l.uploadsDir, 0o700); err != nil {
		return err
	}
	names, err := os.ReadDir(l.uploadsDir)
	if err != nil {
		return err
	}
	for _, e := range names {
		path := filepath.Join(l.uploadsDir, e.Name())
		id, ok := strings.CutSuffix(e.Name(), ".json")
		data, err := os.ReadFile(path)
		var u upload
		if err == nil {
			err = json.Unmarshal(data, &u)
		}
		if err == nil {
			err = l.prepare(&u)
		}
		if !ok || err != nil || u.id != id {
			if err := os.Remove(path); err != nil {
				return err
			}
			continue
		}
		l.uploads[id] = &u
	}
	return nil
}

// prepare fills what the file does not have.
func (l *Library) prepare(u *upload) error {
	m, err := manifest.Decode(u.Manifest)
	if err != nil {
		return fmt.Errorf("%w: manifest: %w", ErrInvalid, err)
	}
	u.manifest, u.chunks, u.missing = m, map[manifest.Digest]manifest.Chunk{}, map[manifest.Digest]bool{}
	u.id = manifest.DigestOf([]byte(u.Name + "\x00" + manifest.DigestOf(u.Manifest).String())).String()[:idLen]
	for _, c := range unique(m) {
		u.chunks[c.Compressed] = c
		u.total += c.Size
		if l.blobs.has(c.Compressed, c.Size) {
			u.have += c.Size
		} else {
			u.missing[c.Compressed] = true
		}
	}
	return nil
}

// show is the upload as it is now; with missing only when it is wanted, because it may be long.
func (u *upload) show(missing bool) Upload {
	u.mu.Lock()
	defer u.mu.Unlock()
	out := Upload{ID: u.id, Name: u.Name, Total: u.total, Have: u.have, Began: u.Began, Missing: []manifest.Digest{}}
	if !missing {
		return out
	}
	for _, c := range unique(u.manifest) {
		if u.missing[c.Compressed] {
			out.Missing = append(out.Missing, c.Compressed)
		}
	}
	return out
}

// BeginUpload begins to take the image with this manifest under the name, or goes on with it. It is refused (ErrNoRoom) before a
// byte of it is stored when the whole would not fit beside the reserve.
func (l *Library) BeginUpload(ctx context.Context, name string, body []byte) (Upload, error) {
	up, err := l.beginUpload(ctx, name, body)
	if err != nil {
		return Upload{}, fmt.Errorf("add image %q: %w", name, err)
	}
	return up, nil
}

func (l *Library) beginUpload(ctx context.Context, name string, body []byte) (Upload, error) {
	if !manifest.ValidName(name) {
		return Upload{}, fmt.Errorf("%w: want a name of 1 to %d letters, digits, '.', '_', '-'", ErrInvalid, manifest.MaxName)
	}
	l.sweeping.RLock()
	defer l.sweeping.RUnlock()
	u := &upload{Name: name, Began: l.now().UTC().Truncate(time.Millisecond), Manifest: body}
	if err := l.prepare(u); err != nil {
		return Upload{}, err
	}
	known, err := l.known(ctx, name, body)
	if err != nil {
		return Upload{}, err
	}
	if known != nil && len(u.missing) == 0 {
		out := u.show(false)
		out.Image = known
		return out, nil
	}
	l.mu.Lock()
	there := l.uploads[u.id]
	l.mu.Unlock()
	if there != nil {
		u = there
	}
	if err := l.room(ctx, u.manifest, u.id); err != nil {
		return Upload{}, err
	}
	if there == nil {
		if err := l.keep(u); err != nil {
			return Upload{}, err
		}
	}
	return u.show(true), nil
}

// keep stores a new upload, after forgetting those that nobody went on with.
func (l *Library) keep(u *upload) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.uploads {
		info, err := os.Stat(l.file(id))
		if err == nil && l.now().Sub(info.ModTime()) > UploadLife {
			delete(l.uploads, id)
			if err := os.Remove(l.file(id)); err != nil {
				return err
			}
		}
	}
	if len(l.uploads) >= MaxUploads {
		return fmt.Errorf("%w: %d uploads are not finished, the limit", ErrNoRoom, MaxUploads)
	}
	data, err := json.Marshal(u)
	if err != nil {
		return err
	}
	if err := writeFile(l.file(u.id), data); err != nil {
		return fmt.Errorf("store upload: %w", err)
	}
	l.uploads[u.id] = u
	return nil
}

func (l *Library) file(id string) string { return filepath.Join(l.uploadsDir, id+".json") }

// writeFile makes a file that is there whole or not at all.
func writeFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), unfinished)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

func (l *Library) upload(id string) (*upload, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.uploads[id]
	if u == nil {
		return nil, fmt.Errorf("upload %.64q: %w", id, ErrUnknown)
	}
	return u, nil
}

// Upload says how far an upload is.
func (l *Library) Upload(id string) (Upload, error) {
	u, err := l.upload(id)
	if err != nil {
		return Upload{}, err
	}
	return u.show(true), nil
}

// PutBlob takes one blob of an upload: nothing is stored unless it has the size and both the digests that the manifest says. A blob
// that is here already is taken again. The answer leaves Missing out.
func (l *Library) PutBlob(_ context.Context, id string, d manifest.Digest, from io.Reader) (Upload, error) {
	u, err := l.upload(id)
	if err != nil {
		return Upload{}, err
	}
	c, ok := u.chunks[d]
	if !ok {
		return Upload{}, fmt.Errorf("blob %s: %w: the manifest of %q does not name it", d, ErrInvalid, u.Name)
	}
	if err := l.fits(c.Size, 1); err != nil {
		return Upload{}, fmt.Errorf("blob %s: %w", d, err)
	}
	blob := make([]byte, c.Size)
	if n, err := io.ReadFull(from, blob); err != nil {
		return Upload{}, fmt.Errorf("blob %s: %w: it broke off after %d of %d bytes", d, ErrInvalid, n, c.Size)
	}
	if n, err := from.Read(make([]byte, 1)); n > 0 {
		return Upload{}, fmt.Errorf("blob %s: %w: over the %d bytes that the manifest says", d, ErrInvalid, c.Size)
	} else if err != nil && !errors.Is(err, io.EOF) {
		return Upload{}, fmt.Errorf("blob %s: %w: %w", d, ErrInvalid, err)
	}
	if err := verify(l.zstd, c, blob); err != nil {
		return Upload{}, fmt.Errorf("blob %s: %w: %w", d, ErrInvalid, err)
	}
	// Not before the blob is here: who sends slowly must not hold up whoever removes an image, and with him every order.
	l.sweeping.RLock()
	defer l.sweeping.RUnlock()
	if u, err = l.upload(id); err != nil {
		return Upload{}, err // it was dropped meanwhile, and what it brought is swept
	}
	if err := l.put(c, blob); err != nil {
		return Upload{}, fmt.Errorf("blob %s: %w", d, err)
	}
	u.got(c)
	now := time.Now()
	return u.show(false), os.Chtimes(l.file(id), now, now)
}

func (u *upload) got(c manifest.Chunk) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.missing[c.Compressed] {
		delete(u.missing, c.Compressed)
		u.have += c.Size
	}
}

// lost notes that a blob is not here after all.
func (u *upload) lost(c manifest.Chunk) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.missing[c.Compressed] {
		u.missing[c.Compressed] = true
		u.have -= c.Size
	}
}

// promised is what uploads but own still may bring.
func (l *Library) promised(own string) (bytes, files int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, u := range l.uploads {
		if id == own {
			continue
		}
		u.mu.Lock()
		bytes, files = bytes+u.total-u.have, files+int64(len(u.missing))
		u.mu.Unlock()
	}
	return bytes, files
}

// FinishUpload reads every blob of an upload back and makes it an image. Blobs that are missing or went bad are ErrIncomplete, and are
// then wanted again.
func (l *Library) FinishUpload(ctx context.Context, id string) (Image, error) {
	u, err := l.upload(id)
	if err != nil {
		return Image{}, err
	}
	l.sweeping.RLock()
	img, err := l.finish(ctx, u)
	l.sweeping.RUnlock()
	if err != nil {
		return Image{}, fmt.Errorf("add image %q: %w", u.Name, err)
	}
	return img, l.forget(id)
}

func (l *Library) finish(ctx context.Context, u *upload) (Image, error) {
	if n := len(u.show(true).Missing); n > 0 {
		return Image{}, fmt.Errorf("%w: %d of %d blobs are missing", ErrIncomplete, n, len(u.chunks))
	}
	bad := 0
	for _, c := range u.chunks {
		if err := ctx.Err(); err != nil {
			return Image{}, err
		}
		if !l.blobs.whole(c.Compressed) {
			u.lost(c)
			bad++
		}
	}
	if bad > 0 {
		return Image{}, fmt.Errorf("%w: %d of %d blobs did not read back as they were sent", ErrIncomplete, bad, len(u.chunks))
	}
	if err := l.blobs.sync(); err != nil {
		return Image{}, err
	}
	known, err := l.known(ctx, u.Name, u.Manifest)
	if err != nil {
		return Image{}, err
	}
	if known != nil {
		return *known, nil
	}
	return l.record(ctx, u.Name, u.Manifest, u.manifest)
}

func (l *Library) forget(id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.uploads, id)
	if err := os.Remove(l.file(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("forget upload: %w", err)
	}
	return nil
}
