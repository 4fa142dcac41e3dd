package auth

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"firstlight/appliance/internal/store"
)

// How long a session lasts.
const (
	// IdleLife ends a session that nobody uses.
	IdleLife = 12 * time.Hour
	// SessionLife ends a session however much it is used.
	SessionLife = 7 * 24 * time.Hour
	// MaxSessions bounds the sessions of one user; a new one ends the one longest unused.
	MaxSessions = 20
	// touchEvery is how exactly it is kept when a session was last used: not every request is a write.
	touchEvery = 5 * time.Minute
)

// Session is somebody who is signed in.
type Session struct {
	// Secret is the cookie's value.
	Secret Secret
	// Principal is who, with the role that he has now.
	Principal Principal
	// CSRF is what every form of this session must bring back; Secret.Equal compares.
	CSRF Secret
	// Expires is when it ends at the latest, Idle when it ends unless it is used.
	Expires, Idle time.Time
}

// sessionRecord is a session in the store, under the hash of its secret.
type sessionRecord struct {
	User       string    `json:"user"`
	Generation int64     `json:"generation"`
	Created    time.Time `json:"created"`
	// Used is when it was last used, to touchEvery.
	Used time.Time `json:"used"`
}

func (r sessionRecord) over(now time.Time) bool {
	return now.After(r.Created.Add(SessionLife)) || now.After(r.Used.Add(IdleLife))
}

func (r sessionRecord) session(secret Secret, role Role) Session {
	s := Session{Secret: secret, Principal: Principal{Kind: KindUser, Name: r.User, Role: role}, CSRF: csrf(secret),
		Expires: r.Created.Add(SessionLife), Idle: r.Used.Add(IdleLife)}
	if s.Expires.Before(s.Idle) {
		s.Idle = s.Expires
	}
	return s
}

func sessionKey(secret Secret) string {
	h := sum(secret.Reveal())
	return sessionsPrefix + hex.EncodeToString(h[:])
}

// csrf is a function of the session's secret, so that nothing more is kept; it does not lead back.
func csrf(secret Secret) Secret {
	m := hmac.New(sha256.New, []byte(secret.Reveal()))
	m.Write([]byte("firstlight csrf"))
	return NewSecret(base64.RawURLEncoding.EncodeToString(m.Sum(nil)))
}

// Login checks a password and makes a session. from is the address that it comes from. A wrong password and an unknown name take
// the same time and give ErrDenied; too many attempts give *LimitedError.
func (a *Accounts) Login(ctx context.Context, name string, password Secret, from string) (Session, error) {
	name = strings.ToLower(strings.TrimSpace(name))
	user, err := a.verify(ctx, name, password, from)
	if err != nil {
		return Session{}, err
	}
	now := a.cfg.Now().UTC()
	if err := a.makeRoom(ctx, name, now); err != nil {
		return Session{}, fmt.Errorf("make session: %w", err)
	}
	secret := newSecret()
	r := sessionRecord{User: name, Generation: user.Generation, Created: now, Used: now}
	b, err := json.Marshal(r)
	if err != nil {
		return Session{}, fmt.Errorf("encode session: %w", err)
	}
	if _, err := a.cfg.Store.Put(ctx, sessionKey(secret), b, 0); err != nil {
		return Session{}, fmt.Errorf("store session: %w", err)
	}
	a.record(ctx, Entry{Who: name, Role: user.Role, From: from, What: "sign in", Object: "user " + name, Outcome: Done})
	return r.session(secret, user.Role), nil
}

// verify checks a password within the limits and records failures. When it was right, the user's record says so.
func (a *Accounts) verify(ctx context.Context, name string, password Secret, from string) (userRecord, error) {
	giveBack, err := a.limits.attempt(name, from, a.cfg.Now())
	if err != nil {
		return userRecord{}, err
	}
	u, err := a.users(ctx)
	if err != nil {
		return userRecord{}, fmt.Errorf("read users: %w", err)
	}
	user, known := u.byID[name]
	ok, outdated, err := a.hasher.check(ctx, user.PHC, password)
	if err != nil {
		giveBack()
		return userRecord{}, fmt.Errorf("check password: %w", err)
	}
	if !ok {
		a.refused(ctx, name, known, user.Role, from)
		return userRecord{}, fmt.Errorf("name or password: %w", ErrDenied)
	}
	giveBack()
	phc := user.PHC
	if outdated {
		if phc, err = a.hasher.hash(ctx, password); err != nil {
			return userRecord{}, fmt.Errorf("renew password hash: %w", err)
		}
	}
	return user, a.signedIn(ctx, user, phc)
}

// refused records a failure. A name that is nobody's is not written down: it may be a password in the wrong field.
func (a *Accounts) refused(ctx context.Context, name string, known bool, role Role, from string) {
	e := Entry{Who: name, Role: role, From: from, What: "sign in", Object: "user " + name, Outcome: Denied, Detail: "the password was wrong"}
	if !known {
		e.Who, e.Object, e.Detail = Nobody, "", "there is no user of the name that was given"
	}
	a.record(ctx, e)
}

// signedIn notes the time, and the hash at today's cost. Somebody who was changed meanwhile is not signed in.
func (a *Accounts) signedIn(ctx context.Context, was userRecord, phc string) error {
	return a.changeUsers(ctx, func(u *users) error {
		r, ok := u.byID[was.Name]
		if !ok || r.Generation != was.Generation {
			return fmt.Errorf("user %q changed meanwhile: %w", was.Name, ErrDenied)
		}
		r.LastLogin, r.PHC = a.cfg.Now().UTC(), phc
		u.byID[was.Name] = r
		return nil
	})
}

// makeRoom removes sessions that are over, and the longest unused ones of a user who has as many as he may.
func (a *Accounts) makeRoom(ctx context.Context, name string, now time.Time) error {
	all, err := a.cfg.Store.List(ctx, sessionsPrefix)
	if err != nil {
		return err
	}
	type held struct {
		store.Entry
		used time.Time
	}
	var own []held
	var drop []store.Entry
	for _, e := range all {
		var r sessionRecord
		switch err := json.Unmarshal(e.Value, &r); {
		case err != nil || r.over(now):
			drop = append(drop, e)
		case r.User == name:
			own = append(own, held{e, r.Used})
		}
	}
	slices.SortFunc(own, func(x, y held) int { return x.used.Compare(y.used) })
	for i := 0; i <= len(own)-MaxSessions; i++ {
		drop = append(drop, own[i].Entry)
	}
	for _, e := range drop {
		if err := a.cfg.Store.Delete(ctx, e.Key, e.Rev); err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return nil
}

// Session returns the session of a secret, or ErrDenied when there is none, when it ended, or when its user was removed or got
// another role or password. Asking is using: it keeps the session from getting idle.
func (a *Accounts) Session(ctx context.Context, secret Secret) (Session, error) {
	return a.session(ctx, secret, true)
}

// Peek is Session for streams that ask again while they last: a page that is only left open does not keep its session.
func (a *Accounts) Peek(ctx context.Context, secret Secret) (Session, error) {
	return a.session(ctx, secret, false)
}

func (a *Accounts) session(ctx context.Context, secret Secret, use bool) (Session, error) {
	if secret.Empty() {
		return Session{}, fmt.Errorf("session: %w", ErrDenied)
	}
	key := sessionKey(secret)
	e, err := a.cfg.Store.Get(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return Session{}, fmt.Errorf("session: %w", ErrDenied)
	}
	if err != nil {
		return Session{}, fmt.Errorf("read session: %w", err)
	}
	var r sessionRecord
	if err := json.Unmarshal(e.Value, &r); err != nil {
		return Session{}, fmt.Errorf("decode session: %w", err)
	}
	u, err := a.users(ctx)
	if err != nil {
		return Session{}, fmt.Errorf("read users: %w", err)
	}
	user, ok := u.byID[r.User]
	now := a.cfg.Now().UTC()
	if !ok || user.Generation != r.Generation || r.over(now) {
		return Session{}, errors.Join(fmt.Errorf("session: %w", ErrDenied), gone(a.cfg.Store.Delete(ctx, key, e.Rev)))
	}
	if use && now.Sub(r.Used) >= touchEvery {
		r.Used = now
		if err := a.touch(ctx, e, r); err != nil {
			return Session{}, fmt.Errorf("keep session: %w", err)
		}
	}
	return r.session(secret, user.Role), nil
}

// touch writes when a session was used; that another request did so meanwhile, or that it was ended, is as good.
func (a *Accounts) touch(ctx context.Context, e store.Entry, r sessionRecord) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if _, err := a.cfg.Store.Put(ctx, e.Key, b, e.Rev); err != nil {
		return gone(err)
	}
	return nil
}

// gone forgives that what was to be changed or removed is not there or not the same any more.
func gone(err error) error {
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrConflict) {
		return nil
	}
	return err
}

// Logout ends a session; one that is not there is no error.
func (a *Accounts) Logout(ctx context.Context, secret Secret) error {
	var r sessionRecord
	err := a.update(ctx, sessionKey(secret), func(old []byte) ([]byte, error) {
		if old == nil {
			return nil, nil
		}
		return nil, json.Unmarshal(old, &r)
	})
	if err != nil {
		return fmt.Errorf("end session: %w", err)
	}
	if r.User != "" {
		a.record(ctx, Entry{Who: r.User, What: "sign out", Object: "user " + r.User, Outcome: Done})
	}
	return nil
}
