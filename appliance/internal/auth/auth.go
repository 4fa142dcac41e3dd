// Package auth says who somebody is and what he may: local accounts, roles, sessions, tokens, the one-time code of the first start,
// and the audit log.
//
// It is for appliance and its internal packages: api asks it about tokens and permissions, web about sessions. It speaks no HTTP
// and decides nothing about machines. Everything is in the store, so that it survives a restart; of passwords, sessions and tokens
// only hashes are.
//
//	auth/users              one record with all users: that the last administrator stays is one compare-and-swap
//	auth/sessions/<sha256>  one record per session, by the hash of its secret
//	auth/tokens/<name>      one record per token
//	auth/audit/<number>     the audit log, a ring
package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"firstlight/appliance/internal/store"
)

// Where things are in the store.
const (
	usersKey       = "auth/users"
	sessionsPrefix = "auth/sessions/"
	tokensPrefix   = "auth/tokens/"
	auditPrefix    = "auth/audit/"
)

// maxTries bounds how often a change is tried again because somebody else changed the same record.
const maxTries = 10

var (
	// ErrDenied: name, password, code, session or token is not right. It never says which.
	ErrDenied = errors.New("not accepted")
	// ErrUnknown: there is no such user or token.
	ErrUnknown = errors.New("there is none of this name")
	// ErrTaken: the name belongs to another user or token.
	ErrTaken = errors.New("the name is taken")
	// ErrInvalid: a name, password, role or life is not allowed; the error says why.
	ErrInvalid = errors.New("not allowed")
	// ErrLastAdmin: without this administrator nobody could manage accounts any more.
	ErrLastAdmin = errors.New("this is the last administrator")
	// ErrFull: as many users, tokens or sessions as can be kept are there.
	ErrFull = errors.New("there is no room for another one")
	// ErrSetUp: an administrator exists, so there is nothing to set up.
	ErrSetUp = errors.New("an administrator exists already")
)

// LimitedError: too many attempts. Nothing was looked at.
type LimitedError struct {
	// RetryAfter is how long to wait before the next attempt can be looked at; over 0.
	RetryAfter time.Duration
}

func (e *LimitedError) Error() string {
	return fmt.Sprintf("too many attempts: the next one is looked at in %d s", e.Seconds())
}

// Seconds is RetryAfter in whole seconds, rounded up.
func (e *LimitedError) Seconds() int { return int((e.RetryAfter + time.Second - 1) / time.Second) }

// Config of Accounts.
type Config struct {
	Store store.Store
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Cost of new password hashes; the zero value is DefaultCost.
	Cost Cost
	// Log is where to tell; nil discards.
	Log *slog.Logger
}

// Accounts is safe for use from many goroutines.
type Accounts struct {
	cfg    Config
	hasher *hasher
	limits *limits
	ring   ring

	// mu guards setup and cached.
	mu sync.Mutex
	// setup is the hash of the one-time code that is good now; nil when there is none.
	setup *[32]byte
	// cached is the users record as it was read last; only its revision says whether it is still true.
	cached *users
}

// New returns the accounts that the store has. It reads nothing yet.
func New(cfg Config) (*Accounts, error) {
	if cfg.Store == nil {
		return nil, errors.New("accounts: no store")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Cost == (Cost{}) {
		cfg.Cost = DefaultCost
	}
	if err := cfg.Cost.check(); err != nil {
		return nil, fmt.Errorf("accounts: %w", err)
	}
	return &Accounts{cfg: cfg, hasher: newHasher(cfg.Cost), limits: newLimits()}, nil
}

// update changes one record by compare-and-swap until nobody was in between. change gets the record's value, nil when there is
// none, and returns the new one; nil deletes the record.
func (a *Accounts) update(ctx context.Context, key string, change func(old []byte) ([]byte, error)) error {
	for range maxTries {
		e, err := a.cfg.Store.Get(ctx, key)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		value, err := change(e.Value)
		if err != nil {
			return err
		}
		switch {
		case value != nil:
			_, err = a.cfg.Store.Put(ctx, key, value, e.Rev)
		case e.Rev != 0:
			err = a.cfg.Store.Delete(ctx, key, e.Rev)
		}
		if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	return fmt.Errorf("write %s: %w %d times", key, store.ErrConflict, maxTries)
}
