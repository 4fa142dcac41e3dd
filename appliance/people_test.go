package appliance

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/fault"
)

// screen is a console that a test reads.
type screen struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

// says returns what the console says in the one place that matches.
func (s *screen) says(t *testing.T, pattern string) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	m := regexp.MustCompile(pattern).FindAllStringSubmatch(s.b.String(), -1)
	if len(m) != 1 {
		t.Fatalf("the console says %q: want one %s", s.b.String(), pattern)
	}
	return m[0][1]
}

// browser is one that trusts the certificate which the console named.
func browser(t *testing.T, sum string) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(s tls.ConnectionState) error {
		if got := fingerprint(&tls.Certificate{Certificate: [][]byte{s.PeerCertificates[0].Raw}}); got != sum {
			t.Errorf("the listener shows certificate %s, the console said %s", got, sum)
		}
		return nil
	}}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Jar: jar, Transport: transport}
}

// The first start: the console names the page, its certificate and a code; with the code somebody becomes the administrator; the API
// over the network answers tokens, each as its role allows.
func TestFirstStart(t *testing.T) {
	var console screen
	var log bytes.Buffer
	p := startWith(t, "[web]\nlisten = \"127.0.0.1:0\"\n", func(c *Config) {
		c.Console = &console
		c.Log = slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), &synced{w: &log}), nil))
	})
	page := console.says(t, `page (https://127\.0\.0\.1:\d+/)\n`)
	sum := console.says(t, `certificate SHA-256 ([0-9A-F:]{95})\n`)
	code := console.says(t, `one-time code (\S{19}) makes the first administrator at `+page+`setup\n`)
	ctx := t.Context()
	const here = "127.0.0.1:1"
	if err := p.accounts.Setup(ctx, auth.NewSecret("0000-0000-0000-0000"), "anna", auth.NewSecret(annas), here); !errors.Is(err, auth.ErrDenied) {
		t.Errorf("a wrong code: got %v, want ErrDenied", err)
	}
	if err := p.accounts.Setup(ctx, auth.NewSecret(code), "anna", auth.NewSecret(annas), here); err != nil {
		t.Fatal(err)
	}
	if _, err := p.accounts.Login(ctx, "anna", auth.NewSecret("something else"), here); !errors.Is(err, auth.ErrDenied) {
		t.Errorf("a wrong password: got %v, want ErrDenied", err)
	}
	session, err := p.accounts.Login(ctx, "anna", auth.NewSecret(annas), here)
	if err != nil || session.Principal.Role != auth.RoleAdmin {
		t.Fatalf("got %v, %v, want an administrator", session.Principal, err)
	}
	tokensOverTCP(t, p, page, sum, session.Secret)
	audited(t, p)
	for what, secret := range map[string]string{"code": code, "password": annas, "session": session.Secret.Reveal()} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log holds the %s", what)
		}
	}
}

const annas = "a quiet aisle at nine"

// synced lets a log be written from many goroutines.
type synced struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *synced) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(b)
}

func tokensOverTCP(t *testing.T, p *parts, page, sum string, session auth.Secret) {
	t.Helper()
	ctx := t.Context()
	remote := func(token string) *api.Client {
		c, err := api.NewRemote(page, token, sum)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	token, _, err := p.accounts.MintToken(ctx, "eyes", auth.RoleViewer, time.Hour, "anna")
	if err != nil {
		t.Fatal(err)
	}
	viewer := remote(token.Reveal())
	if _, err := viewer.Events(ctx, "", 10); err != nil {
		t.Errorf("a viewer's token: %v", err)
	}
	_, err = viewer.AddMachine(ctx, api.AddMachine{Name: "m1", MACs: []string{"52:54:00:00:00:0a"}, DiskSerials: []string{"D1"}})
	if f := fault.Of(err, "", ""); err == nil || f.Kind != fault.Denied || !strings.Contains(f.Error(), "token eyes") || f.Next == "" {
		t.Errorf("a viewer adds a machine: got %v, want a refusal", err)
	}
	for name, bad := range map[string]string{"none": "", "altered": token.Reveal()[:len(token.Reveal())-1] + "_"} {
		if _, err := remote(bad).Events(ctx, "", 10); err == nil || fault.Of(err, "", "").Kind != fault.Denied {
			t.Errorf("token %s: got %v, want a refusal", name, err)
		}
	}
	status := func(token string, cookies bool) int {
		r, err := http.NewRequestWithContext(ctx, "GET", page+"v1/machines", nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		if cookies {
			for _, name := range []string{"firstlight", "__Host-firstlight", "session"} {
				r.AddCookie(&http.Cookie{Name: name, Value: session.Reveal()})
			}
		}
		resp, err := browser(t, sum).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if got := status(token.Reveal(), false); got != http.StatusOK {
		t.Errorf("machines with a token: got %d", got)
	}
	if got := status("", false); got != http.StatusUnauthorized {
		t.Errorf("machines without a token: got %d, want 401", got)
	}
	if got := status("", true); got != http.StatusUnauthorized {
		t.Errorf("machines with a session's cookie: got %d, want 401: no page may make a browser call the API", got)
	}
	if err := p.accounts.RevokeToken(ctx, "eyes"); err != nil {
		t.Fatal(err)
	}
	if _, err := viewer.Events(ctx, "", 10); err == nil || fault.Of(err, "", "").Kind != fault.Denied {
		t.Errorf("a revoked token: got %v, want a refusal", err)
	}
}

// audited: what was done and what was refused is in the log of who did what.
func audited(t *testing.T, p *parts) {
	t.Helper()
	all, err := p.accounts.Entries(t.Context(), 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range all {
		got = append(got, e.Who+" "+string(e.Outcome))
		if e.From == "" {
			t.Errorf("%+v does not say from where", e)
		}
	}
	text := strings.Join(got, ", ")
	for _, want := range []string{"nobody denied", "anna done", "anna denied", "token eyes denied"} {
		if !strings.Contains(text, want) {
			t.Errorf("the audit log says %s: want also %s", text, want)
		}
	}
}

// A later start asks for nothing, and tells no code.
func TestNoCodeOnceThereIsAnAdministrator(t *testing.T) {
	var console screen
	p := startWith(t, "[web]\nlisten = \"127.0.0.1:0\"\ninsecure_loopback = true\n", func(c *Config) { c.Console = &console })
	console.says(t, `(one-time code)`)
	if err := p.accounts.AddUser(t.Context(), "anna", auth.RoleAdmin, auth.NewSecret(annas)); err != nil {
		t.Fatal(err)
	}
	var later bytes.Buffer
	p.cfg.Console = &later
	if err := p.announce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := later.String(); got != "firstlight: page "+p.web.url()+"\n" {
		t.Errorf("got %q, want the page's address alone", got)
	}
}
