package auth

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/crypto/argon2"
)

// Bounds of a password in bytes. What it is made of is nobody's business.
const (
	MinPassword = 12
	MaxPassword = 256
)

// How many hashes are computed at once (each takes Cost.MemoryKiB), and how many more callers may wait.
const (
	maxHashing = 2
	maxWaiting = 16
	// busyRetry is what a caller beyond both is told to wait.
	busyRetry = 2 * time.Second
)

// worst are the passwords of at least MinPassword bytes that guessers try first, and those that this product suggests.
var worst = []string{
	"123456789012", "1234567890123", "12345678901234", "123456789012345", "1234567890123456", "123123123123", "111111111111",
	"000000000000", "aaaaaaaaaaaa", "abcdefghijkl", "qwertyuiopas", "qwertyuiop[]", "qwerty123456", "qwertyqwerty", "1q2w3e4r5t6y",
	"1qaz2wsx3edc", "asdfghjkl123", "password1234", "password12345", "passwordpassword", "password123!", "administrator",
	"administrator1", "adminadminadmin", "admin1234567", "changemechangeme", "changeme1234", "letmeinletmein", "welcome12345",
	"iloveyou1234", "firstlight123", "firstlight1234", "firstlightfirstlight", "firstlight2026", "correcthorsebatterystaple",
	"correct horse battery staple", "calvincalvin", "supermicro123", "raspberry1234", "rootrootroot",
}

// checkPassword says why a password is not allowed for a user.
func checkPassword(name string, password Secret) error {
	p := password.Reveal()
	folded := strings.ToLower(strings.TrimSpace(p))
	switch {
	case len(p) < MinPassword || len(p) > MaxPassword:
		return fmt.Errorf("password of %d bytes: %w: want %d to %d", len(p), ErrInvalid, MinPassword, MaxPassword)
	case !utf8.ValidString(p):
		return fmt.Errorf("password: %w: it is not UTF-8", ErrInvalid)
	case folded == name:
		return fmt.Errorf("password: %w: it is the user's name", ErrInvalid)
	}
	for _, w := range worst {
		if folded == w {
			return fmt.Errorf("password: %w: it is among the first that anybody tries", ErrInvalid)
		}
	}
	return nil
}

// hasher computes few hashes at once: each takes much memory and a while.
type hasher struct {
	cost Cost
	// line holds who computes or waits, slots who computes.
	line, slots chan struct{}
	// nobody is the hash that an unknown name is checked against, so that it takes as long. No password has it.
	nobody phc
}

func newHasher(c Cost) *hasher {
	h := &hasher{cost: c, line: make(chan struct{}, maxHashing+maxWaiting), slots: make(chan struct{}, maxHashing)}
	h.nobody = phc{cost: c, salt: make([]byte, newSalt), hash: make([]byte, newHash)}
	rand.Read(h.nobody.salt)
	rand.Read(h.nobody.hash)
	return h
}

// do runs compute in a slot, or returns *LimitedError when too many wait.
func (h *hasher) do(ctx context.Context, compute func()) error {
	select {
	case h.line <- struct{}{}:
		defer func() { <-h.line }()
	default:
		return &LimitedError{RetryAfter: busyRetry}
	}
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	compute()
	return nil
}

// hash makes the PHC string of a new password.
func (h *hasher) hash(ctx context.Context, password Secret) (string, error) {
	p := phc{cost: h.cost, salt: make([]byte, newSalt)}
	rand.Read(p.salt)
	err := h.do(ctx, func() {
		p.hash = argon2.IDKey([]byte(password.Reveal()), p.salt, p.cost.Passes, p.cost.MemoryKiB, p.cost.Lanes, newHash)
	})
	return p.encode(), err
}

// check says whether password has the stored hash, and whether that hash should be made anew at today's cost. An empty stored hash
// is an unknown user: it takes the same time and is never right.
func (h *hasher) check(ctx context.Context, stored string, password Secret) (ok, outdated bool, err error) {
	want := h.nobody
	if stored != "" {
		if want, err = parsePHC(stored); err != nil {
			return false, false, err
		}
	}
	if len(password.Reveal()) > MaxPassword {
		password = Secret{}
	}
	err = h.do(ctx, func() { ok = want.matches(password) })
	return ok && stored != "", want.cost != h.cost, err
}
