package web_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"firstlight/appliance/internal/web/webtest"
)

func (c *client) request(method, path string, header map[string]string) *http.Response {
	c.t.Helper()
	r, err := http.NewRequest(method, c.s.URL+path, strings.NewReader(""))
	if err != nil {
		c.t.Fatal(err)
	}
	for k, v := range header {
		r.Header.Set(k, v)
	}
	return c.send(r)
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// SEC-06: the event stream, every upgrade and every order are refused when another site's page makes the browser send them.
func TestOtherSitesAreRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	c := s.client(t, "omar")
	own := s.URL
	other := strings.Replace(own, "127.0.0.1", "localhost", 1)
	for _, tc := range []struct {
		name, method, path string
		header             map[string]string
		want               int
	}{
		{"stream, own page, no origin as browsers send it", "GET", "/live/fleet", map[string]string{"Sec-Fetch-Site": "same-origin"}, 200},
		{"stream, own origin", "GET", "/live/fleet", map[string]string{"Origin": own}, 200},
		{"stream, other host", "GET", "/live/fleet", map[string]string{"Origin": "https://evil.example"}, 403},
		{"stream, other name of this host", "GET", "/live/fleet", map[string]string{"Origin": other}, 403},
		{"stream, other port", "GET", "/live/fleet", map[string]string{"Origin": "http://127.0.0.1:1"}, 403},
		{"stream, other scheme", "GET", "/live/fleet", map[string]string{"Origin": strings.Replace(own, "http:", "https:", 1)}, 403},
		{"stream, null", "GET", "/live/fleet", map[string]string{"Origin": "null"}, 403},
		{"stream, cross-site without origin", "GET", "/live/fleet", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		{"stream, same site but another origin", "GET", "/live/fleet", map[string]string{"Sec-Fetch-Site": "same-site"}, 403},
		{"stream, nothing said", "GET", "/live/fleet", nil, 403},
		{"upgrade, other host", "GET", "/", map[string]string{"Origin": "https://evil.example", "Upgrade": "websocket", "Connection": "Upgrade"}, 403},
		{"upgrade, no origin", "GET", "/machines/r12u01", map[string]string{"Upgrade": "websocket", "Connection": "Upgrade"}, 403},
		{"upgrade, null", "GET", "/", map[string]string{"Origin": "null", "Upgrade": "websocket", "Connection": "Upgrade"}, 403},
		{"upgrade, says same-origin alone", "GET", "/", map[string]string{"Sec-Fetch-Site": "same-origin", "Upgrade": "websocket", "Connection": "Upgrade"}, 403},
		{"upgrade in Connection alone", "GET", "/", map[string]string{"Connection": "keep-alive, Upgrade"}, 403},
		{"order, other host", "POST", "/machines/r13u08/resume", map[string]string{"Origin": "https://evil.example"}, 403},
		{"order, no origin", "POST", "/machines/r13u08/resume", nil, 403},
		{"log-in, other host", "POST", "/login", map[string]string{"Origin": "https://evil.example"}, 403},
		{"log-out, cross-site", "POST", "/logout", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		{"a link from elsewhere to a page", "GET", "/machines/r12u01", map[string]string{"Sec-Fetch-Site": "cross-site"}, 200},
	} {
		resp := c.request(tc.method, tc.path, tc.header)
		if resp.StatusCode != tc.want {
			t.Errorf("%s: %s, want %d", tc.name, resp.Status, tc.want)
		}
		resp.Body.Close()
	}
	if n := len(s.fleet.Orders()); n != 0 {
		t.Errorf("%d orders were carried out", n)
	}
}

func TestEveryAnswerHasItsHeaders(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	c := s.client(t, "omar")
	for _, path := range []string{"/", "/machines/r12u01", "/login", "/nowhere", "/assets/none.css"} {
		resp := c.request("GET", path, nil)
		csp := resp.Header.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"} {
			if !strings.Contains(csp, want) {
				t.Errorf("%s: policy %q has no %s", path, csp, want)
			}
		}
		if strings.Contains(csp, "unsafe") {
			t.Errorf("%s: policy %q", path, csp)
		}
		if resp.Header.Get("X-Content-Type-Options") != "nosniff" || resp.Header.Get("Referrer-Policy") == "" {
			t.Errorf("%s: %v", path, resp.Header)
		}
		if path == "/" && resp.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s may be kept: %q", path, resp.Header.Get("Cache-Control"))
		}
	}
}

func TestOrdersNeedTheSessionsMark(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	c, foreign := s.client(t, "omar"), s.client(t, "tina")
	m, _ := s.fleet.Get("r13u08")
	for name, mark := range map[string]string{"none": "", "another session's": foreign.csrf, "wrong": "x"} {
		c2 := *c
		c2.csrf = mark
		resp := c2.form("POST", "/machines/r13u08/resume", map[string]string{"version": m.Version, "key": "k-1"})
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("mark %s: %s", name, resp.Status)
		}
	}
	if n := len(s.fleet.Orders()); n != 0 {
		t.Errorf("%d orders were carried out", n)
	}
}

func TestSessions(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	nobody := s.client(t, "")
	for path, want := range map[string]string{"/": "/login", "/machines/r12u01?tab=log": "/login?to=%2Fmachines%2Fr12u01%3Ftab%3Dlog"} {
		if got := nobody.request("GET", path, nil).Header.Get("Location"); got != want {
			t.Errorf("%s goes to %q, want %q", path, got, want)
		}
	}
	if resp := nobody.request("GET", "/live/fleet", map[string]string{"Sec-Fetch-Site": "same-origin"}); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("stream for nobody: %s", resp.Status)
	}
	resp := nobody.form("POST", "/login", map[string]string{"name": "tina", "password": webtest.Password, "to": "//evil.example/"})
	if got := resp.Header.Get("Location"); got != "/" {
		t.Errorf("after the log-in to %q", got)
	}
	k := resp.Cookies()[0]
	if !k.HttpOnly || k.SameSite != http.SameSiteLaxMode || k.Path != "/" {
		t.Errorf("cookie %+v", k)
	}
	c := s.client(t, "tina")
	if resp := c.form("POST", "/logout", nil); resp.StatusCode != http.StatusSeeOther {
		t.Errorf("log-out: %s", resp.Status)
	}
	if got := c.request("GET", "/", nil).Header.Get("Location"); got != "/login" {
		t.Errorf("after the log-out / goes to %q", got)
	}
}

func TestTooManyWrongPasswords(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	c := s.client(t, "")
	for i := range 5 {
		resp := c.form("POST", "/login", map[string]string{"name": "tina", "password": "wrong password 1"})
		if resp.StatusCode != http.StatusUnauthorized || !strings.Contains(body(t, resp), "do not fit") {
			t.Fatalf("try %d: %s", i, resp.Status)
		}
	}
	resp := c.form("POST", "/login", map[string]string{"name": "tina", "password": webtest.Password})
	if text := body(t, resp); resp.StatusCode != http.StatusTooManyRequests || !strings.Contains(text, "Too many attempts") || strings.Contains(text, webtest.Password) {
		t.Errorf("%s: %.300s", resp.Status, text)
	}
}

// TestStream reads a stream as a program does: the page's parts at first, then only the machine that changed, marked.
func TestStream(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	c := s.client(t, "tina")
	resp := c.request("GET", "/live/machine/r14u01", map[string]string{"Sec-Fetch-Site": "same-origin"})
	if ct := resp.Header.Get("Content-Type"); ct != "text/event-stream" {
		t.Fatalf("content type %q", ct)
	}
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for sc := bufio.NewScanner(resp.Body); sc.Scan(); {
			lines <- sc.Text()
		}
	}()
	wait := func(want string) {
		t.Helper()
		limit := time.After(patience)
		for {
			select {
			case l, ok := <-lines:
				if !ok {
					t.Fatalf("the stream ended before %q", want)
				}
				if strings.Contains(l, want) {
					return
				}
			case <-limit:
				t.Fatalf("no %q", want)
			}
		}
	}
	wait("Ready to be provisioned")
	wait(`hx-target="#tab"`)
	m, _ := s.fleet.Get("r14u01")
	s.fleet.Set(webtest.At(m, "dhcp", time.Now()))
	wait(`changed-`)
	wait("Step 2 of 13: DHCP")
}

// TestFirstViewIsSmall bounds what a phone loads before it can be read.
func TestFirstViewIsSmall(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	c := s.client(t, "omar")
	total := 0
	get := func(path string) string {
		r, _ := http.NewRequest("GET", s.URL+path, nil)
		r.Header.Set("Accept-Encoding", "gzip")
		resp := c.send(r)
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != 200 || resp.Header.Get("Content-Encoding") != "gzip" {
			t.Fatalf("%s: %s %v %v", path, resp.Status, resp.Header, err)
		}
		total += len(b)
		return path
	}
	get("/")
	page := body(t, c.request("GET", "/", nil))
	for _, part := range strings.Split(page, `"`) {
		if strings.HasPrefix(part, "/assets/") {
			get(part)
		}
	}
	t.Logf("first view of a fleet of 49: %d bytes compressed, the page itself %d plain", total, len(page))
	if total > 100_000 {
		t.Errorf("first view is %d bytes, want under 100 kB", total)
	}
}
