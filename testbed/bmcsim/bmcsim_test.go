package bmcsim

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// still is a host that is always off.
type still struct{}

func (still) PowerOn(context.Context, string) error { return nil }
func (still) PowerOff(context.Context) error        { return nil }
func (still) Powered() bool                         { return false }

func newServer(t testing.TB) *Server {
	t.Helper()
	s, err := New(Config{Username: "operator", Password: "secret", Host: still{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// do sends one request with basic authentication.
func do(s *Server, method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.SetBasicAuth("operator", "secret")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.routes().ServeHTTP(w, r)
	return w
}

func boot(t *testing.T, s *Server) map[string]any {
	t.Helper()
	var system struct{ Boot map[string]any }
	if err := json.Unmarshal(do(s, "GET", systemPath, "").Body.Bytes(), &system); err != nil {
		t.Fatal(err)
	}
	return system.Boot
}

func TestOnlyRootAndLoginAreOpen(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for path, want := range map[string]int{
		"/redfish": 200, "/redfish/v1": 200, rootPath: 200,
		systemsPath: 401, systemPath: 401, sessionsPath: 401, "/redfish/v1/SessionService": 401,
		"/": 404, "/redfish/v1/Chassis": 404,
	} {
		w := httptest.NewRecorder()
		s.routes().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != want {
			t.Errorf("GET %s without credentials: got %d, want %d", path, w.Code, want)
		}
	}
}

func TestSessionSlotsAreFew(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	login := func() *httptest.ResponseRecorder {
		return do(s, "POST", sessionsPath, `{"UserName":"operator","Password":"secret"}`)
	}
	var last *httptest.ResponseRecorder
	for range maxSessions {
		if last = login(); last.Code != http.StatusCreated || last.Header().Get("X-Auth-Token") == "" {
			t.Fatalf("login: got %d %s", last.Code, last.Body)
		}
	}
	if w := login(); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "SessionLimitExceeded") {
		t.Errorf("login over the limit: got %d %s, want 503", w.Code, w.Body)
	}
	if w := do(s, "DELETE", last.Header().Get("Location"), ""); w.Code != http.StatusNoContent {
		t.Errorf("logout: got %d, want 204", w.Code)
	}
	if w := do(s, "DELETE", last.Header().Get("Location"), ""); w.Code != http.StatusNotFound {
		t.Errorf("second logout: got %d, want 404", w.Code)
	}
	if w := login(); w.Code != http.StatusCreated {
		t.Errorf("login after a logout: got %d, want 201", w.Code)
	}
	if got := s.Stats(); got.Sessions != maxSessions || got.MostSessions != maxSessions || got.Logouts != 1 {
		t.Errorf("counters: got %+v", got)
	}
}

func TestPatchKeepsOnlyKnownValues(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, c := range []struct {
		body, ifMatch string
		want          int
		target        string
	}{
		{`{"Boot":{"BootSourceOverrideTarget":"Pxe","BootSourceOverrideEnabled":"Once"}}`, "", 204, "Pxe"},
		{`{"Boot":{"BootSourceOverrideTarget":"Floppy"}}`, "", 400, "Pxe"},
		{`{"Boot":{"BootSourceOverrideTarget":"Hdd"}}`, `"other"`, 412, "Pxe"},
		{`{"Boot":{"BootSourceOverrideTarget":"Hdd"}}`, "*", 204, "Hdd"},
		{`{"Name":"x"}`, "", 400, "Hdd"},
		{`{"Boot":{}} {}`, "", 400, "Hdd"},
		{`nothing`, "", 400, "Hdd"},
		{`{"Boot":{"BootSourceOverrideEnabled":"Disabled"}}`, "", 204, "None"},
	} {
		header := []string{}
		if c.ifMatch != "" {
			header = append(header, "If-Match", c.ifMatch)
		}
		if w := do(s, "PATCH", systemPath, c.body, header...); w.Code != c.want {
			t.Errorf("PATCH %s: got %d %s, want %d", c.body, w.Code, w.Body, c.want)
		}
		if got := boot(t, s)["BootSourceOverrideTarget"]; got != c.target {
			t.Errorf("after PATCH %s: got target %v, want %s", c.body, got, c.target)
		}
	}
}

// The mode is the machine's: it outlives the override, and one that the machine does not have is refused.
func TestModeIsTheMachines(t *testing.T) {
	t.Parallel()
	s, err := New(Config{Username: "operator", Password: "secret", Host: still{}, Modes: []string{legacy}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for _, c := range []struct {
		body string
		want int
	}{
		{`{"Boot":{"BootSourceOverrideTarget":"Pxe","BootSourceOverrideEnabled":"Once","BootSourceOverrideMode":"UEFI"}}`, 400},
		{`{"Boot":{"BootSourceOverrideTarget":"Pxe","BootSourceOverrideEnabled":"Once"}}`, 204},
		{`{"Boot":{"BootSourceOverrideEnabled":"Disabled"}}`, 204},
	} {
		if w := do(s, "PATCH", systemPath, c.body); w.Code != c.want {
			t.Errorf("PATCH %s: got %d %s, want %d", c.body, w.Code, w.Body, c.want)
		}
		if got := boot(t, s)["BootSourceOverrideMode"]; got != legacy || s.Mode() != legacy {
			t.Errorf("after PATCH %s: got mode %v, want %s", c.body, got, legacy)
		}
	}
	if st := s.Stats(); st.OverridePatches != 2 || st.ModePatches != 0 {
		t.Errorf("counters: got %+v, want two patches and no mode", st)
	}
}

func TestNewRefusesBadConfig(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{{}, {Username: "u", Password: "p"}, {Username: "u", Host: still{}}, {Password: "p", Host: still{}}} {
		if s, err := New(c); err == nil {
			s.Close()
			t.Errorf("New(%+v): got no error", c)
		}
	}
}

// FuzzPatch: whatever a client sends, the override stays one that exists.
func FuzzPatch(f *testing.F) {
	f.Add(`{"Boot":{"BootSourceOverrideTarget":"Pxe","BootSourceOverrideEnabled":"Once","BootSourceOverrideMode":"UEFI"}}`)
	f.Add(`{"Boot":{"BootSourceOverrideTarget":"None","BootSourceOverrideEnabled":"Continuous"}}`)
	f.Add(`{"Boot":null}`)
	f.Add(`{"Boot":{"BootSourceOverrideTarget":1}}`)
	s := newServer(f)
	f.Fuzz(func(t *testing.T, body string) {
		do(s, "PATCH", systemPath, body)
		s.mu.Lock()
		o := s.override
		s.mu.Unlock()
		if !slices.Contains(overrideStates, o.Enabled) || !slices.Contains(targets(), o.Target) || !slices.Contains(s.cfg.Modes, o.Mode) {
			t.Errorf("override after %q: %+v", body, o)
		}
		if (o.Enabled == "Disabled") != (o.Target == "None") {
			t.Errorf("override after %q is half on: %+v", body, o)
		}
	})
}
