package appliance

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// visitor is a browser without scripts.
type visitor struct {
	t    *testing.T
	page string
	*http.Client
	csrf string
}

func (v *visitor) get(path string) string { return v.read(http.NewRequest("GET", v.page+path, nil)) }

func (v *visitor) post(path string, values url.Values) string {
	v.t.Helper()
	values.Set("csrf", v.csrf)
	r, err := http.NewRequest("POST", v.page+path, strings.NewReader(values.Encode()))
	if err == nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", v.page)
	}
	return v.read(r, err)
}

func (v *visitor) read(r *http.Request, err error) string {
	v.t.Helper()
	if err != nil {
		v.t.Fatal(err)
	}
	resp, err := v.Do(r)
	if err != nil {
		v.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	if m := regexp.MustCompile(`name="csrf" value="([^"]+)"`).FindSubmatch(body); m != nil {
		v.csrf = string(m[1])
	}
	return string(body)
}

func (v *visitor) sees(where, page string, wants ...string) {
	v.t.Helper()
	for _, want := range wants {
		if !strings.Contains(page, want) {
			_, main, _ := strings.Cut(page, "<main")
			v.t.Fatalf("%s does not say %q:\n%.3000s", where, want, main)
		}
	}
}

// The page over the real API: first start, a machine added, and an order refused in the API's words and written down with who and where.
func TestPageOverTheAPI(t *testing.T) {
	var console screen
	p := startWith(t, "[web]\nlisten = \"127.0.0.1:0\"\ninsecure_loopback = true\n", func(c *Config) { c.Console = &console })
	code := console.says(t, `one-time code (\S{19}) `)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	v := &visitor{t: t, page: strings.TrimSuffix(p.web.url(), "/"), Client: &http.Client{Jar: jar}}
	v.sees("the first page", v.get("/"), "First start")
	v.sees("a wrong code", v.post("/setup", url.Values{"code": {"0000-0000-0000-0000"}, "name": {"anna"}, "password": {annas}, "again": {annas}}), "This is not the code")
	v.sees("after the first start", v.post("/setup", url.Values{"code": {code}, "name": {"anna"}, "password": {annas}, "again": {annas}}), "No machines yet", "anna")
	machine := url.Values{"name": {"r12u04"}, "place": {"rack 12, unit 4"}, "macs": {"52:54:00:00:00:0a"}, "disks": {"SERIAL-1\nSERIAL-2"}, "kind": {"new"}, "key": {"k-1"},
		"bmc_url": {"https://10.77.0.9"}, "bmc_user": {"root"}, "bmc_password": {"calvin"}, "bmc_certificate": {strings.Repeat("ab", 32)}}
	added := v.post("/machines/new", machine)
	v.sees("the new machine", added, "r12u04", "rack 12, unit 4", "SERIAL-2", "Provision…")
	if strings.Contains(added, "calvin") {
		t.Error("the page shows the BMC's password")
	}
	v.sees("the fleet", v.get("/?q=525400-00000a"), "r12u04", "1 machine matches")
	v.sees("the question", v.get("/machines/r12u04/provision"), "There is no image to install")
	version := version(t, v.get("/machines/r12u04/protect"))
	v.sees("protected", v.post("/machines/r12u04/protect", url.Values{"version": {version}, "key": {"k-2"}, "reason": {"holds the ledger"}}), "holds the ledger", "Unprotect…")
	v.sees("an old version", v.post("/machines/r12u04/unprotect", url.Values{"version": {version}, "key": {"k-3"}, "typed": {"r12u04"}}), "changed since")
	v.sees("the order anyway", v.get("/machines/r12u04/provision"), "is protected, so nothing wipes it")
	v.sees("the audit log", v.get("/audit"), "protect", "r12u04", "127.0.0.1", "anna")
	for path, want := range map[string]string{"/discovered": "No unknown machine", "/images": "No image yet", "/users": "1 account", "/machines/r12u04?tab=log": "Log", "/machines/r12u04?tab=disks": "SERIAL-1"} {
		v.sees(path, v.get(path), want)
	}
	v.sees("signed out", v.post("/logout", url.Values{}), "Sign in")
	v.sees("signed out", v.get("/audit"), "Sign in")
}

func version(t *testing.T, page string) string {
	t.Helper()
	m := regexp.MustCompile(`name="version" value="([^"]+)"`).FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("the question carries no version: %.2000s", page)
	}
	return m[1]
}
