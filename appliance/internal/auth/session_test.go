package auth

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestLogin(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.user(t, "anna", RoleOperator)
	s, err := r.Login(t.Context(), " Anna ", NewSecret(good), here)
	if err != nil {
		t.Fatal(err)
	}
	want := Principal{Kind: KindUser, Name: "anna", Role: RoleOperator}
	now := r.clock.time()
	if s.Principal != want || !s.Expires.Equal(now.Add(SessionLife)) || !s.Idle.Equal(now.Add(IdleLife)) {
		t.Errorf("got %+v, want %v until %v", s, want, now.Add(SessionLife))
	}
	if e := r.newest(t); e.What != "sign in" || e.Who != "anna" || e.Outcome != Done || e.From != here || e.Role != RoleOperator || !e.Time.Equal(now) {
		t.Errorf("audit says %+v", e)
	}
	again := r.lasts(t, "at once", s)
	if again.Principal != want || !again.CSRF.Equal(s.CSRF.Reveal()) || s.CSRF.Equal(s.Secret.Reveal()) || len(s.CSRF.Reveal()) < 40 {
		t.Errorf("got %+v, want the same session", again)
	}
	if second := r.login(t, "anna"); second.CSRF.Equal(s.CSRF.Reveal()) || second.Secret.Equal(s.Secret.Reveal()) {
		t.Error("two sessions share a secret")
	}
	entries, err := r.store.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		for _, secret := range []Secret{s.Secret, s.CSRF, NewSecret(good)} {
			if bytes.Contains(e.Value, []byte(secret.Reveal())) || strings.Contains(e.Key, secret.Reveal()) {
				t.Errorf("%s: a secret is readable", e.Key)
			}
		}
	}
	other := r.restart(t, cheap)
	if _, err := other.Session(t.Context(), s.Secret); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

func TestLoginRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.user(t, "anna", RoleAdmin)
	for _, tc := range []struct{ name, password, who string }{
		{"anna", other, "anna"},
		{"anna", "", "anna"},
		{"anna", strings.Repeat("x", 10_000), "anna"},
		{"my secret password", good, "nobody"},
		{"", "", "nobody"},
	} {
		_, err := r.Login(t.Context(), tc.name, NewSecret(tc.password), here)
		if !errors.Is(err, ErrDenied) {
			t.Errorf("%q: got %v, want ErrDenied", tc.name, err)
		}
		e := r.newest(t)
		if e.Who != tc.who || e.Outcome != Denied {
			t.Errorf("%q: audit says %+v", tc.name, e)
		}
		// People type passwords into the wrong field.
		if tc.who == "nobody" && tc.name != "" && strings.Contains(fmt.Sprint(e), tc.name) {
			t.Errorf("%q is in the audit log", tc.name)
		}
	}
}

func TestSessionsEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	r.user(t, "root-anna", RoleAdmin)
	for name, end := range map[string]func(s Session) error{
		"logout":       func(s Session) error { return r.Logout(ctx, s.Secret) },
		"role":         func(Session) error { return r.SetRole(ctx, "ben", RoleTechnician) },
		"same role":    func(Session) error { return r.SetRole(ctx, "ben", RoleViewer) },
		"password":     func(Session) error { return r.SetPassword(ctx, "ben", NewSecret(good)) },
		"own password": func(Session) error { return r.ChangePassword(ctx, "ben", NewSecret(good), NewSecret(good+"!"), here) },
		"removal":      func(Session) error { return r.RemoveUser(ctx, "ben") },
		"another of that name": func(Session) error {
			return errors.Join(r.RemoveUser(ctx, "ben"), r.AddUser(ctx, "ben", RoleAdmin, NewSecret(good)))
		},
	} {
		r.user(t, "ben", RoleViewer)
		s, bystander := r.login(t, "ben"), r.login(t, "root-anna")
		r.lasts(t, name+", before", s)
		if err := end(s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		r.denied(t, name, s)
		r.lasts(t, name+", somebody else", bystander)
		if err := r.RemoveUser(ctx, "ben"); err != nil && !errors.Is(err, ErrUnknown) {
			t.Fatal(err)
		}
	}
	r.denied(t, "empty", Session{})
	r.denied(t, "invented", Session{Secret: newSecret()})
	if err := r.Logout(ctx, newSecret()); err != nil {
		t.Errorf("logout of none: %v", err)
	}
}

func TestSessionsAge(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.user(t, "anna", RoleAdmin)
	idle, watched, used := r.login(t, "anna"), r.login(t, "anna"), r.login(t, "anna")
	for r.clock.pass(time.Hour); !r.clock.time().After(used.Expires); r.clock.pass(time.Hour) {
		s := r.lasts(t, "in use", used)
		if want := r.clock.time().Add(IdleLife); !s.Idle.Equal(want) && !s.Idle.Equal(s.Expires) {
			t.Fatalf("idle end: got %v, want %v", s.Idle, want)
		}
		if _, err := r.Peek(t.Context(), watched.Secret); (err != nil) != r.clock.time().After(watched.Idle) {
			t.Fatalf("only looked at, until %v, at %v: got %v", watched.Idle, r.clock.time(), err)
		}
	}
	r.denied(t, "idle", idle)
	r.denied(t, "in use for long", used)
	if left, err := r.store.List(t.Context(), sessionsPrefix); err != nil || len(left) != 0 {
		t.Errorf("got %d sessions kept, %v, want none", len(left), err)
	}
}

// A session in use is not a write per request.
func TestSessionUseIsSeldomWritten(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.user(t, "anna", RoleAdmin)
	s := r.login(t, "anna")
	writes := 0
	r.store.FailWrites(func(string) error { writes++; return nil })
	for range 60 {
		r.clock.pass(10 * time.Second)
		r.lasts(t, "in use", s)
	}
	if writes != 2 {
		t.Errorf("got %d writes in ten minutes, want 2", writes)
	}
}

func TestSessionsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.user(t, "anna", RoleAdmin)
	r.user(t, "ben", RoleViewer)
	bystander, first := r.login(t, "ben"), r.login(t, "anna")
	r.clock.pass(time.Minute)
	for range MaxSessions {
		r.login(t, "anna")
	}
	r.denied(t, "the oldest of too many", first)
	r.lasts(t, "another user's", bystander)
	if all, err := r.store.List(t.Context(), sessionsPrefix); err != nil || len(all) != MaxSessions+1 {
		t.Errorf("got %d sessions, %v, want %d", len(all), err, MaxSessions+1)
	}
	r.clock.pass(SessionLife + time.Second)
	r.login(t, "ben")
	if all, err := r.store.List(t.Context(), sessionsPrefix); err != nil || len(all) != 1 {
		t.Errorf("got %d sessions, %v, want those that are over gone", len(all), err)
	}
}

// A hash at another cost is made anew when its password is known, and the sessions go on.
func TestHashIsRenewed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.user(t, "anna", RoleAdmin)
	s := r.login(t, "anna")
	dear := Cost{MemoryKiB: 16, Passes: 2, Lanes: 1}
	a := r.restart(t, dear)
	if _, err := a.Login(t.Context(), "anna", NewSecret(other), here); !errors.Is(err, ErrDenied) {
		t.Errorf("got %v, want ErrDenied", err)
	}
	for range 2 {
		if _, err := a.Login(t.Context(), "anna", NewSecret(good), here); err != nil {
			t.Fatal(err)
		}
	}
	u, err := a.users(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if p, err := parsePHC(u.byID["anna"].PHC); err != nil || p.cost != dear {
		t.Errorf("got cost %v, %v, want %v", p.cost, err, dear)
	}
	r.lasts(t, "after the hash was renewed", s)
}

func TestChangePassword(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.user(t, "anna", RoleViewer)
	ctx := t.Context()
	if err := r.ChangePassword(ctx, "anna", NewSecret(other), NewSecret(other), here); !errors.Is(err, ErrDenied) {
		t.Errorf("wrong old one: got %v, want ErrDenied", err)
	}
	if err := r.ChangePassword(ctx, "anna", NewSecret(good), NewSecret("short"), here); !errors.Is(err, ErrInvalid) {
		t.Errorf("short new one: got %v, want ErrInvalid", err)
	}
	if err := r.ChangePassword(ctx, "anna", NewSecret(good), NewSecret(other), here); err != nil {
		t.Fatal(err)
	}
	if e := r.newest(t); e.What != "change password" || e.Who != "anna" || e.Outcome != Done {
		t.Errorf("audit says %+v", e)
	}
	if _, err := r.Login(ctx, "anna", NewSecret(good), here); !errors.Is(err, ErrDenied) {
		t.Errorf("old password: got %v, want ErrDenied", err)
	}
	if _, err := r.Login(ctx, "anna", NewSecret(other), here); err != nil {
		t.Errorf("new password: %v", err)
	}
}
