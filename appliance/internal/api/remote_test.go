package api

import (
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/fault"
)

// A program on another host trusts one certificate, shows its token there and nowhere else.
func TestRemoteClient(t *testing.T) {
	t.Parallel()
	use, a := withAccounts(t)
	l := start(t, self(), use)
	value, _, err := a.MintToken(t.Context(), "ci-7", auth.RoleOperator, time.Hour, "anna")
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(l.server.Remote())
	srv.Config.ErrorLog = slog.NewLogLogger(discard.Handler(), slog.LevelError)
	srv.StartTLS()
	defer srv.Close()
	sum := sha256.Sum256(srv.Certificate().Raw)
	pin := hex.EncodeToString(sum[:])
	c, err := NewRemote(srv.URL, value.Reveal(), strings.ToUpper(pin))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.AddMachine(t.Context(), machine("m1")); err != nil {
		t.Fatal(err)
	}
	events, err := c.Events(t.Context(), "m1", 1)
	if err != nil || len(events) != 1 || !strings.Contains(events[0].Message, "token ci-7") {
		t.Errorf("got %+v, %v, want it added by token ci-7", events, err)
	}
	if got := gather(t, c, WatchFrom{}, func() {
		if _, err := c.Protect(t.Context(), "m1", Reason{}); err != nil {
			t.Error(err)
		}
	}, func(x Change) bool { return x.Row != nil && x.Row.Protected }); got[0].Name != "m1" {
		t.Errorf("got %+v, want the change of m1", got)
	}
	for name, tc := range map[string]struct {
		token, pin string
		kind       fault.Kind
	}{"another certificate": {value.Reveal(), strings.Repeat("0", 64), fault.Unavailable}, "no authority knows it": {value.Reveal(), "", fault.Unavailable}, "no such token": {"flt_x", pin, fault.Denied}} {
		c, err := NewRemote(srv.URL, tc.token, tc.pin)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Images(t.Context())
		if f := fault.Of(err, "", ""); err == nil || f.Kind != tc.kind || f.Next == "" || strings.Contains(f.Error(), value.Reveal()) {
			t.Errorf("%s: got %v, want %s", name, err, tc.kind)
		}
	}
	asked := 0
	other := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer other.Close()
	away := httptest.NewTLSServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer away.Close()
	sum = sha256.Sum256(away.Certificate().Raw)
	if c, err = NewRemote(away.URL, value.Reveal(), hex.EncodeToString(sum[:])); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Images(t.Context()); err == nil || asked != 0 {
		t.Errorf("got %v and %d requests elsewhere, want the token to go nowhere else", err, asked)
	}
}

func TestRemoteAddresses(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "host", "http://host", "https://", "https://user@host", "https://host/path", "https://host?x=1", "://"} {
		if _, err := NewRemote(address, "flt_x", ""); fault.Of(err, "", "").Kind != fault.Usage {
			t.Errorf("%q: got %v, want it refused", address, err)
		}
	}
	if _, err := NewRemote("https://host", "flt_x", "abc"); fault.Of(err, "", "").Kind != fault.Usage {
		t.Errorf("pin: got %v, want it refused", err)
	}
}
