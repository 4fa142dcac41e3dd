package gatewayserver_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"firstlight/gateway-client/gatewayserver"
	"firstlight/gateway-client/gatewaytest"
	"firstlight/gateway-client/link"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	"firstlight/gateway-client/session"
)

// inMemory is a gateway without a network, for tests in a synctest bubble.
func inMemory(t *testing.T) (*gatewaytest.Gateway, func(*session.Identity) *grpc.ClientConn) {
	t.Helper()
	l := bufconn.Listen(256 << 10)
	g := gatewaytest.Serve(t, l)
	return g, func(id *session.Identity) *grpc.ClientConn {
		t.Helper()
		cfg := g.Link()
		cfg.DialContext = func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }
		cfg.Certificate = certificate(id)
		cc, err := link.Dial(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cc.Close() })
		return cc
	}
}

func TestSEC01_PingsOfAnIdleConnectionAreWithinTheRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, dial := inMemory(t)
		cc := dial(nil)
		cc.Connect()
		for s := cc.GetState(); s != connectivity.Ready; s = cc.GetState() {
			if !cc.WaitForStateChange(t.Context(), s) {
				t.Fatal("no connection")
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Minute)
		defer cancel()
		if cc.WaitForStateChange(ctx, connectivity.Ready) {
			t.Errorf("the connection left READY for %s within 25 idle minutes", cc.GetState())
		}
	})
}

func TestSession_timeouts(t *testing.T) {
	for _, c := range []struct {
		name   string
		frames func(*session.Identity) []*agentv1.AgentFrame
		code   codes.Code
		text   string
		after  time.Duration
	}{
		{"no hello", func(*session.Identity) []*agentv1.AgentFrame { return nil }, codes.InvalidArgument, "no hello", gatewayserver.HelloTimeout},
		{"silence after hello (SEC-02)", func(id *session.Identity) []*agentv1.AgentFrame { return []*agentv1.AgentFrame{hello(id, nil)} },
			codes.Unavailable, "no frame", gatewayserver.SilenceLimit},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, dial := inMemory(t)
				id := g.Identity(node, ramdisk)
				s, err := agentv1.NewAgentGatewayClient(dial(id)).Session(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				for _, f := range c.frames(id) {
					if err := s.Send(f); err != nil {
						t.Fatal(err)
					}
				}
				err = ended(t, s)
				if status.Code(err) != c.code || !strings.Contains(err.Error(), c.text) || time.Since(begin) != c.after {
					t.Errorf("got %v after %s, want %s with %q after %s", err, time.Since(begin), c.code, c.text, c.after)
				}
			})
		})
	}
}

func TestSession_certificateExpiresDuringIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, dial := inMemory(t)
		id := g.Identity(node, ramdisk)
		s, err := agentv1.NewAgentGatewayClient(dial(id)).Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(hello(id, nil)); err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		defer close(stop)
		go func() {
			beats := time.NewTicker(gatewayserver.HeartbeatInterval)
			defer beats.Stop()
			for {
				select {
				case <-beats.C:
					if s.Send(beat()) != nil {
						return
					}
				case <-stop:
					return
				}
			}
		}()
		err = ended(t, s)
		if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "expired") {
			t.Errorf("got %v, want UNAUTHENTICATED", err)
		}
		if now := time.Now(); now.Before(id.Chain[0].NotAfter) || now.Sub(id.Chain[0].NotAfter) > time.Minute {
			t.Errorf("it ended at %s, want %s", now, id.Chain[0].NotAfter)
		}
	})
}

func TestSession_tooManyHandshakesAskToWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, dial := inMemory(t)
		cc := dial(nil)
		c := agentv1.NewAgentGatewayClient(cc)
		var refused error
		for range gatewayserver.HandshakeBurst + 1 {
			_, refused = c.Renew(t.Context(), &agentv1.RenewRequest{})
		}
		if status.Code(refused) != codes.ResourceExhausted {
			t.Errorf("got %v, want RESOURCE_EXHAUSTED", refused)
		}
		id := g.Identity(node, ramdisk)
		s, err := agentv1.NewAgentGatewayClient(dial(id)).Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		err = ended(t, s)
		if v := s.Trailer().Get("grpc-retry-pushback-ms"); status.Code(err) != codes.ResourceExhausted || len(v) != 1 || v[0] != "2000" {
			t.Errorf("got %v with pushback %v, want RESOURCE_EXHAUSTED with 2000", err, v)
		}
	})
}
