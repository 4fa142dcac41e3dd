package auth

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// limited expects a refusal before anything was looked at, and returns how long to wait.
func limited(t *testing.T, what string, err error) time.Duration {
	t.Helper()
	var l *LimitedError
	if !errors.As(err, &l) || l.RetryAfter <= 0 || l.Seconds() < 1 {
		t.Fatalf("%s: got %v, want a refusal that says how long to wait", what, err)
	}
	return l.RetryAfter
}

func TestGuessesAtOneNameFromOneAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.user(t, "anna", RoleAdmin)
	guess := func(from string) error {
		_, err := r.Login(t.Context(), "anna", NewSecret(other), from)
		return err
	}
	for i := range perPair.burst {
		if err := guess(here); !errors.Is(err, ErrDenied) {
			t.Fatalf("guess %d: got %v, want ErrDenied", i, err)
		}
	}
	before := r.newest(t)
	wait := limited(t, "one guess more", guess(here))
	if wait != perPair.every {
		t.Errorf("wait: got %v, want %v", wait, perPair.every)
	}
	if _, err := r.Login(t.Context(), "anna", NewSecret(good), here); err == nil {
		t.Error("the right password gets in meanwhile: the limit limits nothing")
	}
	if after := r.newest(t); after.Seq != before.Seq {
		t.Errorf("refusals fill the audit log: %+v", after)
	}
	// The one who owns the name is not kept out at another address.
	if _, err := r.Login(t.Context(), "anna", NewSecret(good), "198.51.100.1:1"); err != nil {
		t.Errorf("from another address: %v", err)
	}
	r.clock.pass(wait)
	if err := guess(here); !errors.Is(err, ErrDenied) {
		t.Errorf("after the wait: got %v, want ErrDenied", err)
	}
	limited(t, "and again", guess(here))
}

func TestGuessesAtManyNamesFromOneAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range perAddress.burst {
		if _, err := r.Login(t.Context(), fmt.Sprintf("user%d", i), NewSecret(other), fmt.Sprintf("[2001:db8::%x]:1", i+1)); !errors.Is(err, ErrDenied) {
			t.Fatalf("guess %d: got %v, want ErrDenied", i, err)
		}
	}
	_, err := r.Login(t.Context(), "another", NewSecret(other), "[2001:db8::ffff:1]:9")
	limited(t, "the same network", err)
	if err := r.Setup(t.Context(), NewSecret("x"), "anna", NewSecret(good), "2001:db8::5"); err == nil {
		t.Error("no limit for codes")
	} else {
		limited(t, "a code from the same network", err)
	}
	if _, err := r.Login(t.Context(), "another", NewSecret(other), "[2001:db8:0:1::1]:9"); !errors.Is(err, ErrDenied) {
		t.Errorf("another network: got %v, want ErrDenied", err)
	}
}

func TestGuessesAtOneNameFromManyAddresses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.user(t, "anna", RoleAdmin)
	for i := range perName.burst {
		if _, err := r.Login(t.Context(), "anna", NewSecret(other), fmt.Sprintf("192.0.2.%d", i)); !errors.Is(err, ErrDenied) {
			t.Fatalf("guess %d: got %v, want ErrDenied", i, err)
		}
	}
	_, err := r.Login(t.Context(), "anna", NewSecret(other), "198.51.100.1")
	limited(t, "one address more", err)
	// Then an administrator helps: by the unix socket nothing limits him.
	if err := r.SetPassword(t.Context(), "anna", NewSecret(other)); err != nil {
		t.Error(err)
	}
}

// Whoever gets it right uses up nothing.
func TestRightPasswordsAreNotLimited(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.user(t, "anna", RoleAdmin)
	for range 2 * perName.burst {
		r.login(t, "anna")
	}
}

func TestBucketsAreBounded(t *testing.T) {
	t.Parallel()
	l, now := newLimits(), time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	for i := range maxBuckets {
		if _, err := l.attempt(fmt.Sprintf("user%d", i), fmt.Sprintf("10.%d.%d.1", i>>8, i&0xff), now.Add(time.Duration(i))); err != nil {
			t.Fatal(err)
		}
	}
	if len(l.buckets) != maxBuckets {
		t.Errorf("got %d buckets, want %d", len(l.buckets), maxBuckets)
	}
	if _, kept := l.buckets["name user0"]; kept {
		t.Error("the oldest is kept, want it gone first")
	}
	if _, kept := l.buckets[fmt.Sprintf("name user%d", maxBuckets-1)]; !kept {
		t.Error("the newest is gone, want it kept")
	}
}

// One address cannot push out what others are counted by, with however many names it makes up.
func TestMadeUpNamesPushNothingOut(t *testing.T) {
	t.Parallel()
	l, now := newLimits(), time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	for range perPair.burst {
		if _, err := l.attempt("anna", "192.0.2.1", now); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 * maxBuckets {
		l.attempt(fmt.Sprintf("user%d", i), "192.0.2.2", now.Add(time.Second))
	}
	if _, err := l.attempt("anna", "192.0.2.1", now.Add(time.Second)); err == nil {
		t.Error("the guesses at anna's password are forgotten")
	}
}

func TestNetwork(t *testing.T) {
	t.Parallel()
	for from, want := range map[string]string{
		"192.0.2.7:4711": "192.0.2.7", "192.0.2.7": "192.0.2.7", "[::ffff:192.0.2.7]:1": "192.0.2.7",
		"[2001:db8::1]:1": "2001:db8::/64", "fe80::1%eth0": "fe80::/64", "": "unknown", "@": "unknown",
	} {
		if got := network(from); got != want {
			t.Errorf("%q: got %s, want %s", from, got, want)
		}
	}
}
