package control_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/appliance/internal/fleet"
	"firstlight/gateway-client/envelope"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
)

func TestJoinToken(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		token := r.token()
		a := r.agent()
		req := &agentv1.JoinRequest{Role: site, Attestor: "join-token", Evidence: r.seal(a, token)}
		first, err := r.join(a, req)
		r.must(err)
		again, err := r.join(a, &agentv1.JoinRequest{Role: site, Attestor: "join-token", Evidence: r.seal(a, token)})
		if err != nil || !bytes.Equal(first, again) {
			t.Errorf("got %v for the same request again, want the same answer", err)
		}
		r.refused(r.joinToken(r.agent(), token), "was used before")
		r.refused(r.joinToken(r.agent(), []byte("guess")), "is not known")
		b := r.agent()
		_, err = r.join(b, &agentv1.JoinRequest{Role: site, Attestor: "join-token", Evidence: r.seal(a, token)})
		r.refused(err, "another certificate request")
		next := r.token()
		_, err = r.join(b, &agentv1.JoinRequest{Role: node, Attestor: "join-token", Evidence: r.seal(b, next)})
		r.refused(err, "for role site")
		_, err = r.join(b, &agentv1.JoinRequest{Role: site, Attestor: "join-token", Evidence: r.seal(b, next), NodeId: "site-b"})
		r.refused(err, `not for "site-b"`)
		time.Sleep(2 * time.Minute)
		r.refused(r.joinToken(b, next), "expired")
		_, err = r.join(b, &agentv1.JoinRequest{Role: site, Attestor: "join-token", Evidence: []byte("not a jwe")})
		r.refused(err, "sealed value refused")
		_, err = r.join(b, &agentv1.JoinRequest{Role: site, Attestor: "magic"})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("got %v for an unknown attestor, want INVALID_ARGUMENT", err)
		}
		b.csr = []byte("junk")
		if err := r.joinToken(b, next); status.Code(err) != codes.InvalidArgument {
			t.Errorf("got %v for junk, want INVALID_ARGUMENT", err)
		}
	})
}

func TestDiscovery(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.booted()
		a := r.agent()
		evidence := r.assertion(nil)
		first, err := r.joinDiscovery(a, evidence, claims(strings.ToUpper(uuid1), mac1))
		r.must(err)
		if s := r.show("m1").Workflow.Steps[5]; s.Name != "join" || s.State != fleet.StepDone {
			t.Errorf("got step %s %s after the join, want join done", s.Name, s.State)
		}
		time.Sleep(time.Minute)
		again, err := r.joinDiscovery(a, evidence, claims(uuid1, mac1))
		if err != nil || !bytes.Equal(first, again) {
			t.Errorf("got %v for the same request again, want the same answer", err)
		}
		if c := r.sessions.command("boot.cleanUp"); c == nil {
			t.Error("got no boot.cleanUp, want the site told that the lease is consumed")
		}
		_, err = r.joinDiscovery(r.agent(), evidence, claims(uuid1, mac1))
		r.refused(err, "was consumed already")
		if got := r.alarms("m1"); !strings.Contains(got, "was consumed already") {
			t.Errorf("got alarms %q, want the second machine", got)
		}
		r.failed("join", "was consumed already")
	})
}

func TestDiscoveryRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		evidence func(r *rig) []byte
		macs     []string
		uuid     string
		cause    string
		// fails: m1's workflow fails at join by it.
		fails bool
	}{
		"junk": {func(r *rig) []byte { return []byte{0xff} }, []string{mac1}, "", "does not decode", true},
		"expired": {func(r *rig) []byte {
			return r.assertion(func(b *sitev1.DiscoveryAssertion) { b.NotAfter = timestamppb.New(now()) })
		}, []string{mac1}, "", "expired", true},
		"not yet": {func(r *rig) []byte {
			return r.assertion(func(b *sitev1.DiscoveryAssertion) { b.IssuedAt = timestamppb.New(now().Add(time.Hour)) })
		}, []string{mac1}, "", "not yet", true},
		"other site":    {func(r *rig) []byte { return r.assertion(func(b *sitev1.DiscoveryAssertion) { b.SiteId = "site-b" }) }, []string{mac1}, "", `of site "site-b"`, true},
		"no such lease": {func(r *rig) []byte { return r.assertion(func(b *sitev1.DiscoveryAssertion) { b.LeaseId = "lease-x" }) }, []string{mac1}, "", "is not known", true},
		"other node":    {func(r *rig) []byte { return r.assertion(func(b *sitev1.DiscoveryAssertion) { b.NodeId = "node-x" }) }, []string{mac1}, "", "names node node-x", true},
		"altered": {func(r *rig) []byte {
			raw := r.assertion(nil)
			raw[10] ^= 1
			return raw
		}, []string{mac1}, "", "", true},
		"signed by no site agent": {func(r *rig) []byte {
			a := r.agent()
			chain, err := r.pki.IssueAgent(&a.key.PublicKey, r.site.peer.Identity, node, now())
			r.must(err)
			return r.assertionBy(envelope.Signer{Key: a.key, Chain: chain[:1]}, nil)
		}, []string{mac1}, "", "not the site's", true},
		"unknown hardware, lease of m1": {func(r *rig) []byte { return r.assertion(nil) }, []string{"aa:aa:aa:aa:aa:aa"}, "", "this hardware has MAC aa:aa:aa:aa:aa:aa", true},
		"m2 with the assertion of m1":   {func(r *rig) []byte { return r.assertion(nil) }, []string{mac2}, "", "is for machine m1 (MAC " + mac1 + "), this hardware has MAC " + mac2 + " and is machine m2", false},
		"other UUID":                    {func(r *rig) []byte { return r.assertion(nil) }, []string{mac1}, "00000000-58cc-4372-a567-0e02b2c3d479", "this hardware has UUID 0000", true},
		"junk of nobody":                {func(r *rig) []byte { return []byte{0xff} }, nil, "", "does not decode", false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.booted()
				_, err := r.joinDiscovery(r.agent(), c.evidence(r), claims(c.uuid, c.macs...))
				r.refused(err, c.cause)
				if c.fails {
					r.failed("join", c.cause)
				} else if !r.open() {
					t.Errorf("got m1 failed %+v, want its workflow untouched", r.show("m1").Failure)
				}
				all, err := r.repo.Events(t.Context(), "", 0)
				r.must(err)
				found := false
				for _, e := range all {
					found = found || e.Kind == "join.refused" && strings.Contains(e.Message, c.cause)
				}
				if !found {
					t.Error("got no event of the refusal, want one")
				}
				run, _, err := r.repo.Run(t.Context(), r.wf)
				r.must(err)
				if l, err := r.repo.Lease(t.Context(), run.Plan.LeaseID); err != nil || l.State == fleet.LeaseConsumed {
					t.Errorf("got lease %s (%v) after a refusal, want it not consumed", l.State, err)
				}
			})
		})
	}
}

// A machine that boots with another machine's assertion fails its own workflow, not the other's.
func TestAssertionOfAnotherMachine(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.booted()
		other := r.provision("m2")
		run2, _, err := r.repo.Run(t.Context(), other)
		r.must(err)
		evidence := r.assertion(func(b *sitev1.DiscoveryAssertion) {
			b.LeaseId, b.WorkflowId, b.NodeId, b.Macs = run2.Plan.LeaseID, other, r.m2.NodeID, []string{mac2}
		})
		_, err = r.joinDiscovery(r.agent(), evidence, claims(uuid1, mac1))
		r.refused(err, "is for machine m2")
		r.failed("join", "is for machine m2 (MAC "+mac2+"), this hardware has MAC "+mac1+" and is machine m1")
		if !r.show("m2").Workflow.State.Open() {
			t.Errorf("got m2 failed %+v, want it untouched", r.show("m2").Failure)
		}
	})
}

// Before its power cycle a machine may still run what was there: whatever that says fails nothing.
func TestRefusalBeforePowerCycle(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		_, err := r.joinDiscovery(r.agent(), []byte{0xff}, claims(uuid1, mac1))
		r.refused(err, "does not decode")
		if !r.open() {
			t.Errorf("got m1 failed %+v, want it going on", r.show("m1").Failure)
		}
	})
}

func TestDiscoveryRole(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.booted()
		_, err := r.join(r.agent(), &agentv1.JoinRequest{Role: node, Attestor: "discovery", Evidence: r.assertion(nil), Hardware: claims(uuid1, mac1)})
		r.refused(err, "ramdisk only")
	})
}

func TestProvisioned(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		secret := r.started()
		a := r.agent()
		first, err := r.joinProvisioned(a, secret, claims(uuid1, mac1))
		r.must(err)
		again, err := r.joinProvisioned(a, secret, claims(uuid1, mac1))
		if err != nil || !bytes.Equal(first, again) {
			t.Errorf("got %v for the same request again, want the same answer", err)
		}
		r.connect(a)
		r.succeed(a, "inventory.refresh", &agentv1.InventoryRefreshResult{})
		m := r.show("m1")
		key, err := envelope.KeyID(&a.key.PublicKey)
		r.must(err)
		if m.State != fleet.MachineActive || m.NodeKeyID != key || m.Connected == nil || m.Connected.Role != "node" {
			t.Errorf("got %s with key %s connected %+v, want active with the node's key and session", m.State, m.NodeKeyID, m.Connected)
		}
		// Somebody who has the secret comes after the hand-over: refused and an alarm, and the machine stays what it is.
		_, err = r.joinProvisioned(r.agent(), secret, claims(uuid1, mac1))
		r.refused(err, "was used twice")
		if got := r.show("m1"); got.State != fleet.MachineActive || !strings.Contains(r.alarms("m1"), "was used twice") {
			t.Errorf("got %s with alarms %q, want active with an alarm", got.State, r.alarms("m1"))
		}
		r.must(r.control.Admit(t.Context(), a.peer, &agentv1.Hello{}))
	})
}

// Whoever comes second, the machine or the thief, the hand-over fails and the first one's key is good for nothing.
func TestSecretUsedTwice(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		secret := r.started()
		first := r.agent()
		_, err := r.joinProvisioned(first, secret, claims(uuid1, mac1))
		r.must(err)
		r.must(r.control.Admit(t.Context(), first.peer, &agentv1.Hello{}))
		_, err = r.joinProvisioned(r.agent(), secret, claims(uuid1, mac1))
		r.refused(err, "the node's secret was used twice")
		r.failed("node-join", "the node's secret was used twice: first at")
		if !strings.Contains(r.alarms("m1"), "was used twice") {
			t.Errorf("got alarms %q, want one", r.alarms("m1"))
		}
		if err := r.control.Admit(t.Context(), first.peer, &agentv1.Hello{}); status.Code(err) != codes.Unauthenticated {
			t.Errorf("got %v for the first key's session, want UNAUTHENTICATED", err)
		}
		if len(r.sessions.revoked) != 1 {
			t.Errorf("got %v revoked, want the node's session", r.sessions.revoked)
		}
	})
}

// A thief who comes while the machine waits after its deploy gets nothing, and the hand-over ends there: the copy is known.
func TestSecretUsedBeforeTheMachineStarts(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		_, secret := r.deployed()
		_, err := r.joinProvisioned(r.agent(), secret, claims(uuid1, mac1))
		r.refused(err, "before the machine was started into its installed system")
		if !strings.Contains(r.alarms("m1"), "secret was used from 10.77.0.100:4000") {
			t.Errorf("got alarms %q, want one at once", r.alarms("m1"))
		}
		r.failed("node-join", "before the machine was started into its installed system")
		if got := r.show("m1"); got.NodeKeyID != "" {
			t.Errorf("got node key %q, want none", got.NodeKeyID)
		}
		_, err = r.joinProvisioned(r.agent(), secret, claims(uuid1, mac1))
		r.refused(err, "the node's secret was used twice")
	}, "deploy")
}

func TestProvisionedRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		do    func(r *rig) error
		cause string
		alarm bool
		fails bool
	}{
		"before the deploy has ended": {func(r *rig) error {
			secret, word := r.secret(r.deploying(), nil)
			if word != "" {
				r.t.Fatalf("got %q for the join secret, want it", word)
			}
			_, err := r.joinProvisioned(r.agent(), secret, claims(uuid1, mac1))
			return err
		}, "before the machine was started into its installed system", true, true},
		"other hardware": {func(r *rig) error {
			_, err := r.joinProvisioned(r.agent(), r.started(), claims("", "aa:aa:aa:aa:aa:aa"))
			return err
		}, "by other hardware than was installed", true, true},
		"other UUID": {func(r *rig) error {
			_, err := r.joinProvisioned(r.agent(), r.started(), claims("00000000-58cc-4372-a567-0e02b2c3d479", mac1))
			return err
		}, "by other hardware than was installed", true, true},
		"other node": {func(r *rig) error {
			a := r.agent()
			_, err := r.join(a, &agentv1.JoinRequest{Role: node, Attestor: "provisioned", Evidence: r.seal(a, r.started()), Hardware: claims(uuid1, mac1), NodeId: "node-x"})
			return err
		}, `says that it is "node-x"`, true, true},
		"a guess": {func(r *rig) error {
			r.started()
			_, err := r.joinProvisioned(r.agent(), []byte("guess"), claims(uuid1, mac1))
			return err
		}, "is not that of any machine's last deploy", false, true},
		"a guess of nobody": {func(r *rig) error {
			r.started()
			_, err := r.joinProvisioned(r.agent(), []byte("guess"), claims("", "aa:aa:aa:aa:aa:aa"))
			return err
		}, "is not that of any machine's last deploy", false, false},
		"a guess long before": {func(r *rig) error {
			r.booted()
			_, err := r.joinProvisioned(r.agent(), []byte("guess"), claims(uuid1, mac1))
			return err
		}, "is not that of any machine's last deploy", false, false},
		"another role": {func(r *rig) error {
			a := r.agent()
			_, err := r.join(a, &agentv1.JoinRequest{Role: ramdisk, Attestor: "provisioned", Evidence: r.seal(a, r.started()), Hardware: claims(uuid1, mac1)})
			return err
		}, "node only", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.refused(c.do(r), c.cause)
				if got := r.alarms("m1"); (got != "") != c.alarm {
					t.Errorf("got alarms %q, want one: %t", got, c.alarm)
				}
				if c.fails {
					r.failed("node-join", c.cause)
				}
			})
		})
	}
}

// A secret that a stranger spent before its time is spent: the machine itself comes second then.
func TestSecretSpentByStranger(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		secret := r.started()
		_, err := r.joinProvisioned(r.agent(), secret, claims("", "aa:aa:aa:aa:aa:aa"))
		r.refused(err, "by other hardware")
		_, err = r.joinProvisioned(r.agent(), secret, claims(uuid1, mac1))
		r.refused(err, "was used twice")
	})
}

// A join that the store cannot keep is not granted; the agent may ask again.
func TestJoinWithBrokenStore(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.booted()
		a, evidence := r.agent(), r.assertion(nil)
		r.breakStore(true)
		_, err := r.joinDiscovery(a, evidence, claims(uuid1, mac1))
		if status.Code(err) != codes.Unavailable {
			t.Errorf("got %v, want UNAVAILABLE", err)
		}
		r.breakStore(false)
		if _, err := r.joinDiscovery(a, evidence, claims(uuid1, mac1)); err != nil {
			t.Errorf("got %v for the same request with a working store, want it granted", err)
		}
	})
}

func FuzzJoin(f *testing.F) {
	seed := func(attestor string, evidence []byte) {
		raw, err := proto.Marshal(&agentv1.JoinRequest{Role: ramdisk, Attestor: attestor, Evidence: evidence, Hardware: claims(uuid1, mac1)})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	signed, err := proto.Marshal(&sitev1.SignedDiscoveryAssertion{Body: []byte{1}})
	if err != nil {
		f.Fatal(err)
	}
	seed("discovery", signed)
	seed("provisioned", []byte("a.b.c.d.e"))
	seed("join-token", nil)
	c, _, _, csr := fuzzControl(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		var req agentv1.JoinRequest
		if proto.Unmarshal(raw, &req) != nil {
			return
		}
		req.Csr = csr
		if _, err := c.Join(t.Context(), &req, "10.0.0.1:1"); err == nil {
			t.Error("got a certificate for junk")
		}
	})
}
