package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed assets templates
var files embed.FS

// bundles are the files that browsers load, each made of parts in their order.
var bundles = []struct {
	name, kind string
	parts      []string
}{
	{"page.css", "text/css; charset=utf-8", []string{"tokens.css", "base.css", "pages.css", "small.css"}},
	{"page.js", "text/javascript; charset=utf-8", []string{"vendor/htmx.js", "vendor/hx-sse.js", "page.js"}},
	{"upload.js", "text/javascript; charset=utf-8", []string{"upload.js"}},
	{"icon.svg", "image/svg+xml", []string{"icon.svg"}},
}

// asset is one file under a name that holds its content's digest, so browsers may keep it for good.
type asset struct {
	kind        string
	plain, gzip []byte
}

// assets serves the bundles.
type assets struct {
	// names maps page.css to /assets/page.0123456789abcdef.css.
	names map[string]string
	files map[string]asset
}

func newAssets() (*assets, error) {
	a := &assets{names: map[string]string{}, files: map[string]asset{}}
	for _, b := range bundles {
		var all bytes.Buffer
		for _, p := range b.parts {
			data, err := files.ReadFile("assets/" + p)
			if err != nil {
				return nil, fmt.Errorf("asset %s: %w", b.name, err)
			}
			all.Write(data)
			if !bytes.HasSuffix(data, []byte("\n")) {
				all.WriteByte('\n')
			}
		}
		sum := sha256.Sum256(all.Bytes())
		ext := path.Ext(b.name)
		name := "/assets/" + strings.TrimSuffix(b.name, ext) + "." + hex.EncodeToString(sum[:8]) + ext
		a.names[b.name] = name
		a.files[name] = asset{kind: b.kind, plain: all.Bytes(), gzip: zipped(all.Bytes())}
	}
	return a, nil
}

func zipped(data []byte) []byte {
	var out bytes.Buffer
	z, _ := gzip.NewWriterLevel(&out, gzip.BestCompression)
	z.Write(data)
	z.Close()
	return out.Bytes()
}

func (a *assets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f, ok := a.files[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	body := f.plain
	h.Set("Vary", "Accept-Encoding")
	if takesGzip(r) {
		h.Set("Content-Encoding", "gzip")
		body = f.gzip
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}

func takesGzip(r *http.Request) bool {
	for enc := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, q, _ := strings.Cut(strings.TrimSpace(enc), ";")
		if name == "gzip" && strings.TrimSpace(q) != "q=0" {
			return true
		}
	}
	return false
}
