package api

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/store/storetest"
)

func anna(role auth.Role) auth.Principal {
	return auth.Principal{Kind: auth.KindUser, Name: "anna", Role: role}
}

// as returns a client in this process for a person.
func (l *lab) as(p auth.Principal) (*Client, http.Handler) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.server.Handler().ServeHTTP(w, r.WithContext(auth.WithPrincipal(r.Context(), p)))
	})
	return InProcess(h), h
}

// ask sends one request as a person.
func ask(t *testing.T, h http.Handler, method, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)))
	return w
}

func withAccounts(t *testing.T) (func(*lab), *auth.Accounts) {
	t.Helper()
	a, err := auth.New(auth.Config{Store: storetest.New(), Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	return func(l *lab) { l.config.Accounts = a }, a
}

// fill puts words for what a route's path leaves open.
func fill(path string) string {
	return strings.NewReplacer("{name}", "m1", "{id}", "x", "{sha256}", strings.Repeat("0", 64)).Replace(path)
}

// The description lists exactly what the mux answers, and its examples are bodies that the routes read.
func TestOpenAPIMatchesTheMux(t *testing.T) {
	t.Parallel()
	l := start(t, self())
	raw, err := l.client.OpenAPI(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		OpenAPI    string
		Paths      map[string]map[string]json.RawMessage
		Components struct{ Schemas map[string]json.RawMessage }
	}
	if err := json.Unmarshal(raw, &doc); err != nil || doc.OpenAPI != "3.1.0" {
		t.Fatalf("got version %q, %v, want 3.1.0", doc.OpenAPI, err)
	}
	described := map[string]bool{}
	for path, item := range doc.Paths {
		for method := range item {
			key := strings.ToUpper(method) + " " + path
			described[key] = true
			_, pattern := l.server.mux.Handler(httptest.NewRequest(strings.ToUpper(method), fill(path), nil))
			if pattern != key {
				t.Errorf("%s is described, and the mux answers it with %q", key, pattern)
			}
		}
	}
	for _, rt := range l.server.routes {
		key := rt.method + " " + rt.path
		if !described[key] {
			t.Errorf("%s is served and not described", key)
		}
		if rt.in == nil || rt.example == "" {
			continue
		}
		into := reflect.New(reflect.TypeOf(rt.in))
		r := httptest.NewRequest(rt.method, "/", strings.NewReader(rt.example))
		if err := decode(r, into.Interface()); err != nil {
			t.Errorf("%s: example: %v", key, err)
		}
	}
	if len(described) != len(l.server.routes) {
		t.Errorf("got %d described, want %d", len(described), len(l.server.routes))
	}
	// Every reference leads somewhere.
	for _, part := range strings.Split(string(raw), `"$ref":"`)[1:] {
		name, _, _ := strings.Cut(strings.TrimPrefix(part, refTo), `"`)
		if doc.Components.Schemas[name] == nil {
			t.Errorf("schema %q is named and not there", name)
		}
	}
}

// An answer has the fields that the description promises.
func TestAnswersAreAsDescribed(t *testing.T) {
	t.Parallel()
	l := start(t, self())
	if _, err := l.client.AddMachine(t.Context(), machine("m1")); err != nil {
		t.Fatal(err)
	}
	doc, err := l.server.openapi()
	if err != nil {
		t.Fatal(err)
	}
	all := doc["components"].(object)["schemas"].(object)
	_, h := l.as(anna(auth.RoleAdmin))
	for path, schema := range map[string]string{"/v1/machines/m1": "Machine", "/v1/machines": "MachinePage", "/v1/machines/m1/timeline": "TimelinePage"} {
		var got map[string]any
		if err := json.Unmarshal(ask(t, h, "GET", path, "").Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		s := all[schema].(object)
		for _, name := range s["required"].([]string) {
			if _, ok := got[name]; !ok {
				t.Errorf("%s: no %q, which %s promises", path, name, schema)
			}
		}
		for name := range got {
			if s["properties"].(object)[name] == nil {
				t.Errorf("%s: %q is not described", path, name)
			}
		}
	}
}

// Each role gets past the door of exactly the routes whose permission it has; nobody known gets past none.
func TestEveryRouteAsksWhoMay(t *testing.T) {
	t.Parallel()
	l := start(t, self())
	for _, role := range append(auth.Roles(), "") {
		_, h := l.as(anna(role))
		for _, rt := range l.server.routes {
			if rt.stream != nil && rt.id == "watch machines" {
				continue // it does not end; TestWatch has it
			}
			w := ask(t, h, rt.method, fill(rt.path), "{}")
			// A body may ask for more than its route does, so only the route's own refusal is looked at.
			refused := w.Code == http.StatusForbidden && strings.Contains(w.Body.String(), "("+string(rt.perm)+")")
			if refused == role.Allows(rt.perm) {
				t.Errorf("%s %s as %q: got status %d %s", rt.method, rt.path, role, w.Code, w.Body)
			}
		}
	}
	for _, rt := range l.server.routes {
		w := ask(t, l.server.Handler(), rt.method, fill(rt.path), "{}")
		if w.Code != http.StatusUnauthorized {
			t.Errorf("%s %s by nobody: got status %d, want 401", rt.method, rt.path, w.Code)
		}
	}
}

// What a body asks may take more than its route does.
func TestBodiesAskForMore(t *testing.T) {
	t.Parallel()
	l := start(t, self())
	if _, err := l.client.AddMachine(t.Context(), machine("m1")); err != nil {
		t.Fatal(err)
	}
	c, _ := l.as(anna(auth.RoleTechnician))
	for name, call := range map[string]func() error{
		"add": func() error { _, err := c.AddMachine(t.Context(), machine("m2")); return err },
		"adopt": func() error {
			_, err := c.AddMachine(t.Context(), AddMachine{Name: "m2", Adopt: true, From: "m1"})
			return err
		},
		"reinstall": func() error {
			_, err := c.Provision(t.Context(), "m1", Provision{Image: "x", Reinstall: true})
			return err
		},
	} {
		if f := fault.Of(call(), "", ""); f.Kind != fault.Denied {
			t.Errorf("%s: got %v, want it denied to a technician", name, f)
		}
	}
	operator, _ := l.as(anna(auth.RoleOperator))
	if _, err := operator.AddImage(t.Context(), AddImage{Name: "x", Dir: "/etc"}); fault.Of(err, "", "").Kind != fault.Denied {
		t.Errorf("a directory of the host: got %v, want it denied over the network", err)
	}
}

func TestRemoteKnowsTokensOnly(t *testing.T) {
	t.Parallel()
	use, a := withAccounts(t)
	l := start(t, self(), use)
	value, _, err := a.MintToken(t.Context(), "ci-7", auth.RoleViewer, time.Hour, "anna")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		header, value string
		code          int
	}{
		"nothing":      {"X-None", "", http.StatusUnauthorized},
		"a cookie":     {"Cookie", "session=" + value.Reveal(), http.StatusUnauthorized},
		"basic":        {"Authorization", "Basic " + value.Reveal(), http.StatusUnauthorized},
		"wrong token":  {"Authorization", "Bearer flt_nothing", http.StatusUnauthorized},
		"a token":      {"Authorization", "Bearer " + value.Reveal(), http.StatusOK},
		"peer's claim": {"X-Peer", "uid 0", http.StatusUnauthorized},
	} {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/v1/machines", nil)
		r.Header.Set(tc.header, tc.value)
		w := httptest.NewRecorder()
		l.server.Remote().ServeHTTP(w, r)
		if w.Code != tc.code || strings.Contains(w.Body.String(), value.Reveal()) {
			t.Errorf("%s: got status %d %s, want %d", name, w.Code, w.Body, tc.code)
		}
	}
	// A viewer's token orders nothing, and the log knows that it tried.
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/stop", strings.NewReader(`{"reason":""}`))
	r.Header.Set("Authorization", "Bearer "+value.Reveal())
	r.RemoteAddr = "10.0.0.9:1234"
	w := httptest.NewRecorder()
	l.server.Remote().ServeHTTP(w, r)
	all, err := a.Entries(t.Context(), 0, 1)
	if err != nil || len(all) != 1 || w.Code != http.StatusForbidden {
		t.Fatalf("got status %d, entries %+v, %v", w.Code, all, err)
	}
	if e := all[0]; e.Who != "token ci-7" || e.From != "10.0.0.9" || e.What != "stop all" || e.Outcome != auth.Denied {
		t.Errorf("got %+v, want the refusal with who and from where", e)
	}
}

// Everything that is no GET is in the audit log with who, what, on what and what came of it; blobs and previews are not.
func TestAudit(t *testing.T) {
	t.Parallel()
	use, a := withAccounts(t)
	l := start(t, self(), use)
	c, _ := l.as(anna(auth.RoleAdmin))
	ctx := t.Context()
	if _, err := c.AddMachine(ctx, machine("m1")); err != nil {
		t.Fatal(err)
	}
	c.Protect(ctx, "m1", Reason{Reason: "customer data"})
	c.Provision(ctx, "m1", Provision{Image: "demo"})
	c.DryRun(ctx, "m1", Provision{Image: "demo"})
	c.Machine(ctx, "m1")
	page, err := c.Audit(ctx, 2, 0)
	if err != nil || len(page.Entries) != 2 || page.Before == 0 {
		t.Fatalf("got %+v, %v, want two of three", page, err)
	}
	rest, err := c.Audit(ctx, 2, page.Before)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range append(page.Entries, rest.Entries...) {
		got = append(got, e.Who+" "+e.What+" "+e.Object+" "+e.Outcome)
	}
	want := []string{"anna provision m1 failed", "anna protect machine m1 done", "anna add machine m1 done"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	entries, err := a.Entries(ctx, 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.Contains(e.Detail, "hunter2") {
			t.Errorf("the audit log has a password: %+v", e)
		}
	}
}

func TestAccountsOverTheAPI(t *testing.T) {
	t.Parallel()
	use, _ := withAccounts(t)
	l := start(t, self(), use)
	ctx := t.Context()
	const password = "correct horse battery"
	u, err := l.client.AddUser(ctx, AddUser{Name: "anna", Role: "admin", Password: password})
	if err != nil || u.Name != "anna" || u.Role != "admin" || u.Created.IsZero() {
		t.Fatalf("got %+v, %v", u, err)
	}
	if _, err := l.client.AddUser(ctx, AddUser{Name: "ben", Role: "viewer", Password: password}); err != nil {
		t.Fatal(err)
	}
	if u, err := l.client.SetUser(ctx, "ben", SetUser{Role: "technician"}); err != nil || u.Role != "technician" {
		t.Errorf("got %+v, %v, want a technician", u, err)
	}
	for name, tc := range map[string]struct {
		err  error
		kind fault.Kind
	}{
		"role":       {second(l.client.AddUser(ctx, AddUser{Name: "cem", Role: "king", Password: password})), fault.Invalid},
		"short":      {second(l.client.AddUser(ctx, AddUser{Name: "cem", Role: "viewer", Password: "x"})), fault.Invalid},
		"taken":      {second(l.client.AddUser(ctx, AddUser{Name: "ben", Role: "viewer", Password: password})), fault.Conflict},
		"last admin": {second(l.client.RemoveUser(ctx, "anna")), fault.Conflict},
		"unknown":    {second(l.client.SetUser(ctx, "dora", SetUser{Role: "viewer"})), fault.NotFound},
		"nothing":    {second(l.client.SetUser(ctx, "ben", SetUser{})), fault.Usage},
		"life":       {second(l.client.MintToken(ctx, MintToken{Name: "t", Role: "viewer", LifeS: 1 << 60})), fault.Invalid},
		"no token":   {second(l.client.RevokeToken(ctx, "t")), fault.NotFound},
	} {
		if f := fault.Of(tc.err, "", ""); tc.err == nil || f.Kind != tc.kind || strings.Contains(f.Error(), password) {
			t.Errorf("%s: got %v, want %s", name, tc.err, tc.kind)
		}
	}
	tok, err := l.client.MintToken(ctx, MintToken{Name: "ci", Role: "viewer", LifeS: 3600})
	if err != nil || !strings.HasPrefix(tok.Value, "flt_") || strings.Contains(l.log.String(), tok.Value) {
		t.Fatalf("got %v, %v, want a value that is in no log", tok, err)
	}
	if all, err := l.client.Tokens(ctx); err != nil || len(all) != 1 || all[0].Name != "ci" {
		t.Errorf("got %+v, %v", all, err)
	}
	if _, err := l.client.RevokeToken(ctx, "ci"); err != nil {
		t.Error(err)
	}
	if _, err := l.client.RemoveUser(ctx, "ben"); err != nil {
		t.Error(err)
	}
	if all, err := l.client.Users(ctx); err != nil || len(all) != 1 || all[0].Name != "anna" {
		t.Errorf("got %+v, %v, want anna", all, err)
	}
}

func second[T any](_ T, err error) error { return err }

// What is not composed says so in words.
func TestWhatIsNotThere(t *testing.T) {
	t.Parallel()
	srv := NewServer(ServerConfig{Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now }})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		srv.Handler().ServeHTTP(w, r.WithContext(auth.WithPrincipal(r.Context(), auth.Local("uid 0"))))
	})
	for _, path := range []string{"/v1/health", "/v1/users", "/v1/tokens", "/v1/audit", "/metrics"} {
		w := ask(t, h, "GET", path, "")
		if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "this appliance has no") {
			t.Errorf("%s: got %d %s, want words", path, w.Code, w.Body)
		}
	}
}

func TestHealthAndJoin(t *testing.T) {
	t.Parallel()
	l := start(t, self(), func(l *lab) {
		l.config.Health = func(context.Context) (Health, error) {
			return Health{State: "warn", Checks: []HealthCheck{{Name: "clock", State: "warn", Next: "set it"}}}, nil
		}
		l.config.MintJoin = func(_ context.Context, life time.Duration) (JoinToken, error) {
			return JoinToken{NodeID: "site-1", Role: "site", Expires: fleet.At(now.Add(life)), Token: []byte("hunter2")}, nil
		}
	})
	if h, err := l.client.Health(t.Context()); err != nil || h.State != "warn" || len(h.Checks) != 1 {
		t.Errorf("got %+v, %v", h, err)
	}
	j, err := l.client.MintJoin(t.Context(), MintJoin{LifeS: 600})
	if err != nil || string(j.Token) != "hunter2" || !j.Expires.Equal(now.Add(10*time.Minute)) {
		t.Errorf("got %v, %v", j, err)
	}
	if strings.Contains(l.log.String(), "hunter2") {
		t.Error("the log has the token")
	}
	if _, err := l.client.MintJoin(t.Context(), MintJoin{LifeS: 1 << 40}); fault.Of(err, "", "").Kind != fault.Invalid {
		t.Errorf("got %v, want a life of years refused", err)
	}
}
