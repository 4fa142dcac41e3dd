package hostile

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"firstlight/gateway-client/link"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/gateway-client/session"
)

const testSerial = "FLTEST5"

// machine is an agent in this process; wipes counts those of its own disk.
type machine struct {
	wipes atomic.Int64
}

func (m *machine) wipe(_ context.Context, c *session.Call) (proto.Message, error) {
	var w agentv1.DiskWipe
	if err := proto.Unmarshal(c.Payload, &w); err != nil || len(w.Disks) != 1 {
		return nil, session.ErrInvalidPayload
	}
	if w.Disks[0].Serial != testSerial {
		return nil, errors.New("no disk has that serial")
	}
	m.wipes.Add(1)
	return &agentv1.DiskWipeResult{}, nil
}

// start joins an agent to a hostile gateway on the loopback.
func start(t *testing.T, handlers map[string]session.Handler) *attack {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g, err := NewGateway(ln.Addr().String(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(ln) }()
	ctx, cancel := context.WithCancel(context.Background())
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	cfg := link.Config{URL: "https://" + g.address, ServerName: ServerName, SPKIPins: [][]byte{g.servingCA.pin()}}
	id, err := session.Join(ctx, session.JoinParams{Link: cfg, JoinSigningKey: &g.joinKey.PublicKey, Key: key, Role: ramdisk, Attestor: "discovery", Version: "test",
		Hardware: &commonv1.HardwareClaims{}, Evidence: func([]byte) ([]byte, error) { return []byte("any"), nil }})
	if err != nil {
		t.Fatal(err)
	}
	a, err := session.New(session.Config{Link: cfg, Identity: id, JoinSigningKey: &g.joinKey.PublicKey, BootID: "boot-test", Version: "test",
		JournalPath: filepath.Join(t.TempDir(), "journal"), Hardware: &commonv1.HardwareClaims{}, Handlers: handlers})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
		stopped, done := context.WithTimeout(context.Background(), time.Second)
		defer done()
		g.Stop(stopped)
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	deadline := time.After(20 * time.Second)
	for !g.Connected() {
		g.mu.Lock()
		changed := g.changed
		g.mu.Unlock()
		select {
		case <-changed:
		case <-deadline:
			t.Fatal("no session")
		}
	}
	return &attack{g: g, serial: testSerial}
}

func TestEveryTrialIsRefusedAndTheGoodCommandRuns(t *testing.T) {
	t.Parallel()
	m := &machine{}
	a := start(t, map[string]session.Handler{"disk.wipe": {Destructive: true, Run: m.wipe}})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, tr := range trials() {
		got, err := tr.do(ctx, a)
		if err != nil {
			t.Fatalf("%s: %v", tr.name, err)
		}
		if ok, words := tr.judge(got); !ok || m.wipes.Load() != 0 {
			t.Errorf("%s: got %q and %d wipes, want reason %v, words %v and no wipe", tr.name, words, m.wipes.Load(), tr.reason, tr.says)
		}
	}
	b, err := decode(a.withheld)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := a.deliver(ctx, b.CommandId, a.withheld); err != nil || word(got.update.State) != "succeeded" || m.wipes.Load() != 1 {
		t.Errorf("the withheld command: got %v, %v and %d wipes, want one", got.update, err, m.wipes.Load())
	}
	if a.g.forged != 0 {
		t.Errorf("got %d updates that the machine did not sign", a.g.forged)
	}
}

// A judge that takes any refusal for the right one would hide a check that is gone.
func TestJudgeWantsTheReason(t *testing.T) {
	t.Parallel()
	tr := altered("x", expired, "expired", func(*agentv1.CommandBody) {})
	for name, got := range map[string]answer{
		"another reason": {update: &agentv1.CommandUpdate{State: commonv1.CommandState_COMMAND_STATE_REJECTED, RejectReason: badSignature, Message: "expired"}},
		"other words":    {update: &agentv1.CommandUpdate{State: commonv1.CommandState_COMMAND_STATE_REJECTED, RejectReason: expired, Message: "no"}},
		"it ran":         {update: &agentv1.CommandUpdate{State: commonv1.CommandState_COMMAND_STATE_SUCCEEDED, Message: "expired"}},
		"no answer":      {note: "expired"},
	} {
		if ok, words := tr.judge(got); ok {
			t.Errorf("%s: got a pass for %q", name, words)
		}
	}
	if ok, _ := (trial{}).judge(answer{update: &agentv1.CommandUpdate{}}); ok {
		t.Error("a withheld command that was answered: got a pass")
	}
}
