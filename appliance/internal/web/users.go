package web

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/fault"
)

// roleView is a role in one sentence.
type roleView struct{ Role, May string }

var roleViews = []roleView{
	{string(auth.RoleViewer), "looks"},
	{string(auth.RoleTechnician), "also enrols, provisions and repairs machines"},
	{string(auth.RoleOperator), "also changes machines and images, and stops everything"},
	{string(auth.RoleAdmin), "also decides who may what"},
}

// lives are how long a token may be good, in days.
var lives = []int{1, 7, 30, 90, 365}

type usersPage struct {
	Users  []api.User
	Tokens []api.Token
	Roles  []roleView
	Lives  []int
	Self   string
	Key    string
	// Minted is a new token, shown this once; Done what was just done.
	Minted  *api.MintedToken
	Value   string
	Done    string
	Refused *three
	// TokenTrouble is why the tokens could not be listed.
	TokenTrouble *three
	New          api.AddUser
}

func (s *Server) users(v *visit) error { return s.showUsers(v, usersPage{}, http.StatusOK) }

func (s *Server) showUsers(v *visit, p usersPage, code int) error {
	var err error
	if p.Users, err = s.cfg.API.Users(v.ctx()); err != nil {
		return err
	}
	if p.Tokens, err = s.cfg.API.Tokens(v.ctx()); err != nil {
		t := threeOf(err)
		p.TokenTrouble = &t
	}
	p.Roles, p.Lives, p.Self, p.Key = roleViews, lives, v.session.Principal.Name, newKey()
	return v.show("users", "Users and tokens", code, p)
}

// changeUsers does one of the things that the page offers; removing and revoking are asked for on a page of their own.
func (s *Server) changeUsers(v *visit) error {
	p := usersPage{}
	done, err := s.changeUser(v, &p)
	if err == nil {
		p.Done = done
		return s.showUsers(v, p, http.StatusOK)
	}
	switch do := v.r.PostFormValue("do"); do {
	case "remove":
		return v.ask(removeUserQuestion(v.r.PostFormValue("name")), err)
	case "revoke":
		return v.ask(revokeQuestion(v.r.PostFormValue("name")), err)
	}
	t := threeOf(err)
	p.Refused = &t
	return s.showUsers(v, p, status(fault.Of(err, "", "").Kind))
}

func (s *Server) changeUser(v *visit, p *usersPage) (done string, err error) {
	get := v.r.PostFormValue
	ctx, name := api.WithKey(v.ctx(), get("key")), strings.TrimSpace(get("name"))
	switch get("do") {
	case "add":
		p.New = api.AddUser{Name: name, Role: get("role")}
		_, err = s.cfg.API.AddUser(ctx, api.AddUser{Name: name, Role: get("role"), Password: get("password")})
		if err == nil {
			p.New = api.AddUser{}
		}
		return name + " has an account now", err
	case "role":
		_, err = s.cfg.API.SetUser(ctx, name, api.SetUser{Role: get("role")})
		return name + " is " + get("role") + " now, and has to sign in again", err
	case "password":
		_, err = s.cfg.API.SetUser(ctx, name, api.SetUser{Password: get("password")})
		return name + " has a new password, and has to sign in again", err
	case "remove":
		if err = v.typed("remove user", name); err == nil {
			_, err = s.cfg.API.RemoveUser(ctx, name)
		}
		return name + " has no account any more", err
	case "mint":
		return s.mint(v, p, name)
	case "revoke":
		_, err = s.cfg.API.RevokeToken(ctx, name)
		return "The token " + name + " is worth nothing any more", err
	}
	return "", fault.New(fault.Usage, "change accounts", "", fmt.Errorf("%q is nothing that can be done here", attr(get("do"))), "load the page again")
}

func (s *Server) mint(v *visit, p *usersPage, name string) (string, error) {
	days, err := strconv.Atoi(v.r.PostFormValue("days"))
	if err != nil || days < 1 {
		return "", fault.New(fault.Invalid, "make token", name, fmt.Errorf("it has no life"), "choose how long it is good for")
	}
	// No key: a second answer would have to keep the value that is shown only once.
	t, err := s.cfg.API.MintToken(v.ctx(), api.MintToken{Name: name, Role: v.r.PostFormValue("role"), LifeS: int64(days) * int64((24 * time.Hour).Seconds())})
	if err != nil {
		return "", err
	}
	p.Minted, p.Value = &t, t.Value
	return "The token " + name + " is made", nil
}

func removeUserQuestion(name string) sure {
	return sure{Title: "Remove the account", Object: name, Verb: "Remove it", Path: "/users", Back: "/users", Name: true,
		Hidden: map[string]string{"do": "remove", "name": name}, Explain: "Its sessions end at once. What it did stays in the audit log."}
}

func revokeQuestion(name string) sure {
	return sure{Title: "Revoke the token", Object: name, Verb: "Revoke it", Path: "/users", Back: "/users",
		Hidden: map[string]string{"do": "revoke", "name": name}, Explain: "Whatever uses it is refused from now on. A new one can be made at any time."}
}

func (s *Server) confirmUser(v *visit) error {
	if err := v.need(auth.PermAdmin, "remove user"); err != nil {
		return err
	}
	return v.ask(removeUserQuestion(v.r.PathValue("name")), nil)
}

func (s *Server) confirmToken(v *visit) error {
	if err := v.need(auth.PermAdmin, "revoke token"); err != nil {
		return err
	}
	return v.ask(revokeQuestion(v.r.PathValue("name")), nil)
}
