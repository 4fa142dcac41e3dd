// Package gatewaytest is a gateway for tests of agents: real TLS on the loopback, its own CAs, frames recorded.
//
// It is for tests only (site, ramdisk, session); nothing in production imports it.
package gatewaytest

import (
	"crypto/ecdsa"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"firstlight/gateway-client/envelope"
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

// WaitTimeout bounds every Wait method.
const WaitTimeout = 20 * time.Second

// Gateway is one gateway half with its JoinService and secret broker. Methods are safe from several goroutines; those that
// wait fail the test when WaitTimeout passes.
type Gateway struct {
	tb testing.TB
}

// NewGateway starts a gateway on the loopback; it stops with the test.
func NewGateway(tb testing.TB) *Gateway { return &Gateway{tb: tb} }

// Link is how an agent reaches the gateway; Certificate is nil.
func (g *Gateway) Link() link.Config { return link.Config{} }

// JoinSigningKey verifies what the JoinService says.
func (g *Gateway) JoinSigningKey() *ecdsa.PublicKey { return nil }

// JoinEncryptionKey is what evidence is sealed to.
func (g *Gateway) JoinEncryptionKey() *ecdsa.PublicKey { return nil }

// Anchors is the trust that a RAM disk of this gateway's site carries.
func (g *Gateway) Anchors() *sitev1.TrustAnchors { return nil }

// Bundle is the trust bundle that Join gives.
func (g *Gateway) Bundle() *commonv1.TrustBundle { return nil }

// Identity mints an identity, as if it had joined.
func (g *Gateway) Identity(node ident.NodeID, role commonv1.AgentRole) *session.Identity { return nil }

// Commands signs with a worker key of the bundle's; Images with an image-signer's.
func (g *Gateway) Commands() envelope.Signer { return envelope.Signer{} }

// Images signs image manifests with a key that chains to the bundle's roots.
func (g *Gateway) Images() envelope.Signer { return envelope.Signer{} }

// SetJoin replaces the decision about a join: it returns the node id to certify, or an error (status.Error travels).
// Without it every join is granted, as JoinRequest.node_id or as a fresh id.
func (g *Gateway) SetJoin(decide func(*agentv1.JoinRequest) (ident.NodeID, error)) {}

// OpenEvidence opens sealed evidence (join-token, provisioned) and checks that it is bound to the request's CSR.
func (g *Gateway) OpenEvidence(r *agentv1.JoinRequest) (secret []byte, err error) { return nil, nil }

// SetSecret makes the broker answer for ref; without it the answer is "not-found".
func (g *Gateway) SetSecret(ref string, value []byte) {}

// Command builds and signs a command for a node, good for ten minutes, with a fresh id.
func (g *Gateway) Command(node ident.NodeID, role commonv1.AgentRole, kind string, payload proto.Message) *agentv1.Command {
	return nil
}

// Sign signs a body as it is.
func (g *Gateway) Sign(body *agentv1.CommandBody) *agentv1.Command { return nil }

// Send sends a command once the node is connected, and returns its id.
func (g *Gateway) Send(node ident.NodeID, role commonv1.AgentRole, c *agentv1.Command) string {
	return ""
}

// Run sends a fresh command and returns its terminal update, whose signature is verified.
func (g *Gateway) Run(node ident.NodeID, role commonv1.AgentRole, kind string, payload proto.Message) *agentv1.CommandUpdate {
	return nil
}

// WaitConnected waits for a session and returns its Hello.
func (g *Gateway) WaitConnected(node ident.NodeID, role commonv1.AgentRole) *agentv1.Hello {
	return nil
}

// WaitUpdate waits for the terminal update of a command.
func (g *Gateway) WaitUpdate(commandID string) *agentv1.CommandUpdate { return nil }

// WaitEvent waits for the first event of a kind.
func (g *Gateway) WaitEvent(kind string) *agentv1.Event { return nil }

// Updates are all updates of a command, in their order; with an empty id those of all commands.
func (g *Gateway) Updates(commandID string) []*agentv1.CommandUpdate { return nil }

// Events are all events, in their order.
func (g *Gateway) Events() []*agentv1.Event { return nil }

// Inventory is the newest encoding of each section that the node sent.
func (g *Gateway) Inventory(node ident.NodeID) map[string][]byte { return nil }
