package gatewayserver_test

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"firstlight/gateway-client/gatewayserver"
	"firstlight/gateway-client/gatewaytest"
	"firstlight/gateway-client/ident"
	"firstlight/gateway-client/link"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/gateway-client/session"
)

const (
	nodeRole = commonv1.AgentRole_AGENT_ROLE_NODE
	ramdisk  = commonv1.AgentRole_AGENT_ROLE_RAMDISK
	node     = ident.NodeID("node-a")
)

type stream = grpc.BidiStreamingClient[agentv1.AgentFrame, agentv1.ServerFrame]

// dial opens a connection with an identity's certificate; nil has none.
func dial(t *testing.T, g *gatewaytest.Gateway, id *session.Identity) *grpc.ClientConn {
	t.Helper()
	cfg := g.Link()
	cfg.Certificate = certificate(id)
	cc, err := link.Dial(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

func certificate(id *session.Identity) *tls.Certificate {
	if id == nil {
		return nil
	}
	return &tls.Certificate{Certificate: [][]byte{id.Chain[0].Raw}, PrivateKey: id.Key}
}

// open starts a stream and says the frames.
func open(t *testing.T, g *gatewaytest.Gateway, id *session.Identity, frames ...*agentv1.AgentFrame) stream {
	t.Helper()
	s, err := agentv1.NewAgentGatewayClient(dial(t, g, id)).Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range frames {
		if err := s.Send(f); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	return s
}

// ended reads until the gateway ends the stream.
func ended(t *testing.T, s stream) error {
	t.Helper()
	for {
		if _, err := s.Recv(); err != nil {
			return err
		}
	}
}

func hello(id *session.Identity, change func(*agentv1.Hello)) *agentv1.AgentFrame {
	h := &agentv1.Hello{NodeId: string(id.NodeID), Role: id.Role, BootId: "boot", JournalId: "journal", ProtoMin: 1, ProtoMax: 1}
	if change != nil {
		change(h)
	}
	return &agentv1.AgentFrame{Frame: &agentv1.AgentFrame_Hello{Hello: h}}
}

func beat() *agentv1.AgentFrame {
	return &agentv1.AgentFrame{Frame: &agentv1.AgentFrame_Heartbeat{Heartbeat: &agentv1.Heartbeat{Sequence: 7}}}
}

func update(u *agentv1.CommandUpdate) *agentv1.AgentFrame {
	return &agentv1.AgentFrame{Frame: &agentv1.AgentFrame_Update{Update: u}}
}

func TestSession_refusals(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	good := g.Identity(node, ramdisk)
	say := func(f func(*agentv1.Hello)) []*agentv1.AgentFrame { return []*agentv1.AgentFrame{hello(good, f)} }
	then := func(f *agentv1.AgentFrame) []*agentv1.AgentFrame { return []*agentv1.AgentFrame{hello(good, nil), f} }
	issue := func(ca *gatewaytest.CA, change func(*x509.Certificate)) *session.Identity {
		id := *good
		uri, _ := ident.Identity{TrustDomain: gatewaytest.TrustDomain, Site: gatewaytest.Site, Node: node}.URI()
		id.Chain = []*x509.Certificate{ca.Issue("x", &id.Key.PublicKey, func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
			c.URIs = []*url.URL{uri, ident.RoleURI(ramdisk)}
			change(c)
		})}
		return &id
	}
	for _, c := range []struct {
		name   string
		id     *session.Identity
		frames []*agentv1.AgentFrame
		code   codes.Code
		text   string
	}{
		{"no certificate", nil, say(nil), codes.Unauthenticated, "no node certificate"},
		{"stranger's CA", issue(gatewaytest.NewCA(t, "x", time.Now()), func(*x509.Certificate) {}), say(nil), codes.Unauthenticated, "not valid"},
		{"serving certificate's usage", issue(g.NodeCA, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), say(nil), codes.Unauthenticated, "not valid"},
		{"expired (SEC-04: names both clocks)", issue(g.NodeCA, func(c *x509.Certificate) {
			c.NotAfter = time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
			c.NotBefore = c.NotAfter.AddDate(-1, 0, 0)
		}),
			say(nil), codes.Unauthenticated, "to 2020-01-02T03:04:05Z"},
		{"other trust domain", issue(g.NodeCA, func(c *x509.Certificate) {
			c.URIs[0], _ = ident.Identity{TrustDomain: "other.test", Site: gatewaytest.Site, Node: node}.URI()
		}), say(nil), codes.Unauthenticated, "trust domain"},
		{"two identities", issue(g.NodeCA, func(c *x509.Certificate) { c.URIs = append(c.URIs, c.URIs[0]) }), say(nil), codes.Unauthenticated, "SPIFFE"},
		{"no role", issue(g.NodeCA, func(c *x509.Certificate) { c.URIs = c.URIs[:1] }), say(nil), codes.PermissionDenied, "role"},
		{"wrong role", good, say(func(h *agentv1.Hello) { h.Role = nodeRole }), codes.PermissionDenied, "hello says role"},
		{"another node", good, say(func(h *agentv1.Hello) { h.NodeId = "node-b" }), codes.PermissionDenied, `"node-b"`},
		{"lacks role", good, say(func(h *agentv1.Hello) { h.Role = 0 }), codes.InvalidArgument, "lacks"},
		{"lacks boot id", good, say(func(h *agentv1.Hello) { h.BootId = "" }), codes.InvalidArgument, "lacks"},
		{"lacks journal id", good, say(func(h *agentv1.Hello) { h.JournalId = "" }), codes.InvalidArgument, "lacks"},
		{"long name", good, say(func(h *agentv1.Hello) { h.DaemonVersion = strings.Repeat("v", 300) }), codes.InvalidArgument, "too long"},
		{"first frame is not hello", good, []*agentv1.AgentFrame{beat()}, codes.InvalidArgument, "not hello"},
		{"second hello", good, then(hello(good, nil)), codes.InvalidArgument, "second hello"},
		{"result over the bound", good, then(update(&agentv1.CommandUpdate{CommandId: "c", Result: make([]byte, link.MaxCommandBytes+1)})), codes.InvalidArgument, "too large"},
		{"too many lines", good, then(&agentv1.AgentFrame{Frame: &agentv1.AgentFrame_Log{Log: &agentv1.LogBatch{Lines: slices.Repeat([]*agentv1.LogLine{{Text: "x"}}, gatewayserver.MaxLogLines+1)}}}), codes.InvalidArgument, "log: want at most"},
		{"another journal's events", good, then(&agentv1.AgentFrame{Frame: &agentv1.AgentFrame_Events{Events: &agentv1.EventBatch{JournalId: "other", Events: []*agentv1.Event{{}}}}}), codes.InvalidArgument, "journal"},
		{"inventory of another digest", good, then(&agentv1.AgentFrame{Frame: &agentv1.AgentFrame_Inventory{Inventory: &agentv1.InventorySection{Name: "cpu", Encoding: []byte("x"), Sha256: make([]byte, 32)}}}), codes.InvalidArgument, "digest"},
	} {
		t.Run(c.name, func(t *testing.T) { // one after the other: they are one node's sessions
			err := ended(t, open(t, g, c.id, c.frames...))
			if status.Code(err) != c.code || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v, want %s with %q", err, c.code, c.text)
			}
		})
	}
}

// raw lets a test send bytes that are no frame.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error)   { return v.([]byte), nil }
func (raw) Unmarshal(b []byte, v any) error { *v.(*[]byte) = b; return nil }
func (raw) Name() string                    { return "proto" }

func TestSession_framesThatAreNone(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	id := g.Identity(node, ramdisk)
	for name, c := range map[string]struct {
		message []byte
		code    codes.Code
	}{
		"undecodable": {[]byte{0x0a, 0xff}, codes.InvalidArgument},
		"oversize":    {make([]byte, link.MaxFrameBytes+1), codes.ResourceExhausted},
	} {
		s, err := dial(t, g, id).NewStream(t.Context(), &agentv1.AgentGateway_ServiceDesc.Streams[0], agentv1.AgentGateway_Session_FullMethodName,
			grpc.ForceCodec(raw{}), grpc.MaxCallSendMsgSize(2*link.MaxFrameBytes))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SendMsg(c.message); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		var b []byte
		if err := s.RecvMsg(&b); status.Code(err) != c.code {
			t.Errorf("%s: got %v, want %s", name, err, c.code)
		}
	}
	err := dial(t, g, id).Invoke(t.Context(), "/bettercompute.agent.v1.AgentGateway/Nothing", &agentv1.Ack{}, &agentv1.Ack{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("unknown method: got %v, want UNIMPLEMENTED", err)
	}
}

func TestSession_unknownFrameIsIgnored(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	id := g.Identity(node, ramdisk)
	newer := new(agentv1.AgentFrame)
	b := protowire.AppendTag(nil, 99, protowire.BytesType)
	if err := proto.Unmarshal(protowire.AppendBytes(b, []byte("x")), newer); err != nil {
		t.Fatal(err)
	}
	s := open(t, g, id, hello(id, nil), newer, beat())
	w, err := s.Recv()
	if err != nil || w.GetWelcome() == nil {
		t.Fatalf("got %v, %v, want welcome first", w, err)
	}
	if got := w.GetWelcome(); got.ProtocolVersion != 1 || got.HeartbeatSeconds != 15 || got.SessionEpoch == 0 || got.UpgradeRequired || got.ServerTime == nil {
		t.Errorf("got welcome %v", got)
	}
	if f, err := s.Recv(); err != nil || f.GetAck().GetHeartbeatSequence() != 7 {
		t.Errorf("got %v, %v, want the heartbeat's ack", f, err)
	}
}

func TestSession_acksWhatIsStored(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	id := g.Identity(node, ramdisk)
	enc := []byte("section")
	sum := sha256.Sum256(enc)
	s := open(t, g, id, hello(id, func(h *agentv1.Hello) { h.InventorySha256 = map[string][]byte{"cpu": sum[:]}; h.TrustVersion = 1 }),
		&agentv1.AgentFrame{Frame: &agentv1.AgentFrame_Inventory{Inventory: &agentv1.InventorySection{Name: "cpu", Encoding: enc, Sha256: sum[:]}}},
		&agentv1.AgentFrame{Frame: &agentv1.AgentFrame_Events{Events: &agentv1.EventBatch{JournalId: "journal", Events: []*agentv1.Event{{Sequence: 4}, {Sequence: 5}}}}})
	w, err := s.Recv()
	if err != nil || len(w.GetWelcome().GetInventorySections()) != 1 || w.GetWelcome().Trust != nil {
		t.Fatalf("got %v, %v, want the section asked for and no bundle that the agent has", w, err)
	}
	a, err := s.Recv()
	if err != nil || a.GetAck().GetEventSequence() != 5 || a.GetAck().JournalId != "journal" {
		t.Errorf("got %v, %v, want events acked up to 5", a, err)
	}
	g.Wait("inventory", func() bool { return string(g.Inventory(node)["cpu"]) == "section" })
}

func TestSession_newerSupersedesOlderOfTheSameRoleOnly(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	id := g.Identity(node, ramdisk)
	first := open(t, g, id, hello(id, nil))
	g.WaitHellos(node, ramdisk, 1)
	other := g.Identity(node, nodeRole)
	second := open(t, g, other, hello(other, nil))
	g.WaitHellos(node, nodeRole, 1)
	if !g.Server().Connected(node, ramdisk) || !g.Server().Connected(node, nodeRole) {
		t.Error("two roles of one node exclude each other")
	}
	third := open(t, g, id, hello(id, nil))
	if err := ended(t, first); status.Code(err) != codes.Aborted {
		t.Errorf("older session: got %v, want ABORTED", err)
	}
	g.WaitHellos(node, ramdisk, 2)
	if err := g.Server().Send(node, ramdisk, g.Command(node, ramdisk, "x", nil)); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"welcome", "command"} {
		f, err := third.Recv()
		if err != nil || (want == "welcome") != (f.GetWelcome() != nil) || (want == "command") != (f.GetCommand() != nil) {
			t.Errorf("newer session: got %v, %v, want %s", f, err, want)
		}
	}
	if f, err := second.Recv(); err != nil || f.GetWelcome() == nil {
		t.Errorf("session of the other role: got %v, %v", f, err)
	}
}

func TestSend_refusals(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	c := g.Command(node, ramdisk, "x", nil)
	if err := g.Server().Send(node, ramdisk, c); !errors.Is(err, gatewayserver.ErrNotConnected) {
		t.Errorf("got %v, want ErrNotConnected", err)
	}
	id := g.Identity(node, ramdisk)
	s := open(t, g, id, hello(id, func(h *agentv1.Hello) { h.ProtoMin, h.ProtoMax = 2, 3 }))
	if w, err := s.Recv(); err != nil || !w.GetWelcome().GetUpgradeRequired() || w.GetWelcome().ProtocolVersion != 1 {
		t.Errorf("got %v, %v, want upgrade_required", w, err)
	}
	if err := g.Server().Send(node, ramdisk, c); !errors.Is(err, gatewayserver.ErrUpgradeRequired) {
		t.Errorf("got %v, want ErrUpgradeRequired", err)
	}
}

func TestRevoke_tellsAndEnds(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	id := g.Identity(node, ramdisk)
	s := open(t, g, id, hello(id, nil))
	g.WaitConnected(node, ramdisk)
	g.Server().Revoke(node, nodeRole, "not this one")
	g.Server().Revoke(node, ramdisk, "stolen")
	var told string
	var err error
	for err == nil {
		var f *agentv1.ServerFrame
		if f, err = s.Recv(); f.GetRevoked() != nil {
			told = f.GetRevoked().Reason
		}
	}
	if told != "stolen" || status.Code(err) != codes.Unauthenticated {
		t.Errorf("got notice %q and %v, want stolen and UNAUTHENTICATED", told, err)
	}
}

func TestStop_endsSessionsWithUnavailable(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	id := g.Identity(node, ramdisk)
	s := open(t, g, id, hello(id, nil))
	g.WaitConnected(node, ramdisk)
	g.Stop()
	if err := ended(t, s); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v, want UNAVAILABLE", err)
	}
	if err := g.WaitDisconnected(node, ramdisk); status.Code(err) != codes.Unavailable {
		t.Errorf("control was told %v, want UNAVAILABLE", err)
	}
}

func TestJoin_bounds(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	c := agentv1.NewAgentGatewayClient(dial(t, g, nil))
	for name, r := range map[string]*agentv1.JoinRequest{
		"no csr":        {Role: ramdisk},
		"long csr":      {Role: ramdisk, Csr: make([]byte, gatewayserver.MaxCSRBytes+1)},
		"long evidence": {Role: ramdisk, Csr: []byte{1}, Evidence: make([]byte, gatewayserver.MaxEvidenceBytes+1)},
		"no role":       {Csr: []byte{1}},
		"many macs":     {Role: ramdisk, Csr: []byte{1}, Hardware: &commonv1.HardwareClaims{Macs: make([]string, gatewayserver.MaxMACs+1)}},
	} {
		if _, err := c.Join(t.Context(), r); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: got %v, want INVALID_ARGUMENT", name, err)
		}
	}
	if n := len(g.Joins()); n != 0 {
		t.Errorf("%d requests reached the JoinService, want none", n)
	}
	if _, err := c.Renew(t.Context(), &agentv1.RenewRequest{Csr: []byte{1}}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("renew without a certificate: got %v, want UNAUTHENTICATED", err)
	}
}

func TestNew_refusesHalfAConfiguration(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]gatewayserver.Config{
		"empty":       {},
		"no services": {Certificate: gatewaytest.NewCA(t, "x", time.Now()).Serving(), TrustDomain: "a"},
	} {
		if _, err := gatewayserver.New(cfg); err == nil {
			t.Errorf("%s: got a server", name)
		}
	}
}
