package web

import (
	"errors"
	"net/http"
	"strings"

	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/fault"
)

// enterPage is the first start and the log-in.
type enterPage struct {
	Name, To string
	// Wrong says why it was refused; Next what to do then.
	Wrong, Next string
}

func (s *Server) setupForm(v *visit) error {
	fresh, err := s.cfg.Accounts.NeedsSetup(v.ctx())
	if err != nil {
		return fault.New(fault.Unavailable, "look whether this is the first start", "", err, "wait a moment and load the page again")
	}
	if !fresh {
		v.to("/login")
		return nil
	}
	return v.show("setup", "First start", http.StatusOK, enterPage{})
}

func (s *Server) setup(v *visit) error {
	name, password := strings.TrimSpace(v.r.PostFormValue("name")), v.r.PostFormValue("password")
	p := enterPage{Name: name}
	if password != v.r.PostFormValue("again") {
		p.Wrong, p.Next = "The two passwords differ.", "Type the same password twice."
		return v.show("setup", "First start", http.StatusUnprocessableEntity, p)
	}
	code := auth.NewSecret(strings.TrimSpace(v.r.PostFormValue("code")))
	err := s.cfg.Accounts.Setup(v.ctx(), code, name, auth.NewSecret(password), from(v.r))
	switch text, many := limited(err); {
	case err == nil:
		return s.begin(v, name, password, "/")
	case errors.Is(err, auth.ErrSetUp):
		v.to("/login")
		return nil
	case many:
		p.Wrong, p.Next = text, "Wait, then type the code exactly as the appliance's console shows it."
	case errors.Is(err, auth.ErrInvalid):
		p.Wrong, p.Next = "Name or password is not allowed: "+err.Error()+".", "Choose another one."
	case errors.Is(err, auth.ErrDenied):
		p.Wrong, p.Next = "This is not the code.", "Read it from the appliance's own console; every start of the appliance prints a new one."
	default:
		return fault.New(fault.Unavailable, "make the first account", name, err, "wait a moment and try again")
	}
	return v.show("setup", "First start", http.StatusUnprocessableEntity, p)
}

func (s *Server) loginForm(v *visit) error {
	if _, err := s.session(v.r); err == nil {
		v.to("/")
		return nil
	}
	if fresh, err := s.cfg.Accounts.NeedsSetup(v.ctx()); err == nil && fresh {
		v.to("/setup")
		return nil
	}
	return v.show("login", "Sign in", http.StatusOK, enterPage{To: target(v.r)})
}

func (s *Server) login(v *visit) error {
	name, password := strings.TrimSpace(v.r.PostFormValue("name")), v.r.PostFormValue("password")
	to := target(v.r)
	err := s.begin(v, name, password, to)
	p := enterPage{Name: name, To: to}
	switch text, many := limited(err); {
	case err == nil:
		return nil
	case many:
		p.Wrong, p.Next = text, "Wait, then try again. Somebody else trying passwords has the same effect."
		return v.show("login", "Sign in", http.StatusTooManyRequests, p)
	case errors.Is(err, auth.ErrDenied):
		p.Wrong, p.Next = "Name and password do not fit.", "Try again, or ask an administrator for a new password."
		return v.show("login", "Sign in", http.StatusUnauthorized, p)
	}
	return fault.New(fault.Unavailable, "sign in", name, err, "wait a moment and try again")
}

// begin signs a person in and sends him on.
func (s *Server) begin(v *visit, name, password, to string) error {
	sess, err := s.cfg.Accounts.Login(v.ctx(), name, auth.NewSecret(password), from(v.r))
	if err != nil {
		return err
	}
	s.setCookie(v.w, sess.Secret.Reveal(), int(auth.SessionLife.Seconds()))
	v.to(to)
	return nil
}

func (s *Server) logout(v *visit) error {
	if err := s.cfg.Accounts.Logout(v.ctx(), v.session.Secret); err != nil {
		return fault.New(fault.Unavailable, "sign out", "", err, "try again; closing the browser does not end the session")
	}
	s.setCookie(v.w, "", -1)
	v.to("/login")
	return nil
}

func target(r *http.Request) string {
	if to := r.FormValue("to"); inside(to) {
		return to
	}
	return "/"
}
