package appliance

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"firstlight/appliance/internal/auth"
)

// post sends a form as a browser does that shows the page; it returns where the browser ends up and what it sees.
func post(t *testing.T, c *http.Client, page, path string, form url.Values) (string, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "POST", page+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Origin", strings.TrimSuffix(page, "/"))
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Request.URL.Path, string(body)
}

// The code of the first start is good once, in any spelling; and a browser that is signed in cannot be made to call the API.
func TestSignInByThePage(t *testing.T) {
	var console screen
	startWith(t, "[web]\nlisten = \"127.0.0.1:0\"\n", func(c *Config) { c.Console = &console })
	page := console.says(t, `page (\S+)\n`)
	sum := console.says(t, `certificate SHA-256 (\S+)\n`)
	code := console.says(t, `one-time code (\S+) `)
	anna, form := browser(t, sum), url.Values{"code": {strings.ToLower(code)}, "name": {"anna"}, "password": {annas}, "again": {annas}}
	if at, body := post(t, anna, page, "setup", form); at != "/" || !strings.Contains(body, "anna") {
		t.Fatalf("the code leads to %s: %.300s", at, body)
	}
	form.Set("name", "eve")
	for what, tc := range map[string]struct {
		path string
		form url.Values
		to   string
	}{
		"the code again":   {"setup", form, "/login"},
		"a wrong password": {"login", url.Values{"name": {"anna"}, "password": {"something else"}}, "/login"},
		"the password":     {"login", url.Values{"name": {"anna"}, "password": {annas}}, "/"},
	} {
		if at, _ := post(t, browser(t, sum), page, tc.path, tc.form); at != tc.to {
			t.Errorf("%s leads to %s, want %s", what, at, tc.to)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), "GET", page+"v1/machines", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := anna.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("the API with the browser's own cookies: got %d, want 401", resp.StatusCode)
	}
}

// A page that somebody has open, with its live stream, does not hold up the end (start's cleanup holds the appliance to its time).
func TestAnOpenPageDoesNotHoldUpTheEnd(t *testing.T) {
	var console screen
	p := startWith(t, "[web]\nlisten = \"127.0.0.1:0\"\n", func(c *Config) { c.Console = &console })
	if err := p.accounts.AddUser(t.Context(), "anna", auth.RoleViewer, auth.NewSecret(annas)); err != nil {
		t.Fatal(err)
	}
	page := p.web.url()
	anna := browser(t, console.says(t, `SHA-256 (\S+)\n`))
	if at, body := post(t, anna, page, "login", url.Values{"name": {"anna"}, "password": {annas}}); at != "/" {
		t.Fatalf("sign in leads to %s: %.300s", at, body)
	}
	r, err := http.NewRequest("GET", page+"live/fleet", nil) // not the test's context: it ends before the cleanup
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	resp, err := anna.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || !strings.HasPrefix(kind, "text/event-stream") {
		t.Fatalf("got %d of %s, want a stream", resp.StatusCode, kind)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, resp.Body)
		ended <- err
	}()
	t.Cleanup(func() { resp.Body.Close() })
	select {
	case err := <-ended:
		t.Fatalf("the stream ended by itself: %v", err)
	default:
	}
}
