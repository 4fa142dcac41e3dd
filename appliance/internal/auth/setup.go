package auth

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base32"
	"fmt"
	"strings"
)

// codeBytes is the strength of the one-time code: 80 bits, 16 characters.
const codeBytes = 10

// crockford's alphabet has no I, L, O and U: the code is read from one screen and typed into another.
var crockford = base32.NewEncoding("0123456789ABCDEFGHJKMNPQRSTVWXYZ").WithPadding(base32.NoPadding)

// NeedsSetup says that there is no administrator yet.
func (a *Accounts) NeedsSetup(ctx context.Context) (bool, error) {
	u, err := a.users(ctx)
	if err != nil {
		return false, fmt.Errorf("read users: %w", err)
	}
	return u.admins() == 0, nil
}

// SetupCode makes the one-time code with which the first administrator is made, such as "K7QF-2M9D-XW3H-P8TC". It is good once, in
// this process, and until another one is made; only its hash is kept. ErrSetUp when there is an administrator.
func (a *Accounts) SetupCode(ctx context.Context) (Secret, error) {
	needed, err := a.NeedsSetup(ctx)
	if err != nil {
		return Secret{}, err
	}
	if !needed {
		return Secret{}, fmt.Errorf("make one-time code: %w", ErrSetUp)
	}
	b := make([]byte, codeBytes)
	rand.Read(b)
	code := crockford.EncodeToString(b)
	hash := sum(code)
	a.mu.Lock()
	a.setup = &hash
	a.mu.Unlock()
	return NewSecret(code[:4] + "-" + code[4:8] + "-" + code[8:12] + "-" + code[12:]), nil
}

// plainCode undoes what hands and eyes do to a code.
func plainCode(s string) string {
	return strings.NewReplacer("-", "", " ", "", "O", "0", "I", "1", "L", "1").Replace(strings.ToUpper(s))
}

// Setup makes the first administrator for whoever has the one-time code; ErrSetUp when there is one, which is no secret. from is the
// address that it comes from.
func (a *Accounts) Setup(ctx context.Context, code Secret, name string, password Secret, from string) error {
	switch needed, err := a.NeedsSetup(ctx); {
	case err != nil:
		return err
	case !needed:
		return fmt.Errorf("set up: %w", ErrSetUp)
	}
	giveBack, err := a.limits.attempt("", from, a.cfg.Now())
	if err != nil {
		return err
	}
	hash := sum(plainCode(code.Reveal()))
	if !a.isCode(hash) {
		a.record(ctx, Entry{Who: Nobody, From: from, What: "set up", Object: "the first administrator", Outcome: Denied,
			Detail: "the one-time code was wrong or used"})
		return fmt.Errorf("one-time code: %w", ErrDenied)
	}
	giveBack()
	if err := a.firstAdmin(ctx, hash, name, password); err != nil {
		return err
	}
	a.record(ctx, Entry{Who: name, Role: RoleAdmin, From: from, What: "set up", Object: "user " + name, Outcome: Done,
		Detail: "the first administrator, by the one-time code"})
	return nil
}

// firstAdmin makes the first administrator and uses the code up. A mistake in name or password costs no code.
func (a *Accounts) firstAdmin(ctx context.Context, hash [32]byte, name string, password Secret) error {
	if err := checkName("user", name); err != nil {
		return err
	}
	phc, err := a.newPassword(ctx, name, password)
	if err != nil {
		return err
	}
	err = a.changeUsers(ctx, func(u *users) error {
		if u.admins() > 0 {
			return ErrSetUp
		}
		if !a.isCode(hash) {
			return ErrDenied
		}
		return u.add(name, RoleAdmin, phc, a.cfg.Now())
	})
	if err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.setup = nil
	return nil
}

func (a *Accounts) isCode(hash [32]byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.setup != nil && subtle.ConstantTimeCompare(a.setup[:], hash[:]) == 1
}
