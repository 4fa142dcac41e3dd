package auth

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestTokens(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	value, made, err := r.MintToken(ctx, "ci-7", RoleTechnician, time.Hour, "anna")
	if err != nil {
		t.Fatal(err)
	}
	now := r.clock.time()
	want := Token{Name: "ci-7", Role: RoleTechnician, By: "anna", Created: now, Expires: now.Add(time.Hour)}
	if made != want || !strings.HasPrefix(value.Reveal(), "flt_ci-7_") || len(value.Reveal()) != len("flt_ci-7_")+43 {
		t.Errorf("got %+v, want %+v", made, want)
	}
	e, err := r.store.Get(ctx, tokensPrefix+"ci-7")
	if err != nil || bytes.Contains(e.Value, []byte(value.Reveal()[len("flt_ci-7_"):])) {
		t.Errorf("the token is readable in the store, or %v", err)
	}
	r.clock.pass(30 * time.Minute)
	p, err := r.restart(t, cheap).TokenPrincipal(ctx, value)
	if err != nil || p != (Principal{Kind: KindToken, Name: "ci-7", Role: RoleTechnician}) || p.String() != "token ci-7" {
		t.Errorf("got %v, %v, want ci-7", p, err)
	}
	all, err := r.Tokens(ctx)
	if err != nil || len(all) != 1 || !all[0].Used.Equal(r.clock.time()) {
		t.Errorf("got %+v, %v, want its use", all, err)
	}
	r.clock.pass(31 * time.Minute)
	if _, err := r.TokenPrincipal(ctx, value); !errors.Is(err, ErrDenied) {
		t.Errorf("after its end: got %v, want ErrDenied", err)
	}
}

func TestTokensRefuse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	value, _, err := r.MintToken(ctx, "ci", RoleAdmin, TokenLife, "anna")
	if err != nil {
		t.Fatal(err)
	}
	second, _, err := r.MintToken(ctx, "ci-2", RoleViewer, TokenLife, "anna")
	if err != nil {
		t.Fatal(err)
	}
	text := value.Reveal()
	for name, v := range map[string]string{
		"empty": "", "cut": text[:len(text)-1], "longer": text + "A", "no prefix": text[len(tokenPrefix):], "no secret": "flt_ci_", "no name": "flt__x",
		"another's secret": strings.Replace(second.Reveal(), "ci-2", "ci", 1), "unknown name": strings.Replace(text, "ci", "cd", 1),
		"path": "flt_../users_x", "spaces": " " + text,
	} {
		if p, err := r.TokenPrincipal(ctx, NewSecret(v)); !errors.Is(err, ErrDenied) || p != (Principal{}) {
			t.Errorf("%s: got %v, %v, want ErrDenied", name, p, err)
		}
	}
	if err := r.RevokeToken(ctx, "ci"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.TokenPrincipal(ctx, value); !errors.Is(err, ErrDenied) {
		t.Errorf("revoked: got %v, want ErrDenied", err)
	}
	if _, err := r.TokenPrincipal(ctx, second); err != nil {
		t.Errorf("the other one: %v", err)
	}
}

func TestMintTokenRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	for i := range MaxTokens {
		if _, _, err := r.MintToken(ctx, fmt.Sprintf("t%d", i), RoleViewer, TokenLife, "anna"); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name string
		role Role
		life time.Duration
		want error
	}{
		{"ci", RoleViewer, TokenLife, ErrFull},
		{"c_i", RoleViewer, TokenLife, ErrInvalid},
		{"", RoleViewer, TokenLife, ErrInvalid},
		{"ci", "root", TokenLife, ErrInvalid},
		{"ci", RoleViewer, 0, ErrInvalid},
		{"ci", RoleViewer, MaxTokenLife + 1, ErrInvalid},
	} {
		if v, _, err := r.MintToken(ctx, tc.name, tc.role, tc.life, "anna"); !errors.Is(err, tc.want) || !v.Empty() {
			t.Errorf("%+v: got %v", tc, err)
		}
	}
	if err := r.RevokeToken(ctx, "t0"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.MintToken(ctx, "t1", RoleViewer, TokenLife, "anna"); !errors.Is(err, ErrTaken) {
		t.Errorf("got %v, want ErrTaken", err)
	}
}

// FuzzToken: no text that was not minted is somebody.
func FuzzToken(f *testing.F) {
	f.Add("flt_ci_x")
	f.Add("flt_ci-7_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Add("flt_../users_")
	f.Fuzz(func(t *testing.T, text string) {
		r := newRig(t)
		if _, _, err := r.MintToken(t.Context(), "ci", RoleAdmin, time.Hour, "anna"); err != nil {
			t.Fatal(err)
		}
		if p, err := r.TokenPrincipal(t.Context(), NewSecret(text)); !errors.Is(err, ErrDenied) {
			t.Errorf("%q: got %v, %v, want ErrDenied", text, p, err)
		}
	})
}
