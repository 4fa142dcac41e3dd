package api

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/images"
)

// Fleet is what the server needs of fleet.Repo.
type Fleet interface {
	AddMachine(ctx context.Context, s fleet.Spec, now time.Time) (fleet.Record, error)
	Protect(ctx context.Context, name, by, why string, now time.Time) (fleet.Record, error)
	Unprotect(ctx context.Context, name string) (fleet.Record, error)
	Stop(ctx context.Context) (*fleet.Stop, error)
	Show(ctx context.Context, name string) (fleet.Machine, error)
	ShowAll(ctx context.Context) ([]fleet.Machine, error)
	Events(ctx context.Context, machine string, limit int) ([]fleet.Event, error)
	Emit(ctx context.Context, e fleet.Event) error
}

// Images is what the server needs of images.Library.
type Images interface {
	Add(ctx context.Context, name, dir string) (images.Image, error)
	Get(ctx context.Context, name string) (images.Image, error)
	List(ctx context.Context) ([]images.Image, error)
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

// ServerConfig is what a Server is made of.
type ServerConfig struct {
	Fleet     Fleet
	Images    Images
	Workflows Workflows
	// Metrics answers GET /metrics in Prometheus's format; nil is none.
	Metrics http.Handler
	// Owner is the uid that the appliance runs as; it and root may.
	Owner uint32
	Now   func() time.Time
	Log   *slog.Logger
}

// Server answers on the unix socket.
type Server struct {
	cfg  ServerConfig
	http *http.Server
	// ending ends when Stop begins: a request that waits for something must not hold it up.
	ending context.Context
}

// NewServer returns a server that does not serve yet.
func NewServer(cfg ServerConfig) *Server {
	ending, end := context.WithCancel(context.Background())
	s := &Server{cfg: cfg, ending: ending}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/machines", s.handle(s.listMachines))
	mux.HandleFunc("POST /v1/machines", s.handle(s.addMachine))
	mux.HandleFunc("GET /v1/machines/{name}", s.handle(s.showMachine))
	mux.HandleFunc("POST /v1/machines/{name}/provision", s.handle(s.provision))
	mux.HandleFunc("POST /v1/machines/{name}/resume", s.handle(s.resume))
	mux.HandleFunc("POST /v1/machines/{name}/preview", s.handle(s.preview))
	mux.HandleFunc("POST /v1/machines/{name}/cancel", s.handle(s.cancel))
	mux.HandleFunc("POST /v1/machines/{name}/protect", s.handle(s.protect))
	mux.HandleFunc("POST /v1/machines/{name}/unprotect", s.handle(s.unprotect))
	mux.HandleFunc("POST /v1/stop", s.handle(s.stopAll))
	mux.HandleFunc("POST /v1/resume", s.handle(s.resumeAll))
	mux.HandleFunc("GET /v1/images", s.handle(s.listImages))
	mux.HandleFunc("POST /v1/images", s.handle(s.addImage))
	mux.HandleFunc("GET /v1/events", s.handle(s.events))
	if cfg.Metrics != nil {
		mux.HandleFunc("GET /metrics", s.metrics)
	}
	mux.HandleFunc("/", s.handle(func(r *http.Request) (any, error) {
		return nil, fault.New(fault.Usage, "call the API", "", fmt.Errorf("no %s here for %s", r.Method, r.URL.Path),
			"use the firstlight command of the same version as the appliance")
	}))
	slots := make(chan struct{}, maxRequests)
	s.http = &http.Server{
		Handler:           bounded(slots, mux),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		ConnContext:       withPeer,
		ErrorLog:          slog.NewLogLogger(cfg.Log.Handler(), slog.LevelWarn),
	}
	s.http.RegisterOnShutdown(end)
	return s
}

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

// bounded answers 503 while all slots are taken, instead of queueing without limit.
func bounded(slots chan struct{}, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
			next.ServeHTTP(w, r)
		default:
			answer(w, http.StatusServiceUnavailable, refusal{fault.New(fault.Unavailable, "call the API", "",
				fmt.Errorf("%d requests are running, the limit", maxRequests), "wait for them to end and try again")})
		}
	})
}

// handle checks who asks before anything else, and words the answer.
func (s *Server) handle(do func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
		err := s.check(r)
		var v any
		if err == nil {
			v, err = do(r)
		}
		if err != nil {
			f := fault.Of(err, r.Method, r.URL.Path)
			if f.Kind == fault.Internal {
				s.cfg.Log.Error("api request", "method", r.Method, "path", r.URL.Path, "error", f)
			}
			answer(w, status(f.Kind), refusal{f})
			return
		}
		answer(w, http.StatusOK, v)
	}
}

func (s *Server) check(r *http.Request) error {
	p, ok := r.Context().Value(peerKey{}).(Peer)
	if ok && (p.UID == 0 || p.UID == s.cfg.Owner) {
		return nil
	}
	who := "an unknown user"
	if ok {
		who = p.String()
	}
	s.cfg.Log.Warn("api request refused", "path", r.URL.Path, "by", who)
	return fault.New(fault.Denied, "use the appliance", "", fmt.Errorf("%s is neither root nor the user that it runs as", who),
		fmt.Sprintf("run the command as root or as uid %d", s.cfg.Owner))
}

func by(r *http.Request) string {
	p, _ := r.Context().Value(peerKey{}).(Peer)
	return p.String()
}

func (s *Server) listMachines(r *http.Request) (any, error) {
	all, err := s.cfg.Fleet.ShowAll(r.Context())
	if err != nil {
		return nil, fault.Of(err, "list machines", "")
	}
	return MachinePage{Machines: all, Total: len(all)}, nil
}

func (s *Server) showMachine(r *http.Request) (any, error) { return s.show(r, "show machine") }

func (s *Server) show(r *http.Request, op string) (fleet.Machine, error) {
	name := r.PathValue("name")
	m, err := s.cfg.Fleet.Show(r.Context(), name)
	if err != nil {
		return m, machineFault(op, name, err)
	}
	return m, nil
}

func (s *Server) addMachine(r *http.Request) (any, error) {
	op, done := "add machine", "added"
	var in AddMachine
	if err := decode(r, &in); err != nil {
		return nil, fault.New(fault.Usage, op, "", err, "use the firstlight command")
	}
	if in.Adopt {
		op, done = "adopt machine", "adopted and is protected"
	}
	if in.From != "" {
		done = "enrolled from " + in.From
	}
	cert, err := hex.DecodeString(in.BMCCertificateSHA256)
	if err != nil {
		return nil, fault.New(fault.Invalid, op, in.Name, fmt.Errorf("BMC certificate digest: %w", err),
			"give the SHA-256 of the controller's certificate as 64 hex digits")
	}
	_, err = s.cfg.Fleet.AddMachine(r.Context(), fleet.Spec{
		Name: in.Name, MACs: in.MACs, UUID: in.UUID, DiskSerials: in.DiskSerials,
		BMCURL: in.BMCURL, BMCUser: in.BMCUser, BMCPassword: fleet.Secret(in.BMCPassword), BMCCertificateSHA256: cert,
		Firmware: in.Firmware, Adopt: in.Adopt, From: in.From, By: by(r),
	}, s.cfg.Now())
	if err != nil {
		return nil, addFault(op, in.Name, err)
	}
	m, err := s.cfg.Fleet.Show(r.Context(), in.Name)
	if err != nil {
		return nil, machineFault(op, in.Name, err)
	}
	s.emit(r, fleet.Event{Machine: m.Name, NodeID: m.NodeID, Kind: "machine.added", Message: "machine " + m.Name + " was " + done + " by " + by(r)})
	return m, nil
}

func (s *Server) listImages(r *http.Request) (any, error) {
	all, err := s.cfg.Images.List(r.Context())
	if err != nil {
		return nil, fault.Of(err, "list images", "")
	}
	return all, nil
}

func (s *Server) addImage(r *http.Request) (any, error) {
	const op = "add image"
	var in AddImage
	if err := decode(r, &in); err != nil {
		return nil, fault.New(fault.Usage, op, "", err, "use the firstlight command")
	}
	img, err := s.cfg.Images.Add(r.Context(), in.Name, in.Dir)
	if err != nil {
		return nil, imageFault(op, in.Name, err)
	}
	s.emit(r, fleet.Event{Kind: "image.added", Fields: map[string]string{"image": img.Name, "manifest_sha256": img.ManifestSHA256},
		Message: "image " + img.Name + " was added by " + by(r)})
	return img, nil
}

func (s *Server) events(r *http.Request) (any, error) {
	const op = "list events"
	machine, limit := r.URL.Query().Get("machine"), MaxEvents
	if text := r.URL.Query().Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > MaxEvents {
			return nil, fault.New(fault.Usage, op, machine, fmt.Errorf("limit %q: want 1 to %d", text, MaxEvents), "give another limit")
		}
		limit = n
	}
	if machine != "" {
		if _, err := s.cfg.Fleet.Show(r.Context(), machine); err != nil {
			return nil, machineFault(op, machine, err)
		}
	}
	all, err := s.cfg.Fleet.Events(r.Context(), machine, limit)
	if err != nil {
		return nil, fault.Of(err, op, machine)
	}
	return all, nil
}

// emit records an event; that it could not be recorded undoes nothing.
func (s *Server) emit(r *http.Request, e fleet.Event) {
	e.Time, e.Source = fleet.At(s.cfg.Now()), "control"
	if err := s.cfg.Fleet.Emit(r.Context(), e); err != nil {
		s.cfg.Log.Error("record event", "kind", e.Kind, "error", err)
	}
}

func decode(r *http.Request, into any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("request body: %w", err)
	}
	return nil
}

func answer(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	w.Write(append(body, '\n'))
}
