// Package gatewayserver is the gateway half of the agent protocol on the wire: TLS, who the peer is, frames, sizes,
// liveness, supersession, and which gRPC code ends a stream.
//
// It decides nothing: who may join and what a result means is behind Services and Control. It is for whoever runs a
// gateway (the appliance, gatewaytest). Rank 1: it imports ident and the messages.
package gatewayserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"time"

	"firstlight/gateway-client/ident"
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
	// Now is the gateway's clock; nil is time.Now.
	Now func() time.Time
	// Log is where to tell; nil discards.
	Log *slog.Logger
}

// ErrNotConnected is returned by Send when the node has no session in the role.
var ErrNotConnected = errors.New("node is not connected")

// Server is one gateway half.
type Server struct{ cfg Config }

// New checks the configuration.
func New(cfg Config) (*Server, error) { return &Server{cfg: cfg}, nil }

// Serve accepts TLS connections on l until Stop; it returns nil after Stop.
func (s *Server) Serve(l net.Listener) error { return errors.New("serve: being built") }

// Stop ends every session with UNAVAILABLE and closes the listeners; what is still running when ctx ends is cut.
func (s *Server) Stop(ctx context.Context) {}

// Send queues a command, as signed, for the node's session in the role. nil means queued, not received.
func (s *Server) Send(node ident.NodeID, role commonv1.AgentRole, c *agentv1.Command) error {
	return ErrNotConnected
}

// Connected says whether the node has a session in the role.
func (s *Server) Connected(node ident.NodeID, role commonv1.AgentRole) bool { return false }

// Revoke tells the node's session in the role that its certificate is revoked, and ends it with UNAUTHENTICATED.
// Role UNSPECIFIED ends the sessions of every role.
func (s *Server) Revoke(node ident.NodeID, role commonv1.AgentRole, reason string) {}
