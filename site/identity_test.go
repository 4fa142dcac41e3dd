package site

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"firstlight/gateway-client/ident"
	"firstlight/gateway-client/link"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
)

func (r *rig) agent() *Agent {
	r.t.Helper()
	must(r.t, os.MkdirAll(r.cfg.StateDir, 0o700))
	a, err := New(r.cfg)
	must(r.t, err)
	return a
}

func TestIdentityIsKeptAndRenewedInTime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.agent()
	first, err := a.identity(t.Context(), nil)
	must(t, err)
	path := filepath.Join(r.cfg.StateDir, identityFile)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got mode %v, %v, want 0600", info.Mode(), err)
	}
	kept, err := a.identity(t.Context(), nil)
	must(t, err)
	if !kept.Key.Equal(first.Key) || kept.NodeID != siteNode || !kept.Chain[0].Equal(first.Chain[0]) || r.tokens != 1 {
		t.Errorf("got node %s after %d tokens, want the same identity after one", kept.NodeID, r.tokens)
	}
	now := renewAt(first)
	if left := first.Chain[0].NotAfter.Sub(now); left <= 0 {
		t.Fatalf("renewal %s after the end", -left)
	}
	a.cfg.Now = func() time.Time { return now }
	a.cfg.Link.Now = time.Now
	fresh, err := a.identity(t.Context(), nil)
	must(t, err)
	if fresh.Key.Equal(first.Key) || r.tokens != 2 {
		t.Errorf("got the old key or %d tokens, want a new key after two", r.tokens)
	}
}

func TestIdentityOfAnotherAgentIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.agent()
	_, err := a.identity(t.Context(), nil)
	must(t, err)
	a.cfg.NodeID = "other"
	if _, err := a.identity(t.Context(), nil); err == nil || !strings.Contains(err.Error(), string(siteNode)) {
		t.Errorf("got %v, want an error that names the node of the file", err)
	}
	must(t, os.WriteFile(filepath.Join(r.cfg.StateDir, identityFile), []byte("-----BEGIN X-----\n"), 0o600))
	if _, err := a.identity(t.Context(), nil); err == nil {
		t.Error("broken file: got no error")
	}
	if r.tokens != 1 {
		t.Errorf("got %d tokens, want none for a state directory that is not understood", r.tokens)
	}
}

func TestJoinWaitsForItsGateway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var dials atomic.Int32
	r.cfg.Link.DialContext = func(ctx context.Context, address string) (net.Conn, error) {
		if dials.Add(1) == 1 {
			return nil, errors.New("connection refused")
		}
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}
	if _, err := r.agent().identity(t.Context(), nil); err != nil || r.tokens != 1 {
		t.Errorf("got %v after %d tokens, want an identity after one", err, r.tokens)
	}
}

func TestJoinFailsAtOnceWhereWaitingCannotHelp(t *testing.T) {
	t.Parallel()
	t.Run("another CA", func(t *testing.T) {
		r := newRig(t)
		r.cfg.Link.SPKIPins = [][]byte{make([]byte, 32)}
		if _, err := r.agent().identity(t.Context(), nil); !errors.Is(err, link.ErrPin) {
			t.Errorf("got %v, want ErrPin", err)
		}
	})
	t.Run("token refused", func(t *testing.T) {
		r := newRig(t)
		r.gateway.SetJoin(func(*agentv1.JoinRequest) (ident.NodeID, error) {
			return "", status.Error(codes.PermissionDenied, "token was used")
		})
		if _, err := r.agent().identity(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "token was used") {
			t.Errorf("got %v, want the gateway's reason", err)
		}
	})
	t.Run("no token", func(t *testing.T) {
		r := newRig(t)
		r.cfg.JoinToken = func() ([]byte, error) { return nil, errors.New("none left") }
		if _, err := r.agent().identity(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "none left") {
			t.Errorf("got %v, want the reason", err)
		}
	})
}

func TestEventsOfOneLeaseAreBounded(t *testing.T) {
	t.Parallel()
	var l limiters
	n := 0
	for range 10 * eventBurst {
		if l.allow("lease-1", eventsPerSecond, eventBurst) {
			n++
		}
	}
	if n < eventBurst || n > eventBurst+eventsPerSecond*int(patience.Seconds()) {
		t.Errorf("got %d events, want about %d", n, eventBurst)
	}
	if !l.allow("lease-2", eventsPerSecond, eventBurst) {
		t.Error("another lease: got none")
	}
}
