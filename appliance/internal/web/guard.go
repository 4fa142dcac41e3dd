package web

import (
	"net/http"
	"strings"
)

// policy is the page's content security policy: what is not from this appliance is not loaded, and nothing inline runs.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// guard sets the headers that every answer has and refuses what another site makes a browser send.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=(), usb=()")
		h.Set("Cache-Control", "no-store")
		if why := s.foreign(r); why != "" {
			s.cfg.Log.Warn("page request refused", "method", r.Method, "path", r.URL.Path, "why", why, "from", from(r))
			http.Error(w, "refused: "+why+"\nnext: open the appliance's own page and do it there", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// foreign says why a request may come from another site's page; empty when it does not. Looking at a page is free of it (a link is how
// people get here), what changes something, every live stream and every upgrade are not (SEC-06).
func (s *Server) foreign(r *http.Request) string {
	upgrade := r.Header.Get("Upgrade") != "" || strings.Contains(strings.ToLower(r.Header.Get("Connection")), "upgrade")
	stream := strings.HasPrefix(r.URL.Path, "/live/")
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	if reads && !upgrade && !stream {
		return ""
	}
	origin, site := r.Header.Values("Origin"), r.Header.Get("Sec-Fetch-Site")
	switch {
	case len(origin) > 1:
		return "it names more than one origin"
	case len(origin) == 1 && origin[0] != s.origin(r):
		return "it comes from another site"
	case site != "" && site != "same-origin":
		return "the browser says that it comes from another site"
	case len(origin) == 1:
		return ""
	case upgrade, !reads:
		return "it does not say where it comes from"
	case site == "" && r.Header.Get("HX-Request") == "":
		// A browser sends no Origin with a GET to the same site. This header another site cannot set.
		return "it does not say where it comes from"
	}
	return ""
}

func (s *Server) origin(r *http.Request) string {
	if s.cfg.TLS {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}
