package httpboot_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"firstlight/site/internal/discovery"
	"firstlight/site/internal/httpboot"
)

const (
	patience = 5 * time.Second
	digest   = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// boots serves the token "open", refuses "used" and knows no other.
type boots struct {
	mu   sync.Mutex
	said []string
	busy bool
}

func (b *boots) decide(token string) error {
	switch token {
	case "open":
		return nil
	case "used":
		return &httpboot.Refused{Reason: "boot lease l1 was used up"}
	case "broken":
		return errors.New("disk /var/secret is full")
	}
	return httpboot.ErrUnknown
}

func (b *boots) Script(token string, _ netip.AddrPort) ([]byte, error) {
	return []byte("#!ipxe\nboot\n"), b.decide(token)
}

func (b *boots) Token(mac string, _ netip.AddrPort) (string, error) {
	if mac != "52-54-00-77-00-01" {
		return "", httpboot.ErrUnknown
	}
	return "open", nil
}

func (b *boots) Firmware(token, name string) error {
	if name != "snponly.efi" {
		return httpboot.ErrUnknown
	}
	return b.decide(token)
}

func (b *boots) Overlay(token, name string, _ netip.AddrPort) ([]byte, error) {
	return []byte("overlay " + name), b.decide(token)
}

func (b *boots) Report(token, text string, _ netip.AddrPort) error {
	if b.busy {
		return httpboot.ErrTooMany
	}
	b.say("report %s: %s", token, text)
	return b.decide(token)
}

func (b *boots) Served(token, name string, _ netip.AddrPort) { b.say("served %s %s", token, name) }

func (b *boots) say(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.said = append(b.said, fmt.Sprintf(format, args...))
}

func (b *boots) all() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.said, "\n")
}

var kernel = bytes.Repeat([]byte("kernel"), 2000)

func setup(t *testing.T) (*boots, httpboot.Config) {
	t.Helper()
	ram, blobs, firmware := t.TempDir(), t.TempDir(), t.TempDir()
	for path, content := range map[string][]byte{
		filepath.Join(ram, discovery.KernelFile):  kernel,
		filepath.Join(ram, discovery.RAMDiskFile): []byte("ramdisk"),
		filepath.Join(ram, "secret"):              []byte("secret"),
		filepath.Join(blobs, digest):              []byte("blob"),
		filepath.Join(firmware, "snponly.efi"):    []byte("firmware"),
	} {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ramRoot, err := os.OpenRoot(ram)
	if err != nil {
		t.Fatal(err)
	}
	blobRoot, err := os.OpenRoot(blobs)
	if err != nil {
		t.Fatal(err)
	}
	firmwareRoot, err := os.OpenRoot(firmware)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ramRoot.Close(); blobRoot.Close(); firmwareRoot.Close() })
	b := &boots{}
	return b, httpboot.Config{Firmware: firmwareRoot, RAMDisk: ramRoot, Blobs: blobRoot, Boots: b, Log: slog.New(slog.DiscardHandler)}
}

// serve runs the whole server on loopback.
func serve(t *testing.T) (*boots, string) {
	t.Helper()
	b, cfg := setup(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := httpboot.Serve(ctx, l, cfg); err != nil {
			t.Errorf("serve: got %v, want nil at the end", err)
		}
	})
	t.Cleanup(func() { stop(); wg.Wait() })
	return b, l.Addr().String()
}

func TestHTTP01_HeadThenGetOnOneConnection(t *testing.T) {
	_, at := serve(t)
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	in := bufio.NewReader(c)
	for _, step := range []struct {
		method, path string
		length       int
	}{
		{"HEAD", "/f/vmlinuz", len(kernel)}, {"GET", "/f/vmlinuz", len(kernel)}, {"GET", "/f/ramdisk.cpio.zst", 7},
		{"HEAD", "/b/open/script.ipxe", 12}, {"GET", "/b/open/script.ipxe", 12},
		{"HEAD", "/b/open/boot.cpio", 17}, {"GET", "/b/open/boot.cpio", 17}, {"GET", "/b/used/boot.cpio", 26}, {"GET", "/blob/" + digest, 4},
	} {
		fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip, br\r\n\r\n", step.method, step.path)
		req, _ := http.NewRequest(step.method, "/", nil)
		resp, err := http.ReadResponse(in, req)
		if err != nil {
			t.Fatalf("%s %s: %v", step.method, step.path, err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if resp.ContentLength != int64(step.length) || len(resp.TransferEncoding) != 0 || resp.Header.Get("Content-Encoding") != "" || resp.Close {
			t.Errorf("%s %s: got length %d, encodings %v %q, close %v; want length %d, none, open", step.method, step.path,
				resp.ContentLength, resp.TransferEncoding, resp.Header.Get("Content-Encoding"), resp.Close, step.length)
		}
		if want := step.length; step.method == "GET" && len(body) != want || step.method == "HEAD" && len(body) != 0 {
			t.Errorf("%s %s: got %d bytes", step.method, step.path, len(body))
		}
	}
}

func do(h http.Handler, method, target, agent string, body io.Reader) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://10.77.0.2/", body)
	r.URL.Path = target
	r.Header.Set("User-Agent", agent)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestHTTP01_OtherMethods(t *testing.T) {
	_, cfg := setup(t)
	h := httpboot.Handler(cfg)
	for _, m := range []string{"POST", "PUT", "DELETE", "OPTIONS", "ET", "get"} {
		w := do(h, m, "/f/vmlinuz", "", nil)
		if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: got %d, Allow %q, want 405 and GET, HEAD", m, w.Code, w.Header().Get("Allow"))
		}
	}
	if w := do(h, "GET", "/b/open/report", "", nil); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "POST" {
		t.Errorf("GET report: got %d, Allow %q, want 405 and POST", w.Code, w.Header().Get("Allow"))
	}
}

func TestHTTP02_NoRedirects(t *testing.T) {
	_, at := serve(t)
	for path, want := range map[string]int{
		"//f/vmlinuz": 200, "/f//vmlinuz": 200, "/f/./vmlinuz": 200, "/F/vmlinuz": 404, "/f/VMLINUZ": 404, "/f/vmlinuz/": 200,
		"/": 404, "/f": 404, "/f/": 404, "/f/secret": 404, "/f/../f/vmlinuz": 400, "/f/%2e%2e/secret": 400, "/f/%00": 400, "/f/..%2fsecret": 400,
		"/blob/" + digest: 200, "/blob/" + strings.ToUpper(digest): 404, "/blob/" + strings.Repeat("0", 64): 404, "/blob/secret": 404,
		"/b/open/script.ipxe": 200, "/b/none/script.ipxe": 404, "/b/used/script.ipxe": 410, "/b/used/boot.cpio": 410, "/b/open/secret": 404, "/b/broken/site.cpio": 500,
		"/b/open/snponly.efi": 200, "/b/used/snponly.efi": 410, "/b/none/snponly.efi": 404, "/b/open/vmlinuz": 404,
		"/m/52-54-00-77-00-01/script.ipxe": 200, "/m/52-54-00-77-00-02/script.ipxe": 404, "/m/52-54-00-77-00-01/boot.cpio": 404,
	} {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(patience))
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		body, _ := io.ReadAll(resp.Body)
		c.Close()
		if resp.StatusCode != want || resp.Header.Get("Location") != "" {
			t.Errorf("%s: got %d, Location %q, want %d", path, resp.StatusCode, resp.Header.Get("Location"), want)
		}
		if strings.Contains(string(body), "secret") {
			t.Errorf("%s: got body %q, want nothing of this side in it", path, body)
		}
	}
}

func TestRangesCountAsPartsNotAsDownloads(t *testing.T) {
	b, cfg := setup(t)
	h := httpboot.Handler(cfg)
	r := httptest.NewRequest("GET", "/f/vmlinuz", nil)
	r.Header.Set("Range", "bytes=6-11")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusPartialContent || w.Body.String() != "kernel" || w.Header().Get("Content-Range") != "bytes 6-11/12000" {
		t.Errorf("got %d %q %q, want 206 with the part", w.Code, w.Body, w.Header().Get("Content-Range"))
	}
	do(h, "HEAD", "/f/vmlinuz", "", nil)
	if got := b.all(); got != "" {
		t.Errorf("got %q, want no download", got)
	}
	do(h, "GET", "/f/vmlinuz", "", nil)
	do(h, "GET", "/b/open/script.ipxe", "", nil)
	do(h, "GET", "/b/open/site.cpio", "", nil)
	do(h, "GET", "/b/open/snponly.efi", "", nil)
	if got, want := b.all(), "served  vmlinuz\nserved open script.ipxe\nserved open site.cpio\nserved open snponly.efi"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestHTTP03_ByteRanges(t *testing.T) {
	_, cfg := setup(t)
	h := httpboot.Handler(cfg)
	ask := func(method, path string, headers ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, path, nil)
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	whole := ask("GET", "/f/vmlinuz")
	tag := whole.Header().Get("ETag")
	if whole.Header().Get("Accept-Ranges") != "bytes" || !strings.HasPrefix(tag, `"`) || ask("HEAD", "/f/vmlinuz").Header().Get("ETag") != tag {
		t.Errorf("got Accept-Ranges %q, ETag %q, want bytes and a strong tag that stays", whole.Header().Get("Accept-Ranges"), tag)
	}
	if got := ask("GET", "/blob/"+digest).Header().Get("ETag"); got != `"`+digest+`"` {
		t.Errorf("got ETag %q for a blob, want its digest", got)
	}
	for _, c := range []struct{ ask, part string }{
		{"bytes=0-1000", "0-1000"}, {"bytes=2048-4095", "2048-4095"}, {"bytes=-512", "11488-11999"}, {"bytes=11999-", "11999-11999"},
	} {
		for _, method := range []string{"GET", "HEAD"} {
			w := ask(method, "/f/vmlinuz", "Range", c.ask)
			var from, to int
			fmt.Sscanf(c.part, "%d-%d", &from, &to)
			if w.Code != http.StatusPartialContent || w.Header().Get("Content-Range") != "bytes "+c.part+"/12000" || w.Header().Get("Content-Length") != fmt.Sprint(to-from+1) {
				t.Errorf("%s %s: got %d, %q, length %s", method, c.ask, w.Code, w.Header().Get("Content-Range"), w.Header().Get("Content-Length"))
			}
			if method == "GET" && w.Body.String() != string(kernel[from:to+1]) || method == "HEAD" && w.Body.Len() != 0 {
				t.Errorf("%s %s: got %d bytes", method, c.ask, w.Body.Len())
			}
		}
	}
	w := ask("GET", "/f/vmlinuz", "Range", "bytes=0-0,100-199")
	if kind, p, err := mime.ParseMediaType(w.Header().Get("Content-Type")); w.Code != http.StatusPartialContent || err != nil || kind != "multipart/byteranges" {
		t.Errorf("two ranges: got %d %q, want both parts", w.Code, kind)
	} else {
		parts := multipart.NewReader(w.Body, p["boundary"])
		for _, want := range []string{string(kernel[:1]), string(kernel[100:200])} {
			part, err := parts.NextPart()
			if err != nil {
				t.Fatal(err)
			}
			if b, _ := io.ReadAll(part); string(b) != want {
				t.Errorf("two ranges: got part %q, want %q", b, want)
			}
		}
	}
	if w := ask("GET", "/f/vmlinuz", "Range", "bytes=12000-"); w.Code != http.StatusRequestedRangeNotSatisfiable {
		t.Errorf("past the end: got %d, want 416", w.Code)
	}
	if w := ask("GET", "/f/vmlinuz", "Range", "bytes=0-9", "If-Range", tag); w.Code != http.StatusPartialContent {
		t.Errorf("If-Range of the same file: got %d, want 206", w.Code)
	}
	if w := ask("GET", "/f/vmlinuz", "Range", "bytes=0-9", "If-Range", `"another"`); w.Code != http.StatusOK || w.Body.Len() != len(kernel) {
		t.Errorf("If-Range of another file: got %d, %d bytes, want all of it", w.Code, w.Body.Len())
	}
}

func TestHTTP04_NamesAndEncoding(t *testing.T) {
	_, at := serve(t)
	for path, want := range map[string]int{
		"/f/vmlinuz%20": 404, "/f/vmlinuz+": 404, "/f/vmlin%75z": 200, "/f%2Fvmlinuz": 200, "/f/%2Fvmlinuz": 200, "/f/..%2Fsecret": 400,
		"/f/%2e%2e%2fsecret": 400, "/f/%252e%252e%252fsecret": 404, "/f/%2e%2e/f/vmlinuz": 400, "/f/vmlinuz%00": 400, "/f/%00": 400,
		"/f/vmlinuz%0d%0aX:y": 400, "/f/..%5csecret": 400, "/f/vmlinuz%": 400, "/f/vmlinuz?x=..%2f": 200, "/f/" + strings.Repeat("x", 200): 404,
		"/f/vmlinuz%C3%A4": 404, "/f/%23vmlinuz": 404, "/m/../f/secret/script.ipxe": 400,
	} {
		resp := raw(t, at, "GET "+path+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		if resp.StatusCode != want {
			t.Errorf("%s: got %d, want %d", path, resp.StatusCode, want)
		}
	}
	if parts, err := httpboot.SplitPath("/f/a+b"); err != nil || parts[1] != "a+b" {
		t.Errorf("got %q, %v, want + to stay +", parts, err)
	}
}

// raw sends a request as it stands and returns the answer.
func raw(t *testing.T, at, request string) *http.Response {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	io.WriteString(c, request)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	return resp
}

func TestRefusedScriptSaysWhy(t *testing.T) {
	b, cfg := setup(t)
	h := httpboot.Handler(cfg)
	for agent, status := range map[string]int{"iPXE/1.0.0+git-20190125": http.StatusOK, "curl/8": http.StatusGone} {
		w := do(h, "GET", "/b/used/script.ipxe", agent, nil)
		if w.Code != status || !strings.HasPrefix(w.Body.String(), "#!ipxe\necho Firstlight: boot lease l1 was used up\n") {
			t.Errorf("%s: got %d %q, want %d and a script with the reason", agent, w.Code, w.Body, status)
		}
	}
	if got := b.all(); got != "" {
		t.Errorf("got %q, want nothing served", got)
	}
}

func TestReports(t *testing.T) {
	b, cfg := setup(t)
	h := httpboot.Handler(cfg)
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{"POST", "/b/open/report", "join refused:\x1b[2J\n bad pin", 204},
		{"POST", "/b/open/report", strings.Repeat("x", httpboot.MaxReport), 204},
		{"POST", "/b/open/report", strings.Repeat("x", httpboot.MaxReport+1), 413},
		{"POST", "/b/open/report", " \n", 400},
		{"POST", "/b/none/report", "x", 404},
		{"GET", "/b/open/failed/kernel", "", 200},
		{"GET", "/b/open/failed/${image}", "", 404},
		{"GET", "/b/none/failed/kernel", "", 404},
	} {
		if w := do(h, c.method, c.path, "", strings.NewReader(c.body)); w.Code != c.status {
			t.Errorf("%s %s %.20q: got %d, want %d", c.method, c.path, c.body, w.Code, c.status)
		}
	}
	if got := b.all(); !strings.HasPrefix(got, "report open: join refused: [2J bad pin\n") || !strings.Contains(got, "report open: iPXE could not load or start the image kernel") {
		t.Errorf("got %q", got)
	}
	b.busy = true
	if w := do(h, "POST", "/b/open/report", "", strings.NewReader("x")); w.Code != http.StatusTooManyRequests {
		t.Errorf("too many: got %d, want 429", w.Code)
	}
}

func TestOneClientCannotTakeEveryConnection(t *testing.T) {
	_, at := serve(t)
	dial := func(host string) net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}
		c, err := d.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(patience))
		return c
	}
	answered := func(c net.Conn) bool {
		io.WriteString(c, "HEAD /f/vmlinuz HTTP/1.1\r\nHost: x\r\n\r\n")
		b := make([]byte, 12)
		_, err := io.ReadFull(c, b)
		return err == nil && string(b) == "HTTP/1.1 200"
	}
	const share = 32
	var greedy []net.Conn
	for range share {
		c := dial("127.0.0.66")
		if !answered(c) {
			t.Fatal("got no answer within the share")
		}
		greedy = append(greedy, c)
	}
	if answered(dial("127.0.0.66")) {
		t.Error("got an answer beyond the share")
	}
	if !answered(dial("127.0.0.1")) {
		t.Error("another client: got no answer")
	}
	greedy[0].Close()
	for deadline := time.Now().Add(patience); !answered(dial("127.0.0.66")); {
		if time.Now().After(deadline) {
			t.Fatal("after one was closed: got no answer")
		}
	}
}

func FuzzSplitPath(f *testing.F) {
	for _, s := range []string{"/f/vmlinuz", "//f//./x", "/f/../x", `/f/\x`, "/\x00", "/b/token/script.ipxe"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, path string) {
		parts, err := httpboot.SplitPath(path)
		if err != nil {
			return
		}
		for _, p := range parts {
			if !filepath.IsLocal(p) || strings.ContainsAny(p, "/\\\x00") {
				t.Fatalf("%q: got part %q", path, p)
			}
		}
	})
}

func FuzzCleanReport(f *testing.F) {
	f.Add([]byte("join refused:\x1b[2J\r\n bad \xff pin\u202e"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got := httpboot.CleanReport(b)
		if !utf8.ValidString(got) || strings.ContainsAny(got, "\n\r\x00\x1b\u202e\u2028") || got != strings.TrimSpace(got) {
			t.Fatalf("got %q", got)
		}
	})
}
