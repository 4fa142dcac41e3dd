// Package web is the page: what a technician and an operator see and do in a browser. Pages are rendered here with html/template and
// work without JavaScript; with it they are live (server-sent events that htmx morphs into the page) and keep their place.
//
// It is a client of the API and of nothing else: every value comes from an API call in the name of whoever is signed in, every order
// is one, so who may what, the audit log and the words of a refusal exist once, in api. Only log-in and sessions come from auth.
//
// What comes from a wire (host names, serials, models, log lines) is text: it goes through the text functions of words.go, which cut it
// with a marker and make writing-direction marks visible, and through html/template; the content security policy allows no inline
// script or style at all. A destructive order is confirmed on its own page, which lists the disks by serial, wants their number typed,
// and sends the version of the machine that was shown and a key that makes a second click harmless.
//
// It is for appliance alone. Its twin for tests is webtest.
package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/auth"
)

// Bounds of the page.
const (
	// maxForm bounds a form's body, in bytes.
	maxForm = 64 << 10
	// maxStreams bounds the live streams of all browsers.
	maxStreams = 512
	// pageRows is how many machines a page of the fleet shows.
	pageRows = 50
	// timelineRows is how many entries of a timeline are shown at first, logRows how many lines of a log.
	timelineRows, logRows = 50, 200
	// auditRows is how many entries of the audit log a page shows.
	auditRows = 100
)

// Accounts is what the page needs of auth.Accounts.
type Accounts interface {
	NeedsSetup(ctx context.Context) (bool, error)
	Setup(ctx context.Context, code auth.Secret, name string, password auth.Secret, from string) error
	Login(ctx context.Context, name string, password auth.Secret, from string) (auth.Session, error)
	// Session returns whose session it is and counts as use of it; Peek does not.
	Session(ctx context.Context, secret auth.Secret) (auth.Session, error)
	Peek(ctx context.Context, secret auth.Secret) (auth.Session, error)
	Logout(ctx context.Context, secret auth.Secret) error
}

// Config is what a page is made of.
type Config struct {
	API      *api.Client
	Accounts Accounts
	// Site and Version are shown on every page.
	Site, Version string
	// TLS says that browsers reach the page by HTTPS: the cookie is bound to that, and the origin's scheme follows.
	TLS bool
	Now func() time.Time
	Log *slog.Logger
}

// Server is the page.
type Server struct {
	cfg     Config
	looks   *looks
	assets  *assets
	streams chan struct{}
}

// New returns the page's handler.
func New(cfg Config) (http.Handler, error) {
	if cfg.API == nil || cfg.Accounts == nil || cfg.Now == nil || cfg.Log == nil {
		return nil, errors.New("new page: API, accounts, clock and log are needed")
	}
	a, err := newAssets()
	if err != nil {
		return nil, fmt.Errorf("new page: %w", err)
	}
	l, err := newLooks(a)
	if err != nil {
		return nil, fmt.Errorf("new page: %w", err)
	}
	s := &Server{cfg: cfg, looks: l, assets: a, streams: make(chan struct{}, maxStreams)}
	return s.guard(s.routes()), nil
}

func (s *Server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /assets/", s.assets)
	mux.HandleFunc("GET /setup", s.open(s.setupForm))
	mux.HandleFunc("POST /setup", s.open(s.setup))
	mux.HandleFunc("GET /login", s.open(s.loginForm))
	mux.HandleFunc("POST /login", s.open(s.login))
	mux.HandleFunc("POST /logout", s.signed(s.logout))

	mux.HandleFunc("GET /{$}", s.signed(s.fleet))
	mux.HandleFunc("GET /live/fleet", s.stream(s.fleetParts))
	mux.HandleFunc("GET /machines/new", s.signed(s.newMachine))
	mux.HandleFunc("POST /machines/new", s.signed(s.addMachine))
	mux.HandleFunc("GET /machines/{name}", s.signed(s.machine))
	mux.HandleFunc("GET /live/machine/{name}", s.stream(s.machineParts))
	mux.HandleFunc("GET /machines/{name}/{action}", s.signed(s.confirm))
	mux.HandleFunc("POST /machines/{name}/{action}", s.signed(s.act))

	mux.HandleFunc("GET /discovered", s.signed(s.discovered))
	mux.HandleFunc("GET /live/discovered", s.stream(s.discoveredParts))
	mux.HandleFunc("GET /images", s.signed(s.images))
	mux.HandleFunc("POST /images/uploads", s.signed(s.beginUpload))
	mux.HandleFunc("PUT /images/uploads/{id}/blobs/{sha256}", s.signed(s.putBlob))
	mux.HandleFunc("POST /images/uploads/{id}/finish", s.signed(s.finishUpload))
	mux.HandleFunc("GET /images/{name}/remove", s.signed(s.confirmImage))
	mux.HandleFunc("POST /images/{name}/remove", s.signed(s.removeImage))
	mux.HandleFunc("GET /health", s.signed(s.health))
	mux.HandleFunc("GET /site/{action}", s.signed(s.confirmSite))
	mux.HandleFunc("POST /site/{action}", s.signed(s.actSite))
	mux.HandleFunc("GET /users", s.signed(s.users))
	mux.HandleFunc("POST /users", s.signed(s.changeUsers))
	mux.HandleFunc("GET /users/{name}/remove", s.signed(s.confirmUser))
	mux.HandleFunc("GET /tokens/{name}/revoke", s.signed(s.confirmToken))
	mux.HandleFunc("GET /audit", s.signed(s.audit))
	mux.HandleFunc("/", s.signed(s.nowhere))
	return mux
}
