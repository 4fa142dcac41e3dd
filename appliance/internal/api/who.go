package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/fault"
)

const keyOfAddress contextKey = iota + 100

// WithAddress says from which address the person in a context calls, for the audit log.
func WithAddress(ctx context.Context, address string) context.Context {
	return context.WithValue(ctx, keyOfAddress, address)
}

// local lets in whom the kernel says is root or the owner; everybody else is refused in words, before the request is looked at.
func (s *Server) local(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, ok := r.Context().Value(peerKey{}).(Peer)
		if ok && (p.UID == 0 || p.UID == s.cfg.Owner) {
			next.ServeHTTP(w, r.WithContext(auth.WithPrincipal(r.Context(), auth.Local(p.String()))))
			return
		}
		who := "an unknown user"
		if ok {
			who = p.String()
		}
		s.cfg.Log.Warn("api request refused", "path", r.URL.Path, "by", who)
		answer(w, http.StatusForbidden, refusal{fault.New(fault.Denied, "use the appliance", "",
			fmt.Errorf("%s is neither root nor the user that it runs as", who), fmt.Sprintf("run the command as root or as uid %d", s.cfg.Owner))})
	})
}

// Remote answers callers of the network: who they are is what their bearer token says, and nothing else. Cookies are not looked at, so
// no page can make a browser call it.
func (s *Server) Remote() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
			ctx = WithAddress(ctx, host)
		}
		value, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if ok && s.cfg.Accounts != nil {
			p, err := s.cfg.Accounts.TokenPrincipal(ctx, auth.NewSecret(value))
			switch limited := (*auth.LimitedError)(nil); {
			case err == nil:
				ctx = auth.WithPrincipal(ctx, p)
			case errors.As(err, &limited):
				w.Header().Set("Retry-After", fmt.Sprint(int(limited.RetryAfter.Seconds())+1))
				answer(w, http.StatusTooManyRequests, refusal{fault.New(fault.Denied, "use the appliance", "", err, "wait, then try again")})
				return
			case !errors.Is(err, auth.ErrDenied):
				f := fault.Of(err, "use the appliance", "")
				s.cfg.Log.Error("api request", "path", r.URL.Path, "error", f)
				answer(w, status(f.Kind), refusal{f})
				return
			}
		}
		s.mux.ServeHTTP(w, r.WithContext(ctx))
	})
}

// admit says who asks, or why he may not.
func (s *Server) admit(r *http.Request, perm auth.Permission) (auth.Principal, error) {
	p, ok := auth.PrincipalOf(r.Context())
	if !ok {
		return p, fault.New(fault.Denied, "use the appliance", "", errors.New("nobody known asks: there is no valid token with the request"),
			"make a token with `firstlight tokens add` and send it as Authorization: Bearer")
	}
	return p, s.allowed(r, p, perm)
}

func (s *Server) allowed(r *http.Request, p auth.Principal, perm auth.Permission) error {
	if p.Role.Allows(perm) {
		return nil
	}
	s.cfg.Log.Warn("api request refused", "path", r.URL.Path, "by", p.String(), "role", p.Role, "wants", perm)
	return fault.New(fault.Denied, "use the appliance", "", fmt.Errorf("%s is %s, and that role may not do this (%s)", p, p.Role, perm),
		"ask somebody whose role may, or an administrator for another role")
}

// need is a permission beyond the route's, for what a body asks.
func (s *Server) need(r *http.Request, perm auth.Permission) error {
	p, err := s.admit(r, perm)
	if err != nil {
		return err
	}
	return s.allowed(r, p, perm)
}

// by is who asks, for records.
func by(r *http.Request) string {
	p, _ := auth.PrincipalOf(r.Context())
	return p.String()
}

// trail is what the audit log is told about a request; its handler fills it.
type trail struct{ object, detail string }

type trailKey struct{}

// note says what a request is about.
func note(r *http.Request, object, detail string) {
	if t, ok := r.Context().Value(trailKey{}).(*trail); ok {
		t.object, t.detail = object, detail
	}
}

// audit records what somebody did, or was refused. That it could not be recorded undoes nothing.
func (s *Server) audit(r *http.Request, rt *route, t *trail, err error) {
	if s.cfg.Accounts == nil || !rt.audited() {
		return
	}
	e := auth.Entry{Time: s.cfg.Now(), Who: "nobody", What: rt.id, Object: t.object, Outcome: auth.Done, Detail: t.detail}
	if p, ok := auth.PrincipalOf(r.Context()); ok {
		e.Who, e.Role = p.String(), p.Role
	}
	if from, ok := r.Context().Value(keyOfAddress).(string); ok {
		e.From = from
	}
	if e.Object == "" && r.PathValue("name") != "" {
		e.Object = r.PathValue("name")
	}
	if err != nil {
		f := fault.Of(err, rt.id, e.Object)
		e.Outcome, e.Detail = auth.Failed, f.Error()
		if f.Kind == fault.Denied {
			e.Outcome = auth.Denied
		}
	}
	if err := s.cfg.Accounts.Record(context.WithoutCancel(r.Context()), e); err != nil {
		s.cfg.Log.Error("record in the audit log", "what", e.What, "by", e.Who, "error", err)
	}
}
