package session

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	"firstlight/gateway-client/link"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// refusal is why a command is rejected before anything happened.
type refusal struct {
	reason commonv1.CommandRejectReason
	text   string
}

func refuse(reason commonv1.CommandRejectReason, format string, args ...any) *refusal {
	return &refusal{reason, fmt.Sprintf(format, args...)}
}

// check is everything that can be said about a command without the journal: size, signature and chain, audience, role, time.
func (a *Agent) check(c *agentv1.Command, now time.Time) (*agentv1.CommandBody, *refusal) {
	if len(c.Body) > link.MaxCommandBytes {
		return nil, refuse(commonv1.CommandRejectReason_COMMAND_REJECT_REASON_TOO_LARGE, "body has %d bytes, want at most %d", len(c.Body), link.MaxCommandBytes)
	}
	if len(c.GetSignature().GetValue()) == 0 {
		return nil, refuse(commonv1.CommandRejectReason_COMMAND_REJECT_REASON_UNSIGNED, "command is not signed")
	}
	a.mu.Lock()
	roots := a.roots
	a.mu.Unlock()
	if _, err := roots.Verify(now, c.Signature, envelope.Command, c.Body); err != nil {
		if errors.Is(err, envelope.ErrUntrusted) {
			return nil, refuse(commonv1.CommandRejectReason_COMMAND_REJECT_REASON_UNTRUSTED_KEY, "%v", err)
		}
		return nil, refuse(commonv1.CommandRejectReason_COMMAND_REJECT_REASON_BAD_SIGNATURE, "%v", err)
	}
	body := new(agentv1.CommandBody)
	if err := proto.Unmarshal(c.Body, body); err != nil {
		return nil, refuse(commonv1.CommandRejectReason_COMMAND_REJECT_REASON_INVALID_PAYLOAD, "body: %v", err)
	}
	me := a.cfg.Identity
	switch {
	case !word(body.CommandId) || !word(body.Kind) || len(body.WorkflowId) > MaxWordBytes || len(body.StepId) > MaxWordBytes:
		return nil, refuse(commonv1.CommandRejectReason_COMMAND_REJECT_REASON_INVALID_PAYLOAD, "id, kind, workflow or step is missing or too long")
	case body.Audience != string(me.NodeID):
		return nil, refuse(commonv1.CommandRejectReason_COMMAND_REJECT_REASON_WRONG_AUDIENCE, "command is for node %q, this is %q", body.Audience, me.NodeID)
	case body.Role != me.Role:
		return nil, refuse(commonv1.CommandRejectReason_COMMAND_REJECT_REASON_WRONG_AUDIENCE, "command is for role %s, this is %s", ident.RoleWord(body.Role), ident.RoleWord(me.Role))
	case !body.IssuedAt.IsValid() || !body.NotAfter.IsValid():
		return nil, refuse(commonv1.CommandRejectReason_COMMAND_REJECT_REASON_EXPIRED, "command has no issue or expiry time")
	case !now.Before(body.NotAfter.AsTime()):
		return nil, refuse(commonv1.CommandRejectReason_COMMAND_REJECT_REASON_EXPIRED, "command expired at %s, this machine's clock says %s", stamp(body.NotAfter.AsTime()), stamp(now))
	case body.IssuedAt.AsTime().After(now.Add(ClockSkew)):
		return nil, refuse(commonv1.CommandRejectReason_COMMAND_REJECT_REASON_EXPIRED, "command was issued at %s, this machine's clock says %s", stamp(body.IssuedAt.AsTime()), stamp(now))
	}
	return body, nil
}

func word(s string) bool { return s != "" && len(s) <= MaxWordBytes }

// receive checks one command, journals its start and hands it to a goroutine. It never blocks on the network.
func (a *Agent) receive(ctx context.Context, c *agentv1.Command) {
	now := a.cfg.Now()
	body, no := a.check(c, now)
	if no != nil {
		a.reject(commandID(c.Body), no)
		return
	}
	h, supported := a.handler(body.Kind)
	a.mu.Lock()
	full := len(a.held) >= MaxHeld
	supported = supported && !a.restricted
	a.mu.Unlock()
	if full {
		a.reject(body.CommandId, refuse(commonv1.CommandRejectReason_COMMAND_REJECT_REASON_BUSY, "%d commands are held already", MaxHeld))
		return
	}
	sum := sha256.Sum256(c.Body)
	v, prev, err := a.journal.begin(body, sum[:], supported, now)
	switch {
	case err != nil:
		a.cfg.Log.Error("command", "id", body.CommandId, "err", err)
		a.reject(body.CommandId, refuse(commonv1.CommandRejectReason_COMMAND_REJECT_REASON_BUSY, "%v", err))
	case v == replay:
		a.reject(body.CommandId, refuse(commonv1.CommandRejectReason_COMMAND_REJECT_REASON_REPLAYED, "command %s was seen with another body", body.CommandId))
	case v == known:
		a.again(body.CommandId, prev)
	case v == stale:
		a.reject(body.CommandId, refuse(commonv1.CommandRejectReason_COMMAND_REJECT_REASON_EXPIRED, "generation %d of workflow %s was overtaken by a newer one", body.Generation, body.WorkflowId))
	case v == unknown:
		a.reject(body.CommandId, refuse(commonv1.CommandRejectReason_COMMAND_REJECT_REASON_UNSUPPORTED, "this agent has no command %q", body.Kind))
	default:
		a.start(ctx, body, h)
	}
}

// commandID reads the id from a body that is not believed, for the answer only.
func commandID(body []byte) string {
	for len(body) > 0 {
		num, typ, n := protowire.ConsumeTag(body)
		if n < 0 {
			return ""
		}
		body = body[n:]
		if num == 1 && typ == protowire.BytesType {
			id, n := protowire.ConsumeString(body)
			if n < 0 || len(id) > MaxWordBytes {
				return ""
			}
			return id
		}
		if n = protowire.ConsumeFieldValue(num, typ, body); n < 0 {
			return ""
		}
		body = body[n:]
	}
	return ""
}

func (a *Agent) handler(kind string) (Handler, bool) {
	if kind == KindInventoryRefresh {
		return Handler{Lane: commonv1.Lane_LANE_CONTROL, Repeatable: true, Run: a.refreshInventory}, true
	}
	h, ok := a.cfg.Handlers[kind]
	return h, ok && h.Run != nil
}

// reject answers without the journal: nothing happened. A command without a readable id is only logged.
//
// An id that ran already keeps its result: the rejection of a forged or replayed command never takes its place.
func (a *Agent) reject(id string, no *refusal) {
	a.cfg.Log.Warn("command rejected", "id", id, "reason", no.reason, "why", no.text)
	if id == "" {
		return
	}
	u, err := a.update(id, commonv1.CommandState_COMMAND_STATE_REJECTED, nil, no.text)
	if err != nil {
		a.cfg.Log.Error("sign rejection", "id", id, "err", err)
		return
	}
	u.RejectReason = no.reason
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held[id] != nil || a.unacked[id] != nil && a.unacked[id].update.State != commonv1.CommandState_COMMAND_STATE_REJECTED {
		if a.conn != nil {
			a.conn.try(&agentv1.AgentFrame{Frame: &agentv1.AgentFrame_Update{Update: u}})
		}
		return
	}
	if a.unacked[id] == nil {
		if len(a.rejects) == MaxRejects {
			delete(a.unacked, a.rejects[0])
			a.rejects = a.rejects[1:]
		}
		a.rejects = append(a.rejects, id)
	}
	a.unacked[id] = &unacked{update: u}
	if a.conn != nil {
		a.conn.wake()
	}
}

// again answers a command that was seen before: with its result, or with how far it is.
func (a *Agent) again(id string, r *record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h := a.held[id]; h != nil {
		u, err := a.update(id, h.state, nil, "")
		if err == nil && a.conn != nil {
			a.conn.try(&agentv1.AgentFrame{Frame: &agentv1.AgentFrame_Update{Update: u}})
		}
		return
	}
	if u := a.unacked[id]; u != nil {
		u.conn = nil
	} else {
		u := new(agentv1.CommandUpdate)
		if err := proto.Unmarshal(r.Update, u); err != nil || len(r.Update) == 0 {
			a.cfg.Log.Error("journaled update", "id", id, "err", err)
			return
		}
		a.unacked[id] = &unacked{update: u}
	}
	if a.conn != nil {
		a.conn.wake()
	}
}

// start holds the command and runs it beside the session.
func (a *Agent) start(ctx context.Context, body *agentv1.CommandBody, h Handler) {
	ctx, cancel := context.WithCancelCause(ctx)
	a.mu.Lock()
	a.held[body.CommandId] = &held{cancel: cancel, state: commonv1.CommandState_COMMAND_STATE_ACKED}
	a.mu.Unlock()
	a.work.Go(func() {
		defer cancel(nil)
		a.execute(ctx, body, h)
	})
}

// errCancelled is the cause of a context that Cancel ended.
type errCancelled struct{ reason string }

func (e errCancelled) Error() string { return "cancelled: " + e.reason }

func (a *Agent) cancel(c *agentv1.Cancel) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h := a.held[c.CommandId]; h != nil {
		h.cancel(errCancelled{c.Reason})
	}
}

func (a *Agent) execute(ctx context.Context, body *agentv1.CommandBody, h Handler) {
	id := body.CommandId
	a.say(ctx, id, commonv1.CommandState_COMMAND_STATE_ACKED)
	lane := a.lanes[h.Lane]
	if lane == nil {
		lane = a.lanes[commonv1.Lane_LANE_CONTROL]
	}
	slots := []chan struct{}{lane}
	if h.Destructive {
		slots = append(slots, a.destructive)
	}
	for _, s := range slots {
		select {
		case s <- struct{}{}:
			defer func() { <-s }()
		case <-ctx.Done():
			a.finish(body, h, nil, fmt.Errorf("%w: %s", context.Cause(ctx), notBegun(h)), true)
			return
		}
	}
	a.say(ctx, id, commonv1.CommandState_COMMAND_STATE_RUNNING)
	a.cfg.Log.Info("command runs", "id", id, "kind", body.Kind)
	msg, err := a.call(ctx, body, h)
	var stopped errCancelled
	a.finish(body, h, msg, err, errors.As(context.Cause(ctx), &stopped))
}

// notBegun says what a command did that was still queued when it ended.
func notBegun(h Handler) string {
	if h.Destructive {
		return "it had not begun, nothing was written"
	}
	return "it had not begun, nothing was done"
}

// call runs the handler; a panic is a failure of that command alone.
func (a *Agent) call(ctx context.Context, body *agentv1.CommandBody, h Handler) (msg proto.Message, err error) {
	defer func() {
		if p := recover(); p != nil {
			a.cfg.Log.Error("handler panicked", "kind", body.Kind, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("run %s: handler panicked: %v", body.Kind, p)
		}
	}()
	return h.Run(ctx, &Call{
		CommandID: body.CommandId, Kind: body.Kind, WorkflowID: body.WorkflowId, StepID: body.StepId, Payload: body.Payload,
		Progress: func(p *agentv1.Progress) { a.progress(body.CommandId, p) },
		Secret: func(ctx context.Context, ref string) ([]byte, error) {
			return a.secret(ctx, ref, body.WorkflowId, body.StepId)
		},
	})
}

// finish journals the result, then has it sent until acked.
func (a *Agent) finish(body *agentv1.CommandBody, h Handler, msg proto.Message, err error, cancelled bool) {
	state, reason, text := commonv1.CommandState_COMMAND_STATE_SUCCEEDED, commonv1.CommandRejectReason_COMMAND_REJECT_REASON_UNSPECIFIED, ""
	switch {
	case err == nil:
	case errors.Is(err, ErrInvalidPayload):
		state, reason, text = commonv1.CommandState_COMMAND_STATE_REJECTED, commonv1.CommandRejectReason_COMMAND_REJECT_REASON_INVALID_PAYLOAD, err.Error()
	case cancelled:
		state, text = commonv1.CommandState_COMMAND_STATE_CANCELLED, err.Error()
	default:
		state, text = commonv1.CommandState_COMMAND_STATE_FAILED, err.Error()
	}
	var result []byte
	if msg != nil {
		var merr error
		result, merr = proto.MarshalOptions{Deterministic: true}.Marshal(msg)
		if merr != nil || len(result) > link.MaxCommandBytes {
			state, result, text = commonv1.CommandState_COMMAND_STATE_FAILED, nil, fmt.Sprintf("result of %s: %d bytes, want at most %d (%v)", body.Kind, len(result), link.MaxCommandBytes, merr)
		}
	}
	u, err := a.update(body.CommandId, state, result, text)
	if err == nil {
		u.RejectReason = reason
		if h.Attested && reason == commonv1.CommandRejectReason_COMMAND_REJECT_REASON_UNSPECIFIED {
			u.Attested, err = a.attest(body, result)
		}
	}
	if err == nil {
		err = a.journal.finish(u)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.held, body.CommandId)
	if err != nil {
		a.cfg.Log.Error("journal result", "id", body.CommandId, "kind", body.Kind, "err", err)
		return
	}
	a.cfg.Log.Info("command done", "id", body.CommandId, "kind", body.Kind, "state", state, "why", text)
	out := &unacked{update: u}
	if h.SelfTerminating && state == commonv1.CommandState_COMMAND_STATE_SUCCEEDED {
		out.after = h.After
	}
	a.unacked[body.CommandId] = out
	if a.conn != nil {
		a.conn.wake()
	}
}

func (a *Agent) attest(body *agentv1.CommandBody, result []byte) (*agentv1.AttestedReport, error) {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(&agentv1.AttestedReportBody{
		NodeId: string(a.cfg.Identity.NodeID), CommandId: body.CommandId, Kind: body.Kind, Result: result,
		Time: timestamppb.New(a.cfg.Now()), BootId: a.cfg.BootID,
	})
	if err != nil {
		return nil, err
	}
	// The chain goes along: a report is kept, and read long after the session.
	sig, err := envelope.Signer{Key: a.cfg.Identity.Key, Chain: a.cfg.Identity.Chain}.Sign(envelope.AttestedReport, raw)
	return &agentv1.AttestedReport{Body: raw, Signature: sig}, err
}

// update builds a signed update.
func (a *Agent) update(id string, state commonv1.CommandState, result []byte, text string) (*agentv1.CommandUpdate, error) {
	if len(text) > MaxMessageBytes {
		text = text[:MaxMessageBytes]
	}
	u := &agentv1.CommandUpdate{CommandId: id, State: state, Result: result, Message: toValid(text), Time: timestamppb.New(a.cfg.Now())}
	var err error
	u.Signature, err = a.signer.Sign(envelope.CommandUpdate, updateParts(u)...)
	return u, err
}

// say tells the present session, if there is one, how far a command is.
func (a *Agent) say(ctx context.Context, id string, state commonv1.CommandState) {
	u, err := a.update(id, state, nil, "")
	if err != nil {
		a.cfg.Log.Error("sign update", "id", id, "err", err)
		return
	}
	a.mu.Lock()
	if h := a.held[id]; h != nil {
		h.state = state
	}
	c := a.conn
	a.mu.Unlock()
	if c != nil {
		c.send(ctx, &agentv1.AgentFrame{Frame: &agentv1.AgentFrame_Update{Update: u}})
	}
}

func (a *Agent) progress(id string, p *agentv1.Progress) {
	p = proto.CloneOf(p)
	a.mu.Lock()
	defer a.mu.Unlock()
	if h := a.held[id]; h != nil {
		h.progress = p
	}
}
