package webtest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"firstlight/appliance/internal/auth"
)

// The password of every account of the fake, and the code of its first start.
const (
	Password = "correct horse battery"
	Code     = "7F3K-9QXA-22MD"
)

// limit is how many wrong passwords a name may have before it has to wait.
const limit = 5

// Accounts are accounts in memory.
type Accounts struct {
	mu       sync.Mutex
	now      func() time.Time
	roles    map[string]auth.Role
	sessions map[string]auth.Session
	wrong    map[string]int
	n        int
}

// NewAccounts returns one account for each role: anna (admin), omar, tina and vera. fresh has none, and waits for its first start.
func NewAccounts(now func() time.Time, fresh bool) *Accounts {
	a := &Accounts{now: now, roles: map[string]auth.Role{}, sessions: map[string]auth.Session{}, wrong: map[string]int{}}
	if !fresh {
		a.roles = map[string]auth.Role{"anna": auth.RoleAdmin, "omar": auth.RoleOperator, "tina": auth.RoleTechnician, "vera": auth.RoleViewer}
	}
	return a
}

// NeedsSetup says whether there is no account.
func (a *Accounts) NeedsSetup(context.Context) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.roles) == 0, nil
}

// Setup makes the first account.
func (a *Accounts) Setup(_ context.Context, code auth.Secret, name string, password auth.Secret, _ string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case len(a.roles) > 0:
		return auth.ErrSetUp
	case !code.Equal(Code):
		return auth.ErrDenied
	case len(password.Reveal()) < 12:
		return fmt.Errorf("password of %d characters: %w: want 12 or more", len(password.Reveal()), auth.ErrInvalid)
	}
	a.roles[name] = auth.RoleAdmin
	return nil
}

// Login signs in with Password.
func (a *Accounts) Login(_ context.Context, name string, password auth.Secret, _ string) (auth.Session, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.wrong[name] >= limit {
		return auth.Session{}, &auth.LimitedError{RetryAfter: 30 * time.Second}
	}
	role, ok := a.roles[name]
	if !ok || !password.Equal(Password) {
		a.wrong[name]++
		return auth.Session{}, auth.ErrDenied
	}
	a.n++
	secret := fmt.Sprintf("session-%d-of-%s", a.n, name)
	s := auth.Session{Secret: auth.NewSecret(secret), CSRF: auth.NewSecret("mark-" + secret), Principal: auth.Principal{Kind: auth.KindUser, Name: name, Role: role},
		Expires: a.now().Add(auth.SessionLife), Idle: a.now().Add(auth.IdleLife)}
	a.sessions[secret] = s
	return s, nil
}

// Session returns a session.
func (a *Accounts) Session(_ context.Context, secret auth.Secret) (auth.Session, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, ok := a.sessions[secret.Reveal()]
	if !ok {
		return auth.Session{}, auth.ErrDenied
	}
	return s, nil
}

// Peek returns a session.
func (a *Accounts) Peek(ctx context.Context, secret auth.Secret) (auth.Session, error) {
	return a.Session(ctx, secret)
}

// Logout ends a session.
func (a *Accounts) Logout(_ context.Context, secret auth.Secret) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.sessions, secret.Reveal())
	return nil
}
