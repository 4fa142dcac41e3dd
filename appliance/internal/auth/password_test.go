package auth

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// reference is another program's: `printf %s "a long enough one" | argon2 saltsaltsaltsalt -id -t 2 -k 64 -p 1 -l 32 -e`, with the
// reference implementation of Debian 12 (argon2 0~20171227).
const reference = "$argon2id$v=19$m=64,t=2,p=1$c2FsdHNhbHRzYWx0c2FsdA$6jWmNR/WbqUysNqqaZSMEwJoYuKx2HI0n9Gkra2zmeU"

func TestPHCOfAnotherProgram(t *testing.T) {
	t.Parallel()
	p, err := parsePHC(reference)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Cost{MemoryKiB: 64, Passes: 2, Lanes: 1}); p.cost != want {
		t.Errorf("cost: got %v, want %v", p.cost, want)
	}
	if !p.matches(NewSecret(good)) || p.matches(NewSecret(other)) || p.matches(Secret{}) {
		t.Error("the wrong password matches, or the right one does not")
	}
}

func TestParsePHCRefuses(t *testing.T) {
	t.Parallel()
	for name, change := range map[string][2]string{
		"argon2i":         {"argon2id", "argon2i"},
		"old version":     {"v=19", "v=16"},
		"no version":      {"v=19$", ""},
		"much memory":     {"m=64,", "m=999999999,"},
		"little memory":   {"m=64,", "m=7,"},
		"no passes":       {"t=2", "t=0"},
		"many passes":     {"t=2", "t=17"},
		"no lanes":        {"p=1", "p=0"},
		"many lanes":      {"p=1", "p=256"},
		"leading zero":    {"m=64,", "m=064,"},
		"sign":            {"m=64,", "m=+64,"},
		"other order":     {"m=64,t=2", "t=2,m=64"},
		"more parameters": {"p=1", "p=1,k=1"},
		"short salt":      {"$c2FsdHNhbHRzYWx0c2FsdA$", "$c2FsdA$"},
		"padded salt":     {"c2FsdHNhbHRzYWx0c2FsdA", "c2FsdHNhbHRzYWx0c2FsdA=="},
		"loose bits":      {"c2FsdHNhbHRzYWx0c2FsdA", "c2FsdHNhbHRzYWx0c2FsdB"},
		"new line":        {"c2FsdHNhbHRzYWx0c2FsdA", "c2FsdHNhbHRz\nYWx0c2FsdA"},
		"no start":        {"$argon2id", "argon2id"},
		"long":            {"$argon2id", strings.Repeat("$", maxPHC) + "argon2id"},
	} {
		text := strings.Replace(reference, change[0], change[1], 1)
		if text == reference {
			t.Fatalf("%s: nothing replaced", name)
		}
		if _, err := parsePHC(text); err == nil {
			t.Errorf("%s: %s is taken", name, text)
		}
	}
}

func FuzzParsePHC(f *testing.F) {
	f.Add(reference)
	f.Add("$argon2id$v=19$m=65536,t=3,p=4$c2FsdHNhbHRzYWx0c2FsdA$MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE")
	f.Add("$argon2id$v=19$m=,t=,p=$$")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := parsePHC(s)
		if err != nil {
			return
		}
		if err := p.cost.check(); err != nil {
			t.Errorf("%q was taken: %v", s, err)
		}
		if got := p.encode(); got != s {
			t.Errorf("got %q from %q", got, s)
		}
	})
}

func TestPasswordRules(t *testing.T) {
	t.Parallel()
	for password, ok := range map[string]bool{
		good:                         true,
		"            ":               true, // no rules on what it is made of
		"пароль-пароль":              true,
		strings.Repeat("x", 256):     true,
		"elevenbytes":                false,
		strings.Repeat("x", 257):     false,
		"annalena-of-rack":           false, // the name
		" AnnaLena-of-Rack ":         false,
		"PasswordPassword":           false,
		"123456789012":               false,
		"twelve bytes\xff":           false,
		"annalena-of-rack and more ": true,
	} {
		if err := checkPassword("annalena-of-rack", NewSecret(password)); (err == nil) != ok {
			t.Errorf("%q: got %v, want taken: %v", password, err, ok)
		} else if err != nil && (!errors.Is(err, ErrInvalid) || strings.Contains(err.Error(), password)) {
			t.Errorf("%q: got %v, want ErrInvalid without the password", password, err)
		}
	}
	for _, w := range worst {
		if len(w) < MinPassword {
			t.Errorf("%q needs no place in the list: it is too short", w)
		}
		if w != strings.ToLower(w) {
			t.Errorf("%q is never found: the list is lower case", w)
		}
	}
}

// An unknown name costs as much as a known one: the same work is done, at the same cost.
func TestUnknownNameIsComputed(t *testing.T) {
	t.Parallel()
	h := newHasher(cheap)
	if h.nobody.cost != cheap || len(h.nobody.hash) != newHash || len(h.nobody.salt) != newSalt {
		t.Errorf("got %v, want the work of a new hash", h.nobody.cost)
	}
	if ok, _, err := h.check(t.Context(), "", NewSecret(good)); ok || err != nil {
		t.Errorf("got %v, %v, want a refusal", ok, err)
	}
	// Even the one password that nobody's hash would have is refused.
	stored, err := h.hash(t.Context(), NewSecret(good))
	if err != nil {
		t.Fatal(err)
	}
	if h.nobody, err = parsePHC(stored); err != nil {
		t.Fatal(err)
	}
	if ok, _, err := h.check(t.Context(), "", NewSecret(good)); ok || err != nil {
		t.Errorf("got %v, %v, want a refusal", ok, err)
	}
	if ok, _, err := h.check(t.Context(), stored, NewSecret(strings.Repeat("x", MaxPassword+1))); ok || err != nil {
		t.Errorf("too long: got %v, %v, want a refusal", ok, err)
	}
}

// Hashes take much memory, so few are computed at once and few more wait.
func TestHashingIsBounded(t *testing.T) {
	t.Parallel()
	h := newHasher(cheap)
	running, release, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	hold := func() { ended <- h.do(context.Background(), func() { running <- struct{}{}; <-release }) }
	for range maxHashing {
		go hold()
	}
	for range maxHashing {
		<-running
	}
	ctx, cancel := context.WithCancel(t.Context())
	for range maxWaiting {
		h.line <- struct{}{} // a caller who waits
	}
	var limited *LimitedError
	if err := h.do(t.Context(), func() { t.Error("computed beyond the bound") }); !errors.As(err, &limited) || limited.RetryAfter != busyRetry {
		t.Errorf("got %v, want a refusal for %v", err, busyRetry)
	}
	<-h.line
	cancel()
	if err := h.do(ctx, func() { t.Error("computed beyond the bound") }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the wait to end with its caller", err)
	}
	close(release)
	for range maxHashing {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func BenchmarkDefaultCost(b *testing.B) {
	h := newHasher(DefaultCost)
	for b.Loop() {
		if _, err := h.hash(b.Context(), NewSecret(good)); err != nil {
			b.Fatal(err)
		}
	}
}

func ExampleLimitedError() {
	fmt.Println(&LimitedError{RetryAfter: 1500e6})
	// Output: too many attempts: the next one is looked at in 2 s
}
