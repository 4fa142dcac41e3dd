// Package link dials a gateway: TLS 1.3 that trusts a pinned CA key and nothing else, HTTP/2 pings, frame bounds.
//
// It is for the agent half of the protocol (session) and for whoever calls Join. It is not for browsers or for other
// servers: it never asks the system's roots. Rank 1, imports nothing of ours.
package link

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

const (
	// MaxFrameBytes bounds one gRPC message in either direction (agent protocol, "Message size bounds").
	MaxFrameBytes = 5 << 20
	// MaxCommandBytes bounds a serialized CommandBody, a command's payload and its result.
	MaxCommandBytes = 1 << 20
	// PingInterval is how often each side pings (agent protocol, "Transport").
	PingInterval = 20 * time.Second
	// PingTimeout is how long a side waits for the answer: with PingInterval, half-open links end within 40 s (SEC-02).
	PingTimeout = 20 * time.Second
	// HandshakeTimeout bounds the TCP and TLS handshakes of one connection.
	HandshakeTimeout = 15 * time.Second
	// MaxPins bounds Config.SPKIPins.
	MaxPins = 8
)

// Config says where a gateway is and how it is known.
type Config struct {
	// URL is "https://host[:port]", port 443 when absent.
	URL string
	// ServerName is the name that the gateway's certificate must carry; empty is the URL's host.
	ServerName string
	// SPKIPins are SHA-256 digests of the SubjectPublicKeyInfo of each accepted serving CA; at least one.
	SPKIPins [][]byte
	// Certificate is the agent's; nil for Join.
	Certificate *tls.Certificate
	// Now is the clock against which the gateway's certificate is checked; nil is time.Now.
	Now func() time.Time
	// DialContext opens the byte stream to host:port; nil is TCP.
	DialContext func(ctx context.Context, address string) (net.Conn, error)
}

var (
	// ErrPin is wrapped when no certificate of the gateway's chain is a CA with a pinned key; the text names the pins
	// that were expected and found.
	ErrPin = errors.New("gateway's serving CA is not the pinned one")
	// ErrClock is wrapped when the gateway's certificate is not valid at this machine's time; the text names this
	// machine's clock and the period in which the certificate says that the gateway lives.
	ErrClock = errors.New("clocks disagree")
)

// Dial prepares a connection; the network is touched by the first call on it. Calls that fail because of the handshake
// return an error that wraps its cause (ErrPin, ErrClock) and still is a gRPC status.
func Dial(cfg Config) (*grpc.ClientConn, error) {
	address, host, err := target(cfg.URL)
	if err != nil {
		return nil, err
	}
	if len(cfg.SPKIPins) == 0 || len(cfg.SPKIPins) > MaxPins {
		return nil, fmt.Errorf("dial %s: want 1 to %d pins, got %d", cfg.URL, MaxPins, len(cfg.SPKIPins))
	}
	for _, p := range cfg.SPKIPins {
		if len(p) != sha256.Size {
			return nil, fmt.Errorf("dial %s: a pin has %d bytes, want %d", cfg.URL, len(p), sha256.Size)
		}
	}
	if cfg.ServerName == "" {
		cfg.ServerName = host
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	dial := cfg.DialContext
	if dial == nil {
		dial = func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{Timeout: HandshakeTimeout}).DialContext(ctx, "tcp", address)
		}
	}
	creds := &recorder{TransportCredentials: credentials.NewTLS(cfg.tls()), last: new(lastError)}
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(dial),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: HandshakeTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: PingInterval, Timeout: PingTimeout, PermitWithoutStream: true}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxFrameBytes), grpc.MaxCallSendMsgSize(MaxFrameBytes)),
		grpc.WithUnaryInterceptor(creds.last.unary),
		grpc.WithStreamInterceptor(creds.last.stream),
	)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", cfg.URL, err)
	}
	return conn, nil
}

func target(raw string) (address, host string, err error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || strings.Trim(u.Path, "/") != "" {
		return "", "", fmt.Errorf("gateway url %q: want https://host[:port]", raw)
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	return net.JoinHostPort(u.Hostname(), port), u.Hostname(), nil
}

// tls leaves chain building to verify: the roots are not known before the gateway's chain is seen.
func (c Config) tls() *tls.Config {
	t := &tls.Config{
		MinVersion:         tls.VersionTLS13,
		ServerName:         c.ServerName,
		InsecureSkipVerify: true, // replaced by verify, which is stricter
		VerifyConnection:   func(s tls.ConnectionState) error { return c.verify(s.PeerCertificates) },
		NextProtos:         []string{"h2"},
	}
	if c.Certificate != nil {
		cert := *c.Certificate
		t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
	}
	return t
}

// verify accepts a chain, leaf first, that leads to a CA whose key is pinned.
func (c Config) verify(chain []*x509.Certificate) error {
	roots, middle := x509.NewCertPool(), x509.NewCertPool()
	var pinned bool
	var found []string
	for i, cert := range chain {
		sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
		found = append(found, hex.EncodeToString(sum[:]))
		switch {
		case i > 0 && cert.IsCA && c.pins(sum):
			roots.AddCert(cert)
			pinned = true
		case i > 0:
			middle.AddCert(cert)
		}
	}
	if !pinned {
		return fmt.Errorf("verify gateway %s: %w: want pin %s, its chain has %s", c.ServerName, ErrPin, c.pinText(), strings.Join(found, ", "))
	}
	now := c.Now()
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: middle, CurrentTime: now, DNSName: c.ServerName,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		return fmt.Errorf("verify gateway %s: %w: this machine's clock says %s, the gateway's certificate lives from %s to %s",
			c.ServerName, ErrClock, stamp(now), stamp(invalid.Cert.NotBefore), stamp(invalid.Cert.NotAfter))
	}
	if err != nil {
		return fmt.Errorf("verify gateway %s: %w", c.ServerName, err)
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func (c Config) pins(sum [sha256.Size]byte) bool {
	for _, p := range c.SPKIPins {
		if string(p) == string(sum[:]) {
			return true
		}
	}
	return false
}

func (c Config) pinText() string {
	var s []string
	for _, p := range c.SPKIPins {
		s = append(s, hex.EncodeToString(p))
	}
	return strings.Join(s, " or ")
}

// recorder keeps why the newest handshake failed, which gRPC passes on as text only.
type recorder struct {
	credentials.TransportCredentials
	last *lastError
}

func (r *recorder) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := r.TransportCredentials.ClientHandshake(ctx, authority, c)
	r.last.set(err)
	return conn, info, err
}

func (r *recorder) Clone() credentials.TransportCredentials {
	return &recorder{TransportCredentials: r.TransportCredentials.Clone(), last: r.last}
}

type lastError struct {
	mu  sync.Mutex
	err error
}

func (l *lastError) set(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

// wrap adds the handshake's error to a call's that failed without reaching the gateway.
func (l *lastError) wrap(err error) error {
	if status.Code(err) != codes.Unavailable {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		return err
	}
	return &handshakeError{status: status.Convert(err), cause: l.err}
}

func (l *lastError) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return l.wrap(invoke(ctx, method, req, reply, cc, opts...))
}

func (l *lastError) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	return s, l.wrap(err)
}

type handshakeError struct {
	status *status.Status
	cause  error
}

func (e *handshakeError) Error() string              { return e.cause.Error() }
func (e *handshakeError) Unwrap() error              { return e.cause }
func (e *handshakeError) GRPCStatus() *status.Status { return e.status }
