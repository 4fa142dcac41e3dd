package web_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"firstlight/appliance/internal/web/webtest"
	"firstlight/imagebuild/manifest"
)

// packed writes an image of n parts as imagebuild does, and returns its directory and files.
func packed(t *testing.T, n int) (dir string, files []string) {
	t.Helper()
	dir = t.TempDir()
	const size = 1 << 20
	m := manifest.Manifest{Version: manifest.Version, Name: "demo", RawSize: int64(n) * size, ChunkSize: size}
	for i := range n {
		blob := bytes.Repeat([]byte{byte(i), 7}, 5000+i)
		c := manifest.Chunk{Offset: int64(i) * size, RawSize: size, Size: int64(len(blob)), Raw: manifest.DigestOf([]byte{byte(i)}), Compressed: manifest.DigestOf(blob)}
		m.Chunks = append(m.Chunks, c)
		files = append(files, write(t, filepath.Join(dir, c.Compressed.String()), blob))
	}
	body, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return dir, append(files, write(t, filepath.Join(dir, "manifest.json"), body))
}

func write(t *testing.T, path string, data []byte) string {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestBrowserUpload sends an image, first with a part missing: what arrived is not sent again.
func TestBrowserUpload(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	ctx := browserTest(t)
	dir, files := packed(t, 5)
	last := files[4]
	data, err := os.ReadFile(last)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(last); err != nil {
		t.Fatal(err)
	}
	// Which parts come first is by their digests; all but the missing one that come before it are sent.
	pick := func() step {
		return chromedp.Steps(chromedp.Navigate(s.URL+"/images"), fill(`[name=name]`, "fresh"), chromedp.SetUploadFiles(chromedp.CSS(`[name=dir]`), []string{dir}))
	}
	do(t, ctx, "sign in", s.signIn("omar"))
	do(t, ctx, "a directory that is not whole", pick(), click("#upload .primary"), says("#up-three", "does not hold the part"), says("#up-three", "make the image again"))
	sent := len(s.puts())
	write(t, last, data)
	do(t, ctx, "the whole one", pick(), click("#upload .primary"), says("main table", "fresh"), says("main table", "verified and signed"))
	if rest := len(s.puts()); sent+rest != 5 {
		t.Errorf("%d parts were sent at first and %d then, want 5 in all: what was there is not sent again", sent, rest)
	}
}
