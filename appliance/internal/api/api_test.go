package api

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/images"
	"firstlight/appliance/internal/roster"
	"firstlight/appliance/internal/store/storetest"
	"firstlight/gateway-client/envelope"
)

var now = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// flows answers as told.
type flows struct {
	order  executor.Order
	reason string
	err    error
}

func (f *flows) Provision(_ context.Context, o executor.Order) (string, error) {
	f.order = o
	return "wf-1", f.err
}

func (f *flows) Resume(_ context.Context, machine, by string) error {
	f.order = executor.Order{Machine: machine, By: by}
	return f.err
}

func (f *flows) DryRun(_ context.Context, o executor.Order) (executor.Preview, error) {
	f.order = o
	return executor.Preview{Machine: o.Machine, Image: o.Image.Name}, f.err
}

func (f *flows) Cancel(_ context.Context, machine, by, reason string) error {
	f.order, f.reason = executor.Order{Machine: machine, By: by}, reason
	return f.err
}

func (f *flows) StopAll(_ context.Context, by, reason string) ([]executor.Frozen, error) {
	f.order, f.reason = executor.Order{By: by}, reason
	return []executor.Frozen{{Machine: "m1"}}, f.err
}

func (f *flows) ResumeAll(_ context.Context, by string) ([]executor.Frozen, error) {
	f.order = executor.Order{By: by}
	return []executor.Frozen{}, f.err
}

type lab struct {
	client *Client
	server *Server
	config ServerConfig
	roster *roster.Roster
	flows  *flows
	store  *storetest.Memory
	log    *strings.Builder
	socket string
}

// following starts a roster over a store.
func following(t testing.TB, repo *fleet.Repo) *roster.Roster {
	t.Helper()
	r := roster.New(roster.Config{Source: repo, Now: func() time.Time { return now }})
	ctx, cancel := context.WithCancel(context.Background())
	if err := r.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); r.Wait() })
	return r
}

// start serves on a socket whose directory has a short name, as sockaddr_un wants it.
func start(t *testing.T, owner uint32, more ...func(*lab)) *lab {
	t.Helper()
	dir, err := os.MkdirTemp("", "fl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{flows: &flows{}, store: storetest.New(), log: &strings.Builder{}, socket: filepath.Join(dir, "s")}
	clock := func() time.Time { return now }
	lib, err := images.New(l.store, filepath.Join(dir, "blobs"), envelope.Signer{Key: key}, clock)
	if err != nil {
		t.Fatal(err)
	}
	repo := fleet.NewRepo(l.store)
	l.roster = following(t, repo)
	l.config = ServerConfig{Fleet: repo, Roster: l.roster, Images: lib, Workflows: l.flows, Store: l.store, Owner: owner, Now: clock,
		Log: slog.New(slog.NewTextHandler(l.log, nil))}
	for _, change := range more {
		change(l)
	}
	srv := NewServer(l.config)
	l.server = srv
	ln, err := Listen(l.socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		srv.Stop(ctx)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	l.client = NewClient(l.socket)
	return l
}

func machine(name string) AddMachine {
	return AddMachine{Name: name, MACs: []string{"52-54-00-00-00-0A"}, DiskSerials: []string{"S1"}, BMCURL: "https://10.0.0.1",
		BMCUser: "admin", BMCPassword: "hunter2", BMCCertificateSHA256: strings.Repeat("ab", 32)}
}

func self() uint32 { return uint32(os.Getuid()) }

func TestAddAndShowMachine(t *testing.T) {
	l := start(t, self())
	m, err := l.client.AddMachine(t.Context(), machine("m1"))
	if err != nil {
		t.Fatal(err)
	}
	if m.Name != "m1" || m.State != fleet.MachineNew || fmt.Sprint(m.MACs) != "[52:54:00:00:00:0a]" || m.NodeID == "" {
		t.Errorf("got %+v, want a new m1", m)
	}
	all, err := l.client.Machines(t.Context())
	if err != nil || len(all) != 1 || all[0].Name != "m1" {
		t.Errorf("list: got %+v, %v", all, err)
	}
	events, err := l.client.Events(t.Context(), "m1", 10)
	if err != nil || len(events) != 1 || events[0].Kind != "machine.added" || !strings.Contains(events[0].Message, "uid") {
		t.Errorf("events: got %+v, %v, want machine.added by a uid", events, err)
	}
}

func TestPasswordStaysInside(t *testing.T) {
	l := start(t, self())
	in := machine("m1")
	m, err := l.client.AddMachine(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	in.MACs = []string{"no"}
	_, bad := l.client.AddMachine(t.Context(), in)
	events, err := l.client.Events(t.Context(), "", 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprintf("%+v %#v %v", in, in, in), fmt.Sprintf("%+v", m), fmt.Sprint(bad), fmt.Sprintf("%+v", events), l.log.String()} {
		if strings.Contains(text, "hunter2") {
			t.Errorf("the password is in %q", text)
		}
	}
}

func TestFaultsCrossTheSocket(t *testing.T) {
	l := start(t, self())
	if _, err := l.client.AddMachine(t.Context(), machine("m1")); err != nil {
		t.Fatal(err)
	}
	badMAC, badCert := machine("m2"), machine("m2")
	badMAC.MACs = []string{"zz"}
	badCert.BMCCertificateSHA256 = "xyz"
	for _, tc := range []struct {
		name string
		call func() error
		kind fault.Kind
		word string
	}{
		{"unknown machine", func() error { _, err := l.client.Machine(t.Context(), "m9"); return err }, fault.NotFound, "no machine"},
		{"name with a slash", func() error { _, err := l.client.Machine(t.Context(), "../m1"); return err }, fault.NotFound, "no machine"},
		{"bad MAC", func() error { _, err := l.client.AddMachine(t.Context(), badMAC); return err }, fault.Invalid, "zz"},
		{"bad digest", func() error { _, err := l.client.AddMachine(t.Context(), badCert); return err }, fault.Invalid, "digest"},
		{"known name", func() error { _, err := l.client.AddMachine(t.Context(), machine("m1")); return err }, fault.Conflict, "m1"},
		{"unknown image", func() error {
			_, err := l.client.Provision(t.Context(), "m1", Provision{Image: "none"})
			return err
		}, fault.NotFound, "image"},
		{"provision unknown machine", func() error {
			_, err := l.client.Provision(t.Context(), "m9", Provision{Image: "none"})
			return err
		}, fault.NotFound, "no machine"},
		{"no image there", func() error {
			_, err := l.client.AddImage(t.Context(), AddImage{Name: "demo", Dir: "/nonexistent"})
			return err
		}, fault.Invalid, "nonexistent"},
		{"bad limit", func() error { _, err := l.client.Events(t.Context(), "", 0); return err }, fault.Usage, "limit"},
	} {
		err := tc.call()
		f, ok := errors.AsType[*fault.Error](err)
		if !ok || f.Kind != tc.kind || !strings.Contains(f.Error(), tc.word) || f.Next == "" {
			t.Errorf("%s: got %#v, want %s that says %q and what next", tc.name, err, tc.kind, tc.word)
		}
	}
}

func TestResumeSaysWho(t *testing.T) {
	l := start(t, self())
	if _, err := l.client.AddMachine(t.Context(), machine("m1")); err != nil {
		t.Fatal(err)
	}
	if _, err := l.client.Resume(t.Context(), "m1", Act{}); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("uid %d", self()); l.flows.order.By != want || l.flows.order.Machine != "m1" {
		t.Errorf("got %+v, want m1 by %s", l.flows.order, want)
	}
	for _, tc := range []struct {
		err  error
		kind fault.Kind
	}{{executor.ErrNotPaused, fault.Conflict}, {executor.ErrBusy, fault.Conflict}, {executor.ErrStopped, fault.Unavailable}} {
		l.flows.err = tc.err
		_, err := l.client.Resume(t.Context(), "m1", Act{})
		if f, ok := errors.AsType[*fault.Error](err); !ok || f.Kind != tc.kind {
			t.Errorf("%v: got %v, want %s", tc.err, err, tc.kind)
		}
	}
}

// Whoever is neither root nor the owner is refused, in words, before the request is looked at.
func TestOthersAreRefused(t *testing.T) {
	srv := NewServer(ServerConfig{Owner: 1000, Log: slog.New(slog.DiscardHandler)})
	for _, tc := range []struct {
		name string
		ctx  context.Context
		ok   bool
	}{
		{"root", context.WithValue(t.Context(), peerKey{}, Peer{UID: 0}), true},
		{"owner", context.WithValue(t.Context(), peerKey{}, Peer{UID: 1000}), true},
		{"other", context.WithValue(t.Context(), peerKey{}, Peer{UID: 1001}), false},
		{"no peer", t.Context(), false},
	} {
		w := httptest.NewRecorder()
		srv.http.Handler.ServeHTTP(w, httptest.NewRequestWithContext(tc.ctx, "GET", "/nowhere", nil))
		if got := w.Code != http.StatusForbidden; got != tc.ok {
			t.Errorf("%s: got status %d, want allowed %v", tc.name, w.Code, tc.ok)
		}
		if !tc.ok && !strings.Contains(w.Body.String(), "neither root nor") {
			t.Errorf("%s: got %s, want words", tc.name, w.Body)
		}
	}
}

func TestPeerIsOurselves(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Skip("reason: the test's directory has a path too long for a socket: ", err)
	}
	defer l.Close()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if p, err := peerOf(s); err != nil || p.UID != self() || int(p.PID) != os.Getpid() {
		t.Errorf("got %+v, %v, want this process", p, err)
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if p, err := peerOf(a); err == nil {
		t.Errorf("pipe: got %+v, want an error", p)
	}
}

func TestListenReplacesOnlyADeadSocket(t *testing.T) {
	l := start(t, self())
	if other, err := Listen(l.socket); err == nil {
		other.Close()
		t.Error("a served socket was taken over")
	}
	dead := l.socket + "d"
	ln, err := net.Listen("unix", dead)
	if err != nil {
		t.Fatal(err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	ln.Close()
	again, err := Listen(dead)
	if err != nil {
		t.Fatalf("a dead socket: %v", err)
	}
	again.Close()
	file := l.socket + "f"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(file); err == nil {
		t.Error("a file was replaced")
	}
}

func TestClientWordsForNoAppliance(t *testing.T) {
	_, err := NewClient("/nonexistent/s").Machines(t.Context())
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || f.Kind != fault.Unavailable || !strings.Contains(f.Next, "firstlight serve") {
		t.Errorf("got %v, want words that name firstlight serve", err)
	}
}

func FuzzServer(f *testing.F) {
	s := storetest.New()
	repo := fleet.NewRepo(s)
	srv := NewServer(ServerConfig{Fleet: repo, Roster: following(f, repo), Workflows: &flows{}, Owner: 0, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	f.Add("/v1/machines", `{"name":"m1","macs":["52:54:00:00:00:01"]}`)
	f.Add("/v1/machines/m1/resume", `null`)
	f.Fuzz(func(t *testing.T, path, body string) {
		if !strings.HasPrefix(path, "/v1/machines") || strings.ContainsAny(path, " \r\n\x00%#?\x7f") {
			return
		}
		ctx := context.WithValue(t.Context(), peerKey{}, Peer{})
		r, err := http.NewRequestWithContext(ctx, "POST", "http://firstlight"+path, strings.NewReader(body))
		if err != nil || strings.HasSuffix(path, "/provision") {
			return
		}
		w := httptest.NewRecorder()
		srv.http.Handler.ServeHTTP(w, r)
		if w.Code == http.StatusInternalServerError {
			t.Errorf("%s %q: got %s", path, body, w.Body)
		}
	})
}

func TestGuardsOverTheSocket(t *testing.T) {
	l := start(t, self())
	if _, err := l.client.AddMachine(t.Context(), machine("m1")); err != nil {
		t.Fatal(err)
	}
	m, err := l.client.Protect(t.Context(), "m1", Reason{Reason: "customer data"})
	if err != nil || m.Protected == nil || m.Protected.Why != "customer data" || !strings.HasPrefix(m.Protected.By, "uid ") {
		t.Fatalf("got %+v, %v, want it protected with who and why", m.Protected, err)
	}
	for name, call := range map[string]func() error{
		"provision": func() error {
			_, err := l.client.Provision(t.Context(), "m1", Provision{Image: "x", Reinstall: true})
			return err
		},
		"dry run": func() error { _, err := l.client.DryRun(t.Context(), "m1", Provision{Image: "x"}); return err },
	} {
		if f := fault.Of(call(), "", ""); f.Kind != fault.Conflict || !strings.Contains(f.Error(), "customer data") || !strings.Contains(f.Next, "unprotect") {
			t.Errorf("%s: got %+v, want a conflict that says who protects it and how to end that", name, f)
		}
	}
	if m, err := l.client.Unprotect(t.Context(), "m1", Act{}); err != nil || m.Protected != nil {
		t.Errorf("got %+v, %v, want no mark", m.Protected, err)
	}
	if _, err := l.client.Unprotect(t.Context(), "m1", Act{}); fault.Of(err, "", "").Kind != fault.Conflict {
		t.Errorf("got %v, want a conflict", err)
	}
	if _, err := l.client.Cancel(t.Context(), "m1", Reason{Reason: "why"}); err != nil || l.flows.order.Machine != "m1" || l.flows.reason != "why" {
		t.Errorf("got order %+v for %q, %v, want m1's cancelled", l.flows.order, l.flows.reason, err)
	}
	if _, err := l.client.Cancel(t.Context(), "m1", Reason{Reason: strings.Repeat("x", 1000)}); fault.Of(err, "", "").Kind != fault.Invalid {
		t.Errorf("got %v for a long reason, want it refused", err)
	}
	if z, err := l.client.StopAll(t.Context(), "smoke"); err != nil || len(z.Workflows) != 1 || l.flows.reason != "smoke" {
		t.Errorf("got %+v, %v, want what was frozen", z, err)
	}
	if z, err := l.client.ResumeAll(t.Context()); err != nil || len(z.Workflows) != 0 {
		t.Errorf("got %+v, %v, want nothing stopped", z, err)
	}
	for err, kind := range map[error]fault.Kind{executor.ErrNothingToCancel: fault.Conflict, executor.ErrStopped: fault.Unavailable} {
		l.flows.err = err
		if _, err := l.client.Cancel(t.Context(), "m1", Reason{Reason: ""}); fault.Of(err, "", "").Kind != kind {
			t.Errorf("got %v, want %s", err, kind)
		}
	}
}
