// Package hostile is a gateway in an attacker's hands, and the trials that it puts a machine through: it relays between a control
// plane and a machine, so it may withhold, replay, reorder, swap and tamper with what passes; it cannot sign.
//
// The real agent program meets it: process 1 of the real RAM disk, under QEMU, over TLS. What the agent did is judged by the
// disk's counters, the disk's bytes and the signed updates that arrived. It is for testbed/scenario; gatewaytest is the gateway
// for tests of agents in one process.
package hostile

import (
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
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
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
	"firstlight/gateway-client/session"
)

// What the gateway, its site and its machines are called.
const (
	TrustDomain = "firstlight.test"
	Site        = "site-a"
	ServerName  = "gw.site-a.firstlight.test"

	// victim is the machine; neighbour is the one whose commands it must never run.
	victim    = ident.NodeID("node-victim")
	neighbour = ident.NodeID("node-neighbour")
)

// maxUpdates bounds what one gateway remembers.
const maxUpdates = 10000

// Gateway is one gateway half with every key of its own. Its methods may be called from several goroutines.
type Gateway struct {
	address string
	server  *gatewayserver.Server

	servingCA, nodeCA, commandCA *authority
	// worker is the control plane's key: the attacker relays what it signed. stranger chains to a root in nobody's bundle; image may
	// sign images only.
	worker, stranger, image envelope.Signer
	joinKey, sealKey        *ecdsa.PrivateKey

	mu      sync.Mutex // guards what follows
	changed chan struct{}
	updates []*agentv1.CommandUpdate
	// forged counts updates whose signature is not the machine's.
	forged int
}

// NewGateway makes the keys of a gateway that machines reach at address, a literal host and port.
func NewGateway(address string, log *slog.Logger) (*Gateway, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("hostile gateway: %w", err)
	}
	g := &Gateway{address: address, changed: make(chan struct{})}
	if err := g.keys(); err != nil {
		return nil, fmt.Errorf("hostile gateway: %w", err)
	}
	cert, err := g.servingCA.serving(ServerName, net.ParseIP(host))
	if err != nil {
		return nil, fmt.Errorf("hostile gateway: %w", err)
	}
	g.server, err = gatewayserver.New(gatewayserver.Config{Certificate: cert, TrustDomain: TrustDomain, Log: log,
		NodeCAs: func() []*x509.Certificate { return []*x509.Certificate{g.nodeCA.cert} }, Services: services{g}, Control: control{g}})
	if err != nil {
		return nil, fmt.Errorf("hostile gateway: %w", err)
	}
	return g, nil
}

func (g *Gateway) keys() (err error) {
	for _, ca := range []struct {
		name string
		to   **authority
	}{{"serving", &g.servingCA}, {"nodes", &g.nodeCA}, {"commands", &g.commandCA}} {
		if *ca.to, err = newAuthority(ca.name); err != nil {
			return err
		}
	}
	strangers, err := newAuthority("a stranger's commands")
	if err != nil {
		return err
	}
	for _, s := range []struct {
		by      *authority
		purpose envelope.Purpose
		to      *envelope.Signer
	}{{g.commandCA, envelope.Command, &g.worker}, {strangers, envelope.Command, &g.stranger}, {g.commandCA, envelope.ImageManifest, &g.image}} {
		if *s.to, err = s.by.signer(s.purpose); err != nil {
			return err
		}
	}
	if g.joinKey, err = newKey(); err != nil {
		return err
	}
	g.sealKey, err = newKey()
	return err
}

// Serve serves until Stop.
func (g *Gateway) Serve(l net.Listener) error { return g.server.Serve(l) }

// Stop ends every session.
func (g *Gateway) Stop(ctx context.Context) { g.server.Stop(ctx) }

// anchors is the trust that the site's overlay carries.
func (g *Gateway) anchors() (*sitev1.TrustAnchors, error) {
	signing, err := x509.MarshalPKIXPublicKey(&g.joinKey.PublicKey)
	if err != nil {
		return nil, err
	}
	sealing, err := x509.MarshalPKIXPublicKey(&g.sealKey.PublicKey)
	if err != nil {
		return nil, err
	}
	return &sitev1.TrustAnchors{TrustDomain: TrustDomain, SiteId: Site, GatewayUrl: "https://" + g.address, GatewayServerName: ServerName,
		ServingCaSpkiSha256: [][]byte{g.servingCA.pin()}, JoinSigningKey: signing, JoinEncryptionKey: sealing, NodeCas: [][]byte{g.nodeCA.cert.Raw}}, nil
}

// assertion is the site's word that it booted the victim.
func (g *Gateway) assertion() (*sitev1.SignedDiscoveryAssertion, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	c, err := g.nodeCA.agent(&key.PublicKey, "site-agent", commonv1.AgentRole_AGENT_ROLE_SITE)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	body, err := marshal(&sitev1.DiscoveryAssertion{AssertionId: ident.New("as"), TrustDomain: TrustDomain, SiteId: Site, NodeId: string(victim),
		LeaseId: ident.New("lease"), WorkflowId: workflow, IssuedAt: timestamppb.New(now), NotAfter: timestamppb.New(now.Add(time.Hour))})
	if err != nil {
		return nil, err
	}
	sig, err := envelope.Signer{Key: key, Chain: []*x509.Certificate{c}}.Sign(envelope.DiscoveryAssertion, body)
	return &sitev1.SignedDiscoveryAssertion{Body: body, Signature: sig}, err
}

func (g *Gateway) bundle() *commonv1.TrustBundle {
	return &commonv1.TrustBundle{Version: 1, TrustDomain: TrustDomain, CommandSigningRoots: [][]byte{g.commandCA.cert.Raw}, NodeCas: [][]byte{g.nodeCA.cert.Raw}}
}

// Connected says whether the machine's RAM disk has its session.
func (g *Gateway) Connected() bool { return g.server.Connected(victim, ramdisk) }

// send relays a command to the machine, whoever it is for.
func (g *Gateway) send(c *agentv1.Command) error { return g.server.Send(victim, ramdisk, c) }

// of lists the updates of a command, oldest first.
func (g *Gateway) of(id string) []*agentv1.CommandUpdate {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []*agentv1.CommandUpdate
	for _, u := range g.updates {
		if u.CommandId == id {
			out = append(out, u)
		}
	}
	return out
}

// terminal waits for the end of a command, from its nth update on.
func (g *Gateway) terminal(ctx context.Context, id string, n int) (*agentv1.CommandUpdate, error) {
	for {
		g.mu.Lock()
		changed := g.changed
		g.mu.Unlock()
		us := g.of(id)
		for _, u := range us[min(n, len(us)):] {
			if gatewayserver.Terminal(u.State) {
				return u, nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("no answer to command %s: %w", id, ctx.Err())
		}
	}
}

// services grants every join of the victim.
type services struct{ g *Gateway }

func (s services) Join(_ context.Context, r *agentv1.JoinRequest, _ string) (*agentv1.JoinResponse, error) {
	csr, err := x509.ParseCertificateRequest(r.Csr)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, "csr is not readable")
	}
	pub, ok := csr.PublicKey.(*ecdsa.PublicKey)
	if err := csr.CheckSignature(); err != nil || !ok {
		return nil, status.Error(codes.InvalidArgument, "csr does not prove its key")
	}
	cert, err := s.g.nodeCA.agent(pub, victim, r.Role)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(r.Csr)
	body, err := marshal(&agentv1.JoinResponseBody{NodeId: string(victim), Role: r.Role, CsrSha256: sum[:],
		CertificateChain: [][]byte{cert.Raw}, Trust: s.g.bundle(), ServerTime: timestamppb.Now()})
	if err != nil {
		return nil, err
	}
	sig, err := envelope.Signer{Key: s.g.joinKey}.Sign(envelope.JoinResponse, body)
	return &agentv1.JoinResponse{Body: body, Signature: sig}, err
}

func (services) Renew(context.Context, gatewayserver.Peer, *agentv1.RenewRequest) (*agentv1.RenewResponse, error) {
	return nil, status.Error(codes.Unimplemented, "this gateway renews nothing")
}

func (services) Secret(context.Context, gatewayserver.Peer, *agentv1.SecretRequest) *agentv1.SecretResponse {
	return &agentv1.SecretResponse{Error: "not-found"}
}

func (services) TrustBundle(context.Context) (*commonv1.SignedTrustBundle, error) { return nil, nil }

// control keeps the updates that the machine itself signed.
type control struct{ g *Gateway }

func (control) Admit(context.Context, gatewayserver.Peer, *agentv1.Hello) error { return nil }

func (c control) Connected(context.Context, gatewayserver.Peer, *agentv1.Hello) {
	c.g.note(func(*Gateway) {})
}

func (control) Disconnected(context.Context, gatewayserver.Peer, error) {}

func (control) Inventory(context.Context, gatewayserver.Peer, *agentv1.InventorySection) error {
	return nil
}

func (c control) Update(_ context.Context, p gatewayserver.Peer, u *agentv1.CommandUpdate) error {
	err := session.VerifyUpdate(p.Certificate, u)
	c.g.note(func(g *Gateway) {
		switch {
		case err != nil:
			g.forged++
		case len(g.updates) < maxUpdates:
			g.updates = append(g.updates, proto.CloneOf(u))
		}
	})
	return nil
}

func (control) Events(context.Context, gatewayserver.Peer, *agentv1.EventBatch) error { return nil }

func (control) Status(context.Context, gatewayserver.Peer, *agentv1.StatusReport) {}

// note changes what the gateway knows and wakes who waits.
func (g *Gateway) note(change func(*Gateway)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(g)
	close(g.changed)
	g.changed = make(chan struct{})
}

// states lists an update trail in words.
func states(us []*agentv1.CommandUpdate) []string {
	var out []string
	for _, u := range us {
		out = append(out, word(u.State))
	}
	return slices.Compact(out)
}

func marshal(m proto.Message) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}
