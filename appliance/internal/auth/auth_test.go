package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"firstlight/appliance/internal/store"
	"firstlight/appliance/internal/store/storetest"
)

// cheap makes hashes that a test can afford.
var cheap = Cost{MemoryKiB: 8, Passes: 1, Lanes: 1}

const (
	good  = "a long enough one"
	other = "another long one"
	here  = "192.0.2.7:4711"
)

// rig is accounts on a store that forgets, with a clock that the test sets.
type rig struct {
	*Accounts
	store *storetest.Memory
	clock *clock
}

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) time() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{store: storetest.New(), clock: &clock{now: time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)}}
	r.Accounts = r.restart(t, cheap)
	return r
}

// restart makes other accounts on the same store.
func (r *rig) restart(t *testing.T, c Cost) *Accounts {
	t.Helper()
	a, err := New(Config{Store: r.store, Now: r.clock.time, Cost: c, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (r *rig) user(t *testing.T, name string, role Role) {
	t.Helper()
	if err := r.AddUser(t.Context(), name, role, NewSecret(good)); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) login(t *testing.T, name string) Session {
	t.Helper()
	s, err := r.Login(t.Context(), name, NewSecret(good), here)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// denied expects the session to be over.
func (r *rig) denied(t *testing.T, what string, s Session) {
	t.Helper()
	if _, err := r.Session(t.Context(), s.Secret); !errors.Is(err, ErrDenied) {
		t.Errorf("%s: got %v, want ErrDenied", what, err)
	}
}

func (r *rig) lasts(t *testing.T, what string, s Session) Session {
	t.Helper()
	got, err := r.Session(t.Context(), s.Secret)
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
	return got
}

// newest returns the newest entry of the audit log.
func (r *rig) newest(t *testing.T) Entry {
	t.Helper()
	all, err := r.Entries(t.Context(), 0, 1)
	if err != nil || len(all) != 1 {
		t.Fatalf("audit log: got %v, %v, want one entry", all, err)
	}
	return all[0]
}

func TestRoles(t *testing.T) {
	t.Parallel()
	want := map[Role]string{
		RoleViewer:     "read",
		RoleTechnician: "read repair provision enrol",
		RoleOperator:   "read repair provision enrol manage",
		RoleAdmin:      "read repair provision enrol manage admin",
		"":             "",
		"root":         "",
	}
	for role, may := range want {
		var got []string
		for _, p := range append(Permissions(), "", "fly") {
			if role.Allows(p) {
				got = append(got, string(p))
			}
		}
		if strings.Join(got, " ") != may {
			t.Errorf("%q: got %v, want %s", role, got, may)
		}
		if _, err := ParseRole(string(role)); (err == nil) != (may != "") {
			t.Errorf("parse %q: got %v", role, err)
		}
	}
	if len(Roles()) != 4 || len(least) != len(permissions) {
		t.Errorf("got %d roles and %d permissions in the table of %d", len(Roles()), len(permissions), len(least))
	}
}

func TestPrincipal(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		p    Principal
		want string
	}{
		{Local("uid 0"), "uid 0"},
		{Principal{KindUser, "anna", RoleViewer}, "anna"},
		{Principal{KindToken, "ci-7", RoleOperator}, "token ci-7"},
	} {
		if tc.p.String() != tc.want {
			t.Errorf("got %q, want %q", tc.p, tc.want)
		}
		if got, ok := PrincipalOf(WithPrincipal(t.Context(), tc.p)); !ok || got != tc.p {
			t.Errorf("context: got %v, %v, want %v", got, ok, tc.p)
		}
	}
	if p, ok := PrincipalOf(t.Context()); ok || p.Role.Allows(PermRead) {
		t.Errorf("got %v, %v, want nobody", p, ok)
	}
}

func TestSecretDoesNotPrint(t *testing.T) {
	t.Parallel()
	s := NewSecret("hunter2")
	in := struct {
		Open   Secret
		closed Secret
		under  *Secret
		list   []Secret
	}{s, s, &s, []Secret{s}}
	j, err := json.Marshal(map[string]any{"s": s, "p": &s})
	if err != nil {
		t.Fatal(err)
	}
	var logged strings.Builder
	slog.New(slog.NewTextHandler(&logged, nil)).Info("x", "secret", s, "in", in)
	texts := []string{string(j), logged.String(), fmt.Sprint(s), s.String()}
	for _, verb := range strings.Split("v +v #v s q x X d c U t p b", " ") {
		texts = append(texts, fmt.Sprintf("%"+verb, s), fmt.Sprintf("%"+verb, in), fmt.Sprintf("%"+verb, Session{Secret: s, CSRF: s}))
	}
	for _, got := range texts {
		for _, spelling := range []string{"hunter2", "68756e74657232", "68756E74657232", "104 117 110"} {
			if strings.Contains(got, spelling) {
				t.Errorf("got %q, want no secret", got)
			}
		}
	}
	if !s.Equal("hunter2") || s.Equal("hunter") || s.Equal("") || (Secret{}).Equal("") || s.Empty() || !(Secret{}).Empty() {
		t.Error("secrets compare wrongly")
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"no store": {},
		"cost":     {Store: storetest.New(), Cost: Cost{MemoryKiB: 1 << 30, Passes: 1, Lanes: 1}},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
	}
	if a, err := New(Config{Store: storetest.New()}); err != nil || a.cfg.Cost != DefaultCost {
		t.Errorf("got %v, want the default cost", err)
	}
}

// Two appliances, or two requests, that change the same record lose nothing.
func TestChangesDoNotOverwriteEachOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var wg sync.WaitGroup
	for i := range 8 {
		for _, a := range []*Accounts{r.Accounts, r.restart(t, cheap)} {
			wg.Go(func() {
				err := a.AddUser(context.Background(), fmt.Sprintf("user%d-%p", i, a), RoleViewer, NewSecret(good))
				for errors.Is(err, store.ErrConflict) || errors.As(err, new(*LimitedError)) {
					err = a.AddUser(context.Background(), fmt.Sprintf("user%d-%p", i, a), RoleViewer, NewSecret(good))
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	all, err := r.Users(t.Context())
	if err != nil || len(all) != 16 {
		t.Errorf("got %d users, %v, want 16", len(all), err)
	}
}

// What the store cannot do is an error of everybody who needs it, and never lets anybody in.
func TestStoreTrouble(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.user(t, "anna", RoleAdmin)
	s := r.login(t, "anna")
	token, _, err := r.MintToken(t.Context(), "ci", RoleViewer, time.Hour, "anna")
	if err != nil {
		t.Fatal(err)
	}
	r.store.Close()
	ctx := t.Context()
	for name, try := range map[string]func() error{
		"users":    func() error { _, err := r.Users(ctx); return err },
		"setup":    func() error { _, err := r.NeedsSetup(ctx); return err },
		"code":     func() error { _, err := r.SetupCode(ctx); return err },
		"login":    func() error { _, err := r.Login(ctx, "anna", NewSecret(good), here); return err },
		"session":  func() error { _, err := r.Session(ctx, s.Secret); return err },
		"logout":   func() error { return r.Logout(ctx, s.Secret) },
		"token":    func() error { _, err := r.TokenPrincipal(ctx, token); return err },
		"tokens":   func() error { _, err := r.Tokens(ctx); return err },
		"mint":     func() error { _, _, err := r.MintToken(ctx, "x", RoleViewer, time.Hour, "anna"); return err },
		"record":   func() error { return r.Record(ctx, Entry{What: "x"}) },
		"password": func() error { return r.SetPassword(ctx, "anna", NewSecret(other)) },
	} {
		if err := try(); !errors.Is(err, store.ErrClosed) || errors.Is(err, ErrDenied) {
			t.Errorf("%s: got %v, want ErrClosed", name, err)
		}
	}
}
