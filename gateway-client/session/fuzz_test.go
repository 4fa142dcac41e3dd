package session

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"log/slog"
	"math/big"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	"firstlight/gateway-client/link"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

var fuzzNow = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// bench is an agent without a gateway, and the worker key that it believes.
func bench(tb testing.TB, handlers map[string]Handler) (*Agent, envelope.Signer) {
	tb.Helper()
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			tb.Fatal(err)
		}
		return k
	}
	issue := func(t, parent *x509.Certificate, pub *ecdsa.PublicKey, by *ecdsa.PrivateKey) *x509.Certificate {
		t.SerialNumber, t.NotBefore, t.NotAfter = big.NewInt(1), fuzzNow.Add(-time.Hour), fuzzNow.Add(time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, t, parent, pub, by)
		if err != nil {
			tb.Fatal(err)
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			tb.Fatal(err)
		}
		return c
	}
	rk, wk, nk := key(), key(), key()
	root := &x509.Certificate{IsCA: true, BasicConstraintsValid: true}
	root = issue(root, root, &rk.PublicKey, rk)
	worker := issue(&x509.Certificate{URIs: []*url.URL{ident.SignURI("command")}}, root, &wk.PublicKey, rk)
	me := ident.Identity{TrustDomain: "t.test", Site: "s", Node: "node-a"}
	uri, err := me.URI()
	if err != nil {
		tb.Fatal(err)
	}
	const role = commonv1.AgentRole_AGENT_ROLE_RAMDISK
	leaf := issue(&x509.Certificate{URIs: []*url.URL{uri, ident.RoleURI(role)}}, root, &nk.PublicKey, rk)
	a, err := New(Config{
		Identity: &Identity{NodeID: me.Node, Role: role, Key: nk, Chain: []*x509.Certificate{leaf},
			Trust: &commonv1.TrustBundle{Version: 1, TrustDomain: me.TrustDomain, CommandSigningRoots: [][]byte{root.Raw}, NodeCas: [][]byte{root.Raw}}},
		JoinSigningKey: &rk.PublicKey, BootID: "b", JournalPath: filepath.Join(tb.TempDir(), "journal"),
		Handlers: handlers, Now: func() time.Time { return fuzzNow }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { a.work.Wait(); a.journal.close() })
	return a, envelope.Signer{Key: wk, Chain: []*x509.Certificate{worker}}
}

func signed(tb testing.TB, s envelope.Signer, id string) *agentv1.Command {
	tb.Helper()
	raw, err := proto.Marshal(&agentv1.CommandBody{CommandId: id, Kind: "test.run", Audience: "node-a", Role: commonv1.AgentRole_AGENT_ROLE_RAMDISK,
		IssuedAt: timestamppb.New(fuzzNow), NotAfter: timestamppb.New(fuzzNow.Add(time.Minute)), WorkflowId: "wf", Generation: 1})
	if err != nil {
		tb.Fatal(err)
	}
	sig, err := s.Sign(envelope.Command, raw)
	if err != nil {
		tb.Fatal(err)
	}
	return &agentv1.Command{Body: raw, Signature: sig}
}

// FuzzCommand: whatever a gateway sends as a command, nothing passes the checks but what the worker signed.
func FuzzCommand(f *testing.F) {
	a, s := bench(f, nil)
	good := signed(f, s, "cmd-1")
	if body, no := a.check(good, fuzzNow); no != nil || body.CommandId != "cmd-1" {
		f.Fatalf("got %v, %v", body, no)
	}
	raw, err := proto.Marshal(good)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	for _, c := range []*agentv1.Command{{}, {Body: good.Body}, {Signature: good.Signature}, {Body: good.Body[:10], Signature: good.Signature}} {
		b, err := proto.Marshal(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var c agentv1.Command
		if proto.Unmarshal(raw, &c) != nil {
			return
		}
		body, no := a.check(&c, fuzzNow)
		if (body == nil) == (no == nil) {
			t.Fatalf("got %v and %v", body, no)
		}
		if no == nil && string(c.Body) != string(good.Body) {
			t.Errorf("a body that nobody signed passes: %x", c.Body)
		}
		if id := commandID(c.Body); len(id) > MaxWordBytes {
			t.Errorf("got an id of %d bytes", len(id))
		}
	})
}

// FuzzJoinResponse: an answer that the pinned key did not sign never becomes an identity.
func FuzzJoinResponse(f *testing.F) {
	a, _ := bench(f, nil)
	p := JoinParams{JoinSigningKey: a.cfg.JoinSigningKey, Key: a.cfg.Identity.Key, Role: a.cfg.Identity.Role}
	body, err := proto.Marshal(&agentv1.JoinResponseBody{NodeId: "node-a", Role: p.Role, CsrSha256: make([]byte, 32),
		CertificateChain: [][]byte{a.cfg.Identity.Chain[0].Raw}, Trust: a.trust, ServerTime: timestamppb.New(fuzzNow)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body, make([]byte, 64))
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, body, sig []byte) {
		id, _, err := p.open(make([]byte, 32), &agentv1.JoinResponse{Body: body, Signature: &commonv1.Signature{Value: sig}})
		if err == nil {
			t.Errorf("got %v from an answer that nobody signed", id)
		}
		// The body behind the signature is decoded too: the JoinService may be a newer one.
		var b agentv1.JoinResponseBody
		if proto.Unmarshal(body, &b) == nil {
			_, _ = p.identity(&b)
		}
	})
}

func TestCheck_sizeComesFirst(t *testing.T) {
	t.Parallel()
	a, s := bench(t, nil)
	c := signed(t, s, "cmd-1")
	c.Body = append(c.Body, make([]byte, link.MaxCommandBytes)...)
	_, no := a.check(c, fuzzNow)
	if no == nil || no.reason != commonv1.CommandRejectReason_COMMAND_REJECT_REASON_TOO_LARGE || commandID(c.Body) != "cmd-1" {
		t.Errorf("got %v, want TOO_LARGE for cmd-1", no)
	}
}

func TestCommandID_readsTheFirstFieldOnly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		body []byte
		want string
	}{{nil, ""}, {[]byte{0x0a, 0x02, 'a', 'b'}, "ab"}, {[]byte{0x12, 0x01, 'k', 0x0a, 0x01, 'i'}, "i"}, {[]byte{0x0a, 0x7f}, ""}, {[]byte{0xff}, ""}} {
		if got := commandID(c.body); got != c.want {
			t.Errorf("%x: got %q, want %q", c.body, got, c.want)
		}
	}
	if commandID(append([]byte{0x0a, 0x81, 0x04}, make([]byte, 513)...)) != "" {
		t.Error("an id over the bound is read")
	}
}

func TestJournal_bounds(t *testing.T) {
	t.Parallel()
	a, _ := bench(t, nil)
	j := a.journal
	if err := j.append(&agentv1.Event{Kind: "big", Message: string(make([]byte, MaxEventBytes))}); err == nil {
		t.Error("an event over the bound is kept")
	}
	for range 3 {
		if err := j.append(&agentv1.Event{Kind: "e"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.eventsAcked(2); err != nil {
		t.Fatal(err)
	}
	got, err := j.events(0)
	if err != nil || len(got) != 1 || got[0].Sequence != 3 {
		t.Errorf("got %v, %v, want event 3 alone", got, err)
	}
}
