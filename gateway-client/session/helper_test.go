package session_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"firstlight/gateway-client/gatewaytest"
	"firstlight/gateway-client/ident"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/gateway-client/session"
)

// reissue is the same certificate for role node.
func reissue(t *testing.T, g *gatewaytest.Gateway, c *x509.Certificate) *x509.Certificate {
	id, err := ident.FromCertificate(c)
	if err != nil {
		t.Error(err)
	}
	return g.NodeCA.Agent(c.PublicKey.(*ecdsa.PublicKey), id, commonv1.AgentRole_AGENT_ROLE_NODE)
}

// killed starts an agent whose power goes: the returned function cuts its link for good and gives the journal as it was on
// the disk at that moment.
func killed(t *testing.T, cfg session.Config) func(t *testing.T) string {
	t.Helper()
	var cut atomic.Bool
	var mu sync.Mutex
	var conns []net.Conn
	cfg.Link.DialContext = func(ctx context.Context, address string) (net.Conn, error) {
		if cut.Load() {
			return nil, errors.New("power is off")
		}
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
		}
		return c, err
	}
	start(t, cfg)
	return func(t *testing.T) string {
		t.Helper()
		raw, err := os.ReadFile(cfg.JournalPath)
		if err != nil {
			t.Fatal(err)
		}
		cut.Store(true)
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			c.Close()
		}
		path := filepath.Join(t.TempDir(), "journal")
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
}

// cuttable makes the agent's connections such that the returned function cuts the one of the moment.
func cuttable(cfg *session.Config) func() {
	var mu sync.Mutex
	var last net.Conn
	cfg.Link.DialContext = func(ctx context.Context, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		mu.Lock()
		defer mu.Unlock()
		last = c
		return c, err
	}
	return func() {
		mu.Lock()
		defer mu.Unlock()
		last.Close()
	}
}
