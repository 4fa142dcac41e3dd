package auth

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestUsers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.user(t, "anna", RoleAdmin)
	r.user(t, "ben@example.org", RoleViewer)
	all, err := r.restart(t, cheap).Users(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 || all[0].Name != "anna" || all[0].Role != RoleAdmin || !all[0].Created.Equal(r.clock.time()) || !all[0].LastLogin.IsZero() || all[1].Role != RoleViewer {
		t.Errorf("got %+v, want anna and ben", all)
	}
	r.login(t, "anna")
	if all, err = r.Users(t.Context()); err != nil || !all[0].LastLogin.Equal(r.clock.time()) {
		t.Errorf("got %+v, %v, want anna's login", all, err)
	}
	e, err := r.store.Get(t.Context(), usersKey)
	if err != nil || bytes.Contains(e.Value, []byte(good)) {
		t.Errorf("the password is readable in the store, or %v", err)
	}
}

func TestAddUserRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.user(t, "anna", RoleAdmin)
	for _, tc := range []struct {
		name string
		role Role
		pass string
		want error
	}{
		{"anna", RoleViewer, good, ErrTaken},
		{"", RoleViewer, good, ErrInvalid},
		{"Ben", RoleViewer, good, ErrInvalid},
		{"7ben", RoleViewer, good, ErrInvalid},
		{"uid 0", RoleViewer, good, ErrInvalid},
		{"token_x", RoleViewer, good, ErrInvalid},
		{"ben\n", RoleViewer, good, ErrInvalid},
		{"bén", RoleViewer, good, ErrInvalid},
		{strings.Repeat("b", MaxName+1), RoleViewer, good, ErrInvalid},
		{"ben", "root", good, ErrInvalid},
		{"ben", "", good, ErrInvalid},
		{"ben", RoleViewer, "short", ErrInvalid},
	} {
		if err := r.AddUser(t.Context(), tc.name, tc.role, NewSecret(tc.pass)); !errors.Is(err, tc.want) {
			t.Errorf("%q %q: got %v, want %v", tc.name, tc.role, err, tc.want)
		}
	}
	for i := range MaxUsers - 1 {
		r.user(t, fmt.Sprintf("u%d", i), RoleViewer)
	}
	if err := r.AddUser(t.Context(), "ben", RoleViewer, NewSecret(good)); !errors.Is(err, ErrFull) {
		t.Errorf("got %v, want ErrFull", err)
	}
}

func TestLastAdminStays(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.user(t, "anna", RoleAdmin)
	r.user(t, "ben", RoleOperator)
	if err := r.RemoveUser(t.Context(), "anna"); !errors.Is(err, ErrLastAdmin) {
		t.Errorf("remove: got %v, want ErrLastAdmin", err)
	}
	if err := r.SetRole(t.Context(), "anna", RoleOperator); !errors.Is(err, ErrLastAdmin) {
		t.Errorf("role: got %v, want ErrLastAdmin", err)
	}
	if err := r.SetRole(t.Context(), "ben", RoleAdmin); err != nil {
		t.Fatal(err)
	}
	if err := r.SetRole(t.Context(), "anna", RoleViewer); err != nil {
		t.Errorf("role with another administrator there: %v", err)
	}
	if err := r.RemoveUser(t.Context(), "ben"); !errors.Is(err, ErrLastAdmin) {
		t.Errorf("remove the other: got %v, want ErrLastAdmin", err)
	}
	if err := r.RemoveUser(t.Context(), "anna"); err != nil {
		t.Errorf("remove a viewer: %v", err)
	}
	if needed, err := r.NeedsSetup(t.Context()); needed || err != nil {
		t.Errorf("got %v, %v, want an administrator", needed, err)
	}
}

func TestChangesOfUnknownUsers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	for name, err := range map[string]error{
		"role":     r.SetRole(ctx, "anna", RoleViewer),
		"remove":   r.RemoveUser(ctx, "anna"),
		"password": r.SetPassword(ctx, "anna", NewSecret(good)),
		"token":    r.RevokeToken(ctx, "ci"),
		"no token": r.RevokeToken(ctx, "../users"),
	} {
		if !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: got %v, want ErrUnknown", name, err)
		}
	}
	r.user(t, "anna", RoleAdmin)
	if err := r.SetRole(ctx, "anna", "root"); !errors.Is(err, ErrInvalid) {
		t.Errorf("role: got %v, want ErrInvalid", err)
	}
	if err := r.SetPassword(ctx, "anna", NewSecret("short")); !errors.Is(err, ErrInvalid) {
		t.Errorf("password: got %v, want ErrInvalid", err)
	}
}

func TestSetup(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	if needed, err := r.NeedsSetup(ctx); !needed || err != nil {
		t.Fatalf("got %v, %v, want setup", needed, err)
	}
	if err := r.Setup(ctx, Secret{}, "anna", NewSecret(good), here); !errors.Is(err, ErrDenied) {
		t.Errorf("before there is a code: got %v, want ErrDenied", err)
	}
	first, err := r.SetupCode(ctx)
	if err != nil {
		t.Fatal(err)
	}
	code, err := r.SetupCode(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(code.Reveal()) != 19 || code.Reveal() == first.Reveal() {
		t.Errorf("codes of %d characters, want 19 and another each time", len(code.Reveal()))
	}
	for name, c := range map[string]Secret{"old": first, "empty": {}, "short": NewSecret(code.Reveal()[:15])} {
		if err := r.Setup(ctx, c, "anna", NewSecret(good), here); !errors.Is(err, ErrDenied) {
			t.Errorf("%s code: got %v, want ErrDenied", name, err)
		}
		if e := r.newest(t); e.Outcome != Denied || e.Who != "nobody" || strings.Contains(fmt.Sprint(e), code.Reveal()) {
			t.Errorf("%s code: audit says %+v", name, e)
		}
	}
	// A mistake in the rest of the form does not cost the code.
	for name, err := range map[string]error{
		"name":     r.Setup(ctx, code, "Anna", NewSecret(good), here),
		"password": r.Setup(ctx, code, "anna", NewSecret("short"), here),
	} {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
	typed := NewSecret(strings.ToLower(strings.ReplaceAll(code.Reveal(), "-", " ")))
	if err := r.Setup(ctx, typed, "anna", NewSecret(good), here); err != nil {
		t.Fatal(err)
	}
	if e := r.newest(t); e.Outcome != Done || e.Who != "anna" || e.What != "set up" || e.From != here {
		t.Errorf("audit says %+v", e)
	}
	if s := r.login(t, "anna"); s.Principal.Role != RoleAdmin {
		t.Errorf("got %v, want an administrator", s.Principal)
	}
	if err := r.Setup(ctx, code, "eve", NewSecret(good), here); !errors.Is(err, ErrSetUp) {
		t.Errorf("the code again: got %v, want ErrSetUp", err)
	}
	if _, err := r.SetupCode(ctx); !errors.Is(err, ErrSetUp) {
		t.Errorf("another code: got %v, want ErrSetUp", err)
	}
}

// The code is worth nothing once root made an administrator by the socket.
func TestSetupAfterAnAdministratorCameOtherwise(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	code, err := r.SetupCode(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.user(t, "anna", RoleAdmin)
	if err := r.Setup(t.Context(), code, "eve", NewSecret(good), here); !errors.Is(err, ErrSetUp) {
		t.Errorf("got %v, want ErrSetUp", err)
	}
	if all, err := r.Users(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("got %v, %v, want anna alone", all, err)
	}
}

// Of many who use one code at once, one gets in.
func TestSetupIsOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	code, err := r.SetupCode(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const many = 8
	errs := make(chan error, many)
	for i := range many {
		go func() {
			errs <- r.Setup(t.Context(), code, fmt.Sprintf("u%d", i), NewSecret(good), fmt.Sprintf("192.0.2.%d", i))
		}()
	}
	in := 0
	for range many {
		switch err := <-errs; {
		case err == nil:
			in++
		case !errors.Is(err, ErrSetUp) && !errors.Is(err, ErrDenied):
			t.Error(err)
		}
	}
	if all, err := r.Users(t.Context()); in != 1 || err != nil || len(all) != 1 {
		t.Errorf("got %d in, %v, %v, want one", in, all, err)
	}
}

func TestPlainCode(t *testing.T) {
	t.Parallel()
	if got := plainCode(" k7qf-2mil-oo3h p8tc "); got != "K7QF2M1100"+"3HP8TC" {
		t.Errorf("got %s", got)
	}
}
