// Package gatewaytest is a gateway for tests of agents: real TLS on the loopback, its own CAs, frames recorded.
//
// It is for tests only (site, ramdisk, session); nothing in production imports it.
package gatewaytest

import (
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/gatewayserver"
	"firstlight/gateway-client/ident"
	"firstlight/gateway-client/link"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
	"firstlight/gateway-client/session"
)

// Names of what the gateway stands for.
const (
	TrustDomain = "firstlight.test"
	Site        = "site-a"
	ServerName  = "gw.site-a.firstlight.test"
)

const (
	// WaitTimeout bounds every Wait method.
	WaitTimeout = 20 * time.Second
	// CommandLife is how long the commands of Command are good.
	CommandLife = 10 * time.Minute
)

// Gateway is one gateway half with its JoinService and secret broker. Methods are safe from several goroutines; those that
// wait fail the test when WaitTimeout passes, so call them from the test's goroutine.
type Gateway struct {
	tb      testing.TB
	address string
	server  *gatewayserver.Server
	// ServingCA, NodeCA and CommandCA are what the gateway's keys chain to.
	ServingCA, NodeCA, CommandCA *CA

	commands, images  envelope.Signer
	joinKey, unsealer *ecdsa.PrivateKey

	mu      sync.Mutex // guards what follows
	changed chan struct{}
	faults  Faults
	bundle  *commonv1.TrustBundle
	join    func(*agentv1.JoinRequest) (ident.NodeID, error)
	secrets map[string][]byte
	record  record
}

// Faults are ways in which the gateway misbehaves; the zero value is none.
type Faults struct {
	// Join alters the body of each join's answer before it is signed.
	Join func(*agentv1.JoinResponseBody)
	// Response alters the signed answer: a gateway that forges.
	Response func(*agentv1.JoinResponse)
	// Update refuses to store an update when it returns an error: it is not acked, and the session ends.
	Update func(*agentv1.CommandUpdate) error
	// Events refuses to store a batch when it returns an error.
	Events func(*agentv1.EventBatch) error
	// Admit refuses a session when it returns an error.
	Admit func(*agentv1.Hello) error
	// Secret alters each answer of the broker.
	Secret func(*agentv1.SecretResponse)
}

// NewGateway starts a gateway on the loopback; it stops with the test.
func NewGateway(tb testing.TB) *Gateway {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return Serve(tb, l)
}

// Serve starts a gateway on l, such as an in-memory listener; it stops with the test.
func Serve(tb testing.TB, l net.Listener) *Gateway {
	tb.Helper()
	now := time.Now()
	g := &Gateway{
		tb: tb, address: l.Addr().String(),
		ServingCA: NewCA(tb, "serving", now), NodeCA: NewCA(tb, "nodes", now), CommandCA: NewCA(tb, "commands", now),
		joinKey: Key(tb), unsealer: Key(tb),
		changed: make(chan struct{}), secrets: make(map[string][]byte), record: newRecord(),
	}
	g.commands, g.images = g.CommandCA.Signer(envelope.Command), g.CommandCA.Signer(envelope.ImageManifest)
	g.bundle = &commonv1.TrustBundle{Version: 1, TrustDomain: TrustDomain,
		CommandSigningRoots: [][]byte{g.CommandCA.Cert.Raw}, NodeCas: [][]byte{g.NodeCA.Cert.Raw}}
	var err error
	g.server, err = gatewayserver.New(gatewayserver.Config{
		Certificate: g.ServingCA.Serving(), NodeCAs: func() []*x509.Certificate { return []*x509.Certificate{g.NodeCA.Cert} },
		TrustDomain: TrustDomain, Services: services{g}, Control: control{g}, Logs: g.logged,
	})
	if err != nil {
		tb.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.server.Serve(l) }()
	tb.Cleanup(func() {
		g.Stop()
		if err := <-served; err != nil {
			tb.Errorf("gateway: %v", err)
		}
	})
	return g
}

// Server is the gateway half itself, for what has no method here.
func (g *Gateway) Server() *gatewayserver.Server { return g.server }

// Stop ends the gateway before its test ends.
func (g *Gateway) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	g.server.Stop(ctx)
}

// Link is how an agent reaches the gateway; Certificate is nil.
func (g *Gateway) Link() link.Config {
	return link.Config{URL: "https://" + g.address, ServerName: ServerName, SPKIPins: [][]byte{g.ServingCA.Pin()}}
}

// JoinSigningKey verifies what the JoinService says.
func (g *Gateway) JoinSigningKey() *ecdsa.PublicKey { return &g.joinKey.PublicKey }

// JoinEncryptionKey is what evidence is sealed to.
func (g *Gateway) JoinEncryptionKey() *ecdsa.PublicKey { return &g.unsealer.PublicKey }

// Anchors is the trust that a RAM disk of this gateway's site carries.
func (g *Gateway) Anchors() *sitev1.TrustAnchors {
	return &sitev1.TrustAnchors{
		TrustDomain: TrustDomain, SiteId: Site, GatewayUrl: g.Link().URL, GatewayServerName: ServerName,
		ServingCaSpkiSha256: g.Link().SPKIPins, JoinSigningKey: g.pkix(g.JoinSigningKey()), JoinEncryptionKey: g.pkix(g.JoinEncryptionKey()),
		NodeCas: [][]byte{g.NodeCA.Cert.Raw},
	}
}

func (g *Gateway) pkix(k *ecdsa.PublicKey) []byte {
	g.tb.Helper()
	der, err := x509.MarshalPKIXPublicKey(k)
	if err != nil {
		g.tb.Fatal(err)
	}
	return der
}

// Bundle is the trust bundle that Join gives.
func (g *Gateway) Bundle() *commonv1.TrustBundle {
	g.mu.Lock()
	defer g.mu.Unlock()
	return proto.CloneOf(g.bundle)
}

// SetBundle changes it; agents get it with their next Welcome when its version is higher.
func (g *Gateway) SetBundle(b *commonv1.TrustBundle) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.bundle = proto.CloneOf(b)
}

// Identity mints an identity, as if it had joined.
func (g *Gateway) Identity(node ident.NodeID, role commonv1.AgentRole) *session.Identity {
	g.tb.Helper()
	key := Key(g.tb)
	c := g.NodeCA.Agent(&key.PublicKey, ident.Identity{TrustDomain: TrustDomain, Site: Site, Node: node}, role)
	return &session.Identity{NodeID: node, Role: role, Key: key, Chain: []*x509.Certificate{c}, Trust: g.Bundle(), ServerTime: time.Now()}
}

// Commands signs with a worker key of the bundle's.
func (g *Gateway) Commands() envelope.Signer { return g.commands }

// Images signs image manifests with a key that chains to the bundle's roots.
func (g *Gateway) Images() envelope.Signer { return g.images }

// SetFaults changes how the gateway misbehaves.
func (g *Gateway) SetFaults(f Faults) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.faults = f
}

func (g *Gateway) fault() Faults {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.faults
}

// SetJoin replaces the decision about a join: it returns the node id to certify, or an error (status.Error travels).
// Without it every join is granted, as JoinRequest.node_id or as a fresh id.
func (g *Gateway) SetJoin(decide func(*agentv1.JoinRequest) (ident.NodeID, error)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.join = decide
}

// SetSecret makes the broker answer for ref; without it the answer is "not-found".
func (g *Gateway) SetSecret(ref string, value []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.secrets[ref] = value
}

// Body is a command for a node, good for CommandLife, with a fresh id, of workflow "wf-test" and step "step-test".
func (g *Gateway) Body(node ident.NodeID, role commonv1.AgentRole, kind string, payload proto.Message) *agentv1.CommandBody {
	g.tb.Helper()
	now := time.Now()
	b := &agentv1.CommandBody{
		CommandId: ident.New("cmd"), Kind: kind, Audience: string(node), Role: role, WorkflowId: "wf-test", StepId: "step-test", Generation: 1,
		IssuedAt: timestamppb.New(now), NotAfter: timestamppb.New(now.Add(CommandLife)),
	}
	if payload != nil {
		b.Payload = marshal(g.tb, payload)
	}
	return b
}

// Command builds and signs such a command.
func (g *Gateway) Command(node ident.NodeID, role commonv1.AgentRole, kind string, payload proto.Message) *agentv1.Command {
	g.tb.Helper()
	return g.Sign(g.Body(node, role, kind, payload))
}

// Sign signs a body as it is.
func (g *Gateway) Sign(body *agentv1.CommandBody) *agentv1.Command {
	g.tb.Helper()
	return SignWith(g.tb, g.commands, body)
}

// SignWith signs a body with another key: a stranger's.
func SignWith(tb testing.TB, s envelope.Signer, body *agentv1.CommandBody) *agentv1.Command {
	tb.Helper()
	raw := marshal(tb, body)
	sig, err := s.Sign(envelope.Command, raw)
	if err != nil {
		tb.Fatal(err)
	}
	return &agentv1.Command{Body: raw, Signature: sig, Attempt: 1}
}

// Send sends a command once the node is connected, and returns its id.
func (g *Gateway) Send(node ident.NodeID, role commonv1.AgentRole, c *agentv1.Command) string {
	g.tb.Helper()
	var body agentv1.CommandBody
	if err := proto.Unmarshal(c.Body, &body); err != nil {
		g.tb.Fatal(err)
	}
	g.WaitConnected(node, role)
	if err := g.server.Send(node, role, c); err != nil {
		g.tb.Fatal(err)
	}
	return body.CommandId
}

// Run sends a fresh command and returns its terminal update, whose signature is verified.
func (g *Gateway) Run(node ident.NodeID, role commonv1.AgentRole, kind string, payload proto.Message) *agentv1.CommandUpdate {
	g.tb.Helper()
	return g.WaitUpdate(g.Send(node, role, g.Command(node, role, kind, payload)))
}

// WaitConnected waits for a session and returns its Hello.
func (g *Gateway) WaitConnected(node ident.NodeID, role commonv1.AgentRole) *agentv1.Hello {
	g.tb.Helper()
	return await(g, "session of "+string(node), func() (*agentv1.Hello, bool) {
		h := g.record.present[peerKey{node, role}]
		return h, h != nil
	})
}

// WaitDisconnected waits until the node has no session, and returns why the newest ended.
func (g *Gateway) WaitDisconnected(node ident.NodeID, role commonv1.AgentRole) error {
	g.tb.Helper()
	return await(g, "end of the session of "+string(node), func() (error, bool) {
		err, ended := g.record.ended[peerKey{node, role}]
		return err, ended && g.record.present[peerKey{node, role}] == nil
	})
}

// WaitHellos waits for the node's nth session, counted from 1, and returns its Hello.
func (g *Gateway) WaitHellos(node ident.NodeID, role commonv1.AgentRole, n int) *agentv1.Hello {
	g.tb.Helper()
	return await(g, "another session of "+string(node), func() (*agentv1.Hello, bool) {
		list := g.record.hellos[peerKey{node, role}]
		if len(list) < n {
			return nil, false
		}
		return list[n-1], true
	})
}

// WaitUpdate waits for the terminal update of a command.
func (g *Gateway) WaitUpdate(commandID string) *agentv1.CommandUpdate {
	g.tb.Helper()
	return g.WaitUpdateState(commandID, gatewayserver.Terminal)
}

// WaitUpdateState waits for an update of a command in a state that is wanted.
func (g *Gateway) WaitUpdateState(commandID string, want func(commonv1.CommandState) bool) *agentv1.CommandUpdate {
	g.tb.Helper()
	return await(g, "update of "+commandID, func() (*agentv1.CommandUpdate, bool) {
		for _, u := range g.record.updates {
			if u.CommandId == commandID && want(u.State) {
				return u, true
			}
		}
		return nil, false
	})
}

// WaitEvent waits for the first event of a kind.
func (g *Gateway) WaitEvent(kind string) *agentv1.Event {
	g.tb.Helper()
	return await(g, "event "+kind, func() (*agentv1.Event, bool) {
		for _, e := range g.record.events {
			if e.Kind == kind {
				return e, true
			}
		}
		return nil, false
	})
}

// Updates are all updates of a command, in their order; with an empty id those of all commands.
func (g *Gateway) Updates(commandID string) []*agentv1.CommandUpdate {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(g.record.updates), func(u *agentv1.CommandUpdate) bool {
		return commandID != "" && u.CommandId != commandID
	})
}

// Events are all events, in their order; one that was sent twice is there twice.
func (g *Gateway) Events() []*agentv1.Event {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.record.events)
}

// Logs are all batches of lines that agents said, in order.
func (g *Gateway) Logs() []*agentv1.LogBatch {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.record.logs)
}

// Inventory is the newest encoding of each section that the node sent.
func (g *Gateway) Inventory(node ident.NodeID) map[string][]byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.record.inventory[node])
}

// Hellos are those of all the node's sessions in the role, in their order.
func (g *Gateway) Hellos(node ident.NodeID, role commonv1.AgentRole) []*agentv1.Hello {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.record.hellos[peerKey{node, role}])
}

// Statuses are the status reports that the node sent.
func (g *Gateway) Statuses(node ident.NodeID) []*agentv1.StatusReport {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.record.statuses[node])
}

// Joins are the join requests that arrived.
func (g *Gateway) Joins() []*agentv1.JoinRequest {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.record.joins)
}

// Wait waits until look says that it is done. look is called without locks, after each change.
func (g *Gateway) Wait(what string, look func() bool) {
	g.tb.Helper()
	t := time.NewTimer(WaitTimeout)
	defer t.Stop()
	for {
		g.mu.Lock()
		changed := g.changed
		g.mu.Unlock()
		if look() {
			return
		}
		select {
		case <-changed:
		case <-t.C:
			g.tb.Fatalf("%s: not within %s", what, WaitTimeout)
		}
	}
}

// await is Wait for what the record holds: look is called with the lock held.
func await[T any](g *Gateway, what string, look func() (T, bool)) (out T) {
	g.tb.Helper()
	g.Wait(what, func() (ok bool) {
		g.mu.Lock()
		defer g.mu.Unlock()
		out, ok = look()
		return ok
	})
	return out
}

// note changes the record and wakes who waits.
func (g *Gateway) note(change func(*record)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(&g.record)
	close(g.changed)
	g.changed = make(chan struct{})
}

func digest(b []byte) []byte {
	sum := sha256.Sum256(b)
	return sum[:]
}
