package auth

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"firstlight/appliance/internal/store"
)

// Bounds.
const (
	// MaxUsers bounds the users: all of them are one record.
	MaxUsers = 200
	// MaxName bounds the name of a user or token in bytes.
	MaxName = 48
)

// User is one account.
type User struct {
	Name    string    `json:"name"`
	Role    Role      `json:"role"`
	Created time.Time `json:"created"`
	// LastLogin is zero until the first one.
	LastLogin time.Time `json:"last_login,omitzero"`
}

// userRecord is a user as the store has him.
type userRecord struct {
	User
	// PHC is the password's hash.
	PHC string `json:"phc"`
	// Generation grows with role and password; sessions of another generation are over.
	Generation int64 `json:"generation"`
}

// users is the record under usersKey, by name. It is not changed once it is cached.
type users struct {
	rev  int64
	byID map[string]userRecord
	// last is the newest generation that was ever given, so that a user who comes again under an old name gets none of its sessions.
	last int64
}

type usersJSON struct {
	Last  int64        `json:"last_generation"`
	Users []userRecord `json:"users"`
}

func decodeUsers(b []byte) (*users, error) {
	u := &users{byID: map[string]userRecord{}}
	if b == nil {
		return u, nil
	}
	var in usersJSON
	if err := json.Unmarshal(b, &in); err != nil {
		return nil, fmt.Errorf("decode %s: %w", usersKey, err)
	}
	u.last = in.Last
	for _, r := range in.Users {
		u.byID[r.Name] = r
	}
	return u, nil
}

func (u *users) encode() ([]byte, error) {
	out := usersJSON{Last: u.last}
	for _, r := range u.byID {
		out.Users = append(out.Users, r)
	}
	slices.SortFunc(out.Users, func(x, y userRecord) int { return cmp.Compare(x.Name, y.Name) })
	return json.Marshal(out)
}

// admins counts the administrators.
func (u *users) admins() int {
	n := 0
	for _, r := range u.byID {
		if r.Role == RoleAdmin {
			n++
		}
	}
	return n
}

// add puts a new user in.
func (u *users) add(name string, role Role, phc string, now time.Time) error {
	if _, ok := u.byID[name]; ok {
		return fmt.Errorf("user %q: %w", name, ErrTaken)
	}
	if len(u.byID) >= MaxUsers {
		return fmt.Errorf("user %q: %w: %d users are there", name, ErrFull, MaxUsers)
	}
	u.last++
	u.byID[name] = userRecord{User: User{Name: name, Role: role, Created: now.UTC()}, PHC: phc, Generation: u.last}
	return nil
}

// replace puts a user back after change, whose sessions end.
func (u *users) replace(name string, change func(*userRecord)) error {
	r, ok := u.byID[name]
	if !ok {
		return fmt.Errorf("user %q: %w", name, ErrUnknown)
	}
	admins := u.admins()
	change(&r)
	u.last++
	r.Generation = u.last
	u.byID[name] = r
	return keepAdmin(name, admins, u.admins())
}

// keepAdmin refuses a change that leaves no administrator.
func keepAdmin(name string, before, after int) error {
	if before > 0 && after == 0 {
		return fmt.Errorf("user %q: %w", name, ErrLastAdmin)
	}
	return nil
}

// users reads the record. Whoever gets it must not change it.
func (a *Accounts) users(ctx context.Context) (*users, error) {
	e, err := a.cfg.Store.Get(ctx, usersKey)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cached != nil && a.cached.rev == e.Rev {
		return a.cached, nil
	}
	u, err := decodeUsers(e.Value)
	if err != nil {
		return nil, err
	}
	u.rev = e.Rev
	a.cached = u
	return u, nil
}

// changeUsers changes the record.
func (a *Accounts) changeUsers(ctx context.Context, change func(*users) error) error {
	return a.update(ctx, usersKey, func(old []byte) ([]byte, error) {
		u, err := decodeUsers(old)
		if err != nil {
			return nil, err
		}
		if err := change(u); err != nil {
			return nil, err
		}
		return u.encode()
	})
}

// Users returns all users by name.
func (a *Accounts) Users(ctx context.Context) ([]User, error) {
	u, err := a.users(ctx)
	if err != nil {
		return nil, fmt.Errorf("list users: %w", err)
	}
	out := make([]User, 0, len(u.byID))
	for _, r := range u.byID {
		out = append(out, r.User)
	}
	slices.SortFunc(out, func(x, y User) int { return cmp.Compare(x.Name, y.Name) })
	return out, nil
}

// AddUser makes a user.
func (a *Accounts) AddUser(ctx context.Context, name string, role Role, password Secret) error {
	if err := checkName("user", name); err != nil {
		return err
	}
	if _, err := ParseRole(string(role)); err != nil {
		return err
	}
	phc, err := a.newPassword(ctx, name, password)
	if err != nil {
		return err
	}
	return a.changeUsers(ctx, func(u *users) error { return u.add(name, role, phc, a.cfg.Now()) })
}

func (a *Accounts) newPassword(ctx context.Context, name string, password Secret) (string, error) {
	if err := checkPassword(name, password); err != nil {
		return "", err
	}
	return a.hasher.hash(ctx, password)
}

// SetPassword gives a user another password, as an administrator does, and ends his sessions.
func (a *Accounts) SetPassword(ctx context.Context, name string, password Secret) error {
	u, err := a.users(ctx)
	if err != nil {
		return err
	}
	if _, ok := u.byID[name]; !ok {
		return fmt.Errorf("user %q: %w", name, ErrUnknown)
	}
	phc, err := a.newPassword(ctx, name, password)
	if err != nil {
		return err
	}
	return a.changeUsers(ctx, func(u *users) error { return u.replace(name, func(r *userRecord) { r.PHC = phc }) })
}

// ChangePassword lets a user change his own, if he knows the old one; his sessions end. It is limited as Login is.
func (a *Accounts) ChangePassword(ctx context.Context, name string, old, password Secret, from string) error {
	if err := checkPassword(name, password); err != nil {
		return err
	}
	user, err := a.verify(ctx, name, old, from)
	if err != nil {
		return err
	}
	if err := a.SetPassword(ctx, name, password); err != nil {
		return err
	}
	a.record(ctx, Entry{Who: name, Role: user.Role, From: from, What: "change password", Object: "user " + name, Outcome: Done})
	return nil
}

// SetRole gives a user another role and ends his sessions. The last administrator stays one: ErrLastAdmin.
func (a *Accounts) SetRole(ctx context.Context, name string, role Role) error {
	if _, err := ParseRole(string(role)); err != nil {
		return err
	}
	return a.changeUsers(ctx, func(u *users) error { return u.replace(name, func(r *userRecord) { r.Role = role }) })
}

// RemoveUser removes a user and ends his sessions. The last administrator stays: ErrLastAdmin.
func (a *Accounts) RemoveUser(ctx context.Context, name string) error {
	return a.changeUsers(ctx, func(u *users) error {
		if _, ok := u.byID[name]; !ok {
			return fmt.Errorf("user %q: %w", name, ErrUnknown)
		}
		admins := u.admins()
		delete(u.byID, name)
		return keepAdmin(name, admins, u.admins())
	})
}

// checkName allows what can stand in a key, a log line and a token: a-z, 0-9, '.', '-', '@', beginning with a letter.
func checkName(what, name string) error {
	ok := name != "" && len(name) <= MaxName && name[0] >= 'a' && name[0] <= 'z' &&
		!strings.ContainsFunc(name, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '.' && r != '-' && r != '@'
		})
	if !ok {
		return fmt.Errorf("%s name %.64q: %w: want 1 to %d of a-z, 0-9, '.', '-', '@', a letter first", what, name, ErrInvalid, MaxName)
	}
	return nil
}
