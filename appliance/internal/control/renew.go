package control

import (
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"firstlight/appliance/internal/fleet"
	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/gatewayserver"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
)

// Bounds of a renewal (agent protocol, "The AgentGateway service").
const (
	// renewWindow is how far the agent's clock may be from the server's.
	renewWindow = 60 * time.Second
	// replayWindow is how long a proof is remembered.
	replayWindow = 120 * time.Second
	// maxProofs bounds the remembered proofs.
	maxProofs = 4096
)

// replays remembers proofs, so that each is good once.
type replays struct {
	mu   sync.Mutex
	seen map[[32]byte]time.Time
}

// first says whether what was proven was not seen within replayWindow: what was signed, not the signature, which can be altered and
// still verify. A full memory refuses: better late than twice.
func (r *replays) first(signed []byte, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, t := range r.seen {
		if now.Sub(t) >= replayWindow {
			delete(r.seen, k)
		}
	}
	k := sha256.Sum256(signed)
	if _, ok := r.seen[k]; ok || len(r.seen) >= maxProofs {
		return false
	}
	if r.seen == nil {
		r.seen = map[[32]byte]time.Time{}
	}
	r.seen[k] = now
	return true
}

// Renew implements gatewayserver.Services: a fresh certificate for the same node in the same role, proven by the current key. The
// old key stays good until the new one opens a session. A RAM disk lives shorter than its certificate and renews nothing.
//
// The proof's parts are sha256(csr), the node id, and client_time in deterministic protobuf encoding.
func (c *Control) Renew(ctx context.Context, p gatewayserver.Peer, req *agentv1.RenewRequest) (*agentv1.RenewResponse, error) {
	if err := c.Admit(ctx, p, nil); err != nil {
		return nil, err
	}
	node := string(p.Identity.Node)
	a, err := c.read(&agentv1.JoinRequest{Csr: req.Csr, NodeId: node}, p.Addr)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, "renew: "+err.Error())
	}
	if err := c.provenBy(p, req, a); err != nil {
		return nil, err
	}
	raw, err := c.respond(a, node, p.Role)
	if err != nil {
		return nil, err
	}
	resp := new(agentv1.JoinResponse)
	if err := proto.Unmarshal(raw, resp); err != nil {
		return nil, err
	}
	old, err := keyOf(p)
	if err != nil {
		return nil, err
	}
	switch p.Role {
	case roleSite:
		_, err = c.cfg.Fleet.UpdateAgent(ctx, node, func(g *fleet.Agent) error {
			g.PreviousKeyID, g.KeyID = old, a.keyID
			return nil
		})
	case roleNode:
		var m fleet.Record
		if m, err = c.cfg.Fleet.ByNode(ctx, node); err == nil {
			_, err = c.cfg.Fleet.Update(ctx, m.Name, func(r *fleet.Record) error {
				r.PreviousKeyID, r.NodeKeyID = old, a.keyID
				return nil
			})
		}
	default:
		return nil, status.Error(codes.PermissionDenied, "renew: only nodes and site agents renew")
	}
	if err != nil {
		return nil, err
	}
	return &agentv1.RenewResponse{Response: resp}, nil
}

// provenBy checks the proof of possession of the current key.
func (c *Control) provenBy(p gatewayserver.Peer, req *agentv1.RenewRequest, a *attempt) error {
	if !req.ClientTime.IsValid() {
		return status.Error(codes.InvalidArgument, "renew: no client time")
	}
	if d := a.now.Sub(req.ClientTime.AsTime()).Abs(); d > renewWindow {
		return status.Errorf(codes.PermissionDenied, "renew: the agent's clock is %s off", d.Round(time.Second))
	}
	at, err := proto.MarshalOptions{Deterministic: true}.Marshal(req.ClientTime)
	if err != nil {
		return err
	}
	key, ok := p.Certificate.PublicKey.(*ecdsa.PublicKey)
	if !ok {
		return status.Error(codes.Unauthenticated, "renew: certificate key is not ECDSA")
	}
	if err := envelope.VerifyKey(key, req.Proof, envelope.RenewPoP, a.csr, []byte(p.Identity.Node), at); err != nil {
		return status.Error(codes.PermissionDenied, "renew: "+err.Error())
	}
	if !c.proofs.first(envelope.Input(envelope.RenewPoP, a.csr, []byte(p.Identity.Node), at), a.now) {
		return status.Error(codes.PermissionDenied, "renew: this proof was used before")
	}
	return nil
}
