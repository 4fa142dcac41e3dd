// Package gatewayserver is the gateway half of the agent protocol on the wire: TLS, who the peer is, frames, sizes,
// liveness, supersession, and which gRPC code ends a stream.
//
// It decides nothing: who may join and what a result means is behind Services and Control. It is for whoever runs a
// gateway (the appliance, gatewaytest). Rank 1: it imports ident, link (for the bounds) and
// the messages.
package gatewayserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"firstlight/gateway-client/ident"
	"firstlight/gateway-client/link"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// Peer is who is on the other side, from its verified certificate, never from a frame.
type Peer struct {
	Identity    ident.Identity
	Role        commonv1.AgentRole
	Certificate *x509.Certificate
	// BootID and JournalID are the agent's own words (Hello); empty in Renew.
	BootID, JournalID string
	// Epoch grows with every session; of two sessions the one with the higher epoch is the newer. 0 in Renew.
	Epoch uint64
	// Addr is the remote host and port.
	Addr string
}

// Services is the JoinService and the secret broker. Methods are called from many goroutines at once.
//
// Join and Renew refuse with status.Error(code, text): the text travels to the agent, so it carries no secret; any other
// error becomes UNAVAILABLE without its text. Secret always answers: an unknown reference is Error "not-found".
type Services interface {
	Join(ctx context.Context, req *agentv1.JoinRequest, addr string) (*agentv1.JoinResponse, error)
	Renew(ctx context.Context, p Peer, req *agentv1.RenewRequest) (*agentv1.RenewResponse, error)
	Secret(ctx context.Context, p Peer, req *agentv1.SecretRequest) *agentv1.SecretResponse
	// TrustBundle is asked at each Hello; the bundle is sent when its version is above the agent's. nil, nil is none.
	TrustBundle(ctx context.Context) (*commonv1.SignedTrustBundle, error)
}

// Control is what the gateway tells the control plane. Calls of one session come from one goroutine, one at a time:
// Admit, Connected, then the others in the order of the frames, Disconnected last. Sessions call concurrently.
//
// An error of Inventory, Update or Events ends the session with UNAVAILABLE, and the agent comes back and says it again;
// so what can never be stored (a bad signature, an unknown command) is told to people and answered with nil.
type Control interface {
	// Admit may refuse with a status error; any other error is PERMISSION_DENIED with its text.
	Admit(ctx context.Context, p Peer, h *agentv1.Hello) error
	// Connected is called once Send works for the peer.
	Connected(ctx context.Context, p Peer, h *agentv1.Hello)
	// Disconnected gets why the session ended; ctx outlives the stream.
	Disconnected(ctx context.Context, p Peer, why error)
	// Inventory sections come with a checked SHA-256.
	Inventory(ctx context.Context, p Peer, s *agentv1.InventorySection) error
	// Update with nil means stored: terminal states are acked. The same update may come again.
	Update(ctx context.Context, p Peer, u *agentv1.CommandUpdate) error
	// Events with nil means stored: acked up to the last sequence. The same events may come again.
	Events(ctx context.Context, p Peer, b *agentv1.EventBatch) error
	Status(ctx context.Context, p Peer, r *agentv1.StatusReport)
}

// Config is what a gateway half needs.
type Config struct {
	// Certificate carries the whole chain, its CA included: agents pin the CA's key.
	Certificate tls.Certificate
	// NodeCAs are asked for every connection, so that a new one counts at once.
	NodeCAs     func() []*x509.Certificate
	TrustDomain string
	Services    Services
	Control     Control
	// Logs is told what agents say to people, one session's lines one batch at a time; it must not wait. Nil throws them away.
	Logs func(p Peer, b *agentv1.LogBatch)
	// Now is the gateway's clock; nil is time.Now.
	Now func() time.Time
	// Log is where to tell; nil discards.
	Log *slog.Logger
}

var (
	// ErrNotConnected is returned by Send when the node has no session in the role.
	ErrNotConnected = errors.New("node is not connected")
	// ErrBusy is returned by Send when QueueFrames frames wait for the node already.
	ErrBusy = errors.New("node's queue is full")
	// ErrUpgradeRequired is returned by Send when the agent speaks no protocol version of ours.
	ErrUpgradeRequired = errors.New("agent is below the lowest protocol version")
)

// Server is one gateway half.
type Server struct {
	cfg    Config
	grpc   *grpc.Server
	bucket *rate.Limiter
	// pending has room for MaxPendingHellos streams that have not said who they are.
	pending chan struct{}

	mu       sync.Mutex // guards what follows
	sessions map[key]*conn
	epoch    uint64
	stopping bool
}

// key: one node may hold a session in each role (the deployed system joins while the RAM disk's session dies).
type key struct {
	node ident.NodeID
	role commonv1.AgentRole
}

// New checks the configuration. Nothing listens before Serve.
func New(cfg Config) (*Server, error) {
	switch {
	case len(cfg.Certificate.Certificate) == 0 || cfg.Certificate.PrivateKey == nil:
		return nil, errors.New("gateway: no serving certificate")
	case cfg.NodeCAs == nil || cfg.Services == nil || cfg.Control == nil:
		return nil, errors.New("gateway: node CAs, services and control are required")
	case !ident.Valid(cfg.TrustDomain):
		return nil, fmt.Errorf("gateway: trust domain %q is not a valid name", cfg.TrustDomain)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		cfg:      cfg,
		bucket:   rate.NewLimiter(HandshakesPerSecond, HandshakeBurst),
		pending:  make(chan struct{}, MaxPendingHellos),
		sessions: make(map[key]*conn),
	}
	s.grpc = grpc.NewServer(
		grpc.Creds(credentials.NewTLS(&tls.Config{
			MinVersion:   tls.VersionTLS13,
			Certificates: []tls.Certificate{cfg.Certificate},
			// The chain is checked per call (peer): a refusal is then a status that says why, not a TLS alert.
			ClientAuth:             tls.RequestClientCert,
			SessionTicketsDisabled: true,
			NextProtos:             []string{"h2"},
		})),
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(link.MaxFrameBytes),
		grpc.MaxSendMsgSize(link.MaxFrameBytes),
		grpc.MaxConcurrentStreams(StreamsPerConnection),
		grpc.ConnectionTimeout(link.HandshakeTimeout),
		// With gRPC's shared write buffer 60 kB a stream instead of 74, measured.
		grpc.ReadBufferSize(4<<10),
		grpc.WriteBufferSize(4<<10),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: link.PingInterval, Timeout: link.PingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: MinPingInterval, PermitWithoutStream: true}),
	)
	agentv1.RegisterAgentGatewayServer(s.grpc, wire{s: s})
	return s, nil
}

// Serve accepts TLS connections on l until Stop; it returns nil after Stop.
func (s *Server) Serve(l net.Listener) error {
	if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve gateway on %s: %w", l.Addr(), err)
	}
	return nil
}

// Stop ends every session with UNAVAILABLE and closes the listeners; what is still running when ctx ends is cut.
func (s *Server) Stop(ctx context.Context) {
	s.mu.Lock()
	s.stopping = true
	for _, c := range s.sessions {
		c.cancel(status.Error(codes.Unavailable, "gateway is stopping"))
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { s.grpc.GracefulStop(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		s.grpc.Stop()
		<-done
	}
}

// Send queues a command, as signed, for the node's session in the role. nil means queued, not received: the command is
// done with when its terminal update came, and is sent again after a new session otherwise.
func (s *Server) Send(node ident.NodeID, role commonv1.AgentRole, c *agentv1.Command) error {
	if len(c.GetBody()) > link.MaxCommandBytes {
		return fmt.Errorf("send command to %s: body has %d bytes, want at most %d", node, len(c.GetBody()), link.MaxCommandBytes)
	}
	return s.push(node, role, &agentv1.ServerFrame{Frame: &agentv1.ServerFrame_Command{Command: c}})
}

// Cancel asks the node to stop a command between two actions. Like Send, nil means queued.
func (s *Server) Cancel(node ident.NodeID, role commonv1.AgentRole, commandID, reason string) error {
	return s.push(node, role, &agentv1.ServerFrame{Frame: &agentv1.ServerFrame_Cancel{Cancel: &agentv1.Cancel{CommandId: commandID, Reason: reason}}})
}

func (s *Server) push(node ident.NodeID, role commonv1.AgentRole, f *agentv1.ServerFrame) error {
	c := s.session(key{node, role})
	switch {
	case c == nil:
		return fmt.Errorf("send to %s (%s): %w", node, ident.RoleWord(role), ErrNotConnected)
	case c.restricted:
		return fmt.Errorf("send to %s (%s): %w", node, ident.RoleWord(role), ErrUpgradeRequired)
	}
	select {
	case c.out <- f:
		return nil
	default:
		return fmt.Errorf("send to %s (%s): %w", node, ident.RoleWord(role), ErrBusy)
	}
}

func (s *Server) session(k key) *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[k]
}

// Connected says whether the node has a session in the role.
func (s *Server) Connected(node ident.NodeID, role commonv1.AgentRole) bool {
	return s.session(key{node, role}) != nil
}

// Revoke tells the node's session in the role that its certificate is revoked, and ends it with UNAUTHENTICATED.
// Role UNSPECIFIED ends the sessions of every role. It does not keep the node from coming back: that is Control.Admit's.
func (s *Server) Revoke(node ident.NodeID, role commonv1.AgentRole, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, c := range s.sessions {
		if k.node != node || (role != commonv1.AgentRole_AGENT_ROLE_UNSPECIFIED && k.role != role) {
			continue
		}
		select {
		case c.out <- &agentv1.ServerFrame{Frame: &agentv1.ServerFrame_Revoked{Revoked: &agentv1.RevocationNotice{Reason: reason}}}:
		default: // the status below says it too
		}
		c.cancel(status.Errorf(codes.Unauthenticated, "certificate is revoked: %s", reason))
	}
}
