package session_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"firstlight/gateway-client/gatewaytest"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	"firstlight/gateway-client/session"
)

// inMemory is a gateway and an agent's configuration without a network, for tests in a synctest bubble.
func inMemory(t *testing.T, handlers map[string]session.Handler) (*gatewaytest.Gateway, session.Config) {
	t.Helper()
	l := bufconn.Listen(256 << 10)
	g := gatewaytest.Serve(t, l)
	cfg := config(t, g, handlers)
	cfg.Link.DialContext = func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }
	return g, cfg
}

// pass lets a bubble's time pass.
func pass(d time.Duration) { <-time.After(d) }

// TestSEC03_IdleSessionLives: heartbeats travel both ways, so neither end and nothing between them sees silence.
func TestSEC03_IdleSessionLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, cfg := inMemory(t, map[string]session.Handler{"test.good": {Run: run(nil, nil)}})
		start(t, cfg)
		g.WaitConnected(node, ramdisk)
		pass(30 * time.Minute)
		g.Run(node, ramdisk, "test.good", nil)
		if n := len(g.Hellos(node, ramdisk)); n != 1 {
			t.Errorf("got %d sessions in 30 idle minutes, want the first", n)
		}
	})
}

// silent is a link whose other end is gone without a word: bytes go nowhere and nothing comes.
type silent struct {
	net.Conn
	dead *atomic.Bool
	gone chan struct{}
}

func (c *silent) Write(b []byte) (int, error) {
	if c.dead.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *silent) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.dead.Load() {
		<-c.gone
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *silent) Close() error {
	select {
	case <-c.gone:
	default:
		close(c.gone)
	}
	if c.dead.Load() {
		return nil // the other end hears nothing
	}
	return c.Conn.Close()
}

func TestSEC02_HalfOpenLinkIsNoticedWithinAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, cfg := inMemory(t, nil)
		var dead atomic.Bool
		dial := cfg.Link.DialContext
		first := true
		cfg.Link.DialContext = func(ctx context.Context, a string) (net.Conn, error) {
			c, err := dial(ctx, a)
			if err == nil && first {
				first = false
				return &silent{Conn: c, dead: &dead, gone: make(chan struct{})}, nil
			}
			return c, err
		}
		start(t, cfg)
		g.WaitConnected(node, ramdisk)
		pass(time.Minute)
		dead.Store(true)
		cut := time.Now()
		// The wait ends with the new session; the gateway ends the older one then at the latest.
		deadline := time.After(2 * time.Minute)
		for len(g.Hellos(node, ramdisk)) < 2 {
			select {
			case <-deadline:
				t.Fatal("the agent does not come back")
			case <-time.After(time.Second):
			}
		}
		if d := time.Since(cut); d > time.Minute+session.BackoffMax {
			t.Errorf("the agent came back after %s, want at most a minute and its backoff", d)
		}
	})
}

func TestProgress_isThinnedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, cfg := inMemory(t, map[string]session.Handler{"test.wipe": {Run: func(_ context.Context, c *session.Call) (proto.Message, error) {
			for i := range uint64(1000) {
				c.Progress(&agentv1.Progress{What: "overwrite", Done: i, Total: 1000, Unit: "bytes"})
				pass(10 * time.Millisecond)
			}
			return nil, nil
		}}})
		start(t, cfg)
		u := g.Run(node, ramdisk, "test.wipe", nil)
		n, last := 0, uint64(0)
		for _, u := range g.Updates(u.CommandId) {
			if u.Progress != nil {
				n++
				if u.Progress.Done < last {
					t.Errorf("progress goes back from %d to %d", last, u.Progress.Done)
				}
				last = u.Progress.Done
			}
		}
		if n < 8 || n > 12 {
			t.Errorf("got %d progress updates in 10 s, want about 10", n)
		}
	})
}

func TestSecret_waitsAtMostItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took time.Duration
		g, cfg := inMemory(t, map[string]session.Handler{"test.secret": {Run: func(ctx context.Context, c *session.Call) (proto.Message, error) {
			begin := time.Now()
			_, err := c.Secret(ctx, "secret://x")
			took = time.Since(begin)
			return nil, err
		}}})
		release := make(chan struct{})
		defer close(release)
		g.SetFaults(gatewaytest.Faults{Secret: func(*agentv1.SecretResponse) { <-release }})
		g.SetSecret("secret://x", []byte("v"))
		start(t, cfg)
		if u := g.Run(node, ramdisk, "test.secret", nil); u.State != failed || took != session.SecretTimeout {
			t.Errorf("got %v after %s, want FAILED after %s", u, took, session.SecretTimeout)
		}
	})
}
