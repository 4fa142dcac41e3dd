package gatewayserver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/gateway-client/ident"
	"firstlight/gateway-client/link"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// conn is one session between its Welcome and its end.
type conn struct {
	peer Peer
	// ctx ends with the session; its cause is the status.
	ctx    context.Context
	cancel context.CancelCauseFunc
	out    chan *agentv1.ServerFrame
	// older is the session that this one superseded; nil when there was none.
	older *conn
	// done is closed after Control.Disconnected.
	done chan struct{}
	// restricted: the agent must upgrade before it gets commands.
	restricted bool
	// secrets has room for MaxSecretRequests.
	secrets chan struct{}
}

// open makes the session the node's one in its role, with Welcome as the first frame of its queue, and ends the older.
func (s *Server) open(stream grpc.ServerStream, p Peer, h *agentv1.Hello) (*conn, error) {
	version, ok := negotiate(h.ProtoMin, h.ProtoMax)
	trust, err := s.trust(stream.Context(), h.TrustVersion)
	if err != nil {
		return nil, err
	}
	c := &conn{peer: p, restricted: !ok, out: make(chan *agentv1.ServerFrame, QueueFrames), done: make(chan struct{}),
		secrets: make(chan struct{}, MaxSecretRequests)}
	c.ctx, c.cancel = context.WithCancelCause(stream.Context())

	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{p.Identity.Node, p.Role}
	c.older = s.sessions[k]
	switch {
	case s.stopping:
		return nil, status.Error(codes.Unavailable, "gateway is stopping")
	case c.older == nil && len(s.sessions) >= MaxSessions:
		return nil, exhausted(stream.SetTrailer, "too many sessions")
	}
	now := s.cfg.Now()
	s.epoch = max(s.epoch+1, uint64(now.UnixMilli()))
	c.peer.Epoch = s.epoch
	w := &agentv1.Welcome{
		ProtocolVersion: version, UpgradeRequired: !ok, SessionEpoch: s.epoch,
		HeartbeatSeconds: uint32(HeartbeatInterval / time.Second), ControlCredits: ControlCredits, BulkCredits: BulkCredits,
		ServerTime: timestamppb.New(now), Trust: trust,
	}
	for name := range h.InventorySha256 {
		w.InventorySections = append(w.InventorySections, name)
	}
	c.out <- &agentv1.ServerFrame{Frame: &agentv1.ServerFrame_Welcome{Welcome: w}}
	s.sessions[k] = c
	if c.older != nil {
		c.older.cancel(status.Error(codes.Aborted, "a newer session of this node superseded this one"))
	}
	return c, nil
}

// trust returns the bundle when it is newer than the agent's.
func (s *Server) trust(ctx context.Context, have uint64) (*commonv1.SignedTrustBundle, error) {
	signed, err := s.cfg.Services.TrustBundle(ctx)
	if err != nil {
		return nil, s.refusal("trust bundle", err)
	}
	if signed == nil {
		return nil, nil
	}
	var b commonv1.TrustBundle
	if err := proto.Unmarshal(signed.Body, &b); err != nil {
		return nil, s.refusal("trust bundle", err)
	}
	if b.Version <= have {
		return nil, nil
	}
	return signed, nil
}

// run is the session's life: one goroutine writes, this one hands frames to Control.
func (s *Server) run(c *conn, h *agentv1.Hello, stream grpc.BidiStreamingServer[agentv1.AgentFrame, agentv1.ServerFrame], frames <-chan *agentv1.AgentFrame, failed <-chan error) error {
	flushed := make(chan struct{})
	go func() { defer close(flushed); c.write(stream) }()
	if c.older != nil {
		c.wait(c.older.done, SupersedeWait)
		c.older = nil
	}
	log := s.cfg.Log.With("node", c.peer.Identity.Node, "role", ident.RoleWord(c.peer.Role), "epoch", c.peer.Epoch)
	log.Info("session open", "addr", c.peer.Addr, "version", h.DaemonVersion)
	s.cfg.Control.Connected(c.ctx, c.peer, h)
	err := s.frames(c, frames, failed)
	c.cancel(err)

	s.mu.Lock()
	if k := (key{c.peer.Identity.Node, c.peer.Role}); s.sessions[k] == c {
		delete(s.sessions, k)
	}
	s.mu.Unlock()
	log.Info("session closed", "why", err)
	ctx, stop := context.WithTimeout(context.WithoutCancel(c.ctx), CallTimeout)
	defer stop()
	s.cfg.Control.Disconnected(ctx, c.peer, err)
	close(c.done)
	t := time.NewTimer(FlushTimeout)
	defer t.Stop()
	select {
	case <-flushed:
	case <-t.C:
	}
	return err
}

func (c *conn) wait(ch <-chan struct{}, limit time.Duration) {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-ch:
	case <-t.C:
	case <-c.ctx.Done():
	}
}

// frames returns why the session ends; nil when the agent closed it.
func (s *Server) frames(c *conn, frames <-chan *agentv1.AgentFrame, failed <-chan error) error {
	silence := time.NewTimer(SilenceLimit)
	defer silence.Stop()
	expiry := time.NewTimer(c.peer.Certificate.NotAfter.Sub(s.cfg.Now()))
	defer expiry.Stop()
	for {
		select {
		case f := <-frames:
			silence.Reset(SilenceLimit)
			if err := s.frame(c, f); err != nil {
				return err
			}
		case err := <-failed:
			if c.ctx.Err() != nil {
				return cause(c.ctx)
			}
			return ended(err)
		case <-c.ctx.Done():
			return cause(c.ctx)
		case <-silence.C:
			return status.Errorf(codes.Unavailable, "no frame for %s", SilenceLimit)
		case <-expiry.C:
			return status.Errorf(codes.Unauthenticated, "node certificate expired at %s", stamp(c.peer.Certificate.NotAfter))
		}
	}
}

func cause(ctx context.Context) error {
	err := context.Cause(ctx)
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.FromContextError(err).Err()
}

// frame hands one frame to Control, and acks what was stored. A frame case that this gateway does not know is ignored.
func (s *Server) frame(c *conn, f *agentv1.AgentFrame) error {
	ctl := s.cfg.Control
	switch f := f.Frame.(type) {
	case *agentv1.AgentFrame_Hello:
		return status.Error(codes.InvalidArgument, "second hello")
	case *agentv1.AgentFrame_Heartbeat:
		return c.ack(&agentv1.Ack{HeartbeatSequence: f.Heartbeat.Sequence})
	case *agentv1.AgentFrame_Update:
		u := f.Update
		if len(u.Result) > link.MaxCommandBytes || !words(u.CommandId) {
			return status.Errorf(codes.InvalidArgument, "update: result or id is too large")
		}
		if err := ctl.Update(c.ctx, c.peer, u); err != nil {
			return s.lost(c, "update "+u.CommandId, err)
		}
		if Terminal(u.State) {
			return c.ack(&agentv1.Ack{CommandIds: []string{u.CommandId}})
		}
	case *agentv1.AgentFrame_Events:
		b := f.Events
		if len(b.Events) == 0 || len(b.Events) > MaxEventsPerBatch || b.JournalId != c.peer.JournalID {
			return status.Errorf(codes.InvalidArgument, "events: want 1 to %d of journal %q, got %d of %q", MaxEventsPerBatch, c.peer.JournalID, len(b.Events), b.JournalId)
		}
		if err := ctl.Events(c.ctx, c.peer, b); err != nil {
			return s.lost(c, "event batch", err)
		}
		return c.ack(&agentv1.Ack{JournalId: b.JournalId, EventSequence: b.Events[len(b.Events)-1].Sequence})
	case *agentv1.AgentFrame_Inventory:
		sum := sha256.Sum256(f.Inventory.Encoding)
		if !words(f.Inventory.Name) || len(f.Inventory.Encoding) > link.MaxCommandBytes || !bytes.Equal(sum[:], f.Inventory.Sha256) {
			return status.Errorf(codes.InvalidArgument, "inventory section: too large, or not of its digest")
		}
		if err := ctl.Inventory(c.ctx, c.peer, f.Inventory); err != nil {
			return s.lost(c, "inventory section", err)
		}
	case *agentv1.AgentFrame_Status:
		ctl.Status(c.ctx, c.peer, f.Status)
	case *agentv1.AgentFrame_SecretRequest:
		return s.secret(c, f.SecretRequest)
	case *agentv1.AgentFrame_Log:
		if len(f.Log.Lines) > MaxLogLines {
			return status.Errorf(codes.InvalidArgument, "log: want at most %d lines, got %d", MaxLogLines, len(f.Log.Lines))
		}
		if s.cfg.Logs != nil {
			s.cfg.Logs(c.peer, f.Log)
		}
	}
	return nil
}

// lost ends the session so that the agent comes back and says it again.
func (s *Server) lost(c *conn, what string, err error) error {
	if c.ctx.Err() != nil {
		return cause(c.ctx)
	}
	s.cfg.Log.Error("frame is not stored", "node", c.peer.Identity.Node, "what", what, "err", err)
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Errorf(codes.Unavailable, "%s is not stored, come back", what)
}

// secret asks the broker beside the frames, so that a slow one delays no result.
func (s *Server) secret(c *conn, r *agentv1.SecretRequest) error {
	answer := func(resp *agentv1.SecretResponse) error {
		return c.send(&agentv1.ServerFrame{Frame: &agentv1.ServerFrame_Secret{Secret: resp}})
	}
	if !words(r.RequestId, r.Ref, r.WorkflowId, r.StepId, r.AllocationId) {
		return status.Error(codes.InvalidArgument, "secret request: a name is too long")
	}
	select {
	case c.secrets <- struct{}{}:
	default:
		return answer(&agentv1.SecretResponse{RequestId: r.RequestId, Error: "unavailable"})
	}
	go func() {
		defer func() { <-c.secrets }()
		resp := s.cfg.Services.Secret(c.ctx, c.peer, r)
		if resp == nil {
			resp = &agentv1.SecretResponse{Error: "unavailable"}
		}
		resp.RequestId = r.RequestId
		if err := answer(resp); err != nil {
			c.cancel(err)
		}
	}()
	return nil
}

func (c *conn) ack(a *agentv1.Ack) error {
	return c.send(&agentv1.ServerFrame{Frame: &agentv1.ServerFrame_Ack{Ack: a}})
}

// send waits for room in the queue: answers are never dropped.
func (c *conn) send(f *agentv1.ServerFrame) error {
	select {
	case c.out <- f:
		return nil
	default:
	}
	t := time.NewTimer(SendTimeout)
	defer t.Stop()
	select {
	case c.out <- f:
		return nil
	case <-c.ctx.Done():
		return cause(c.ctx)
	case <-t.C:
		return status.Errorf(codes.Unavailable, "agent took no frame for %s", SendTimeout)
	}
}

// write sends the queue until the session ends, and then what is queued already.
func (c *conn) write(stream grpc.BidiStreamingServer[agentv1.AgentFrame, agentv1.ServerFrame]) {
	for {
		select {
		case f := <-c.out:
			if err := stream.Send(f); err != nil {
				c.cancel(err)
				return
			}
			continue
		default:
		}
		select {
		case f := <-c.out:
			if err := stream.Send(f); err != nil {
				c.cancel(err)
				return
			}
		case <-c.ctx.Done():
			if len(c.out) == 0 {
				return
			}
		}
	}
}

// Terminal says whether a command in this state is done with.
func Terminal(s commonv1.CommandState) bool {
	switch s {
	case commonv1.CommandState_COMMAND_STATE_SUCCEEDED, commonv1.CommandState_COMMAND_STATE_FAILED,
		commonv1.CommandState_COMMAND_STATE_REJECTED, commonv1.CommandState_COMMAND_STATE_CANCELLED:
		return true
	}
	return false
}
