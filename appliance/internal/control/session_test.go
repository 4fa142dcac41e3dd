package control_test

import (
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/appliance/internal/control"
	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/planner"
	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

const succeeded = commonv1.CommandState_COMMAND_STATE_SUCCEEDED

func TestSecretsAreBound(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		bmc := func() *agentv1.SecretRequest {
			return &agentv1.SecretRequest{Ref: planner.BMCPasswordRef("m1"), WorkflowId: r.wf, StepId: "power-on", RequestId: "q-1"}
		}
		r.connect(r.site)
		if _, word := r.ask(r.site, bmc(), nil); word != "not-bound" {
			t.Errorf("got %q while boot.prepareRamdisk runs, want not-bound", word)
		}
		r.succeed(r.site, "boot.prepareRamdisk", &agentv1.Welcome{})
		if v, word := r.ask(r.site, bmc(), nil); word != "" || string(v) != "hunter2" {
			t.Errorf("got %q while bmc.bootOverride runs, want the password", word)
		}
		for name, c := range map[string]struct {
			change func(*agentv1.SecretRequest)
			word   string
		}{
			"another machine's password": {func(q *agentv1.SecretRequest) { q.Ref = planner.BMCPasswordRef("m2") }, "access-denied"},
			"altered after signing":      {func(q *agentv1.SecretRequest) { q.StepId = "wipe" }, "access-denied"},
			"no signature":               {func(q *agentv1.SecretRequest) { q.NodeSig = nil }, "access-denied"},
			"no key for the answer":      {func(q *agentv1.SecretRequest) { q.Epk = []byte{4} }, "access-denied"},
		} {
			if _, word := r.ask(r.site, bmc(), c.change); word != c.word {
				t.Errorf("%s: got %q, want %q", name, word, c.word)
			}
		}
		for name, q := range map[string]*agentv1.SecretRequest{
			"another machine's": {Ref: planner.BMCPasswordRef("m2"), WorkflowId: r.wf, StepId: "power-on", RequestId: "q"},
			"another step":      {Ref: planner.BMCPasswordRef("m1"), WorkflowId: r.wf, StepId: "wipe", RequestId: "q"},
			"no such workflow":  {Ref: planner.BMCPasswordRef("m1"), WorkflowId: "wf-x", StepId: "power-on", RequestId: "q"},
			"the join secret":   {Ref: planner.JoinSecretRef(r.wf), WorkflowId: r.wf, StepId: "deploy", RequestId: "q"},
		} {
			if _, word := r.ask(r.site, q, nil); word != "not-bound" {
				t.Errorf("%s: got %q, want not-bound", name, word)
			}
		}
	})
}

func TestJoinSecret(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		a := r.deploying()
		first, word := r.secret(a, nil)
		second, word2 := r.secret(a, nil)
		if word != "" || word2 != "" || len(first) != 32 || string(first) == string(second) {
			t.Fatalf("got %q, %q, want two secrets of 32 bytes", word, word2)
		}
		stranger := r.agent()
		stranger.peer = a.peer
		if _, word := r.secret(stranger, nil); word != "access-denied" {
			t.Errorf("got %q for another key, want access-denied", word)
		}
		d := &agentv1.DeployImageResult{Serial: "DISK-m1", BytesWritten: 5, BytesVerified: 5, ManifestSha256: append([]byte{1}, make([]byte, 31)...)}
		r.succeed(a, "deploy.image", d)
		if _, word := r.secret(a, nil); word != "not-bound" {
			t.Errorf("got %q after the deploy, want not-bound", word)
		}
		r.succeed(a, "boot.kexec", &agentv1.BootKexecResult{})
		n := r.agent()
		if _, err := r.joinProvisioned(n, second, claims(uuid1, mac1)); err != nil {
			t.Errorf("got %v for the secret that is on the disk, want it granted", err)
		}
		_, err := r.joinProvisioned(n, first, claims(uuid1, mac1))
		r.refused(err, "is not that of any machine's last deploy")
	})
}

func TestUpdatesAreVerified(t *testing.T) {
	for name, c := range map[string]struct {
		change func(r *rig, a *agent, u *agentv1.CommandUpdate)
		cause  string
	}{
		"no report": {func(r *rig, a *agent, u *agentv1.CommandUpdate) { u.Attested = nil }, "there is none"},
		"report by another key": {func(r *rig, a *agent, u *agentv1.CommandUpdate) {
			sig, err := envelope.Signer{Key: r.site.key}.Sign(envelope.AttestedReport, u.Attested.Body)
			r.must(err)
			u.Attested.Signature = sig
		}, "made by key"},
		"report of another command": {func(r *rig, a *agent, u *agentv1.CommandUpdate) {
			r.report(a, u, func(b *agentv1.AttestedReportBody) { b.CommandId = "cmd-x" })
		}, "about command"},
		"report of another result": {func(r *rig, a *agent, u *agentv1.CommandUpdate) {
			r.report(a, u, func(b *agentv1.AttestedReportBody) { b.Result = nil })
		}, "another result"},
		"report of another node": {func(r *rig, a *agent, u *agentv1.CommandUpdate) {
			r.report(a, u, func(b *agentv1.AttestedReportBody) { b.NodeId = "node-x" })
		}, "by node"},
		"report of another kind": {func(r *rig, a *agent, u *agentv1.CommandUpdate) {
			r.report(a, u, func(b *agentv1.AttestedReportBody) { b.Kind = "diag.nvml" })
		}, "diag.nvml"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				a := r.wiping()
				u := r.update(a, "disk.wipe", succeeded, wiped())
				c.change(r, a, u)
				r.must(r.control.Update(t.Context(), a.peer, u))
				synctest.Wait()
				r.failed("wipe", c.cause)
			})
		})
	}
}

// What the agent's key did not sign changes nothing, and is told to people.
func TestForgedUpdate(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		a := r.wiping()
		u := r.update(a, "disk.wipe", commonv1.CommandState_COMMAND_STATE_FAILED, wiped())
		r.sign(r.site, u)
		r.must(r.control.Update(t.Context(), a.peer, u))
		u = r.update(a, "disk.wipe", succeeded, wiped())
		u.Result = nil
		r.must(r.control.Update(t.Context(), a.peer, u))
		// The site agent reports, in its own name, on the machine's command.
		r.must(r.control.Update(t.Context(), r.site.peer, r.update(r.site, "disk.wipe", succeeded, wiped())))
		synctest.Wait()
		m := r.show("m1")
		if s := m.Workflow.Steps[7]; s.Name != "wipe" || s.State != fleet.StepRunning || s.Commands[0].State != fleet.CommandSent {
			t.Errorf("got step %s %s with command %+v, want it untouched", s.Name, s.State, s.Commands[0])
		}
		all, err := r.repo.Events(t.Context(), "", 0)
		r.must(err)
		n := 0
		for _, e := range all {
			if e.Kind == "update.disbelieved" {
				n++
			}
		}
		if n != 3 {
			t.Errorf("got %d events, want one for each of 3 updates", n)
		}
	})
}

func (r *rig) report(a *agent, u *agentv1.CommandUpdate, change func(*agentv1.AttestedReportBody)) {
	r.t.Helper()
	var b agentv1.AttestedReportBody
	r.must(proto.Unmarshal(u.Attested.Body, &b))
	change(&b)
	body, err := proto.Marshal(&b)
	r.must(err)
	sig, err := envelope.Signer{Key: a.key}.Sign(envelope.AttestedReport, body)
	r.must(err)
	u.Attested = &agentv1.AttestedReport{Body: body, Signature: sig}
}

// The agent says UNTRUSTED_KEY: the cause is in the failure, in words.
func TestRejectedCommand(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		a := r.wiping()
		u := r.update(a, "disk.wipe", commonv1.CommandState_COMMAND_STATE_REJECTED, &agentv1.DiskWipeResult{})
		u.RejectReason, u.Message = commonv1.CommandRejectReason_COMMAND_REJECT_REASON_UNTRUSTED_KEY, "verify command: signing key is not trusted"
		r.must(r.control.Update(t.Context(), a.peer, u))
		synctest.Wait()
		r.failed("wipe", "UNTRUSTED_KEY: verify command: signing key is not trusted")
	})
}

func TestInventory(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		a := r.joined()
		bad := &agentv1.InventorySection{Name: "cpu", Encoding: []byte{0xff, 0xff}}
		sum := sha256.Sum256(bad.Encoding)
		bad.Sha256 = sum[:]
		r.must(r.control.Inventory(t.Context(), a.peer, bad))
		r.must(r.control.Inventory(t.Context(), a.peer, &agentv1.InventorySection{Name: "cpu", Encoding: nil, Sha256: make([]byte, 32)}))
		if h := r.show("m1").Hardware; h != nil {
			t.Errorf("got hardware %+v from sections that are not whole, want none", h)
		}
		r.sections(a)
		h := r.show("m1").Hardware
		if h == nil || h.Product != "QEMU" || h.Threads != 2 || h.MemoryBytes != 1<<30 || len(h.Disks) != 1 || h.Disks[0].Serial != "DISK-m1" ||
			len(h.NICs) != 1 || len(h.Sections) != 5 {
			t.Errorf("got hardware %+v, want all five sections", h)
		}
		if r.sessions.command("disk.wipe") == nil {
			t.Error("got no disk.wipe after the inventory, want it sent")
		}
	})
}

func TestAdmit(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		a := r.joined()
		hello := &agentv1.Hello{}
		r.must(r.control.Admit(t.Context(), a.peer, hello))
		r.must(r.control.Admit(t.Context(), r.site.peer, hello))
		check := func(name string, p *agent, want codes.Code) {
			t.Helper()
			if err := r.control.Admit(t.Context(), p.peer, hello); status.Code(err) != want {
				t.Errorf("%s: got %v, want %s", name, err, want)
			}
		}
		issue := func(role commonv1.AgentRole, n string) *agent {
			x := r.agent()
			id := ident.Identity{TrustDomain: domain, Site: siteID, Node: ident.NodeID(n)}
			chain, err := r.pki.IssueAgent(&x.key.PublicKey, id, role, now())
			r.must(err)
			x.peer = a.peer
			x.peer.Identity, x.peer.Role, x.peer.Certificate = id, role, chain[0]
			return x
		}
		check("another key of the ramdisk", issue(ramdisk, r.m1.NodeID), codes.Unauthenticated)
		check("a node that has not joined", issue(node, r.m1.NodeID), codes.Unauthenticated)
		check("an unknown node", issue(node, "node-x"), codes.PermissionDenied)
		check("a machine without workflow", issue(ramdisk, r.m2.NodeID), codes.PermissionDenied)
		check("an unknown site agent", issue(site, "site-x"), codes.PermissionDenied)
		old := r.site
		r.site = r.agent()
		r.must(r.joinToken(r.site, r.token()))
		check("a superseded site agent", old, codes.Unauthenticated)
		r.must(r.ex.Post(t.Context(), r.wf, executor.Refused{Step: "join", Cause: "x"}))
		check("the ramdisk of a failed workflow", a, codes.PermissionDenied)
	})
}

func TestConnectedAndDisconnected(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		a := r.joined()
		c := r.show("m1").Connected
		if c == nil || c.Role != "ramdisk" || c.BootID != "boot-1" {
			t.Fatalf("got %+v, want the RAM disk's session", c)
		}
		lost := func() *fleet.Lost {
			run, _, err := r.repo.Run(t.Context(), r.wf)
			r.must(err)
			return run.Lost
		}
		newer := a.peer
		newer.Epoch++
		r.control.Connected(t.Context(), newer, &agentv1.Hello{})
		r.control.Disconnected(t.Context(), a.peer, context.Canceled)
		if r.show("m1").Connected == nil || lost() != nil {
			t.Error("got none after the end of an older session, want the newer one")
		}
		r.control.Disconnected(t.Context(), newer, nil)
		if c, l := r.show("m1").Connected, lost(); c != nil || l == nil || l.Why != "the agent ended it" || l.Since.IsZero() {
			t.Errorf("got %+v after the end, and %+v lost, want none and since when and why", c, l)
		}
		newer.Epoch++
		r.control.Connected(t.Context(), newer, &agentv1.Hello{})
		if l := lost(); l != nil {
			t.Errorf("got %+v lost after it came back, want none", l)
		}
		r.must(r.control.Start(t.Context()))
		if c := r.show("m1").Connected; c != nil {
			t.Errorf("got %+v after a restart of the appliance, want none", c)
		}
		synctest.Wait()
	})
}

// A batch that comes again is stored once; a new journal starts anew.
func TestEventsOnce(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		count := func() int {
			all, err := r.repo.Events(t.Context(), "m1", 0)
			r.must(err)
			n := 0
			for _, e := range all {
				if e.Kind == "boot.note" {
					n++
				}
			}
			return n
		}
		b := &agentv1.EventBatch{JournalId: "j-1"}
		for i := range 3 {
			b.Events = append(b.Events, &agentv1.Event{Sequence: uint64(i + 1), Kind: "boot.note", NodeId: r.m1.NodeID, Time: timestamppb.New(now()), Message: "x"})
		}
		for range 2 {
			r.must(r.control.Events(t.Context(), r.site.peer, b))
		}
		if n := count(); n != 3 {
			t.Errorf("got %d events of a batch that came twice, want 3", n)
		}
		b.JournalId = "j-2"
		r.must(r.control.Events(t.Context(), r.site.peer, b))
		if n := count(); n != 6 {
			t.Errorf("got %d events after another journal, want 6", n)
		}
	})
}

// A machine speaks of itself only: its events move no other machine's workflow.
func TestEventsOfAMachine(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		a := r.wiping()
		r.must(r.control.Events(t.Context(), a.peer, &agentv1.EventBatch{JournalId: "j", Events: []*agentv1.Event{
			{Sequence: 1, Kind: "boot.script.refused", NodeId: r.m2.NodeID, WorkflowId: r.wf, Fields: map[string]string{"reason": "forged"}}}}))
		synctest.Wait()
		if !r.open() {
			t.Errorf("got m1 failed %+v by a machine's event, want it going on", r.show("m1").Failure)
		}
		all, err := r.repo.Events(t.Context(), "m1", 1)
		if err != nil || len(all) != 1 || all[0].Kind != "boot.script.refused" || all[0].Machine != "m1" || all[0].Source != r.m1.NodeID {
			t.Errorf("got %+v (%v), want it stored as m1's own", all, err)
		}
	})
}

func TestRenew(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		old := r.site
		ask := func(by *agent, next *agent, at time.Time) error {
			ts := timestamppb.New(at)
			clock, err := proto.MarshalOptions{Deterministic: true}.Marshal(ts)
			r.must(err)
			sum := sha256.Sum256(next.csr)
			sig, err := envelope.Signer{Key: by.key}.Sign(envelope.RenewPoP, sum[:], []byte(siteNode), clock)
			r.must(err)
			resp, err := r.control.Renew(t.Context(), old.peer, &agentv1.RenewRequest{Csr: next.csr, ClientTime: ts, Proof: sig})
			if err != nil {
				return err
			}
			var body agentv1.JoinResponseBody
			r.must(proto.Unmarshal(resp.Response.Body, &body))
			if body.NodeId != siteNode || body.Role != site || len(body.CertificateChain) == 0 {
				t.Errorf("got %v, want a certificate of the same node and role", &body)
			}
			next.peer = old.peer
			next.peer.Certificate = mustParse(t, body.CertificateChain[0])
			return nil
		}
		next := r.agent()
		r.refused(ask(next, next, now()), "renew")
		r.refused(ask(old, next, now().Add(-2*time.Minute)), "clock")
		at := now()
		r.must(ask(old, next, at))
		r.refused(ask(old, next, at), "used before")
		r.must(r.control.Admit(t.Context(), old.peer, &agentv1.Hello{}))
		r.connect(next)
		if err := r.control.Admit(t.Context(), old.peer, &agentv1.Hello{}); status.Code(err) != codes.Unauthenticated {
			t.Errorf("got %v for the old key after the new one was seen, want UNAUTHENTICATED", err)
		}
	})
}

// Secrets are in no record, event or section that the store keeps in clear, save the sealed prefix.
func TestNoSecretAtRest(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		_, secret := r.deployed()
		for _, e := range r.dump() {
			if strings.HasPrefix(e.Key, "secrets/") {
				continue
			}
			for _, s := range []string{"hunter2", string(secret), b64(secret), b64([]byte("hunter2"))} {
				if strings.Contains(string(e.Value), s) {
					t.Errorf("got a secret in %s", e.Key)
				}
			}
		}
	})
}

func TestIncompleteConfig(t *testing.T) {
	if _, err := control.New(control.Config{}); err == nil {
		t.Error("got no error for an empty configuration, want one")
	}
	if _, err := executor.New(executor.Config{}); err == nil {
		t.Error("got no error for an empty configuration, want one")
	}
	if err := (&control.Gateway{}).Send("n", site, nil); err == nil {
		t.Error("got no error from a gateway that is not attached, want one")
	}
}

func FuzzInventory(f *testing.F) {
	good, err := proto.Marshal(&agentv1.DisksSection{Disks: []*agentv1.Disk{{Name: "vda", Serial: "x"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("disks", good)
	f.Add("cpu", []byte{0xff})
	f.Add("", []byte{})
	c, repo, dir, _ := fuzzControl(f)
	p := fuzzPeer(f, repo)
	f.Fuzz(func(t *testing.T, name string, b []byte) {
		sum := sha256.Sum256(b)
		_ = c.Inventory(t.Context(), p, &agentv1.InventorySection{Name: name, Encoding: b, Sha256: sum[:]})
		entries, err := os.ReadDir(filepath.Join(dir, "sections"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if len(e.Name()) != 64 {
				t.Errorf("got file %q, want only digests", e.Name())
			}
		}
	})
}
