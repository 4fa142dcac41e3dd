package web

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/fault"
)

// visit is one request of one person, or of nobody yet.
type visit struct {
	s       *Server
	w       http.ResponseWriter
	r       *http.Request
	session auth.Session
	// all is what every page says, once it was read.
	all *everywhere
}

func (v *visit) ctx() context.Context { return v.r.Context() }

// can says whether the person's role has a permission. It decides what is shown; the API decides what is done.
func (v *visit) can(p auth.Permission) bool { return v.session.Principal.Role.Allows(p) }

// cookie is the session cookie's name: the prefix makes browsers refuse it without TLS or for a wider domain.
func (s *Server) cookie() string {
	if s.cfg.TLS {
		return "__Host-firstlight"
	}
	return "firstlight"
}

func (s *Server) setCookie(w http.ResponseWriter, secret string, age int) {
	http.SetCookie(w, &http.Cookie{Name: s.cookie(), Value: secret, Path: "/", MaxAge: age, HttpOnly: true, Secure: s.cfg.TLS, SameSite: http.SameSiteLaxMode})
}

func (s *Server) session(r *http.Request) (auth.Session, error) {
	c, err := r.Cookie(s.cookie())
	if err != nil || c.Value == "" {
		return auth.Session{}, auth.ErrDenied
	}
	return s.cfg.Accounts.Session(r.Context(), auth.NewSecret(c.Value))
}

// open serves a page for which nobody needs to be signed in.
func (s *Server) open(do func(*visit) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		v := &visit{s: s, w: w, r: r}
		if err := do(v); err != nil {
			v.fail(err)
		}
	}
}

// signed serves a page for somebody who is signed in; everybody else goes to the log-in. Every order must bring the session's mark.
func (s *Server) signed(do func(*visit) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v := &visit{s: s, w: w, r: r}
		if !v.enter() {
			return
		}
		if err := do(v); err != nil {
			v.fail(err)
		}
	}
}

// enter finds the session and puts the person into the request's context. False: it has answered already.
func (v *visit) enter() bool {
	sess, err := v.s.session(v.r)
	switch {
	case errors.Is(err, auth.ErrDenied):
		v.signIn()
		return false
	case err != nil:
		v.fail(fault.New(fault.Unavailable, "look up your session", "", err, "wait a moment and load the page again"))
		return false
	}
	v.session = sess
	v.r = v.r.WithContext(api.WithAddress(auth.WithPrincipal(v.ctx(), sess.Principal), from(v.r)))
	if v.r.Method == http.MethodGet || v.r.Method == http.MethodHead {
		return true
	}
	mark := v.r.Header.Get("X-CSRF")
	if mark == "" {
		v.r.Body = http.MaxBytesReader(v.w, v.r.Body, maxForm)
		mark = v.r.PostFormValue("csrf")
	}
	if mark == "" || !sess.CSRF.Equal(mark) {
		v.fail(fault.New(fault.Denied, "take the order", "", errors.New("the form belongs to another session"), "go back, load the page again, and send it once more"))
		return false
	}
	return true
}

// signIn sends a person to the log-in, or to the first start, and back afterwards. A live stream is told instead.
func (v *visit) signIn() {
	if strings.HasPrefix(v.r.URL.Path, "/live/") || v.r.Header.Get("X-CSRF") != "" {
		http.Error(v.w, "signed out: sign in again", http.StatusUnauthorized)
		return
	}
	if fresh, err := v.s.cfg.Accounts.NeedsSetup(v.ctx()); err == nil && fresh {
		v.to("/setup")
		return
	}
	to := "/login"
	if v.r.Method == http.MethodGet && v.r.URL.Path != "/" {
		to += "?to=" + url.QueryEscape(v.r.URL.RequestURI())
	}
	v.to(to)
}

// to answers with a redirect that the browser follows with GET.
func (v *visit) to(path string) { http.Redirect(v.w, v.r, path, http.StatusSeeOther) }

// from is the address of whoever asks, without the port.
func from(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// inside says whether a path is one of this page's own, so that nobody is sent elsewhere after the log-in.
func inside(path string) bool {
	u, err := url.Parse(path)
	return err == nil && u.Scheme == "" && u.Host == "" && u.Opaque == "" && strings.HasPrefix(path, "/") &&
		!strings.HasPrefix(path, "//") && !strings.ContainsAny(path, "\\\r\n")
}

// limited words the refusal of too many attempts.
func limited(err error) (string, bool) {
	var l *auth.LimitedError
	if !errors.As(err, &l) {
		return "", false
	}
	return fmt.Sprintf("Too many attempts. The next one is looked at in %s.", span(l.RetryAfter)), true
}
