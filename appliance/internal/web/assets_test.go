package web

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestVendoredScripts holds the copies against what is recorded of the packages they came from, and that against the lock file.
func TestVendoredScripts(t *testing.T) {
	t.Parallel()
	lock, err := os.ReadFile("npm/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(lock, []byte(`"resolved"`)) || bytes.Contains(lock, []byte("http")) {
		t.Error("package-lock.json names where packages come from: npm/.npmrc leaves that out")
	}
	var in struct {
		Packages map[string]struct{ Version, Integrity string }
	}
	if err := json.Unmarshal(lock, &in); err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile("assets/vendor/SUMS")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for s := bufio.NewScanner(bytes.NewReader(sums)); s.Scan(); seen++ {
		f := strings.Fields(s.Text())
		if seen == 0 {
			p := in.Packages["node_modules/"+f[0]]
			if len(f) != 3 || p.Version != f[1] || p.Integrity != f[2] {
				t.Errorf("SUMS was made from %v, the lock file pins %+v: run npm/vendor.sh", f, p)
			}
			continue
		}
		data, err := os.ReadFile("assets/vendor/" + f[1])
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != f[0] {
			t.Errorf("%s is not what was copied: run npm/vendor.sh", f[1])
		}
	}
	all, err := fs.Glob(os.DirFS("assets/vendor"), "*")
	if err != nil || len(all) != seen {
		t.Errorf("%d files in assets/vendor, %d lines in SUMS (%v)", len(all), seen, err)
	}
}

func TestAssetsAreKeptForGood(t *testing.T) {
	t.Parallel()
	a, err := newAssets()
	if err != nil {
		t.Fatal(err)
	}
	hashed := regexp.MustCompile(`^/assets/[a-z]+\.[0-9a-f]{16}\.[a-z]+$`)
	for bundle, name := range a.names {
		if !hashed.MatchString(name) {
			t.Errorf("%s is served as %s", bundle, name)
		}
		for _, enc := range []string{"", "gzip", "gzip;q=0"} {
			r, w := httptest.NewRequest("GET", name, nil), httptest.NewRecorder()
			r.Header.Set("Accept-Encoding", enc)
			a.ServeHTTP(w, r)
			if w.Code != http.StatusOK || !strings.Contains(w.Header().Get("Cache-Control"), "immutable") {
				t.Errorf("%s: %d, %v", name, w.Code, w.Header())
			}
			if zipped := w.Header().Get("Content-Encoding") == "gzip"; zipped != (enc == "gzip") {
				t.Errorf("%s for %q: gzip %v", name, enc, zipped)
			}
		}
	}
	w := httptest.NewRecorder()
	a.ServeHTTP(w, httptest.NewRequest("GET", "/assets/page.0000000000000000.css", nil))
	if w.Code != http.StatusNotFound {
		t.Errorf("a name of no content: %d", w.Code)
	}
}

// TestNothingInline reads every template: the policy would refuse it, and a reader should not have to find out in a browser.
func TestNothingInline(t *testing.T) {
	t.Parallel()
	inline := regexp.MustCompile(`(?i)\sstyle=|\son[a-z]+=|<style|<script[^>]*>[^<]|javascript:|hx-on|hx-vals=.js:|https?://[^1]`)
	err := fs.WalkDir(files, "templates", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := files.ReadFile(path)
		for i, line := range strings.Split(string(data), "\n") {
			if m := inline.FindString(line); m != "" {
				t.Errorf("%s:%d: %q", path, i+1, m)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
