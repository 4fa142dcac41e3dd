package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/images"
	"firstlight/appliance/internal/roster"
	"firstlight/appliance/internal/store"
	"firstlight/imagebuild/manifest"
)

// Fleet is what the server needs of fleet.Repo.
type Fleet interface {
	AddMachine(ctx context.Context, s fleet.Spec, now time.Time) (fleet.Record, error)
	SetMachine(ctx context.Context, name string, p fleet.Patch) (fleet.Record, error)
	Adopt(ctx context.Context, name, by, why string, now time.Time) (fleet.Record, error)
	RemoveMachine(ctx context.Context, name string) (fleet.Record, error)
	Protect(ctx context.Context, name, by, why string, now time.Time) (fleet.Record, error)
	Unprotect(ctx context.Context, name string) (fleet.Record, error)
	Stop(ctx context.Context) (*fleet.Stop, error)
	Events(ctx context.Context, machine string, limit int) ([]fleet.Event, error)
	Emit(ctx context.Context, e fleet.Event) error
}

// Roster is what the server needs of roster.Roster.
type Roster interface {
	Page(q roster.Query, need int) (roster.Page, error)
	Row(name string) (roster.Row, bool)
	Rows(match func(*fleet.Machine) bool) []roster.Row
	Refresh(ctx context.Context, name string) error
	Rev() int64
	Watch(ctx context.Context, machine string, after int64) (<-chan roster.Change, error)
}

// Images is what the server needs of images.Library.
type Images interface {
	Add(ctx context.Context, name, dir string) (images.Image, error)
	Get(ctx context.Context, name string) (images.Image, error)
	List(ctx context.Context) ([]images.Image, error)
	Remove(ctx context.Context, name string) error
	BeginUpload(ctx context.Context, name string, manifest []byte) (images.Upload, error)
	Upload(id string) (images.Upload, error)
	PutBlob(ctx context.Context, id string, d manifest.Digest, from io.Reader) (images.Upload, error)
	FinishUpload(ctx context.Context, id string) (images.Image, error)
	DropUpload(ctx context.Context, id string) error
}

// Workflows is what the server needs of executor.Executor.
type Workflows interface {
	Provision(ctx context.Context, o executor.Order) (string, error)
	DryRun(ctx context.Context, o executor.Order) (executor.Preview, error)
	Resume(ctx context.Context, machine, by string) error
	Cancel(ctx context.Context, machine, by, reason string) error
	StopAll(ctx context.Context, by, reason string) ([]executor.Frozen, error)
	ResumeAll(ctx context.Context, by string) ([]executor.Frozen, error)
}

// Accounts is what the server needs of auth.Accounts.
type Accounts interface {
	TokenPrincipal(ctx context.Context, value auth.Secret) (auth.Principal, error)
	Users(ctx context.Context) ([]auth.User, error)
	AddUser(ctx context.Context, name string, role auth.Role, password auth.Secret) error
	SetPassword(ctx context.Context, name string, password auth.Secret) error
	SetRole(ctx context.Context, name string, role auth.Role) error
	RemoveUser(ctx context.Context, name string) error
	MintToken(ctx context.Context, name string, role auth.Role, life time.Duration, by string) (auth.Secret, auth.Token, error)
	Tokens(ctx context.Context) ([]auth.Token, error)
	RevokeToken(ctx context.Context, name string) error
	Record(ctx context.Context, e auth.Entry) error
	Entries(ctx context.Context, before uint64, limit int) ([]auth.Entry, error)
}

// ServerConfig is what a Server is made of. What may be nil is not there: its routes say so.
type ServerConfig struct {
	Fleet     Fleet
	Roster    Roster
	Images    Images
	Workflows Workflows
	// Store keeps the answers to requests that may be sent again; it may be nil, and then none are kept.
	Store store.Store
	// Accounts may be nil: then nobody but this host's own command may call, and nothing is written to the audit log.
	Accounts Accounts
	// Health runs the doctor's checks; it may be nil.
	Health func(ctx context.Context) (Health, error)
	// Logs keeps what machines' own agents say; it may be nil.
	Logs Logs
	// MintJoin makes a one-time token with which a site agent joins; it may be nil.
	MintJoin func(ctx context.Context, life time.Duration) (JoinToken, error)
	// Forget ends the sessions of a machine that was removed; it may be nil.
	Forget func(nodeID string)
	// Metrics answers GET /metrics in Prometheus's format; it may be nil.
	Metrics http.Handler
	// Owner is the uid that the appliance runs as; it and root may.
	Owner uint32
	// Version is told in the description of the API.
	Version string
	Now     func() time.Time
	Log     *slog.Logger
}

// Server answers. Serve is for the unix socket, Remote for a listener of the network, Handler for callers in this process.
type Server struct {
	cfg    ServerConfig
	routes []route
	mux    *http.ServeMux
	http   *http.Server
	// ending ends when Stop begins: a request that waits for something must not hold it up.
	ending context.Context
	// slots bounds requests, blobs the blobs that come at one time, streams what is followed.
	slots, blobs, streams chan struct{}
	// acts lets one person at a time act on a machine, by the hash of its name: what was checked holds until it is done.
	acts [64]sync.Mutex
	// inUse is held while an image is removed, and for reading while one is ordered.
	inUse sync.RWMutex
	once  requests
}

// NewServer returns a server that does not serve yet.
func NewServer(cfg ServerConfig) *Server {
	ending, end := context.WithCancel(context.Background())
	s := &Server{cfg: cfg, ending: ending, mux: http.NewServeMux(), slots: make(chan struct{}, maxRequests), blobs: make(chan struct{}, maxBlobs),
		streams: make(chan struct{}, maxStreams)}
	s.once = requests{store: cfg.Store, now: cfg.Now, running: map[string]bool{}}
	s.routes = s.table()
	for i := range s.routes {
		rt := &s.routes[i]
		s.mux.HandleFunc(rt.method+" "+rt.path, s.serve(rt))
	}
	s.mux.HandleFunc("/", s.serve(&route{perm: auth.PermRead, do: nowhere}))
	s.http = &http.Server{
		Handler:           s.local(s.mux),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		ConnContext:       withPeer,
		ErrorLog:          slog.NewLogLogger(cfg.Log.Handler(), slog.LevelWarn),
	}
	s.http.RegisterOnShutdown(end)
	return s
}

// Handler answers callers that say who they are in the request's context (auth.WithPrincipal); others are refused.
func (s *Server) Handler() http.Handler { return s.mux }

// Serve answers on l until Stop; then it returns nil.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve API: %w", err)
	}
	return nil
}

// Stop lets running requests end until ctx does, then cuts them.
func (s *Server) Stop(ctx context.Context) {
	if s.http.Shutdown(ctx) != nil {
		s.http.Close()
	}
}

// act locks a machine's name for one person's act.
func (s *Server) act(name string) (unlock func()) {
	var sum uint32 = 2166136261 // FNV-1a
	for i := range len(name) {
		sum = (sum ^ uint32(name[i])) * 16777619
	}
	m := &s.acts[sum%uint32(len(s.acts))]
	m.Lock()
	return m.Unlock
}
