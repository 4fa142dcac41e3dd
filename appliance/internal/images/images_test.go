package images

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"firstlight/appliance/internal/store/storetest"
	"firstlight/gateway-client/envelope"
	"firstlight/imagebuild/manifest"
)

var added = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

const chunkSize = 1 << 20

// pack writes an image of two chunks and a hole between them, filled with the byte, and returns its directory.
func pack(t *testing.T, fill byte) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "blobs"), 0o755); err != nil {
		t.Fatal(err)
	}
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	m := manifest.Manifest{Version: manifest.Version, Name: "demo", RawSize: 3 * chunkSize, ChunkSize: chunkSize}
	for i, offset := range []int64{0, 2 * chunkSize} {
		raw := bytes.Repeat([]byte{fill, byte(i)}, chunkSize/2)
		blob := enc.EncodeAll(raw, nil)
		c := manifest.Chunk{Offset: offset, RawSize: chunkSize, Size: int64(len(blob)), Raw: manifest.DigestOf(raw), Compressed: manifest.DigestOf(blob)}
		m.Chunks = append(m.Chunks, c)
		write(t, filepath.Join(dir, "blobs", c.Compressed.String()), blob)
	}
	body, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "manifest.json"), body)
	return dir
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func library(t *testing.T) *Library {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	l, err := New(storetest.New(), filepath.Join(t.TempDir(), "blobs"), envelope.Signer{Key: key}, func() time.Time { return added })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestAdd(t *testing.T) {
	l, dir := library(t), pack(t, 'a')
	img, err := l.Add(t.Context(), "debian-12", dir)
	if err != nil {
		t.Fatal(err)
	}
	if img.RawSize != 3*chunkSize || img.Chunks != 2 || !img.Added.Equal(added) || img.KeyID == "" {
		t.Errorf("got %+v, want 3 MiB in 2 chunks", img)
	}
	signed, err := os.ReadFile(filepath.Join(l.blobs.dir, img.ManifestSHA256))
	if err != nil {
		t.Fatal(err)
	}
	if got := manifest.DigestOf(signed); got.String() != img.ManifestSHA256 {
		t.Errorf("signed manifest: got SHA-256 %s, want %s", got, img.ManifestSHA256)
	}
	names, err := os.ReadDir(l.blobs.dir)
	if err != nil || len(names) != 3 {
		t.Errorf("got %d blobs, %v, want two chunks and the manifest", len(names), err)
	}
	for _, n := range names {
		data, err := os.ReadFile(filepath.Join(l.blobs.dir, n.Name()))
		if err != nil || manifest.DigestOf(data).String() != n.Name() {
			t.Errorf("blob %s: content is not its name, %v", n.Name(), err)
		}
	}
	if got, err := l.Get(t.Context(), "debian-12"); err != nil || got != img {
		t.Errorf("Get: got %+v, %v, want %+v", got, err, img)
	}
	if all, err := l.List(t.Context()); err != nil || len(all) != 1 || all[0] != img {
		t.Errorf("List: got %+v, %v", all, err)
	}
}

func TestAddAgain(t *testing.T) {
	l, dir := library(t), pack(t, 'a')
	first, err := l.Add(t.Context(), "demo", dir)
	if err != nil {
		t.Fatal(err)
	}
	// A blob that went bad in the library is replaced.
	m, err := manifest.Decode(mustRead(t, filepath.Join(dir, "manifest.json")))
	if err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(l.blobs.dir, m.Chunks[0].Compressed.String())
	write(t, bad, []byte("bad"))
	again, err := l.Add(t.Context(), "demo", dir)
	if err != nil || again != first {
		t.Errorf("same image: got %+v, %v, want %+v", again, err, first)
	}
	if manifest.DigestOf(mustRead(t, bad)) != m.Chunks[0].Compressed {
		t.Error("the damaged blob is still there")
	}
	if _, err := l.Add(t.Context(), "demo", pack(t, 'b')); !errors.Is(err, ErrExists) {
		t.Errorf("another image: got %v, want ErrExists", err)
	}
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestAddRefuses(t *testing.T) {
	first := func(t *testing.T, dir string) string {
		m, err := manifest.Decode(mustRead(t, filepath.Join(dir, "manifest.json")))
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, "blobs", m.Chunks[0].Compressed.String())
	}
	for _, tc := range []struct {
		name, image, word string
		spoil             func(t *testing.T, dir string)
	}{
		{"bad name", "../demo", "name", func(*testing.T, string) {}},
		{"blob missing", "demo", "chunk 1 of 2", func(t *testing.T, dir string) {
			if err := os.Remove(first(t, dir)); err != nil {
				t.Fatal(err)
			}
		}},
		{"blob altered", "demo", "SHA-256", func(t *testing.T, dir string) {
			data := mustRead(t, first(t, dir))
			data[len(data)-1] ^= 1
			write(t, first(t, dir), data)
		}},
		{"blob longer", "demo", "bytes", func(t *testing.T, dir string) {
			write(t, first(t, dir), append(mustRead(t, first(t, dir)), 0))
		}},
		{"blob is a link out", "demo", "blobs", func(t *testing.T, dir string) {
			outside := filepath.Join(t.TempDir(), "blob")
			write(t, outside, mustRead(t, first(t, dir)))
			if err := errors.Join(os.Remove(first(t, dir)), os.Symlink(outside, first(t, dir))); err != nil {
				t.Fatal(err)
			}
		}},
		{"manifest altered", "demo", "manifest.json", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "manifest.json"), append(mustRead(t, filepath.Join(dir, "manifest.json")), '\n'))
		}},
		{"manifest missing", "demo", "manifest.json", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "manifest.json")); err != nil {
				t.Fatal(err)
			}
		}},
		{"raw digest wrong", "demo", "raw SHA-256", func(t *testing.T, dir string) {
			m, err := manifest.Decode(mustRead(t, filepath.Join(dir, "manifest.json")))
			if err != nil {
				t.Fatal(err)
			}
			m.Chunks[0].Raw[0] ^= 1
			body, err := m.Encode()
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "manifest.json"), body)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, dir := library(t), pack(t, 'a')
			tc.spoil(t, dir)
			_, err := l.Add(t.Context(), tc.image, dir)
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tc.word) {
				t.Errorf("got %v, want ErrInvalid that says %q", err, tc.word)
			}
			if all, err := l.List(t.Context()); err != nil || len(all) != 0 {
				t.Errorf("recorded: got %v, %v, want nothing", all, err)
			}
		})
	}
}

func TestGetUnknown(t *testing.T) {
	for _, name := range []string{"none", "", "../x"} {
		if _, err := library(t).Get(t.Context(), name); !errors.Is(err, ErrUnknown) {
			t.Errorf("%q: got %v, want ErrUnknown", name, err)
		}
	}
}

func TestNewSweepsUnfinishedBlobs(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, ".new-123"), []byte("half"))
	if _, err := openBlobs(dir); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("got %d files, %v, want none", len(left), err)
	}
}
