package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
	"firstlight/gateway-client/gatewayserver"
	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

const (
	roleNode    = commonv1.AgentRole_AGENT_ROLE_NODE
	roleSite    = commonv1.AgentRole_AGENT_ROLE_SITE
	roleRAMDisk = commonv1.AgentRole_AGENT_ROLE_RAMDISK
)

// Admit implements gatewayserver.Control: beyond a valid certificate, its key must be the one that last joined as this node in this
// role, must not be revoked, and a RAM disk's workflow must be open.
func (c *Control) Admit(ctx context.Context, p gatewayserver.Peer, _ *agentv1.Hello) error {
	key, err := keyOf(p)
	if err != nil {
		return err
	}
	node := string(p.Identity.Node)
	if p.Role == roleSite {
		a, err := c.cfg.Fleet.Agent(ctx, node)
		if err != nil {
			return unknownOr(err, "site agent "+node)
		}
		if a.Role != ident.RoleWord(p.Role) || key != a.KeyID && key != a.PreviousKeyID {
			return status.Errorf(codes.Unauthenticated, "the certificate of %s was superseded by a newer join", node)
		}
		return nil
	}
	m, err := c.cfg.Fleet.ByNode(ctx, node)
	if err != nil {
		return unknownOr(err, "node "+node)
	}
	if slices.Contains(m.RevokedKeys, key) {
		return status.Errorf(codes.Unauthenticated, "the certificate of %s is revoked", m.Name)
	}
	switch p.Role {
	case roleNode:
		if key != m.NodeKeyID && key != m.PreviousKeyID {
			return status.Errorf(codes.Unauthenticated, "the certificate of %s was superseded by a newer join", m.Name)
		}
	case roleRAMDisk:
		if !m.Discovered.IsZero() {
			if m.Discovery == nil || key != m.Discovery.KeyID {
				return status.Errorf(codes.Unauthenticated, "the certificate of %s was superseded by a newer join", m.Name)
			}
			return nil
		}
		run, _, err := c.cfg.Fleet.Run(ctx, m.Workflow)
		if err != nil {
			return unknownOr(err, "workflow of "+m.Name)
		}
		if !run.State.Open() {
			return status.Errorf(codes.PermissionDenied, "workflow %s of %s is over (%s)", run.ID, m.Name, run.State)
		}
		if key != run.RAMDiskKeyID {
			return status.Errorf(codes.Unauthenticated, "the certificate is not the one that joined for workflow %s of %s", run.ID, m.Name)
		}
	default:
		return status.Errorf(codes.PermissionDenied, "role %s has no session here", ident.RoleWord(p.Role))
	}
	return nil
}

func unknownOr(err error, what string) error {
	if errors.Is(err, fleet.ErrUnknown) {
		return status.Errorf(codes.PermissionDenied, "%s has not joined", what)
	}
	return status.Errorf(codes.Unavailable, "%s cannot be looked up now", what)
}

// Connected implements gatewayserver.Control.
func (c *Control) Connected(ctx context.Context, p gatewayserver.Peer, _ *agentv1.Hello) {
	defer c.cfg.Workflows.Available(p.Identity.Node, p.Role)
	if err := c.connected(ctx, p); err != nil {
		c.about(ctx, string(p.Identity.Node)).Warn("note a session", "err", err)
	}
	if p.Role == roleSite && p.Identity.Node == c.cfg.SiteNode {
		if err := c.sendPolicy(ctx, true); err != nil {
			c.cfg.Log.Warn("send the site's boot policy", "err", err)
		}
	}
}

func (c *Control) connected(ctx context.Context, p gatewayserver.Peer) error {
	key, err := keyOf(p)
	if err != nil {
		return err
	}
	word := ident.RoleWord(p.Role)
	if p.Role == roleSite {
		_, err := c.cfg.Fleet.UpdateAgent(ctx, string(p.Identity.Node), func(a *fleet.Agent) error {
			if a.KeyID == key {
				a.PreviousKeyID = ""
			}
			return nil
		})
		c.emit(ctx, fleet.Event{NodeID: string(p.Identity.Node), Kind: "session.opened", Fields: map[string]string{"role": word, "from": p.Addr},
			Message: "the site agent opened its session"})
		return err
	}
	m, err := c.cfg.Fleet.ByNode(ctx, string(p.Identity.Node))
	if err != nil {
		return err
	}
	now := fleet.At(c.cfg.Now())
	m, err = c.cfg.Fleet.Update(ctx, m.Name, func(r *fleet.Record) error {
		if p.Epoch < r.Epoch {
			return nil
		}
		r.Connected, r.Epoch = &fleet.Connection{Role: word, BootID: fleet.Clip(p.BootID), Since: now}, p.Epoch
		if p.Role == roleNode && r.NodeKeyID == key {
			r.PreviousKeyID = ""
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.emit(ctx, fleet.Event{Machine: m.Name, NodeID: m.NodeID, Workflow: m.Workflow, Kind: "session.opened",
		Fields: map[string]string{"role": word, "from": p.Addr, "boot_id": p.BootID}, Message: fmt.Sprintf("the %s agent of %s opened its session", word, m.Name)})
	return c.post(ctx, m.Workflow, executor.SessionUp{Role: word, Epoch: p.Epoch, KeyID: key, At: now.Time})
}

// Disconnected implements gatewayserver.Control.
func (c *Control) Disconnected(ctx context.Context, p gatewayserver.Peer, why error) {
	text := endOf(why)
	e := fleet.Event{NodeID: string(p.Identity.Node), Kind: "session.closed", Fields: map[string]string{"role": ident.RoleWord(p.Role), "why": text},
		Message: fmt.Sprintf("the session of the %s agent closed: %s", ident.RoleWord(p.Role), text)}
	if p.Role != roleSite {
		m, err := c.cfg.Fleet.ByNode(ctx, string(p.Identity.Node))
		if err == nil {
			e.Machine, e.Workflow = m.Name, m.Workflow
			_, err = c.cfg.Fleet.Update(ctx, m.Name, func(r *fleet.Record) error {
				if r.Epoch == p.Epoch {
					r.Connected = nil
				}
				return nil
			})
		}
		if err == nil {
			err = c.post(ctx, m.Workflow, executor.SessionDown{Role: ident.RoleWord(p.Role), Epoch: p.Epoch, Why: text, At: c.cfg.Now()})
		}
		if err != nil {
			c.about(ctx, string(p.Identity.Node)).Warn("note the end of a session", "err", err)
		}
	}
	c.emit(ctx, e)
}

// endOf says for people why a session ended.
func endOf(err error) string {
	if err == nil {
		return "the agent ended it"
	}
	if errors.Is(err, context.Canceled) {
		return "the connection is gone"
	}
	s, ok := status.FromError(err)
	if !ok {
		return err.Error()
	}
	switch text := s.Message(); {
	case s.Code() == codes.Canceled:
		return "the connection is gone"
	case s.Code() == codes.DeadlineExceeded:
		return "the agent took too long"
	case text == "":
		return strings.ToLower(s.Code().String())
	default:
		return text
	}
}

// Events implements gatewayserver.Control. Only the site agent's events are about other machines' boots; every other agent speaks of
// itself, whatever it writes.
func (c *Control) Events(ctx context.Context, p gatewayserver.Peer, b *agentv1.EventBatch) error {
	node := string(p.Identity.Node)
	cur, err := c.cfg.Fleet.Cursor(ctx, node)
	if err != nil {
		return err
	}
	if cur.JournalID != b.JournalId {
		cur = fleet.Cursor{JournalID: b.JournalId}
	}
	before := cur
	own := fleet.Record{}
	if p.Role != roleSite {
		if own, err = c.cfg.Fleet.ByNode(ctx, node); err != nil && !errors.Is(err, fleet.ErrUnknown) {
			return err
		}
	}
	for _, raw := range b.Events {
		if raw.Sequence <= cur.Sequence {
			continue
		}
		if err := c.event(ctx, p, &own, raw); err != nil {
			return err
		}
		cur.Sequence = raw.Sequence
	}
	if cur == before {
		return nil
	}
	return c.cfg.Fleet.SetCursor(ctx, node, cur)
}

// event stores one event, the workflow's part of it first. own is the machine of an agent that is not the site's.
func (c *Control) event(ctx context.Context, p gatewayserver.Peer, own *fleet.Record, raw *agentv1.Event) error {
	e := eventOf(raw)
	e.Source = string(p.Identity.Node)
	if e.Time.IsZero() {
		e.Time = fleet.At(c.cfg.Now())
	}
	if p.Role != roleSite {
		e.Machine, e.NodeID, e.Workflow = own.Name, own.NodeID, own.Workflow
		return c.cfg.Fleet.Emit(ctx, e)
	}
	if e.NodeID != "" {
		m, err := c.cfg.Fleet.ByNode(ctx, e.NodeID)
		if err != nil && !errors.Is(err, fleet.ErrUnknown) {
			return err
		}
		e.Machine = m.Name
		if e.Workflow == "" {
			e.Workflow = m.Workflow
		}
	}
	if e.Workflow != "" && (e.Kind == kindScriptRefused || e.Kind == kindFileRefused) {
		if err := c.refetched(ctx, &e); err != nil {
			return err
		}
	}
	if e.Workflow != "" {
		if err := c.post(ctx, e.Workflow, executor.SiteEvent{Kind: e.Kind, Fields: e.Fields, Text: e.Message, At: e.Time.Time}); err != nil {
			return err
		}
	}
	return c.cfg.Fleet.Emit(ctx, e)
}
