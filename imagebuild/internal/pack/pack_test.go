package pack_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"firstlight/imagebuild/internal/pack"
	"firstlight/imagebuild/manifest"
)

const chunk = manifest.ChunkSize

// image is five chunks: data, hole, noise, a hole but for its last byte, and a short one.
func image() []byte {
	b := make([]byte, 4*chunk+3*512)
	copy(b, bytes.Repeat([]byte("firstlight "), chunk/11))
	r := rand.New(rand.NewPCG(1, 2))
	for i := 2 * chunk; i < 3*chunk; i++ {
		b[i] = byte(r.Uint32())
	}
	b[4*chunk-1] = 1
	b[len(b)-1] = 2
	return b
}

func TestUnpackEqualsRaw(t *testing.T) {
	t.Parallel()
	raw, dir := image(), t.TempDir()
	var last int64
	chunks, err := pack.Chunks(t.Context(), bytes.NewReader(raw), int64(len(raw)), dir, func(done, total int64) {
		if done <= last || total != int64(len(raw)) {
			t.Errorf("progress: got %d of %d after %d", done, total, last)
		}
		last = done
	})
	if err != nil {
		t.Fatal(err)
	}
	if last != int64(len(raw)) {
		t.Errorf("progress: ended at %d, want %d", last, len(raw))
	}
	var offsets []int64
	got := make([]byte, len(raw))
	d, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, c := range chunks {
		offsets = append(offsets, c.Offset)
		frame, err := os.ReadFile(filepath.Join(dir, c.Compressed.String()))
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(frame)) != c.Size || manifest.DigestOf(frame) != c.Compressed {
			t.Errorf("chunk at %d: stored frame is not the one in the list", c.Offset)
		}
		plain, err := d.DecodeAll(frame, nil)
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(plain)) != c.RawSize || manifest.DigestOf(plain) != c.Raw {
			t.Errorf("chunk at %d: unpacked bytes are not the ones in the list", c.Offset)
		}
		copy(got[c.Offset:], plain)
	}
	if !bytes.Equal(got, raw) {
		t.Error("unpacked over zeros: got another image than was packed")
	}
	if want := []int64{0, 2 * chunk, 3 * chunk, 4 * chunk}; !slices.Equal(offsets, want) {
		t.Errorf("offsets: got %v, want %v: a hole is absent, and only a hole", offsets, want)
	}
	m := manifest.Manifest{Version: 1, Name: "x", RawSize: int64(len(raw)), ChunkSize: chunk, Chunks: chunks}
	if err := m.Validate(); err != nil {
		t.Errorf("the list as a manifest: %v", err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != len(chunks) {
		t.Errorf("files: got %d (error %v), want %d and nothing half done", len(files), err, len(chunks))
	}
}

func TestSameImageSameChunks(t *testing.T) {
	t.Parallel()
	raw := image()
	a, errA := pack.Chunks(t.Context(), bytes.NewReader(raw), int64(len(raw)), t.TempDir(), nil)
	b, errB := pack.Chunks(t.Context(), bytes.NewReader(raw), int64(len(raw)), t.TempDir(), nil)
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(a, b) {
		t.Errorf("packed twice: got %v and %v, want the same", a, b)
	}
}

func TestChunksErrors(t *testing.T) {
	t.Parallel()
	raw := image()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := pack.Chunks(ended, bytes.NewReader(raw), int64(len(raw)), t.TempDir(), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got error %v, want context.Canceled", err)
	}
	if _, err := pack.Chunks(t.Context(), bytes.NewReader(raw[:chunk]), int64(len(raw)), t.TempDir(), nil); err == nil || !strings.Contains(err.Error(), "chunk at ") {
		t.Errorf("image that shrank: got error %v, want one that names the chunk", err)
	}
	if _, err := pack.Chunks(t.Context(), bytes.NewReader(raw), int64(len(raw)), filepath.Join(t.TempDir(), "none"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: got error %v, want ErrNotExist", err)
	}
	if _, err := pack.Chunks(t.Context(), bytes.NewReader(raw), (manifest.MaxChunks+1)*chunk, t.TempDir(), nil); err == nil {
		t.Error("too many chunks: got no error, want one")
	}
}
