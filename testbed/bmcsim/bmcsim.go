// Package bmcsim is a management controller that speaks Redfish over TLS and
// acts on a Host, which is usually a virtual machine.
//
// It is for the testbed and for tests of Redfish clients. It has what a client
// needs to find, power and boot one system (sessions, Systems/1, Reset, boot
// override) and answers to the test: it can lie, refuse, pause and count. It is
// no reference implementation of Redfish, and nothing in production imports it.
package bmcsim

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"sync"
	"time"
)

// Bounds of the simulator.
const (
	maxSessions   = 4
	sessionExpiry = time.Hour
	maxBody       = 64 << 10 // bytes of one request
	maxQueued     = 4        // resets accepted and not yet done
	headerLimit   = 10 * time.Second
	actionLimit   = time.Minute // one power action of the host
)

// Host is the machine behind the controller. Calls come one at a time, from a
// goroutine of the server; Powered may come at any moment from any goroutine.
type Host interface {
	// PowerOn starts the machine, which is off, from boot: "pxe", "disk" or
	// "cd". It returns when the machine runs.
	PowerOn(ctx context.Context, boot string) error
	// PowerOff cuts the power; it does nothing if the machine is off.
	PowerOff(ctx context.Context) error
	// Powered is false also when the machine turned itself off.
	Powered() bool
}

// Config describes one controller.
type Config struct {
	Username, Password string
	Host               Host
	// Modes are the firmware modes that the machine has, "UEFI" and "Legacy", the present one first; another one is refused.
	// Empty is both, from UEFI.
	Modes []string
	Log   *slog.Logger // nil = silent
}

// Faults makes the controller answer to the test. The zero value is a correct
// controller.
type Faults struct {
	// LieBootOverride: a PATCH of the override is accepted and not kept.
	LieBootOverride bool
	// RefuseBootOverride: it is answered 400.
	RefuseBootOverride bool
	// IgnorePower: a reset is accepted and nothing happens.
	IgnorePower bool
	// RefusePower: a reset is answered 500.
	RefusePower bool
	// RefuseLogin: no credentials are good.
	RefuseLogin bool
	// NeedIfMatch: a PATCH without If-Match is answered 428 (RF-01).
	NeedIfMatch bool
	// NoMode: the system shows no BootSourceOverrideMode and refuses it (RF-02).
	NoMode bool
	// ResetsMode: a PATCH of the override without a mode sets it to Legacy (RF-02).
	ResetsMode bool
	// Pause holds every request until it is closed; nil = no pause.
	Pause <-chan struct{}
}

// Stats counts what clients did.
type Stats struct {
	Logins, Logouts, Refusals int
	Sessions                  int // open now
	MostSessions              int // open at once, so far
	Resets, OverridePatches   int // accepted
	ModePatches               int // of these, the ones that said a mode
	PowerOns, PowerOffs       int // done by the host, without error
}

// Server is one controller. Its methods may be called from several goroutines.
type Server struct {
	cfg    Config
	cert   tls.Certificate
	http   *http.Server
	queue  chan func(context.Context)
	ctx    context.Context
	cancel context.CancelFunc
	worker sync.WaitGroup

	// mu guards what follows; it is not held while the host acts.
	mu       sync.Mutex
	faults   Faults
	stats    Stats
	sessions map[string]session // by token
	override override
	etag     uint64 // changes with the override
}

// New makes a controller with a certificate of its own.
func New(cfg Config) (*Server, error) {
	if cfg.Host == nil || cfg.Username == "" || cfg.Password == "" {
		return nil, errors.New("make bmc simulator: host, user name and password are needed")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if len(cfg.Modes) == 0 {
		cfg.Modes = []string{"UEFI", legacy}
	}
	cert, err := selfSigned()
	if err != nil {
		return nil, fmt.Errorf("make bmc simulator: certificate: %w", err)
	}
	s := &Server{
		cfg: cfg, cert: cert,
		queue:    make(chan func(context.Context), maxQueued),
		sessions: make(map[string]session),
	}
	s.setOverride(override{Enabled: "Disabled", Mode: cfg.Modes[0]})
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.http = &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: headerLimit,
		ErrorLog:          slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}},
	}
	s.worker.Add(1)
	go s.work()
	return s, nil
}

// Serve answers on ln, which is not yet TLS, until Close. It returns nil then.
func (s *Server) Serve(ln net.Listener) error {
	err := s.http.ServeTLS(ln, "", "")
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("bmc simulator: %w", err)
}

// CertificateSHA256 is the SHA-256 of the TLS certificate in DER.
func (s *Server) CertificateSHA256() []byte {
	sum := sha256.Sum256(s.cert.Certificate[0])
	return sum[:]
}

// SetFaults replaces the faults in force.
func (s *Server) SetFaults(f Faults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = f
}

// Mode is the machine's firmware mode as the controller keeps it.
func (s *Server) Mode() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.override.Mode
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Sessions = len(s.sessions)
	return st
}

// ExpireSessions forgets every session, as a restart of the controller does.
func (s *Server) ExpireSessions() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.sessions)
}

// Close stops answering and waits for the host's action in progress. The
// machine keeps its power state.
func (s *Server) Close() {
	s.http.Close()
	s.cancel()
	s.worker.Wait()
}

// work does the accepted resets, one at a time.
func (s *Server) work() {
	defer s.worker.Done()
	for {
		select {
		case <-s.ctx.Done():
			return
		case action := <-s.queue:
			ctx, cancel := context.WithTimeout(s.ctx, actionLimit)
			action(ctx)
			cancel()
		}
	}
}

// selfSigned makes a certificate as controllers have it: its own issuer, no
// useful name.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "bmc"},
		NotBefore:    time.Now().Add(-48 * time.Hour),
		NotAfter:     time.Now().AddDate(10, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
