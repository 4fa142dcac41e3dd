package web_test

import (
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/web/webtest"
)

var hidden = regexp.MustCompile(`name="(version|key)" value="([^"]*)"`)

// question opens a confirmation page and returns what its form would send besides what a person types.
func (c *client) question(path string) map[string]string {
	c.t.Helper()
	resp := c.request("GET", path, nil)
	page := body(c.t, resp)
	if resp.StatusCode != http.StatusOK {
		c.t.Fatalf("%s: %s\n%.500s", path, resp.Status, page)
	}
	_, form, _ := strings.Cut(page, "<form method=\"post\" action=\""+path)
	out := map[string]string{}
	for _, m := range hidden.FindAllStringSubmatch(form, -1) {
		out[m[1]] = m[2]
	}
	if out["key"] == "" || out["version"] == "" {
		c.t.Fatalf("%s: the form has %v", path, out)
	}
	return out
}

func with(in map[string]string, pairs ...string) map[string]string {
	out := map[string]string{}
	for k, v := range in {
		out[k] = v
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		out[pairs[i]] = pairs[i+1]
	}
	return out
}

// APP-04: a destructive order is for exactly what was shown: a machine that changed since is refused, and a second click is the first.
func TestDestructiveOrderHitsWhatWasShown(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	c := s.client(t, "tina")
	const path = "/machines/r14u01/provision"
	page := body(t, c.request("GET", path, nil))
	m, _ := s.fleet.Get("r14u01")
	for _, serial := range m.DiskSerials {
		if !strings.Contains(page, serial) {
			t.Errorf("the question does not name disk %s", serial)
		}
	}
	q := with(c.question(path), "image", "demo", "disks", "2")
	// The machine changes between the question and the click: somebody else changed its disks.
	m.DiskSerials = append(m.DiskSerials, "S4XANE0M39999")
	s.fleet.Set(m)
	resp := c.form("POST", path, q)
	if text := body(t, resp); resp.StatusCode != http.StatusConflict || !strings.Contains(text, "changed since it was shown") || !strings.Contains(text, "S4XANE0M39999") {
		t.Errorf("changed machine: %s\n%.800s", resp.Status, text)
	}
	if n := len(s.fleet.Orders()); n != 0 {
		t.Fatalf("%d orders were carried out", n)
	}
	q = with(c.question(path), "image", "demo", "disks", "3")
	for i := range 3 {
		if resp := c.form("POST", path, q); resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != "/machines/r14u01" {
			t.Errorf("click %d: %s", i, resp.Status)
		}
	}
	if all := s.fleet.Orders(); len(all) != 1 || all[0].By != "tina" {
		t.Errorf("three clicks made the orders %+v", all)
	}
}

func TestWrongNumberOfDisks(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	c := s.client(t, "tina")
	for typed, why := range map[string]string{"1": "1 disks were said, and 2 would be wiped", "3": "3 disks were said, and 2 would be wiped", "": "No number of disks was typed", "two": "No number of disks was typed", "-2": "-2 disks were said"} {
		q := with(c.question("/machines/r14u02/provision"), "image", "demo", "disks", typed)
		resp := c.form("POST", "/machines/r14u02/provision", q)
		if text := body(t, resp); resp.StatusCode < 400 || !strings.Contains(text, why) {
			t.Errorf("typed %q: %s, want %q in\n%.600s", typed, resp.Status, why, text)
		}
	}
	if n := len(s.fleet.Orders()); n != 0 {
		t.Errorf("%d orders were carried out", n)
	}
}

func TestProtectedMachine(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	c := s.client(t, "omar")
	page := body(t, c.request("GET", "/machines/r13u09", nil))
	if strings.Contains(page, "/reinstall") || !strings.Contains(page, "holds the ledger") {
		t.Error("the page of a protected machine offers to reinstall it, or does not say why not")
	}
	for _, action := range []string{"provision", "reinstall"} {
		resp := c.request("GET", "/machines/r13u09/"+action, nil)
		text := body(t, resp)
		if !strings.Contains(text, "is protected, so nothing wipes it") || strings.Contains(text, `name="disks"`) {
			t.Errorf("%s: %.600s", action, text)
		}
	}
	m, _ := s.fleet.Get("r13u09")
	resp := c.form("POST", "/machines/r13u09/provision", map[string]string{"version": m.Version, "key": "k-2", "image": "demo", "disks": "2"})
	if resp.StatusCode != http.StatusConflict {
		t.Errorf("order sent anyway: %s", resp.Status)
	}
	q := with(c.question("/machines/r13u09/unprotect"), "typed", "r13u08")
	if resp := c.form("POST", "/machines/r13u09/unprotect", q); resp.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("wrong name: %s", resp.Status)
	}
	q = with(c.question("/machines/r13u09/unprotect"), "typed", "r13u09")
	if resp := c.form("POST", "/machines/r13u09/unprotect", q); resp.StatusCode != http.StatusSeeOther {
		t.Errorf("right name: %s", resp.Status)
	}
}

func TestRoles(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	for _, tc := range []struct {
		user string
		may  map[string]bool
	}{
		{"vera", map[string]bool{"/machines/r14u01/provision": false, "/machines/r12u01/cancel": false, "/machines/unknown-3f9a/enrol": false, "/machines/r14u01/remove": false, "/users": false, "/audit": false, "/health": true, "/images": true}},
		{"tina", map[string]bool{"/machines/r14u01/provision": true, "/machines/r12u01/cancel": true, "/machines/unknown-3f9a/enrol": true, "/machines/r14u01/remove": false, "/site/stop": false, "/images/demo/remove": false, "/users": false}},
		{"omar", map[string]bool{"/machines/r14u01/remove": true, "/site/stop": true, "/images/demo/remove": true, "/users": false, "/audit": false, "/users/vera/remove": false}},
		{"anna", map[string]bool{"/users": true, "/audit": true, "/users/vera/remove": true, "/tokens/ci/revoke": true}},
	} {
		c := s.client(t, tc.user)
		for path, may := range tc.may {
			resp := c.request("GET", path, nil)
			text := body(t, resp)
			if want := map[bool]int{true: 200, false: 403}[may]; resp.StatusCode != want {
				t.Errorf("%s at %s: %s, want %d", tc.user, path, resp.Status, want)
			}
			if !may && !strings.Contains(text, "you may not") {
				t.Errorf("%s at %s is not told: %.400s", tc.user, path, text)
			}
		}
	}
	// What is not offered is refused as well.
	c := s.client(t, "vera")
	m, _ := s.fleet.Get("r14u01")
	if resp := c.form("POST", "/machines/r14u01/provision", map[string]string{"version": m.Version, "key": "k-3", "image": "demo", "disks": "2"}); resp.StatusCode != http.StatusForbidden {
		t.Errorf("a viewer's order: %s", resp.Status)
	}
	page := body(t, c.request("GET", "/machines/r12u04", nil))
	for _, not := range []string{"/retry", "/provision", "/remove", "Users", "Audit"} {
		if strings.Contains(page, not) {
			t.Errorf("a viewer is offered %s", not)
		}
	}
	if n := len(s.fleet.Orders()); n != 0 {
		t.Errorf("%d orders were carried out", n)
	}
}

// TestSixStates looks at the states of pages that need trouble: empty, partial, failed, forbidden (stale and loading are the browser's).
func TestSixStates(t *testing.T) {
	t.Parallel()
	empty, s := newSite(t, webtest.Empty, false), newSite(t, webtest.New, false)
	for path, want := range map[string]string{"/": "No machines yet", "/discovered": "No unknown machine", "/images": "No image yet", "/audit": "Nothing was recorded yet"} {
		if text := body(t, empty.client(t, "anna").request("GET", path, nil)); !strings.Contains(text, want) {
			t.Errorf("empty %s says no %q", path, want)
		}
	}
	c := s.client(t, "anna")
	if text := body(t, c.request("GET", "/?q="+url.QueryEscape(`<b>zzz`), nil)); !strings.Contains(text, "Nothing matches") || strings.Contains(text, "<b>zzz") {
		t.Error("a search that finds nothing does not say so, or is markup")
	}
	s.fleet.Break("/v1/machines/r12u01/timeline", fault.New(fault.Unavailable, "show timeline", "r12u01", errors.New("the store did not answer"), "wait a moment"))
	resp := c.request("GET", "/machines/r12u01", nil)
	if text := body(t, resp); resp.StatusCode != 200 || !strings.Contains(text, "The store did not answer") || !strings.Contains(text, "Writing image") {
		t.Errorf("partial: %s", resp.Status)
	}
	for path, api := range map[string]string{"/": "/v1/machines", "/images": "/v1/images", "/health": "/v1/health", "/users": "/v1/users", "/audit": "/v1/audit", "/discovered": "/v1/discovered"} {
		s.fleet.Break(api, fault.New(fault.Unavailable, "ask", "", errors.New("the store did not answer"), "wait a moment"))
		resp := c.request("GET", path, nil)
		if text := body(t, resp); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, "The store did not answer") || !strings.Contains(text, "Wait a moment") {
			t.Errorf("failed %s: %s", path, resp.Status)
		}
		s.fleet.Break(api, nil)
	}
}

// called is a name for a machine with a hostile text: a name itself is never as long as what a wire brings.
func called(text string) string {
	if len(text) > 200 {
		return "long"
	}
	return text
}

var sentBack = regexp.MustCompile(`(value|data-want)="[^"]*"`)

// APP-03: hostile texts in every field of every page are text.
func TestHostileTextsAreText(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(now func() time.Time) *webtest.Appliance {
		a := webtest.Empty(now)
		for _, text := range webtest.Hostile {
			a.Set(webtest.HostileMachine(called(text), text, now()))
			u := webtest.Unknown("x"+called(text), 70, now())
			u.Hardware = webtest.HostileMachine("x", text, now()).Hardware
			a.Set(u)
		}
		return a
	}, false)
	c := s.client(t, "anna")
	for _, text := range webtest.Hostile {
		at := "/machines/" + url.PathEscape(called(text))
		for _, path := range []string{"/", "/discovered", "/?q=" + url.QueryEscape(called(text)), at, at + "?tab=log", at + "?tab=hardware", at + "?tab=disks", at + "?tab=bmc",
			at + "/retry", at + "/change", at + "/remove", at + "/nothing"} {
			// What a form sends back it must send as it is; nobody sees it.
			page := sentBack.ReplaceAllString(body(t, c.request("GET", path, nil)), "")
			for _, bad := range []string{"<img", "</script><script>", `" onmouseover`, `href="javascript:`, "\u202e", "\x1b", strings.Repeat("A", 8000), "mark-session-1-of-annax"} {
				if strings.Contains(page, bad) {
					t.Errorf("%.60s: the page has %.60q", path, bad)
				}
			}
		}
	}
	if page := body(t, c.request("GET", "/", nil)); !strings.Contains(page, "cut here") || !strings.Contains(page, "[U+202E]") {
		t.Error("what was cut or made visible has no marker")
	}
}

func TestUsersAndTokens(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	c := s.client(t, "anna")
	resp := c.form("POST", "/users", map[string]string{"do": "mint", "name": "backup", "role": "viewer", "days": "7"})
	if text := body(t, resp); !strings.Contains(text, "flt_") || !strings.Contains(text, "shown this once") {
		t.Errorf("mint: %s", resp.Status)
	}
	if text := body(t, c.request("GET", "/users", nil)); strings.Contains(text, "flt_") || !strings.Contains(text, "backup") {
		t.Error("a token's value is shown again, or the token is not")
	}
	resp = c.form("POST", "/users", map[string]string{"do": "add", "name": "tina", "role": "viewer", "password": "long enough password", "key": "k-9"})
	if text := body(t, resp); resp.StatusCode != http.StatusConflict || !strings.Contains(text, "name is taken") || strings.Contains(text, "long enough") {
		t.Errorf("taken name: %s", resp.Status)
	}
	resp = c.form("POST", "/users", map[string]string{"do": "remove", "name": "vera", "typed": "vera", "key": "k-10"})
	if text := body(t, resp); resp.StatusCode != 200 || !strings.Contains(text, "no account any more") {
		t.Errorf("remove: %s", resp.Status)
	}
	resp = c.form("POST", "/users", map[string]string{"do": "remove", "name": "omar", "typed": "vera", "key": "k-11"})
	if resp.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("remove another one than typed: %s", resp.Status)
	}
}
