package httpboot_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"firstlight/site/internal/httpboot"
)

// What is counted of an answer is a word of the list, whatever a path says, and the bytes that left.
func TestMeterIsToldOfEveryAnswer(t *testing.T) {
	t.Parallel()
	_, cfg := setup(t)
	var told string
	cfg.Meter = func(file string, status int, bytes int64) { told = fmt.Sprintf("%s %d %d", file, status, bytes) }
	h := httpboot.Handler(cfg)
	for _, c := range []struct{ method, path, want string }{
		{http.MethodGet, "/f/vmlinuz", "kernel 200 12000"}, {http.MethodHead, "/f/vmlinuz", "kernel 200 0"},
		{http.MethodGet, "/f/ramdisk.cpio.zst", "ramdisk 200 7"}, {http.MethodGet, "/blob/" + digest, "image 200 4"},
		{http.MethodGet, "/b/open/script.ipxe", "script 200 12"}, {http.MethodGet, "/m/52-54-00-77-00-01/script.ipxe", "script 200 12"},
		{http.MethodGet, "/b/open/boot.cpio", "boot 200 17"}, {http.MethodGet, "/b/open/site.cpio", "site 200"},
		{http.MethodGet, "/b/open/snponly.efi", "firmware 200 8"}, {http.MethodGet, "/b/none/script.ipxe", "script 404 10"},
		{http.MethodPost, "/b/open/report", "report 204 0"}, {http.MethodGet, "/blob/attacker-says", "other 404 10"},
		{http.MethodGet, "/b/open/a/b/c", "other 404 10"}, {http.MethodGet, "/%ff/\x01", "other 400"}, {http.MethodGet, "/", "other 404 10"},
	} {
		told = ""
		r := httptest.NewRequest(c.method, "/", strings.NewReader("says"))
		r.URL.Path = c.path
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		io.Copy(io.Discard, w.Result().Body)
		if !strings.HasPrefix(told, c.want) {
			t.Errorf("%s %q: told %q, want %q", c.method, c.path, told, c.want)
		}
	}
}
