package control

import (
	"errors"
	"sync/atomic"

	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// Sessions is what gatewayserver.Server can do to sessions. Send does not block for long; Revoke tells the agent why and ends its
// session, and is fine for one that has none.
type Sessions interface {
	Send(node ident.NodeID, role commonv1.AgentRole, c *agentv1.Command) error
	Cancel(node ident.NodeID, role commonv1.AgentRole, commandID, reason string) error
	Revoke(node ident.NodeID, role commonv1.AgentRole, reason string)
}

// errDetached: no gateway is attached yet.
var errDetached = errors.New("gateway is not attached")

// Gateway stands for the sessions while the parts are put together: the server needs Control, and Control and the executor need
// the server. Its zero value sends nothing until Attach.
type Gateway struct{ sessions atomic.Pointer[Sessions] }

// Attach names the server.
func (g *Gateway) Attach(s Sessions) { g.sessions.Store(&s) }

// Send implements executor.Sender.
func (g *Gateway) Send(node ident.NodeID, role commonv1.AgentRole, c *agentv1.Command) error {
	s := g.sessions.Load()
	if s == nil {
		return errDetached
	}
	return (*s).Send(node, role, c)
}

// Cancel implements executor.Sender.
func (g *Gateway) Cancel(node ident.NodeID, role commonv1.AgentRole, commandID, reason string) error {
	s := g.sessions.Load()
	if s == nil {
		return errDetached
	}
	return (*s).Cancel(node, role, commandID, reason)
}

// Revoke ends a session.
func (g *Gateway) Revoke(node ident.NodeID, role commonv1.AgentRole, reason string) {
	if s := g.sessions.Load(); s != nil {
		(*s).Revoke(node, role, reason)
	}
}
