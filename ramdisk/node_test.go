package ramdisk

import (
	"bytes"
	"crypto/x509"
	"errors"
	"os"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// seed is what a deploy would leave for the node.
func (b *bench) seed(secret string) {
	a := b.g.Anchors()
	signing, err := x509.MarshalPKIXPublicKey(b.g.JoinSigningKey())
	if err != nil {
		b.t.Fatal(err)
	}
	sealing, err := x509.MarshalPKIXPublicKey(b.g.JoinEncryptionKey())
	if err != nil {
		b.t.Fatal(err)
	}
	c, err := nodeConfig(&agentv1.NodeSeed{GatewayUrl: a.GatewayUrl, GatewayServerName: a.GatewayServerName, NodeId: string(node), ServingCaSpkiSha256: a.ServingCaSpkiSha256,
		JoinSigningKey: signing, JoinEncryptionKey: sealing, TrustDomain: a.TrustDomain, SiteId: a.SiteId, WorkflowId: "wf-1"}, []byte(secret))
	if err != nil {
		b.t.Fatal(err)
	}
	file, err := c.Encode()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(b.config().ConfigFile, file, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func TestNodeJoinsOnceAndStaysTheSame(t *testing.T) {
	b := newBench(t)
	b.role = Node
	b.seed("the secret of this deploy")
	a, err := newAgent(b.config(), b.p)
	if err != nil {
		t.Fatal(err)
	}
	a.cfg.JoinOnly = true
	if err := a.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	joins := b.g.Joins()
	if len(joins) != 1 || joins[0].Attestor != "provisioned" || joins[0].Role != commonv1.AgentRole_AGENT_ROLE_NODE {
		t.Fatalf("joins: got %v", joins)
	}
	if secret, err := b.g.OpenEvidence(joins[0]); err != nil || string(secret) != "the secret of this deploy" {
		t.Errorf("evidence: got %q, %v", secret, err)
	}
	if file, err := os.ReadFile(b.config().ConfigFile); err != nil || bytes.Contains(file, []byte("join_secret =")) {
		t.Errorf("the used secret is still in the configuration (%v)", err)
	}
	b.start() // as after a reboot
	b.g.WaitConnected(node, commonv1.AgentRole_AGENT_ROLE_NODE)
	if n := len(b.g.Joins()); n != 1 {
		t.Errorf("%d joins, want 1: the identity must outlive a reboot", n)
	}
	u := b.g.Run(node, commonv1.AgentRole_AGENT_ROLE_NODE, "inventory.refresh", &agentv1.InventoryRefresh{})
	var r agentv1.InventoryRefreshResult
	if err := proto.Unmarshal(u.Result, &r); err != nil || len(r.Sha256) != 5 {
		t.Errorf("inventory.refresh: got %v, %v, %v", u.State, &r, err)
	}
	if u := b.g.Run(node, commonv1.AgentRole_AGENT_ROLE_NODE, "disk.wipe", &agentv1.DiskWipe{}); u.RejectReason != commonv1.CommandRejectReason_COMMAND_REJECT_REASON_UNSUPPORTED {
		t.Errorf("a node took disk.wipe: %v %v", u.State, u.RejectReason)
	}
}

func TestSEC04_NodeAfterAPowerCycleWithoutAClock(t *testing.T) {
	for name, off := range map[string]time.Duration{"2000": -26 * 365 * 24 * time.Hour, "2090": 64 * 365 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.role = Node
			b.seed("the secret of this deploy")
			a, err := newAgent(b.config(), b.p)
			if err != nil {
				t.Fatal(err)
			}
			a.cfg.JoinOnly = true
			if err := a.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			b.mu.Lock()
			b.clock = off
			b.mu.Unlock()
			b.start()
			b.g.WaitConnected(node, commonv1.AgentRole_AGENT_ROLE_NODE)
			waitFor(t, "the clock", func() bool { return time.Since(b.p.now()).Abs() < time.Minute })
			if !b.said("is not believed") || len(b.g.Joins()) != 1 {
				t.Errorf("got %q and %d joins", b.lines, len(b.g.Joins()))
			}
		})
	}
}

func TestNodeWithoutIdentityOrSecret(t *testing.T) {
	b := newBench(t)
	b.role = Node
	b.seed("")
	a, err := newAgent(b.config(), b.p)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Run(t.Context()); !errors.Is(err, ErrNotProvisioned) {
		t.Errorf("got %v, want ErrNotProvisioned", err)
	}
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	for _, c := range []Config{{}, {Role: "site"}, {Role: Node}, {Role: Node, StateDir: "x"}} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
	if _, err := New(Config{Role: RAMDisk}); err != nil {
		t.Error(err)
	}
}
