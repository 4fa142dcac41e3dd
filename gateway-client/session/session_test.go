package session_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"firstlight/gateway-client/gatewaytest"
	"firstlight/gateway-client/ident"
	"firstlight/gateway-client/link"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/gateway-client/sealed"
	"firstlight/gateway-client/session"
)

const (
	node    = ident.NodeID("node-a")
	ramdisk = commonv1.AgentRole_AGENT_ROLE_RAMDISK
)

// config is an agent of the gateway with one kind, "test.echo", that answers its payload's levels.
func config(t *testing.T, g *gatewaytest.Gateway, handlers map[string]session.Handler) session.Config {
	t.Helper()
	return session.Config{
		Link: g.Link(), Identity: g.Identity(node, ramdisk), JoinSigningKey: g.JoinSigningKey(), BootID: "boot-1",
		JournalPath: filepath.Join(t.TempDir(), "journal"), Version: "1.2.3", Handlers: handlers,
	}
}

// running is an agent that runs until stop or the test's end.
type running struct {
	agent *session.Agent
	err   error
	done  chan struct{}
	stop  context.CancelFunc
}

func start(t *testing.T, cfg session.Config) *running {
	t.Helper()
	a, err := session.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{agent: a, done: make(chan struct{}), stop: cancel}
	go func() { defer close(r.done); r.err = a.Run(ctx) }()
	t.Cleanup(func() { r.end(t) })
	return r
}

// end stops the agent and returns what Run returned.
func (r *running) end(t *testing.T) error {
	t.Helper()
	r.stop()
	return r.wait(t)
}

func (r *running) wait(t *testing.T) error {
	t.Helper()
	select {
	case <-r.done:
		return r.err
	case <-time.After(gatewaytest.WaitTimeout):
		t.Fatal("agent does not end")
		return nil
	}
}

func joinParams(t *testing.T, g *gatewaytest.Gateway) session.JoinParams {
	return session.JoinParams{
		Link: g.Link(), JoinSigningKey: g.JoinSigningKey(), Key: gatewaytest.Key(t), Role: ramdisk, Attestor: "discovery",
		Evidence: func([]byte) ([]byte, error) { return []byte("assertion"), nil },
		Hardware: &commonv1.HardwareClaims{SystemUuid: "u", Macs: []string{"52:54:00:00:00:01"}}, NodeID: node, Version: "1.2.3",
	}
}

func TestJoin_thenSession(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	p := joinParams(t, g)
	id, err := session.Join(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if id.NodeID != node || id.Role != ramdisk || id.Trust.Version != 1 || id.ServerTime.IsZero() {
		t.Errorf("got identity %+v", id)
	}
	r := g.Joins()[0]
	if r.Attestor != "discovery" || string(r.Evidence) != "assertion" || r.Role != ramdisk || r.Hardware.SystemUuid != "u" || r.DaemonVersion != "1.2.3" {
		t.Errorf("got join request %v", r)
	}
	cfg := config(t, g, nil)
	cfg.Identity = id
	cfg.Inventory = func(context.Context) (map[string][]byte, error) { return map[string][]byte{"cpu": []byte("x")}, nil }
	start(t, cfg)
	h := g.WaitConnected(node, ramdisk)
	if h.BootId != "boot-1" || h.JournalId == "" || h.DaemonVersion != "1.2.3" || len(h.InventorySha256["cpu"]) != 32 {
		t.Errorf("got hello %v", h)
	}
	g.Wait("inventory", func() bool { return string(g.Inventory(node)["cpu"]) == "x" })
	u := g.Run(node, ramdisk, "inventory.refresh", &agentv1.InventoryRefresh{})
	var res agentv1.InventoryRefreshResult
	if err := proto.Unmarshal(u.Result, &res); err != nil || u.State != commonv1.CommandState_COMMAND_STATE_SUCCEEDED || len(res.Sha256["cpu"]) != 32 {
		t.Errorf("got update %v, result %v (%v)", u, &res, err)
	}
}

func TestJoin_tokenIsSealedAndBoundToTheCSR(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	g.SetJoin(func(r *agentv1.JoinRequest) (ident.NodeID, error) {
		if strings.Contains(string(r.Evidence), "open sesame") {
			t.Error("the token travels in the clear")
		}
		secret, err := g.OpenEvidence(r)
		if err != nil || string(secret) != "open sesame" {
			return "", status.Errorf(codes.PermissionDenied, "token is not good: %v", err)
		}
		return "site-1", nil
	})
	p := joinParams(t, g)
	p.Role, p.Attestor, p.NodeID = commonv1.AgentRole_AGENT_ROLE_SITE, "join-token", ""
	p.Evidence = func(csr []byte) ([]byte, error) {
		s, err := sealed.Seal(g.JoinEncryptionKey(), sealed.TypJoin, sealed.JoinClaims{Secret: []byte("open sesame"), CSRSHA256: csr})
		return []byte(s), err
	}
	id, err := session.Join(t.Context(), p)
	if err != nil || id.NodeID != "site-1" {
		t.Fatalf("got %v, %v", id, err)
	}
	stolen := g.Joins()[0].Evidence
	p.Key = gatewaytest.Key(t)
	p.Evidence = func([]byte) ([]byte, error) { return stolen, nil }
	if _, err := session.Join(t.Context(), p); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "another certificate request") {
		t.Errorf("a token seen on the wire: got %v, want PERMISSION_DENIED", err)
	}
}

func TestJoin_refusals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		faults func(t *testing.T, g *gatewaytest.Gateway) gatewaytest.Faults
		change func(*session.JoinParams)
		want   string
	}{
		{name: "answer forged by the gateway", want: "not the pinned JoinService's",
			faults: func(t *testing.T, g *gatewaytest.Gateway) gatewaytest.Faults {
				return gatewaytest.Faults{Response: func(r *agentv1.JoinResponse) {
					var b agentv1.JoinResponseBody
					if err := proto.Unmarshal(r.Body, &b); err != nil {
						t.Error(err)
					}
					b.Trust.CommandSigningRoots = append(b.Trust.CommandSigningRoots, g.NodeCA.Cert.Raw)
					r.Body, _ = proto.Marshal(&b)
				}}
			}},
		{name: "signed by another key", want: "not the pinned JoinService's",
			change: func(p *session.JoinParams) { p.JoinSigningKey = &p.Key.PublicKey }},
		{name: "answer to another request", want: "another certificate request",
			faults: body(func(b *agentv1.JoinResponseBody) { b.CsrSha256[0] ^= 1 })},
		{name: "other role", want: "role site, asked for ramdisk",
			faults: body(func(b *agentv1.JoinResponseBody) { b.Role = commonv1.AgentRole_AGENT_ROLE_SITE })},
		{name: "other node", want: `node "node-z", this agent is "node-a"`,
			faults: body(func(b *agentv1.JoinResponseBody) { b.NodeId = "node-z" })},
		{name: "another's certificate", want: "for another key",
			faults: func(_ *testing.T, g *gatewaytest.Gateway) gatewaytest.Faults {
				other := g.Identity(node, ramdisk).Chain[0].Raw
				return gatewaytest.Faults{Join: func(b *agentv1.JoinResponseBody) { b.CertificateChain[0] = other }}
			}},
		{name: "certificate of another role", want: "certificate says",
			faults: func(t *testing.T, g *gatewaytest.Gateway) gatewaytest.Faults {
				return gatewaytest.Faults{Join: func(b *agentv1.JoinResponseBody) {
					c, err := x509.ParseCertificate(b.CertificateChain[0])
					if err != nil {
						t.Error(err)
						return
					}
					b.CertificateChain[0] = reissue(t, g, c).Raw
				}}
			}},
		{name: "certificate of a stranger's CA", want: "not trusted",
			faults: func(_ *testing.T, g *gatewaytest.Gateway) gatewaytest.Faults {
				return gatewaytest.Faults{Join: func(b *agentv1.JoinResponseBody) { b.Trust.NodeCas[0] = g.ServingCA.Cert.Raw }}
			}},
		{name: "no command root", want: "no command-signing root",
			faults: body(func(b *agentv1.JoinResponseBody) { b.Trust.CommandSigningRoots = nil })},
		{name: "no server time", want: "no server time",
			faults: body(func(b *agentv1.JoinResponseBody) { b.ServerTime = nil })},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := gatewaytest.NewGateway(t)
			if c.faults != nil {
				g.SetFaults(c.faults(t, g))
			}
			p := joinParams(t, g)
			if c.change != nil {
				c.change(&p)
			}
			id, err := session.Join(t.Context(), p)
			if id != nil || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, %v, want an error with %q", id, err, c.want)
			}
		})
	}
}

func body(f func(*agentv1.JoinResponseBody)) func(*testing.T, *gatewaytest.Gateway) gatewaytest.Faults {
	return func(*testing.T, *gatewaytest.Gateway) gatewaytest.Faults { return gatewaytest.Faults{Join: f} }
}

func TestJoin_refusalCarriesTheReason(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	g.SetJoin(func(*agentv1.JoinRequest) (ident.NodeID, error) {
		return "", status.Error(codes.PermissionDenied, "assertion is for machine m2")
	})
	_, err := session.Join(t.Context(), joinParams(t, g))
	if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "assertion is for machine m2") {
		t.Errorf("got %v", err)
	}
	g.SetJoin(func(*agentv1.JoinRequest) (ident.NodeID, error) {
		return "", errors.New("the database password is 1234")
	})
	_, err = session.Join(t.Context(), joinParams(t, g))
	if status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "1234") {
		t.Errorf("got %v, want UNAVAILABLE without the service's inner words", err)
	}
}

func TestJoin_waitsWhileDeferred(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	n := 0
	g.SetFaults(gatewaytest.Faults{Join: func(b *agentv1.JoinResponseBody) {
		if n++; n == 1 {
			b.CertificateChain, b.Trust = nil, nil
			b.Deferral = &agentv1.JoinDeferral{Reason: "asks a person"}
		}
	}})
	if _, err := session.Join(t.Context(), joinParams(t, g)); err != nil {
		t.Fatal(err)
	}
	j := g.Joins()
	if len(j) != 2 || string(j[0].Csr) != string(j[1].Csr) {
		t.Errorf("got %d requests, want two with the same csr", len(j))
	}
}

func TestJoin_pinMismatchNamesBothPins(t *testing.T) {
	t.Parallel()
	g, other := gatewaytest.NewGateway(t), gatewaytest.NewGateway(t)
	p := joinParams(t, g)
	p.Link.SPKIPins = other.Link().SPKIPins
	_, err := session.Join(t.Context(), p)
	if !errors.Is(err, link.ErrPin) {
		t.Fatalf("got %v, want ErrPin", err)
	}
	for _, pin := range [][]byte{other.ServingCA.Pin(), g.ServingCA.Pin()} {
		if !strings.Contains(err.Error(), hex.EncodeToString(pin)) {
			t.Errorf("got %q, want pin %x in it", err, pin)
		}
	}
	if len(g.Joins()) != 0 {
		t.Error("the request reached a gateway that is not trusted")
	}
}

func TestSEC04_ClockWrongNamesBothClocks(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	for _, clock := range []time.Time{
		time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2011, 11, 11, 0, 0, 0, 0, time.UTC), time.Now().AddDate(10, 0, 0),
	} {
		p := joinParams(t, g)
		p.Now = func() time.Time { return clock }
		_, err := session.Join(t.Context(), p)
		if !errors.Is(err, link.ErrClock) {
			t.Fatalf("clock %s: got %v, want ErrClock", clock, err)
		}
		leaf := g.ServingCA.Cert
		for _, want := range []string{clock.UTC().Format(time.RFC3339), leaf.NotBefore.UTC().Format(time.RFC3339)} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("got %q, want %s in it", err, want)
			}
		}
	}
	for _, off := range []time.Duration{-8 * time.Hour, 8 * time.Hour} {
		p := joinParams(t, g)
		p.Now = func() time.Time { return time.Now().Add(off) }
		id, err := session.Join(t.Context(), p)
		if err != nil {
			t.Errorf("clock off by %s: %v", off, err)
		} else if time.Since(id.ServerTime).Abs() > time.Minute {
			t.Errorf("clock off by %s: got server time %s", off, id.ServerTime)
		}
	}
}

// An answer may be lost: the agent that asks again with its key must not look like a second one that holds the same token.
func TestJoin_sameKeySameRequest(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	p := joinParams(t, g)
	for range 2 {
		if _, err := session.Join(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	p.Key = gatewaytest.Key(t)
	if _, err := session.Join(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	joins := g.Joins()
	if !bytes.Equal(joins[0].Csr, joins[1].Csr) {
		t.Error("two joins with one key: got two requests, want the same")
	}
	if bytes.Equal(joins[0].Csr, joins[2].Csr) {
		t.Error("another key: got the same request")
	}
}
