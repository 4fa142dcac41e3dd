package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"firstlight/gateway-client/link"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
)

type agentStream = grpc.BidiStreamingClient[agentv1.AgentFrame, agentv1.ServerFrame]

// conn is one session after its Welcome.
type conn struct {
	a      *Agent
	stream agentStream
	// ctx ends with the session; cancel's cause is why.
	ctx    context.Context
	cancel context.CancelCauseFunc
	out    chan *agentv1.AgentFrame
	// dirty has room for one wish to look at what is to be sent.
	dirty     chan struct{}
	heartbeat time.Duration
	// gone is closed when the session is no longer the agent's present one.
	gone chan struct{}
	// heard gets a value for every frame of the gateway.
	heard chan struct{}
	// secrets are the requests of this session that wait; guarded by a.mu.
	secrets map[string]chan *agentv1.SecretResponse
	// lastEvent is the highest sequence that this session said; beats counts heartbeats. Both are the writer's.
	lastEvent, beats uint64
}

// session dials and lives through one session. It says whether there was a Welcome.
func (a *Agent) session(ctx context.Context) (welcomed bool, err error) {
	cc, err := link.Dial(a.cfg.Link)
	if err != nil {
		return false, err
	}
	defer cc.Close()
	sctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := time.AfterFunc(WelcomeTimeout, func() { cancel(fmt.Errorf("no welcome within %s", WelcomeTimeout)) })
	defer limit.Stop()
	stream, err := agentv1.NewAgentGatewayClient(cc).Session(sctx)
	if err != nil {
		return false, fmt.Errorf("open session: %w", err)
	}
	w, err := a.greet(sctx, stream)
	if err != nil {
		return false, err
	}
	limit.Stop()
	c := &conn{
		a: a, stream: stream, ctx: sctx, cancel: cancel, out: make(chan *agentv1.AgentFrame, QueueFrames), dirty: make(chan struct{}, 1),
		gone: make(chan struct{}), heard: make(chan struct{}, 1), secrets: make(map[string]chan *agentv1.SecretResponse), heartbeat: DefaultHeartbeat,
	}
	if w.HeartbeatSeconds > 0 {
		c.heartbeat = min(time.Duration(w.HeartbeatSeconds)*time.Second, MaxHeartbeat)
	}
	first := a.welcome(w)
	a.attach(c)
	defer a.detach(c)
	var writer sync.WaitGroup
	writer.Go(func() { c.write(first) })
	err = c.read(ctx)
	cancel(err)
	writer.Wait()
	return true, err
}

// greet says Hello and waits for Welcome.
func (a *Agent) greet(ctx context.Context, stream agentStream) (*agentv1.Welcome, error) {
	id := a.cfg.Identity
	a.mu.Lock()
	unknown := a.sections == nil
	a.mu.Unlock()
	if unknown {
		if _, err := a.collect(ctx); err != nil {
			a.cfg.Log.Warn("inventory", "err", err)
		}
	}
	a.mu.Lock()
	h := &agentv1.Hello{
		NodeId: string(id.NodeID), Role: id.Role, BootId: a.cfg.BootID, JournalId: a.journal.id, ProtoMin: ProtoMin, ProtoMax: ProtoMax,
		DaemonVersion: a.cfg.Version, Hardware: a.cfg.Hardware, TrustVersion: a.trust.Version, InventorySha256: digests(a.sections),
		ApproverSetEpoch: a.trust.ApproverSetEpoch,
	}
	a.mu.Unlock()
	if err := stream.Send(&agentv1.AgentFrame{Frame: &agentv1.AgentFrame_Hello{Hello: h}}); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("say hello: %w", err)
	}
	f, err := stream.Recv()
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, &ended{fmt.Errorf("wait for welcome: %w", err), pushback(stream)}
	}
	w := f.GetWelcome()
	if w == nil {
		return nil, errors.New("first frame of the gateway is not welcome")
	}
	if !w.UpgradeRequired && (w.ProtocolVersion < ProtoMin || w.ProtocolVersion > ProtoMax) {
		return nil, fmt.Errorf("gateway chose protocol version %d, want %d to %d", w.ProtocolVersion, ProtoMin, ProtoMax)
	}
	return w, nil
}

// welcome applies what the gateway said first, and returns the frames that answer it.
func (a *Agent) welcome(w *agentv1.Welcome) []*agentv1.AgentFrame {
	if a.cfg.OnWelcome != nil {
		a.cfg.OnWelcome(w)
	}
	if now := a.cfg.Now(); w.ServerTime.IsValid() && now.Sub(w.ServerTime.AsTime()).Abs() > ClockSkew {
		a.cfg.Log.Warn("clocks disagree", "machine", stamp(now), "gateway", stamp(w.ServerTime.AsTime()))
	}
	if w.UpgradeRequired {
		a.cfg.Log.Error("gateway wants a newer agent", "lowest", w.ProtocolVersion)
	}
	a.mu.Lock()
	a.restricted = w.UpgradeRequired
	a.mu.Unlock()
	var out []*agentv1.AgentFrame
	if w.Trust != nil {
		a.mu.Lock()
		have := a.trust
		a.mu.Unlock()
		b, err := checkBundle(a.cfg.JoinSigningKey, w.Trust, have)
		if err == nil && b != nil {
			err = a.journal.setTrust(w.Trust)
		}
		switch {
		case err != nil:
			a.cfg.Log.Error("trust bundle refused", "err", err)
		case b != nil:
			a.setTrust(b)
			out = append(out, &agentv1.AgentFrame{Frame: &agentv1.AgentFrame_Status{Status: &agentv1.StatusReport{
				TrustVersion: b.Version, ApproverSetEpoch: b.ApproverSetEpoch}}})
		}
	}
	if ack := w.EventAck; ack != nil {
		a.ack(ack)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range w.InventorySections {
		if enc, ok := a.sections[name]; ok {
			out = append(out, sectionFrame(name, enc))
		}
	}
	return out
}

func (a *Agent) attach(c *conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.conn = c
	close(a.joined)
}

func (a *Agent) detach(c *conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.conn = nil
	a.joined = make(chan struct{})
	close(c.gone)
}

// ended is an end after which the gateway asked to wait.
type ended struct {
	error
	pushback time.Duration
}

func (e *ended) Unwrap() error { return e.error }

// read handles the gateway's frames until the session ends. It never waits for the writer, so that neither end can stall the
// other. work is the context of the commands: it outlives the session.
func (c *conn) read(work context.Context) error {
	for {
		f, err := c.stream.Recv()
		if err != nil {
			if cause := context.Cause(c.ctx); cause != nil {
				return cause
			}
			if errors.Is(err, io.EOF) {
				return errors.New("gateway closed the session")
			}
			return &ended{err, pushback(c.stream)}
		}
		select {
		case c.heard <- struct{}{}:
		default:
		}
		switch f := f.Frame.(type) {
		case *agentv1.ServerFrame_Command:
			c.a.receive(work, f.Command)
		case *agentv1.ServerFrame_Cancel:
			c.a.cancel(f.Cancel)
		case *agentv1.ServerFrame_Ack:
			c.a.ack(f.Ack)
		case *agentv1.ServerFrame_Secret:
			c.secret(f.Secret)
		case *agentv1.ServerFrame_Drain:
			return &ended{errors.New("gateway drains"), time.Duration(f.Drain.ReconnectAfterMs) * time.Millisecond}
		case *agentv1.ServerFrame_Revoked:
			return fmt.Errorf("session with %s: %w: certificate is revoked: %s", c.a.cfg.Link.URL, ErrRefused, f.Revoked.Reason)
		}
	}
}

// write is the one sender: what is queued first, then results and events that the gateway lacks, heartbeats in between.
func (c *conn) write(first []*agentv1.AgentFrame) {
	beat := time.NewTicker(c.heartbeat)
	defer beat.Stop()
	tick := time.NewTicker(ProgressInterval)
	defer tick.Stop()
	silent := 0
	err := c.sendAll(first)
	c.wake()
	for err == nil {
		select {
		case f := <-c.out:
			err = c.stream.Send(f)
		case <-c.dirty:
			if err = c.drainQueue(); err == nil {
				err = c.owed()
			}
		case <-tick.C:
			if err = c.sendAll(c.a.progressFrames()); err == nil {
				err = c.log()
			}
		case <-beat.C:
			if silent++; silent >= SilentHeartbeats {
				err = fmt.Errorf("gateway is silent for %s", time.Duration(SilentHeartbeats)*c.heartbeat)
				break
			}
			if err = c.stream.Send(c.beat()); err == nil {
				err = c.owed()
			}
		case <-c.heard:
			silent = 0
		case <-c.ctx.Done():
			return
		}
	}
	if errors.Is(err, io.EOF) {
		return // read gets the status
	}
	c.cancel(err)
}

func (c *conn) sendAll(frames []*agentv1.AgentFrame) error {
	for _, f := range frames {
		if err := c.stream.Send(f); err != nil {
			return err
		}
	}
	return nil
}

// drainQueue keeps the order: what was queued before a result was finished goes before it.
func (c *conn) drainQueue() error {
	for {
		select {
		case f := <-c.out:
			if err := c.stream.Send(f); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

func (c *conn) beat() *agentv1.AgentFrame {
	c.beats++
	h := &agentv1.Heartbeat{Sequence: c.beats}
	c.a.mu.Lock()
	defer c.a.mu.Unlock()
	if c.a.changed || c.beats%InventoryEvery == 0 {
		h.InventorySha256 = digests(c.a.sections)
		c.a.changed = false
	}
	return &agentv1.AgentFrame{Frame: &agentv1.AgentFrame_Heartbeat{Heartbeat: h}}
}

// wake never blocks.
func (c *conn) wake() {
	select {
	case c.dirty <- struct{}{}:
	default:
	}
}

// try queues a frame that may be lost.
func (c *conn) try(f *agentv1.AgentFrame) {
	select {
	case c.out <- f:
	default:
	}
}

// send waits for room in the queue; false when the session or ctx ended first.
func (c *conn) send(ctx context.Context, f *agentv1.AgentFrame) bool {
	select {
	case c.out <- f:
		return true
	case <-c.ctx.Done():
		return false
	case <-ctx.Done():
		return false
	}
}

// pushback reads how long a refusal asks to wait; 0 when it does not. Recv has returned an error.
func pushback(stream agentStream) time.Duration {
	v := stream.Trailer().Get("grpc-retry-pushback-ms")
	if len(v) == 0 {
		return 0
	}
	ms, err := strconv.ParseUint(v[0], 10, 31)
	if err != nil {
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

// toValid makes text fit a protobuf string.
func toValid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
