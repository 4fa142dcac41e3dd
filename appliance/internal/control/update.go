package control

import (
	"context"
	"errors"
	"fmt"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
	"firstlight/gateway-client/gatewayserver"
	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/gateway-client/session"
)

// Update implements gatewayserver.Control. What the agent's own key did not sign is not believed; it is told to people and not
// asked for again. A report that is missing or wrong leaves the update unattested: the executor knows which kinds need one.
func (c *Control) Update(ctx context.Context, p gatewayserver.Peer, u *agentv1.CommandUpdate) error {
	r := executor.Report{
		CommandID: u.CommandId, Node: string(p.Identity.Node), Role: ident.RoleWord(p.Role), State: stateOf(u.State),
		Reject: rejectWord(u.RejectReason), Message: fleet.Clip(u.Message), Result: u.Result, Progress: progressOf(u.Progress),
	}
	bare := &agentv1.CommandUpdate{CommandId: u.CommandId, State: u.State, Result: u.Result, Signature: u.Signature}
	if err := session.VerifyUpdate(p.Certificate, bare); err != nil || r.State == "" {
		if err == nil {
			err = fmt.Errorf("state %s means nothing here", u.State)
		}
		return c.disbelieve(ctx, p, u.CommandId, err)
	}
	if u.Attested != nil {
		body, err := c.report(p, u)
		if err != nil {
			r.AttestError = err.Error()
		} else {
			r.Attested, r.AttestedKind = true, body.Kind
		}
	}
	err := c.cfg.Workflows.Report(ctx, r)
	switch {
	case errors.Is(err, executor.ErrNotOpen):
		if p.Role == roleSite {
			c.policyAnswer(ctx, r.CommandID, r.State, r.Reject, r.Message)
		}
		return nil
	case errors.Is(err, executor.ErrForeign):
		return c.disbelieve(ctx, p, u.CommandId, err)
	}
	return err
}

// report verifies an attested report and that it is about this update, by this node.
func (c *Control) report(p gatewayserver.Peer, u *agentv1.CommandUpdate) (*agentv1.AttestedReportBody, error) {
	body, err := session.VerifyReport(p.Certificate, u.Attested)
	switch {
	case err != nil:
		return nil, err
	case body.NodeId != string(p.Identity.Node):
		return nil, fmt.Errorf("it is by node %q", body.NodeId)
	case body.CommandId != u.CommandId:
		return nil, fmt.Errorf("it is about command %q", body.CommandId)
	case string(body.Result) != string(u.Result):
		return nil, errors.New("it states another result")
	}
	return body, nil
}

func (c *Control) disbelieve(ctx context.Context, p gatewayserver.Peer, command string, cause error) error {
	node := string(p.Identity.Node)
	text := fmt.Sprintf("an update on command %s by %s is not believed: %v", fleet.Clip(command), node, cause)
	c.about(ctx, node).Warn("update not believed", "command", fleet.Clip(command), "err", cause)
	e := fleet.Event{NodeID: node, Kind: "update.disbelieved", Message: text}
	if m, err := c.cfg.Fleet.ByNode(ctx, node); err == nil {
		e.Machine, e.Workflow = m.Name, m.Workflow
	}
	c.emit(ctx, e)
	return nil
}

func stateOf(s commonv1.CommandState) fleet.CommandState {
	switch s {
	case commonv1.CommandState_COMMAND_STATE_ACKED:
		return fleet.CommandAcked
	case commonv1.CommandState_COMMAND_STATE_RUNNING:
		return fleet.CommandRunning
	case commonv1.CommandState_COMMAND_STATE_SUCCEEDED:
		return fleet.CommandSucceeded
	case commonv1.CommandState_COMMAND_STATE_FAILED:
		return fleet.CommandFailed
	case commonv1.CommandState_COMMAND_STATE_REJECTED:
		return fleet.CommandRejected
	case commonv1.CommandState_COMMAND_STATE_CANCELLED:
		return fleet.CommandCancelled
	}
	return ""
}
