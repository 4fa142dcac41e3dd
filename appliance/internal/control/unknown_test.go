package control_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"firstlight/appliance/internal/control"
	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/planner"
	"firstlight/gateway-client/gatewayserver"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
)

const (
	mac3  = "52:54:00:00:00:03"
	mac4  = "52:54:00:00:00:04"
	uuid3 = "03000200-0400-0500-0006-000700080009"
)

// unknown is an assertion that names no machine.
func (r *rig) unknown(lease string, macs ...string) []byte {
	r.t.Helper()
	return r.assertion(func(b *sitev1.DiscoveryAssertion) { b.NodeId, b.WorkflowId, b.LeaseId, b.Macs = "", "", lease, macs })
}

func serialClaims(uuid, serial string, macs ...string) *commonv1.HardwareClaims {
	h := claims(uuid, macs...)
	h.SystemSerial = serial
	return h
}

// An unknown machine appears with its inventory, gets nothing else, and becomes an ordinary machine when a person enrols it.
func TestUnknownMachine(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		before := len(r.sessions.sent)
		a := r.agent()
		first, err := r.joinDiscovery(a, r.unknown("d-1", mac3), serialClaims(uuid3, "S3", mac3, mac4))
		r.must(err)
		again, err := r.joinDiscovery(a, r.unknown("d-1", mac3), serialClaims(uuid3, "S3", mac3, mac4))
		if err != nil || !bytes.Equal(first, again) {
			t.Errorf("got %v for the same request again, want the same answer", err)
		}
		const name = "found-525400000003"
		m := r.show(name)
		if m.State != fleet.MachineDiscovered || strings.Join(m.MACs, " ") != mac3+" "+mac4 || m.UUID != uuid3 || m.NodeID != string(a.peer.Identity.Node) {
			t.Fatalf("got %+v, want a discovered machine with its MACs, UUID and the certificate's node id", m)
		}
		if w := m.Waiting; w == nil || w.For == "" || w.Since.IsZero() || !w.Until.IsZero() || !strings.Contains(w.Next, "--from "+name) {
			t.Errorf("got waiting %+v, want a person to enrol it, since when, without limit, and how", w)
		}
		r.connect(a)
		r.sections(a)
		if m := r.show(name); m.Hardware == nil || len(m.Hardware.Disks) != 1 || m.Connected == nil {
			t.Errorf("got hardware %+v, session %+v, want both", m.Hardware, m.Connected)
		}
		for _, c := range r.sessions.sent[before:] {
			if c.Audience == m.NodeID {
				t.Errorf("got %s sent to a machine that is nobody's, want nothing", c.Kind)
			}
		}
		if _, word := r.secret(a, nil); word == "" {
			t.Error("got a secret for a machine that is nobody's, want none")
		}
		if _, err := r.ex.Provision(t.Context(), executor.Order{Machine: name, Image: planner.Image{Name: "demo", RawSize: 1}, Reinstall: true}); err == nil ||
			!strings.Contains(err.Error(), "not enrolled") {
			t.Errorf("got %v for an order, want it refused", err)
		}

		_, err = r.joinDiscovery(r.agent(), r.unknown("d-1", mac3), claims("", mac3))
		r.refused(err, "by another key")
		if got := r.alarms(name); !strings.Contains(got, "two machines presented") {
			t.Errorf("got alarms %q, want the second claimant", got)
		}
		b := r.agent()
		_, err = r.joinDiscovery(b, r.unknown("d-2", mac4), claims("", mac4))
		r.must(err)
		if b.peer.Identity.Node != a.peer.Identity.Node || len(mustMachines(r)) != 3 {
			t.Errorf("got node %s and %d machines at its next boot, want the same record", b.peer.Identity.Node, len(mustMachines(r)))
		}
		if err := r.control.Admit(t.Context(), a.peer, &agentv1.Hello{}); err == nil {
			t.Error("got the earlier boot admitted, want it superseded")
		}

		rec, err := r.repo.AddMachine(t.Context(), fleet.Spec{Name: "m3", From: name, DiskSerials: []string{"DISK-m3"}, BMCURL: "https://10.78.0.3",
			BMCUser: "admin", BMCPassword: fleet.Secret("hunter2"), BMCCertificateSHA256: make([]byte, 32)}, now())
		r.must(err)
		m3 := r.show("m3")
		if m3.State != fleet.MachineNew || len(m3.MACs) != 2 || m3.UUID != uuid3 || m3.Hardware == nil || rec.NodeID == m.NodeID {
			t.Errorf("got %+v, want a new machine with MACs, UUID and inventory, and a node id of its own", m3)
		}
		if _, err := r.repo.Show(t.Context(), name); err == nil {
			t.Error("got the discovered record still there, want it gone")
		}
		if err := r.control.Admit(t.Context(), b.peer, &agentv1.Hello{}); err == nil {
			t.Error("got the discovery boot admitted after enrolment, want it refused")
		}
		r.provision("m3")
		_, err = r.joinDiscovery(r.agent(), r.unknown("d-3", mac3), claims(uuid3, mac3))
		r.refused(err, "is machine m3, which is not being provisioned")
	})
}

func mustMachines(r *rig) []fleet.Record {
	r.t.Helper()
	all, err := r.repo.Machines(r.t.Context())
	r.must(err)
	return all
}

func TestUnknownMachineRefusals(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		_, err := r.joinDiscovery(r.agent(), r.unknown("d-1", mac3), claims("", mac4))
		r.refused(err, "this hardware has MAC "+mac4)
		_, err = r.joinDiscovery(r.agent(), r.unknown("d-1", mac1), claims("", mac1))
		r.refused(err, "is machine m1, which is not being provisioned")
		_, err = r.joinDiscovery(r.agent(), r.unknown("", mac3), claims("", mac3))
		r.refused(err, "has no boot lease")
		r.control = r.newControl(control.BootPolicy{})
		_, err = r.joinDiscovery(r.agent(), r.unknown("d-1", mac3), claims("", mac3))
		r.refused(err, "discovery is off")
		if n := len(mustMachines(r)); n != 2 {
			t.Errorf("got %d machines, want none added", n)
		}
		if !r.open() {
			t.Error("got m1's workflow over, want it undisturbed")
		}
	})
}

// INV-02: a machine with another's UUID joins by its own lease and MAC, both are flagged, and neither takes the other's record.
func TestINV02_JoinWithAnothersUUID(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.wiping()
		wf := r.provision("m2")
		run, _, err := r.repo.Run(t.Context(), wf)
		r.must(err)
		a := r.agent()
		_, err = r.joinDiscovery(a, r.assertion(func(b *sitev1.DiscoveryAssertion) {
			b.NodeId, b.WorkflowId, b.LeaseId, b.Macs = r.m2.NodeID, wf, run.Plan.LeaseID, []string{mac2}
		}), claims(uuid1, mac2))
		r.must(err)
		if string(a.peer.Identity.Node) != r.m2.NodeID {
			t.Errorf("got node %s, want m2's %s", a.peer.Identity.Node, r.m2.NodeID)
		}
		for _, name := range []string{"m1", "m2"} {
			if got := r.alarms(name); strings.Count(got, "UUID not unique") != 1 {
				t.Errorf("got alarms %q of %s, want the UUID flagged once", got, name)
			}
		}
		if !r.open() || r.sessions.command("disk.wipe").Audience != r.m1.NodeID {
			t.Error("want m1's workflow undisturbed and its wipe its own")
		}
		_, err = r.joinDiscovery(r.agent(), r.unknown("d-1", mac3), serialClaims(uuid1, "S", mac3))
		r.must(err)
		if m := r.show("found-525400000003"); !strings.Contains(r.alarms(m.Name), "UUID not unique") {
			t.Error("want an unknown machine with a known UUID to be another machine, and flagged")
		}
	})
}

func policyOf(t *testing.T, c *agentv1.CommandBody) *sitev1.BootPolicy {
	t.Helper()
	if c == nil {
		t.Fatal("got no boot.policy, want one")
	}
	p := new(sitev1.BootPolicy)
	if err := proto.Unmarshal(c.Payload, p); err != nil {
		t.Fatal(err)
	}
	return p
}

// The site gets its boot policy with every session, and anew when the fleet changes; the same content keeps its generation.
func TestBootPolicy(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { r.control.KeepPolicy(ctx); close(done) }()
		synctest.Wait()
		r.connect(r.site)
		c := r.sessions.command("boot.policy")
		p := policyOf(t, c)
		if !p.Discovery || p.Anchors == nil || p.Generation != 1 || len(p.Known) != 2 || p.Known[0].MachineName != "m1" || p.Known[0].Macs[0] != mac1 {
			t.Errorf("got policy %v, want generation 1 with discovery, anchors, m1 and m2", p)
		}
		if c.Role != site || c.Audience != siteNode || c.Generation != 1 {
			t.Errorf("got command %v, want it for the site agent", c)
		}
		r.connect(r.site)
		if p := policyOf(t, r.sessions.command("boot.policy")); p.Generation != 1 {
			t.Errorf("got generation %d in the next session, want the same", p.Generation)
		}
		r.add("m3", mac3, "")
		synctest.Wait()
		if p := policyOf(t, r.sessions.command("boot.policy")); p.Generation != 2 || len(p.Known) != 3 {
			t.Errorf("got %v after m3 was added, want generation 2 with three machines", p)
		}
		sent := len(r.sessions.sent)
		_, err := r.repo.Update(t.Context(), "m3", func(m *fleet.Record) error { m.Epoch++; return nil })
		r.must(err)
		synctest.Wait()
		if len(r.sessions.sent) != sent {
			t.Error("got a policy for a change that is none to the site, want nothing sent")
		}
		r.control = r.newControl(control.BootPolicy{ReplaceROM: true})
		r.connect(r.site)
		if p := policyOf(t, r.sessions.command("boot.policy")); p.Discovery || !p.ReplaceRomIpxe || p.Generation != 3 {
			t.Errorf("got %v with other settings after a restart, want generation 3", p)
		}
		r.must(r.control.Update(t.Context(), r.site.peer, r.update(r.site, "boot.policy", commonv1.CommandState_COMMAND_STATE_REJECTED, &sitev1.BootPolicyResult{})))
		all, err := r.repo.Events(t.Context(), "", 0)
		r.must(err)
		if e := all[len(all)-1]; e.Kind != "boot.policy.refused" || !strings.Contains(e.Message, "goes on with the one that it had") {
			t.Errorf("got event %+v, want that the policy was not taken up", e)
		}
		stop()
		<-done
	})
}

// The end of a session is told in words for people.
func TestSessionEndInWords(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		a := r.joined()
		for _, why := range []error{nil, context.Canceled, gatewayserver.ErrNotConnected} {
			r.control.Disconnected(t.Context(), a.peer, why)
			all, err := r.repo.Events(t.Context(), "m1", 0)
			r.must(err)
			if e := all[len(all)-1]; e.Kind != "session.closed" || strings.Contains(e.Message, "rpc error") || strings.Contains(e.Message, "context") {
				t.Errorf("got %q for %v, want words", e.Message, why)
			}
		}
	})
}
