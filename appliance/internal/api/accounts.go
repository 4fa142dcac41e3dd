package api

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
)

const (
	// maxJoinLife bounds the life of a join token: it is used within minutes.
	maxJoinLife = 24 * time.Hour
	// defaultAudit is the length of a page of the audit log.
	defaultAudit = 100
)

// accounts answers with the accounts, or that there are none.
func (s *Server) accounts(op string) (Accounts, error) {
	if s.cfg.Accounts == nil {
		return nil, missing(op, "accounts")
	}
	return s.cfg.Accounts, nil
}

func missing(op, what string) error {
	return fault.New(fault.Unavailable, op, "", fmt.Errorf("this appliance has no %s", what), "see how it was started")
}

func userOf(u auth.User) User {
	return User{Name: u.Name, Role: string(u.Role), Created: fleet.At(u.Created), LastLogin: fleet.At(u.LastLogin)}
}

func tokenOf(t auth.Token) Token {
	return Token{Name: t.Name, Role: string(t.Role), By: t.By, Created: fleet.At(t.Created), Expires: fleet.At(t.Expires), Used: fleet.At(t.Used)}
}

func (s *Server) listUsers(r *http.Request) (any, error) {
	const op = "list users"
	a, err := s.accounts(op)
	if err != nil {
		return nil, err
	}
	all, err := a.Users(r.Context())
	if err != nil {
		return nil, accountFault(op, "", err)
	}
	out := []User{}
	for _, u := range all {
		out = append(out, userOf(u))
	}
	return out, nil
}

// user returns one account.
func (s *Server) user(r *http.Request, op, name string) (any, error) {
	all, err := s.cfg.Accounts.Users(r.Context())
	if err != nil {
		return nil, accountFault(op, name, err)
	}
	for _, u := range all {
		if u.Name == name {
			return userOf(u), nil
		}
	}
	return nil, accountFault(op, name, auth.ErrUnknown)
}

func (s *Server) addUser(r *http.Request) (any, error) {
	const op = "add user"
	in, err := asked[AddUser](r, op, "")
	if err != nil {
		return nil, err
	}
	note(r, in.Name, "as "+in.Role)
	a, err := s.accounts(op)
	if err != nil {
		return nil, err
	}
	role, err := auth.ParseRole(in.Role)
	if err == nil {
		err = a.AddUser(r.Context(), in.Name, role, auth.NewSecret(in.Password))
	}
	if err != nil {
		return nil, accountFault(op, in.Name, err)
	}
	return s.user(r, op, in.Name)
}

func (s *Server) setUser(r *http.Request) (any, error) {
	const op = "set user"
	name := r.PathValue("name")
	in, err := asked[SetUser](r, op, name)
	if err != nil {
		return nil, err
	}
	a, err := s.accounts(op)
	if err != nil {
		return nil, err
	}
	switch {
	case in.Role == "" && in.Password == "":
		return nil, fault.New(fault.Usage, op, name, errors.New("neither role nor password is to be changed"), "say what to change")
	case in.Role != "" && in.Password != "":
		note(r, name, "password, and role "+in.Role)
	case in.Role != "":
		note(r, name, "role "+in.Role)
	default:
		note(r, name, "password")
	}
	if in.Password != "" {
		if err := a.SetPassword(r.Context(), name, auth.NewSecret(in.Password)); err != nil {
			return nil, accountFault(op, name, err)
		}
	}
	if in.Role != "" {
		role, err := auth.ParseRole(in.Role)
		if err == nil {
			err = a.SetRole(r.Context(), name, role)
		}
		if err != nil {
			return nil, accountFault(op, name, err)
		}
	}
	return s.user(r, op, name)
}

func (s *Server) removeUser(r *http.Request) (any, error) {
	const op = "remove user"
	name := r.PathValue("name")
	a, err := s.accounts(op)
	if err == nil {
		err = a.RemoveUser(r.Context(), name)
	}
	if err != nil {
		return nil, accountFault(op, name, err)
	}
	return Removed{Name: name}, nil
}

func (s *Server) listTokens(r *http.Request) (any, error) {
	const op = "list tokens"
	a, err := s.accounts(op)
	if err != nil {
		return nil, err
	}
	all, err := a.Tokens(r.Context())
	if err != nil {
		return nil, accountFault(op, "", err)
	}
	out := []Token{}
	for _, t := range all {
		out = append(out, tokenOf(t))
	}
	return out, nil
}

func (s *Server) mintToken(r *http.Request) (any, error) {
	const op = "make token"
	in, err := asked[MintToken](r, op, "")
	if err != nil {
		return nil, err
	}
	note(r, in.Name, "as "+in.Role)
	a, err := s.accounts(op)
	if err != nil {
		return nil, err
	}
	role, err := auth.ParseRole(in.Role)
	if err != nil {
		return nil, accountFault(op, in.Name, err)
	}
	life, err := seconds(op, in.Name, in.LifeS, auth.MaxTokenLife)
	if err != nil {
		return nil, err
	}
	value, t, err := a.MintToken(r.Context(), in.Name, role, life, by(r))
	if err != nil {
		return nil, accountFault(op, in.Name, err)
	}
	return MintedToken{Token: tokenOf(t), Value: value.Reveal()}, nil
}

// seconds is a life within bounds; a number that would overflow is out of them.
func seconds(op, object string, n int64, most time.Duration) (time.Duration, error) {
	if n < 1 || n > int64(most/time.Second) {
		return 0, fault.New(fault.Invalid, op, object, fmt.Errorf("life of %d seconds: want 1 to %d", n, int64(most/time.Second)), "give another life")
	}
	return time.Duration(n) * time.Second, nil
}

func (s *Server) revokeToken(r *http.Request) (any, error) {
	const op = "revoke token"
	name := r.PathValue("name")
	a, err := s.accounts(op)
	if err == nil {
		err = a.RevokeToken(r.Context(), name)
	}
	if err != nil {
		return nil, accountFault(op, name, err)
	}
	return Removed{Name: name}, nil
}

func (s *Server) showAudit(r *http.Request) (any, error) {
	const op = "show audit log"
	a, err := s.accounts(op)
	if err != nil {
		return nil, err
	}
	limit, err := number(r, op, "limit", defaultAudit, MaxAudit)
	if err != nil {
		return nil, err
	}
	var before uint64
	if text := r.URL.Query().Get("before"); text != "" {
		if before, err = strconv.ParseUint(text, 10, 64); err != nil {
			return nil, fault.New(fault.Usage, op, "", fmt.Errorf("before %.64q is not a number", text), "take it from the page before")
		}
	}
	all, err := a.Entries(r.Context(), before, limit)
	if err != nil {
		return nil, accountFault(op, "", err)
	}
	page := AuditPage{Entries: []AuditEntry{}}
	for _, e := range all {
		page.Entries = append(page.Entries, AuditEntry{Seq: e.Seq, Time: fleet.At(e.Time), Who: e.Who, Role: string(e.Role), From: e.From, What: e.What,
			Object: e.Object, Outcome: string(e.Outcome), Detail: e.Detail})
	}
	if len(all) == limit && all[len(all)-1].Seq > 1 {
		page.Before = all[len(all)-1].Seq
	}
	return page, nil
}

func (s *Server) showHealth(r *http.Request) (any, error) {
	if s.cfg.Health == nil {
		return nil, missing("check health", "doctor")
	}
	h, err := s.cfg.Health(r.Context())
	if err == nil {
		h.Stop, err = s.cfg.Fleet.Stop(r.Context())
	}
	if err != nil {
		return nil, fault.Of(err, "check health", "")
	}
	return h, nil
}

func (s *Server) mintJoin(r *http.Request) (any, error) {
	const op = "make join token"
	in, err := asked[MintJoin](r, op, "")
	if err != nil {
		return nil, err
	}
	if s.cfg.MintJoin == nil {
		return nil, missing(op, "join tokens")
	}
	life, err := seconds(op, "", in.LifeS, maxJoinLife)
	if err != nil {
		return nil, err
	}
	t, err := s.cfg.MintJoin(r.Context(), life)
	if err != nil {
		return nil, fault.Of(err, op, "")
	}
	note(r, t.NodeID, "as "+t.Role)
	return t, nil
}

// accountFault words what went wrong with an account or token.
func accountFault(op, name string, err error) error {
	switch {
	case errors.Is(err, auth.ErrUnknown):
		return fault.New(fault.NotFound, op, name, err, "see `firstlight users` and `firstlight tokens` for the names")
	case errors.Is(err, auth.ErrTaken):
		return fault.New(fault.Conflict, op, name, err, "choose another name")
	case errors.Is(err, auth.ErrLastAdmin):
		return fault.New(fault.Conflict, op, name, err, "make another administrator first")
	case errors.Is(err, auth.ErrFull):
		return fault.New(fault.Conflict, op, name, err, "remove one that nobody needs")
	case errors.Is(err, auth.ErrInvalid):
		return fault.New(fault.Invalid, op, name, err, "correct the value and try again")
	}
	return fault.Of(err, op, name)
}
