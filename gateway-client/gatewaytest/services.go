package gatewaytest

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/gatewayserver"
	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/gateway-client/sealed"
	"firstlight/gateway-client/session"
)

// peerKey is a node in a role.
type peerKey struct {
	node ident.NodeID
	role commonv1.AgentRole
}

// record is what the gateway saw.
type record struct {
	present   map[peerKey]*agentv1.Hello
	hellos    map[peerKey][]*agentv1.Hello
	ended     map[peerKey]error
	updates   []*agentv1.CommandUpdate
	events    []*agentv1.Event
	logs      []*agentv1.LogBatch
	inventory map[ident.NodeID]map[string][]byte
	statuses  map[ident.NodeID][]*agentv1.StatusReport
	joins     []*agentv1.JoinRequest
}

func newRecord() record {
	return record{present: make(map[peerKey]*agentv1.Hello), hellos: make(map[peerKey][]*agentv1.Hello), ended: make(map[peerKey]error),
		inventory: make(map[ident.NodeID]map[string][]byte), statuses: make(map[ident.NodeID][]*agentv1.StatusReport)}
}

// OpenEvidence opens sealed evidence (join-token, provisioned) and checks that it is bound to the request's CSR.
func (g *Gateway) OpenEvidence(r *agentv1.JoinRequest) (secret []byte, err error) {
	var c sealed.JoinClaims
	if err := sealed.Open(g.unsealer, sealed.TypJoin, string(r.Evidence), &c); err != nil {
		return nil, err
	}
	if string(c.CSRSHA256) != string(digest(r.Csr)) {
		return nil, errors.New("evidence is bound to another certificate request")
	}
	return c.Secret, nil
}

// services is the JoinService and the broker.
type services struct{ g *Gateway }

func (s services) Join(_ context.Context, r *agentv1.JoinRequest, _ string) (*agentv1.JoinResponse, error) {
	g := s.g
	g.note(func(rec *record) { rec.joins = append(rec.joins, proto.CloneOf(r)) })
	g.mu.Lock()
	decide := g.join
	g.mu.Unlock()
	node := ident.NodeID(r.NodeId)
	if decide != nil {
		var err error
		if node, err = decide(r); err != nil {
			return nil, err
		}
	}
	if node == "" {
		node = ident.NodeID(ident.New("node"))
	}
	csr, err := x509.ParseCertificateRequest(r.Csr)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, "csr is not readable")
	}
	pub, ok := csr.PublicKey.(*ecdsa.PublicKey)
	if err := csr.CheckSignature(); err != nil || !ok {
		return nil, status.Error(codes.InvalidArgument, "csr does not prove its key")
	}
	cert := g.NodeCA.Agent(pub, ident.Identity{TrustDomain: TrustDomain, Site: Site, Node: node}, r.Role)
	body := &agentv1.JoinResponseBody{NodeId: string(node), Role: r.Role, CsrSha256: digest(r.Csr),
		CertificateChain: [][]byte{cert.Raw}, Trust: g.Bundle(), ServerTime: timestamppb.Now()}
	f := g.fault()
	if f.Join != nil {
		f.Join(body)
	}
	raw := marshal(g.tb, body)
	sig, err := envelope.Signer{Key: g.joinKey}.Sign(envelope.JoinResponse, raw)
	if err != nil {
		return nil, err
	}
	resp := &agentv1.JoinResponse{Body: raw, Signature: sig}
	if f.Response != nil {
		f.Response(resp)
	}
	return resp, nil
}

func (s services) Renew(context.Context, gatewayserver.Peer, *agentv1.RenewRequest) (*agentv1.RenewResponse, error) {
	return nil, status.Error(codes.Unimplemented, "this gateway renews nothing")
}

func (s services) Secret(_ context.Context, p gatewayserver.Peer, r *agentv1.SecretRequest) *agentv1.SecretResponse {
	if err := session.VerifySecretRequest(p.Certificate, r); err != nil {
		return &agentv1.SecretResponse{Error: "access-denied"}
	}
	s.g.mu.Lock()
	value, ok := s.g.secrets[r.Ref]
	s.g.mu.Unlock()
	if !ok {
		return &agentv1.SecretResponse{Error: "not-found"}
	}
	resp, err := session.AnswerSecret(r, value, time.Now().Add(time.Minute))
	if err != nil {
		return &agentv1.SecretResponse{Error: "unavailable"}
	}
	if f := s.g.fault(); f.Secret != nil {
		f.Secret(resp)
	}
	return resp
}

func (s services) TrustBundle(context.Context) (*commonv1.SignedTrustBundle, error) {
	raw := marshal(s.g.tb, s.g.Bundle())
	sig, err := envelope.Signer{Key: s.g.joinKey}.Sign(envelope.TrustBundle, raw)
	return &commonv1.SignedTrustBundle{Body: raw, Signature: sig}, err
}

// control records.
type control struct{ g *Gateway }

func (c control) Admit(_ context.Context, _ gatewayserver.Peer, h *agentv1.Hello) error {
	if f := c.g.fault(); f.Admit != nil {
		return f.Admit(h)
	}
	return nil
}

func (c control) Connected(_ context.Context, p gatewayserver.Peer, h *agentv1.Hello) {
	k := peerKey{p.Identity.Node, p.Role}
	c.g.note(func(r *record) { r.present[k], r.hellos[k] = h, append(r.hellos[k], h) })
}

func (c control) Disconnected(_ context.Context, p gatewayserver.Peer, why error) {
	k := peerKey{p.Identity.Node, p.Role}
	c.g.note(func(r *record) { delete(r.present, k); r.ended[k] = why })
}

func (c control) Inventory(_ context.Context, p gatewayserver.Peer, s *agentv1.InventorySection) error {
	c.g.note(func(r *record) {
		if r.inventory[p.Identity.Node] == nil {
			r.inventory[p.Identity.Node] = make(map[string][]byte)
		}
		r.inventory[p.Identity.Node][s.Name] = s.Encoding
	})
	return nil
}

// Update records what verifies; what does not is a fault of the agent, and fails the test.
func (c control) Update(_ context.Context, p gatewayserver.Peer, u *agentv1.CommandUpdate) error {
	if err := session.VerifyUpdate(p.Certificate, u); err != nil {
		c.g.tb.Errorf("update of %s: %v", p.Identity.Node, err)
		return nil
	}
	f := c.g.fault()
	c.g.note(func(r *record) { r.updates = append(r.updates, u) })
	if f.Update != nil {
		if err := f.Update(u); err != nil {
			return fmt.Errorf("store update: %w", err)
		}
	}
	return nil
}

func (c control) Events(_ context.Context, _ gatewayserver.Peer, b *agentv1.EventBatch) error {
	if f := c.g.fault(); f.Events != nil {
		if err := f.Events(b); err != nil {
			return fmt.Errorf("store events: %w", err)
		}
	}
	c.g.note(func(r *record) { r.events = append(r.events, b.Events...) })
	return nil
}

// logged keeps what agents say.
func (g *Gateway) logged(_ gatewayserver.Peer, b *agentv1.LogBatch) {
	g.note(func(r *record) { r.logs = append(r.logs, b) })
}

func (c control) Status(_ context.Context, p gatewayserver.Peer, s *agentv1.StatusReport) {
	c.g.note(func(r *record) { r.statuses[p.Identity.Node] = append(r.statuses[p.Identity.Node], s) })
}
