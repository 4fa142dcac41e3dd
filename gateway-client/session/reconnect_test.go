package session_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"firstlight/gateway-client/gatewaytest"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/gateway-client/session"
)

func TestReconnect_workGoesOnAndItsResultArrives(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	began, release := make(chan struct{}), make(chan struct{})
	cfg := config(t, g, map[string]session.Handler{"test.long": {Run: func(ctx context.Context, _ *session.Call) (proto.Message, error) {
		close(began)
		<-release
		return &agentv1.DiagResult{Reason: "done"}, ctx.Err()
	}}})
	cut := cuttable(&cfg)
	start(t, cfg)
	id := g.Send(node, ramdisk, g.Command(node, ramdisk, "test.long", nil))
	<-began
	cut()
	g.WaitDisconnected(node, ramdisk)
	close(release)
	if u := g.WaitUpdate(id); u.State != succeeded {
		t.Errorf("got %v, want SUCCEEDED", u)
	}
}

func TestReconnect_resultIsResentUntilAcked(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	var refused, runs atomic.Int32
	g.SetFaults(gatewaytest.Faults{Update: func(u *agentv1.CommandUpdate) error {
		if u.State == succeeded && refused.Add(1) <= 2 {
			return errors.New("store is full")
		}
		return nil
	}})
	start(t, config(t, g, map[string]session.Handler{"test.echo": counting(&runs)}))
	id := g.Send(node, ramdisk, g.Command(node, ramdisk, "test.echo", nil))
	g.WaitHellos(node, ramdisk, 3)
	g.Wait("third time", func() bool { return refused.Load() >= 3 })
	g.SetFaults(gatewaytest.Faults{})
	g.Run(node, ramdisk, "test.echo", nil)
	if n := count(g.Updates(id), succeeded); n != 3 || runs.Load() != 2 {
		t.Errorf("result came %d times of %d runs, want 3 times (two were not stored) of 2 runs", n, runs.Load())
	}
}

func TestEvents_areJournaledAndResentUntilAcked(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	var refused atomic.Int32
	g.SetFaults(gatewaytest.Faults{Events: func(*agentv1.EventBatch) error {
		if refused.Add(1) == 1 {
			return errors.New("store is full")
		}
		return nil
	}})
	cfg := config(t, g, nil)
	a, err := session.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		a.Emit(&agentv1.Event{Kind: "test.before", Fields: map[string]string{"i": fmt.Sprint(i)}})
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	g.WaitEvent("test.before")
	a.Emit(&agentv1.Event{Kind: "test.during"})
	g.WaitEvent("test.during")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	g.WaitDisconnected(node, ramdisk)
	r := start(t, cfg)
	g.WaitHellos(node, ramdisk, 2)
	r.agent.Emit(&agentv1.Event{Kind: "test.after"})
	g.WaitEvent("test.after")
	seen := map[uint64]string{}
	for _, e := range g.Events() {
		if e.Time == nil {
			t.Errorf("event %v has no time", e)
		}
		seen[e.Sequence] = e.Kind
	}
	want := map[uint64]string{1: "test.before", 2: "test.before", 3: "test.before", 4: "test.during", 5: "test.after"}
	if fmt.Sprint(seen) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", seen, want)
	}
}

func TestTrust_newerBundleAppliesAndOlderDoesNot(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	var runs atomic.Int32
	cfg := config(t, g, map[string]session.Handler{"test.echo": counting(&runs)})
	cut := cuttable(&cfg)
	r := start(t, cfg)
	g.WaitConnected(node, ramdisk)

	b := g.Bundle()
	b.Version, b.CommandSigningRoots = 3, [][]byte{g.ServingCA.Cert.Raw}
	g.SetBundle(b)
	cut()
	g.WaitHellos(node, ramdisk, 2)
	g.Wait("status", func() bool { return len(g.Statuses(node)) == 1 && g.Statuses(node)[0].TrustVersion == 3 })
	u := g.Run(node, ramdisk, "test.echo", nil)
	if u.RejectReason != commonv1.CommandRejectReason_COMMAND_REJECT_REASON_UNTRUSTED_KEY {
		t.Errorf("a command of the root that is gone: got %v, want UNTRUSTED_KEY", u)
	}
	b.Version, b.CommandSigningRoots = 2, [][]byte{g.CommandCA.Cert.Raw}
	g.SetBundle(b)
	cut()
	if h := g.WaitHellos(node, ramdisk, 3); h.TrustVersion != 3 {
		t.Errorf("got trust version %d, want 3", h.TrustVersion)
	}
	if err := r.end(t); err != nil {
		t.Error(err)
	}
	start(t, cfg)
	if h := g.WaitHellos(node, ramdisk, 4); h.TrustVersion != 3 {
		t.Errorf("after a restart: got trust version %d, want 3 as journaled", h.TrustVersion)
	}
	if n := runs.Load(); n != 0 {
		t.Errorf("handler ran %d times, want never", n)
	}
}

func TestRun_endsWhenRefusedForGood(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func(*gatewaytest.Gateway){
		"not admitted": func(g *gatewaytest.Gateway) {
			g.SetFaults(gatewaytest.Faults{Admit: func(*agentv1.Hello) error {
				return status.Error(codes.PermissionDenied, "this node has not joined")
			}})
		},
		"revoked": func(g *gatewaytest.Gateway) {
			g.SetFaults(gatewaytest.Faults{Events: func(*agentv1.EventBatch) error {
				g.Server().Revoke(node, commonv1.AgentRole_AGENT_ROLE_UNSPECIFIED, "this node has not joined")
				return nil
			}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := gatewaytest.NewGateway(t)
			refuse(g)
			r := start(t, config(t, g, nil))
			r.agent.Emit(&agentv1.Event{Kind: "test.hello"})
			if err := r.wait(t); !errors.Is(err, session.ErrRefused) || !strings.Contains(err.Error(), "this node has not joined") {
				t.Errorf("got %v, want ErrRefused with the reason", err)
			}
		})
	}
}

func TestRun_wrongRoleInTheIdentity(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	cfg := config(t, g, nil)
	cfg.Identity.Role = commonv1.AgentRole_AGENT_ROLE_NODE
	if _, err := session.New(cfg); err == nil || !strings.Contains(err.Error(), "as ramdisk") {
		t.Errorf("got %v, want the certificate's role in it", err)
	}
}
