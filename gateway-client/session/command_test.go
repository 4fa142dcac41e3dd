package session_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/gatewaytest"
	"firstlight/gateway-client/link"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/gateway-client/session"
)

const (
	succeeded = commonv1.CommandState_COMMAND_STATE_SUCCEEDED
	failed    = commonv1.CommandState_COMMAND_STATE_FAILED
	rejected  = commonv1.CommandState_COMMAND_STATE_REJECTED
)

// counting is a handler that counts its runs and echoes a level.
func counting(n *atomic.Int32) session.Handler {
	return session.Handler{Lane: commonv1.Lane_LANE_CONTROL, Run: func(_ context.Context, c *session.Call) (proto.Message, error) {
		n.Add(1)
		m := new(agentv1.DiagDCGM)
		return m, proto.Unmarshal(c.Payload, m)
	}}
}

func TestCommand_refusedBeforeAnythingHappens(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	stranger := gatewaytest.NewCA(t, "stranger", time.Now()).Signer(envelope.Command)
	var runs atomic.Int32
	start(t, config(t, g, map[string]session.Handler{"test.echo": counting(&runs)}))

	type reason = commonv1.CommandRejectReason
	with := func(f func(*agentv1.CommandBody)) *agentv1.Command {
		b := g.Body(node, ramdisk, "test.echo", &agentv1.DiagDCGM{Level: 3})
		f(b)
		return g.Sign(b)
	}
	for _, c := range []struct {
		name    string
		command *agentv1.Command
		reason  reason
		text    string
	}{
		{"stranger's key", gatewaytest.SignWith(t, stranger, g.Body(node, ramdisk, "test.echo", nil)),
			commonv1.CommandRejectReason_COMMAND_REJECT_REASON_UNTRUSTED_KEY, "not trusted"},
		{"key for another purpose", gatewaytest.SignWith(t, g.Images(), g.Body(node, ramdisk, "test.echo", nil)),
			commonv1.CommandRejectReason_COMMAND_REJECT_REASON_UNTRUSTED_KEY, "purpose"},
		{"no signature", &agentv1.Command{Body: g.Command(node, ramdisk, "test.echo", nil).Body},
			commonv1.CommandRejectReason_COMMAND_REJECT_REASON_UNSIGNED, "not signed"},
		{"altered body", func() *agentv1.Command {
			c := g.Command(node, ramdisk, "test.echo", nil)
			c.Body = append(c.Body, 0xf8, 0x07, 0x01) // an unknown field
			return c
		}(), commonv1.CommandRejectReason_COMMAND_REJECT_REASON_BAD_SIGNATURE, "does not verify"},
		{"another node's", with(func(b *agentv1.CommandBody) { b.Audience = "node-b" }),
			commonv1.CommandRejectReason_COMMAND_REJECT_REASON_WRONG_AUDIENCE, `"node-b"`},
		{"another role's", with(func(b *agentv1.CommandBody) { b.Role = commonv1.AgentRole_AGENT_ROLE_NODE }),
			commonv1.CommandRejectReason_COMMAND_REJECT_REASON_WRONG_AUDIENCE, "role node"},
		{"expired", with(func(b *agentv1.CommandBody) { b.NotAfter = timestamppb.New(time.Now().Add(-time.Second)) }),
			commonv1.CommandRejectReason_COMMAND_REJECT_REASON_EXPIRED, "clock says"},
		{"from the future", with(func(b *agentv1.CommandBody) { b.IssuedAt = timestamppb.New(time.Now().Add(time.Hour)) }),
			commonv1.CommandRejectReason_COMMAND_REJECT_REASON_EXPIRED, "clock says"},
		{"without times", with(func(b *agentv1.CommandBody) { b.NotAfter = nil }),
			commonv1.CommandRejectReason_COMMAND_REJECT_REASON_EXPIRED, "no issue or expiry"},
		{"unknown kind", with(func(b *agentv1.CommandBody) { b.Kind = "test.unknown" }),
			commonv1.CommandRejectReason_COMMAND_REJECT_REASON_UNSUPPORTED, "test.unknown"},
	} {
		u := g.WaitUpdate(g.Send(node, ramdisk, c.command))
		if u.State != rejected || u.RejectReason != c.reason || !strings.Contains(u.Message, c.text) {
			t.Errorf("%s: got %s %s %q, want REJECTED %s with %q", c.name, u.State, u.RejectReason, u.Message, c.reason, c.text)
		}
	}
	if n := runs.Load(); n != 0 {
		t.Errorf("handler ran %d times, want never", n)
	}
}

func TestCommand_bodyOverTheBound(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	start(t, config(t, g, nil))
	b := g.Body(node, ramdisk, "test.echo", nil)
	b.Payload = make([]byte, link.MaxCommandBytes)
	g.WaitConnected(node, ramdisk)
	if err := g.Server().Send(node, ramdisk, g.Sign(b)); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("gateway half: got %v, want a refusal", err)
	}
}

func TestCommand_replay(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	var runs atomic.Int32
	start(t, config(t, g, map[string]session.Handler{"test.echo": counting(&runs)}))
	b := g.Body(node, ramdisk, "test.echo", &agentv1.DiagDCGM{Level: 2})
	c := g.Sign(b)
	id := g.Send(node, ramdisk, c)
	first := g.WaitUpdate(id)
	if first.State != succeeded {
		t.Fatalf("got %v", first)
	}
	terminal := func() (out []*agentv1.CommandUpdate) {
		for _, u := range g.Updates(id) {
			if u.State == succeeded || u.State == rejected {
				out = append(out, u)
			}
		}
		return out
	}
	g.Send(node, ramdisk, c)
	g.Wait("second answer", func() bool { return len(terminal()) >= 2 })
	if again := terminal()[1]; !proto.Equal(again, first) {
		t.Errorf("same body: got %v, want the journaled %v", again, first)
	}
	b.Payload = nil
	g.Send(node, ramdisk, g.Sign(b))
	g.Wait("rejection", func() bool { return len(terminal()) >= 3 })
	if u := terminal()[2]; u.State != rejected || u.RejectReason != commonv1.CommandRejectReason_COMMAND_REJECT_REASON_REPLAYED {
		t.Errorf("other body: got %v, want REJECTED REPLAYED", u)
	}
	if n := runs.Load(); n != 1 {
		t.Errorf("handler ran %d times, want once", n)
	}
}

func TestCommand_replayAfterRestartOfTheAgent(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	var runs atomic.Int32
	cfg := config(t, g, map[string]session.Handler{"test.echo": counting(&runs)})
	r := start(t, cfg)
	c := g.Command(node, ramdisk, "test.echo", &agentv1.DiagDCGM{Level: 2})
	id := g.Send(node, ramdisk, c)
	first := g.WaitUpdate(id)
	journal := g.WaitConnected(node, ramdisk).JournalId
	if err := r.end(t); err != nil {
		t.Fatal(err)
	}
	g.WaitDisconnected(node, ramdisk)
	start(t, cfg)
	if h := g.WaitHellos(node, ramdisk, 2); h.JournalId != journal {
		t.Errorf("got journal %q, want %q as before", h.JournalId, journal)
	}
	before := len(g.Updates(id))
	g.Send(node, ramdisk, c)
	g.Wait("answer", func() bool { return len(g.Updates(id)) > before })
	all := g.Updates(id)
	if !proto.Equal(all[len(all)-1], first) || runs.Load() != 1 {
		t.Errorf("got %v after %d runs, want the journaled %v and one run", all[len(all)-1], runs.Load(), first)
	}
}

func TestCommand_interruptedByRestartFails(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	began, release := make(chan struct{}), make(chan struct{})
	var runs atomic.Int32
	cfg := config(t, g, map[string]session.Handler{"test.long": {Run: func(context.Context, *session.Call) (proto.Message, error) {
		runs.Add(1)
		close(began)
		<-release
		return nil, nil
	}}})
	kill := killed(t, cfg)
	c := g.Command(node, ramdisk, "test.long", nil)
	id := g.Send(node, ramdisk, c)
	<-began
	cfg.JournalPath = kill(t)
	close(release)
	start(t, cfg)
	u := g.WaitUpdate(id)
	if u.State != failed || !strings.Contains(u.Message, "interrupted") {
		t.Errorf("got %v, want FAILED interrupted", u)
	}
	g.WaitHellos(node, ramdisk, 2)
	g.Send(node, ramdisk, c)
	g.Wait("answer again", func() bool { return count(g.Updates(id), failed) == 2 })
	if n := runs.Load(); n != 1 {
		t.Errorf("handler ran %d times, want once", n)
	}
}

func TestCommand_repeatableRunsAgainAfterARestart(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	began, release := make(chan struct{}), make(chan struct{})
	var runs atomic.Int32
	cfg := config(t, g, map[string]session.Handler{"test.long": {Repeatable: true, Run: func(context.Context, *session.Call) (proto.Message, error) {
		if runs.Add(1) == 1 {
			close(began)
			<-release
		}
		return nil, nil
	}}})
	kill := killed(t, cfg)
	c := g.Command(node, ramdisk, "test.long", nil)
	id := g.Send(node, ramdisk, c)
	<-began
	cfg.JournalPath = kill(t)
	close(release)
	start(t, cfg)
	g.WaitHellos(node, ramdisk, 2)
	before := len(g.Updates(id))
	g.Send(node, ramdisk, c)
	g.Wait("its end", func() bool { return count(g.Updates(id)[before:], succeeded) == 1 })
	if n := runs.Load(); n != 2 {
		t.Errorf("handler ran %d times, want once by each process", n)
	}
	g.Send(node, ramdisk, c)
	g.Wait("answer again", func() bool { return count(g.Updates(id)[before:], succeeded) == 2 })
	if n := runs.Load(); n != 2 || count(g.Updates(id), failed) != 0 {
		t.Errorf("handler ran %d times with %d failures, want the journaled answer", n, count(g.Updates(id), failed))
	}
}

func TestCommand_olderGenerationIsRefused(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	var runs atomic.Int32
	start(t, config(t, g, map[string]session.Handler{"test.echo": counting(&runs)}))
	for _, c := range []struct {
		generation uint64
		workflow   string
		want       commonv1.CommandState
	}{{5, "wf-1", succeeded}, {4, "wf-1", rejected}, {5, "wf-1", succeeded}, {4, "wf-2", succeeded}, {6, "wf-1", succeeded}} {
		b := g.Body(node, ramdisk, "test.echo", nil)
		b.Generation, b.WorkflowId = c.generation, c.workflow
		if u := g.WaitUpdate(g.Send(node, ramdisk, g.Sign(b))); u.State != c.want {
			t.Errorf("generation %d of %s: got %v, want %s", c.generation, c.workflow, u, c.want)
		}
	}
}

func TestCommand_outcomes(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	start(t, config(t, g, map[string]session.Handler{
		"test.bad":   {Run: run(nil, fmt.Errorf("read payload: %w", session.ErrInvalidPayload))},
		"test.fails": {Attested: true, Run: run(&agentv1.DiagResult{Reason: "cold"}, errors.New("open disk d1: no such serial"))},
		"test.good":  {Attested: true, Run: run(&agentv1.DiagResult{Reason: "warm"}, nil)},
		"test.huge":  {Run: run(&agentv1.DiagResult{Details: make([]byte, link.MaxCommandBytes)}, nil)},
		"test.panic": {Run: func(context.Context, *session.Call) (proto.Message, error) { panic("oh") }},
	}))
	for _, c := range []struct {
		kind   string
		state  commonv1.CommandState
		text   string
		report string
	}{
		{"test.bad", rejected, "invalid payload", ""},
		{"test.fails", failed, "no such serial", "cold"},
		{"test.good", succeeded, "", "warm"},
		{"test.huge", failed, "at most", ""},
		{"test.panic", failed, "panicked", ""},
	} {
		u := g.Run(node, ramdisk, c.kind, nil)
		if u.State != c.state || !strings.Contains(u.Message, c.text) {
			t.Errorf("%s: got %s %q, want %s with %q", c.kind, u.State, u.Message, c.state, c.text)
		}
		if (u.Attested != nil) != (c.report != "") {
			t.Errorf("%s: got report %v", c.kind, u.Attested)
			continue
		}
		if c.report == "" {
			continue
		}
		var b agentv1.AttestedReportBody
		var r agentv1.DiagResult
		if err := errors.Join(proto.Unmarshal(u.Attested.Body, &b), proto.Unmarshal(b.Result, &r)); err != nil {
			t.Fatal(err)
		}
		if b.NodeId != string(node) || b.Kind != c.kind || b.CommandId != u.CommandId || b.BootId != "boot-1" || r.Reason != c.report {
			t.Errorf("%s: got report %v of %v", c.kind, &b, &r)
		}
	}
}

func count(list []*agentv1.CommandUpdate, state commonv1.CommandState) (n int) {
	for _, u := range list {
		if u.State == state {
			n++
		}
	}
	return n
}

func run(m proto.Message, err error) func(context.Context, *session.Call) (proto.Message, error) {
	return func(context.Context, *session.Call) (proto.Message, error) { return m, err }
}

func TestCommand_cancel(t *testing.T) {
	t.Parallel()
	for destructive, unbegun := range map[bool]string{false: "nothing was done", true: "nothing was written"} {
		g := gatewaytest.NewGateway(t)
		began := make(chan struct{})
		start(t, config(t, g, map[string]session.Handler{"test.wait": {Lane: commonv1.Lane_LANE_BULK, Destructive: destructive, Run: func(ctx context.Context, _ *session.Call) (proto.Message, error) {
			close(began)
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}}}))
		id := g.Send(node, ramdisk, g.Command(node, ramdisk, "test.wait", nil))
		<-began
		queued := g.Send(node, ramdisk, g.Command(node, ramdisk, "test.wait", nil))
		for _, c := range []struct{ id, want string }{{queued, "cancelled: operator: it had not begun, " + unbegun}, {id, "cancelled: operator"}} {
			if err := g.Server().Cancel(node, ramdisk, c.id, "operator"); err != nil {
				t.Fatal(err)
			}
			if u := g.WaitUpdate(c.id); u.State != commonv1.CommandState_COMMAND_STATE_CANCELLED || u.Message != c.want {
				t.Errorf("got %v, want CANCELLED that says %q", u, c.want)
			}
		}
	}
}

func TestCommand_progressAndDestructiveOneAtATime(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	var inside, most atomic.Int32
	turn := make(chan struct{})
	start(t, config(t, g, map[string]session.Handler{"test.wipe": {Lane: commonv1.Lane_LANE_CONTROL, Destructive: true,
		Run: func(_ context.Context, c *session.Call) (proto.Message, error) {
			most.Store(max(most.Load(), inside.Add(1)))
			defer inside.Add(-1)
			c.Progress(&agentv1.Progress{What: "overwrite", Done: 1, Total: 2, Unit: "bytes"})
			<-turn
			return nil, nil
		}}}))
	a := g.Send(node, ramdisk, g.Command(node, ramdisk, "test.wipe", nil))
	b := g.Send(node, ramdisk, g.Command(node, ramdisk, "test.wipe", nil))
	g.Wait("progress", func() bool {
		for _, u := range g.Updates("") {
			if u.Progress.GetWhat() == "overwrite" && u.State == commonv1.CommandState_COMMAND_STATE_RUNNING {
				return true
			}
		}
		return false
	})
	turn <- struct{}{}
	turn <- struct{}{}
	for _, id := range []string{a, b} {
		if u := g.WaitUpdate(id); u.State != succeeded {
			t.Errorf("got %v", u)
		}
	}
	if n := most.Load(); n != 1 {
		t.Errorf("%d destructive commands at once, want 1", n)
	}
}

func TestCommand_afterOnlyOnceTheResultIsStored(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	var stored, early atomic.Bool
	after := make(chan struct{})
	refusals := atomic.Int32{}
	g.SetFaults(gatewaytest.Faults{Update: func(u *agentv1.CommandUpdate) error {
		if u.State != succeeded {
			return nil
		}
		if refusals.Add(1) == 1 {
			return errors.New("store is not there")
		}
		stored.Store(true)
		return nil
	}})
	start(t, config(t, g, map[string]session.Handler{"boot.kexec": {SelfTerminating: true, Run: run(&agentv1.BootKexecResult{Entry: "e"}, nil),
		After: func() error {
			early.Store(!stored.Load())
			close(after)
			return nil
		}}}))
	id := g.Send(node, ramdisk, g.Command(node, ramdisk, "boot.kexec", nil))
	select {
	case <-after:
	case <-time.After(gatewaytest.WaitTimeout):
		t.Fatal("After was not called")
	}
	if early.Load() {
		t.Error("After was called before the gateway had the result")
	}
	if n := count(g.Updates(id), succeeded); n != 2 {
		t.Errorf("the result came %d times, want twice", n)
	}
}

func TestCommand_noAfterWhenItFailed(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	start(t, config(t, g, map[string]session.Handler{
		"boot.kexec": {SelfTerminating: true, Run: run(nil, errors.New("no kernel")), After: func() error { t.Error("After was called"); return nil }},
		"test.good":  {Run: run(nil, nil)}}))
	if u := g.Run(node, ramdisk, "boot.kexec", nil); u.State != failed {
		t.Errorf("got %v", u)
	}
	g.Run(node, ramdisk, "test.good", nil)
}

func TestSecret_sealedRoundTrip(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	g.SetSecret("secret://bmc/m1", []byte("hunter2"))
	start(t, config(t, g, map[string]session.Handler{"test.secret": {Run: func(ctx context.Context, c *session.Call) (proto.Message, error) {
		v, err := c.Secret(ctx, "secret://bmc/m1")
		if err != nil {
			return nil, err
		}
		_, none := c.Secret(ctx, "secret://bmc/m2")
		var no *session.SecretError
		if !errors.As(none, &no) || no.Code != "not-found" {
			return nil, fmt.Errorf("unknown reference: got %v, want not-found", none)
		}
		return &agentv1.DiagResult{Reason: fmt.Sprint(len(v), string(v) == "hunter2")}, nil
	}}}))
	u := g.Run(node, ramdisk, "test.secret", nil)
	var r agentv1.DiagResult
	if err := proto.Unmarshal(u.Result, &r); err != nil || r.Reason != "7 true" {
		t.Errorf("got %v, result %v", u, &r)
	}
	for name, alter := range map[string]func(*agentv1.SecretResponse){
		"swapped": func(r *agentv1.SecretResponse) { r.Jwe = strings.Replace(r.Jwe, ".", ".A", 1) },
		"empty":   func(r *agentv1.SecretResponse) { r.Jwe = "" },
	} {
		g.SetFaults(gatewaytest.Faults{Secret: alter})
		if u := g.Run(node, ramdisk, "test.secret", nil); u.State != failed || strings.Contains(u.Message, "hunter2") {
			t.Errorf("%s answer: got %v, want FAILED without the value", name, u)
		}
	}
}
