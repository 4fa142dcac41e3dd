// Package images keeps the disk images that machines are given: it takes what `imagebuild pack` wrote, verifies every blob, stores
// the blobs by their SHA-256, signs the manifest and records the image in the store.
//
// It is for appliance and its internal packages. It does not build images and does not serve them: the site agent serves BlobDir.
package images

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"firstlight/appliance/internal/store"
	"firstlight/gateway-client/envelope"
	"firstlight/imagebuild/manifest"
)

// prefix of the keys in the store.
const prefix = "images/"

// MaxImages bounds the images of one appliance.
const MaxImages = 256

var (
	// ErrUnknown: there is no image of that name.
	ErrUnknown = errors.New("image is not known")
	// ErrExists: another image has the name.
	ErrExists = errors.New("another image has this name")
	// ErrInvalid: the directory does not hold a whole, undamaged image.
	ErrInvalid = errors.New("not a whole image")
	// ErrNoRoom: the volume has no space for it beside what stays reserved, or as many images or uploads are here as may be.
	ErrNoRoom = errors.New("there is no room for it")
	// ErrIncomplete: blobs of the upload are missing.
	ErrIncomplete = errors.New("the upload is not complete")
)

// Image is one recorded image. Sizes are in bytes.
type Image struct {
	Name string `json:"name"`
	// ManifestSHA256 is the digest (hex) of the serialized signed manifest, which is a blob of that name.
	ManifestSHA256 string `json:"manifest_sha256"`
	// BodySHA256 is the digest (hex) of the manifest's body: the same image added again has the same.
	BodySHA256 string `json:"body_sha256"`
	// RawSize is the size on a disk, StoredSize that of the blobs.
	RawSize    int64 `json:"raw_size"`
	StoredSize int64 `json:"stored_size"`
	Chunks     int   `json:"chunks"`
	// KeyID is the key that signed the manifest.
	KeyID string `json:"key_id"`
	// Added is UTC with milliseconds.
	Added time.Time `json:"added"`
}

// Digest is ManifestSHA256 as bytes.
func (i Image) Digest() ([32]byte, error) {
	d, err := manifest.ParseDigest(i.ManifestSHA256)
	if err != nil {
		return [32]byte{}, fmt.Errorf("image %q: %w", i.Name, err)
	}
	return d, nil
}

// Library is the images of one appliance. It is safe for use from many goroutines.
type Library struct {
	store  store.Store
	blobs  *blobDir
	signer envelope.Signer
	now    func() time.Time
	zstd   *zstd.Decoder
	// space asks the kernel how full the volume is.
	space func(dir string) (Space, error)

	// sweeping is held while blobs are removed, and for reading while blobs are stored that no image names yet.
	sweeping sync.RWMutex

	// mu guards uploads.
	mu         sync.Mutex
	uploadsDir string
	uploads    map[string]*upload
}

// New opens the library whose blobs are in dir, which is made when missing. Uploads that are not finished are kept beside it, in
// "uploads".
func New(s store.Store, dir string, signer envelope.Signer, now func() time.Time) (*Library, error) {
	l := &Library{store: s, signer: signer, now: now, space: volume, uploadsDir: filepath.Join(filepath.Dir(dir), "uploads"), uploads: map[string]*upload{}}
	var err error
	if l.blobs, err = openBlobs(dir); err == nil {
		l.zstd, err = newDecoder(uploadsAtOnce)
	}
	if err == nil {
		err = l.openUploads()
	}
	if err != nil {
		return nil, fmt.Errorf("open images: %w", err)
	}
	return l, nil
}

// Get returns the image of that name, or ErrUnknown.
func (l *Library) Get(ctx context.Context, name string) (Image, error) {
	img, _, err := l.get(ctx, name)
	return img, err
}

func (l *Library) get(ctx context.Context, name string) (Image, int64, error) {
	if !manifest.ValidName(name) {
		return Image{}, 0, fmt.Errorf("image %q: %w", name, ErrUnknown)
	}
	e, err := l.store.Get(ctx, prefix+name)
	if errors.Is(err, store.ErrNotFound) {
		return Image{}, 0, fmt.Errorf("image %q: %w", name, ErrUnknown)
	}
	if err != nil {
		return Image{}, 0, err
	}
	img, err := decode(e)
	return img, e.Rev, err
}

// List returns all images by name.
func (l *Library) List(ctx context.Context) ([]Image, error) {
	entries, err := l.store.List(ctx, prefix)
	if err != nil {
		return nil, err
	}
	out := make([]Image, 0, len(entries))
	for _, e := range entries {
		img, err := decode(e)
		if err != nil {
			return nil, err
		}
		out = append(out, img)
	}
	return out, nil
}

func decode(e store.Entry) (Image, error) {
	var img Image
	if err := json.Unmarshal(e.Value, &img); err != nil {
		return Image{}, fmt.Errorf("decode %s: %w", e.Key, err)
	}
	return img, nil
}

// Add takes the image in dir (manifest.json and blobs/) under the name. Nothing is recorded unless every blob is there, has its
// size and both its digests, and is stored durably. The same image again is that image; another one under a known name is
// ErrExists.
func (l *Library) Add(ctx context.Context, name, dir string) (Image, error) {
	if !manifest.ValidName(name) {
		return Image{}, fmt.Errorf("add image %q: %w: want a name of 1 to %d letters, digits, '.', '_', '-'", name, ErrInvalid, manifest.MaxName)
	}
	img, err := l.add(ctx, name, dir)
	if err != nil {
		return Image{}, fmt.Errorf("add image %q: %w", name, err)
	}
	return img, nil
}

func (l *Library) add(ctx context.Context, name, dir string) (Image, error) {
	l.sweeping.RLock()
	defer l.sweeping.RUnlock()
	src, err := openSource(dir)
	if err != nil {
		return Image{}, err
	}
	defer src.Close()
	body, m, err := src.manifest()
	if err != nil {
		return Image{}, err
	}
	known, err := l.known(ctx, name, body)
	if err != nil {
		return Image{}, err
	}
	if known == nil {
		if err := l.room(ctx, m, ""); err != nil {
			return Image{}, err
		}
	}
	if err := l.copyChunks(ctx, src, m); err != nil {
		return Image{}, err
	}
	// The signature of a known image stays as it is, because workflows refer to it by digest.
	if known != nil {
		return *known, nil
	}
	return l.record(ctx, name, body, m)
}

// known returns the image of this name and body, nil when there is none, or ErrExists when the name is another's.
func (l *Library) known(ctx context.Context, name string, body []byte) (*Image, error) {
	img, _, err := l.get(ctx, name)
	switch {
	case errors.Is(err, ErrUnknown):
		return nil, nil
	case err != nil:
		return nil, err
	case img.BodySHA256 != manifest.DigestOf(body).String():
		return nil, ErrExists
	}
	return &img, nil
}

// record signs the manifest of an image whose blobs are stored, and makes it known.
func (l *Library) record(ctx context.Context, name string, body []byte, m *manifest.Manifest) (Image, error) {
	signed, err := manifest.Sign(body, l.signer)
	if err != nil {
		return Image{}, err
	}
	sum := manifest.DigestOf(signed)
	if err := l.blobs.put(sum, signed); err != nil {
		return Image{}, err
	}
	if err := l.blobs.sync(); err != nil {
		return Image{}, err
	}
	stored := int64(len(signed))
	for _, c := range unique(m) {
		stored += c.Size
	}
	img := Image{Name: name, ManifestSHA256: sum.String(), BodySHA256: manifest.DigestOf(body).String(), RawSize: m.RawSize,
		StoredSize: stored, Chunks: len(m.Chunks), Added: l.now().UTC().Truncate(time.Millisecond)}
	if img.KeyID, err = l.keyID(); err != nil {
		return Image{}, err
	}
	value, err := json.Marshal(img)
	if err != nil {
		return Image{}, err
	}
	if _, err := l.store.Put(ctx, prefix+name, value, 0); errors.Is(err, store.ErrConflict) {
		return Image{}, ErrExists
	} else if err != nil {
		return Image{}, err
	}
	return img, nil
}

// copyChunks verifies and stores every chunk.
func (l *Library) copyChunks(ctx context.Context, src *source, m *manifest.Manifest) error {
	seen := make(map[manifest.Digest]bool, len(m.Chunks))
	for i, c := range m.Chunks {
		if err := ctx.Err(); err != nil {
			return err
		}
		blob, err := src.chunk(c)
		if err != nil {
			return fmt.Errorf("%w: chunk %d of %d: %w", ErrInvalid, i+1, len(m.Chunks), err)
		}
		if seen[c.Compressed] {
			continue
		}
		seen[c.Compressed] = true
		if err := l.put(c, blob); err != nil {
			return err
		}
	}
	return l.blobs.sync()
}

// unique are the chunks of a manifest, one for each blob, in its order.
func unique(m *manifest.Manifest) []manifest.Chunk {
	out := make([]manifest.Chunk, 0, len(m.Chunks))
	seen := make(map[manifest.Digest]bool, len(m.Chunks))
	for _, c := range m.Chunks {
		if !seen[c.Compressed] {
			seen[c.Compressed] = true
			out = append(out, c)
		}
	}
	return out
}

func (l *Library) keyID() (string, error) {
	sig, err := l.signer.Sign(envelope.ImageManifest)
	if err != nil {
		return "", err
	}
	return sig.Kid, nil
}

// name of a blob in its directory.
func blobName(d manifest.Digest) string { return hex.EncodeToString(d[:]) }
