package executor_test

import (
	"crypto/ecdsa"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
	"firstlight/gateway-client/envelope"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
)

func contains(s, part string) bool { return strings.Contains(s, part) }

// bubble runs a test in a synctest bubble with one rig, and ends its goroutines.
func bubble(t *testing.T, test func(t *testing.T, r *rig), pauseAfter ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pauseAfter...)
		defer func() { r.stop() }()
		test(t, r)
	})
}

func wantHappyEnd(t *testing.T, r *rig) {
	t.Helper()
	m := r.show()
	if m.State != fleet.MachineActive || m.Waiting != nil || m.Failure != nil {
		t.Fatalf("got %s, want active", r.describe())
	}
	for _, s := range m.Workflow.Steps {
		want := fleet.StepDone
		if s.Name == fleet.StepDiag {
			want = fleet.StepSkipped
		}
		if s.State != want || s.Start.IsZero() || s.End.IsZero() {
			t.Errorf("got step %s %s from %s to %s, want %s with both times", s.Name, s.State, s.Start, s.End, want)
		}
	}
	if why := r.step(fleet.StepDiag).Why; why != "skipped: no GPU" {
		t.Errorf("got diag %q, want skipped: no GPU", why)
	}
	kinds := []string{"boot.prepareRamdisk", "bmc.bootOverride", "bmc.power", "boot.cleanUp", "disk.wipe", "diag.nvml", "diag.dcgm",
		"deploy.image", "boot.kexec", "inventory.refresh"}
	first := map[string]string{}
	var got []string
	for _, s := range r.sender.sent {
		raw, seen := first[s.body.Kind]
		if !seen {
			first[s.body.Kind] = s.raw
			got = append(got, s.body.Kind)
		} else if raw != s.raw {
			t.Errorf("got a second, different %s, want the stored bytes again", s.body.Kind)
		}
	}
	if !slices.Equal(got, kinds) {
		t.Errorf("got commands %v, want %v", got, kinds)
	}
}

func TestHappyPath(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		for _, m := range moves() {
			if w := r.show().Waiting; w == nil || w.For == "" || w.Next == "" || w.Since.IsZero() || w.Until.IsZero() {
				t.Errorf("got waiting %+v before %q, want what for, since, until and next", w, m.name)
			}
			m.do(r)
			time.Sleep(time.Second)
		}
		wantHappyEnd(t, r)
		kid, err := envelope.KeyID(r.signer.Key.Public().(*ecdsa.PublicKey))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range r.show().Workflow.Steps {
			for _, c := range s.Commands {
				if c.KeyID != kid || c.State != fleet.CommandSucceeded || c.Issued.IsZero() || c.Ended.IsZero() {
					t.Errorf("got command %+v, want it succeeded, with key %s and times", c, kid)
				}
			}
		}
		rec, err := r.repo.Machine(t.Context(), "m1")
		if err != nil {
			t.Fatal(err)
		}
		run, _, err := r.repo.Run(t.Context(), rec.Workflow)
		if err != nil || !run.Closed || run.RAMDiskKeyID != "k-ram" || run.NodeKeyID != "k-node" {
			t.Errorf("got run closed %t with keys %q, %q (%v), want it closed with both keys", run.Closed, run.RAMDiskKeyID, run.NodeKeyID, err)
		}
	})
}

// A restart of the appliance after any move leads to the same end, and no step gets a second command.
func TestRestartAnywhere(t *testing.T) {
	for i, at := range moves() {
		t.Run(fmt.Sprintf("%02d after %s", i, at.name), func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				for j, m := range moves() {
					m.do(r)
					if i == j {
						r.restart()
					}
				}
				wantHappyEnd(t, r)
			})
		})
	}
}

// Everything twice changes nothing: agents repeat what was not acknowledged.
func TestRepeatedFacts(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		for _, m := range moves() {
			m.do(r)
			if r.show().State == fleet.MachineProvisioning {
				m.do(r)
			}
		}
		wantHappyEnd(t, r)
	})
}

func TestFailures(t *testing.T) {
	rejected := func(kind, reason string) func(r *rig) {
		return func(r *rig) {
			r.report(kind, executor.Report{State: fleet.CommandRejected, Reject: reason, Message: "key chains to no root"})
		}
	}
	failed := func(kind, message string) func(r *rig) {
		return func(r *rig) {
			r.report(kind, executor.Report{State: fleet.CommandFailed, Message: message, Attested: true})
		}
	}
	for name, c := range map[string]struct {
		until     string
		do        func(r *rig)
		step, why string
	}{
		"override not confirmed": {"ok bmc.bootOverride", func(r *rig) {
			r.succeed("bmc.bootOverride", &sitev1.BMCBootOverrideResult{Device: "disk"})
		}, "power-on", `reads boot device "disk"`},
		"another mode": {"ok bmc.bootOverride", func(r *rig) {
			r.succeed("bmc.bootOverride", &sitev1.BMCBootOverrideResult{Device: "pxe", Once: true, Mode: "bios"})
		}, "power-on", `reads firmware mode "bios", want "uefi"`},
		"still off":         {"ok bmc.power", func(r *rig) { r.succeed("bmc.power", &sitev1.BMCPowerResult{State: "off"}) }, "power-on", `power reads "off"`},
		"no dhcp":           {"boot.dhcp.offered", func(r *rig) { time.Sleep(7 * time.Minute) }, "dhcp", "waited 6m0s for the machine's firmware"},
		"tftp failed":       {"boot.tftp.served", func(r *rig) { r.event("boot.tftp.failed", "file", "snponly.efi", "reason", "no such file") }, "tftp", "no such file"},
		"tftp before offer": {"boot.dhcp.offered", func(r *rig) { r.event("boot.tftp.failed", "file", "snponly.efi", "reason", "no such file") }, "tftp", "no such file"},
		"script refused":    {"boot.script.served", func(r *rig) { r.event("boot.script.refused", "reason", "lease is consumed") }, "script", "lease is consumed"},
		"script refused, the lease used by a stranger": {"boot.script.served", func(r *rig) {
			r.event("boot.script.served", "client", "10.77.0.3")
			r.post(executor.Joined{Role: "ramdisk", KeyID: "k-stranger"})
			r.event("boot.script.refused", "reason", "lease is consumed")
		}, "script", "lease is consumed"},
		"iPXE says why":    {"boot.file.served", func(r *rig) { r.event("boot.report", "text", "iPXE could not load or start the image kernel") }, "kernel", "could not load"},
		"session refused":  {"ramdisk connects", func(r *rig) { r.event("boot.report", "text", "no session") }, "inventory", "no session"},
		"machine says why": {"ramdisk joins", func(r *rig) { r.event("boot.report", "text", "pin does not match") }, "join", "the machine says: pin does not match"},
		"join refused": {"ramdisk joins", func(r *rig) {
			r.post(executor.Refused{Step: "join", Cause: "assertion is for machine m2", Next: "look"})
		}, "join", "assertion is for machine m2"},
		"second join before the inventory": {"ramdisk connects", func(r *rig) { r.post(executor.Refused{Step: "join", Cause: "consumed by another key"}) }, "join", "another key"},
		"foreign worker key":               {"ok disk.wipe", rejected("disk.wipe", "UNTRUSTED_KEY"), "wipe", "UNTRUSTED_KEY: key chains to no root"},
		"wrong serial":                     {"ok disk.wipe", failed("disk.wipe", "no disk with serial DISK0001; found DISK0002"), "wipe", "found DISK0002"},
		"wiped another disk":               {"ok disk.wipe", func(r *rig) { r.succeed("disk.wipe", wiped("DISK0002")) }, "wipe", "says nothing of disk DISK0001"},
		"wipe not read back": {"ok disk.wipe", func(r *rig) {
			w := wiped(serial)
			w.Disks[0].BytesVerified--
			r.succeed("disk.wipe", w)
		}, "wipe", "were read back"},
		"wipe without report": {"ok disk.wipe", func(r *rig) {
			r.report("disk.wipe", executor.Report{State: fleet.CommandSucceeded, AttestError: "signature does not verify"})
		}, "wipe", "no valid report by the machine's key: signature does not verify"},
		"wipe with the report of another kind": {"ok disk.wipe", func(r *rig) {
			r.report("disk.wipe", executor.Report{State: fleet.CommandSucceeded, Attested: true, AttestedKind: "diag.nvml"})
		}, "wipe", `it is about "diag.nvml"`},
		"GPU broken": {"ok diag.nvml", func(r *rig) {
			r.succeed("diag.nvml", &agentv1.DiagResult{Outcome: agentv1.DiagResult_OUTCOME_FAILED, Reason: "ECC errors"})
		}, "diag", "ECC errors"},
		"digest":       {"ok deploy.image", failed("deploy.image", "chunk 3: raw digest differs"), "deploy", "raw digest differs"},
		"other image":  {"ok deploy.image", func(r *rig) { r.succeed("deploy.image", deployed(serial, []byte("x"))) }, "deploy", "ordered was 0102030"},
		"no kernel":    {"ok boot.kexec", failed("boot.kexec", "kernel /vmlinuz is not in the image"), "kexec", "is not in the image"},
		"secret twice": {"node joins", func(r *rig) { r.post(executor.Refused{Step: "node-join", Cause: "the node's secret was used twice"}) }, "node-join", "used twice"},
		"secret twice, a stranger first": {"node connects", func(r *rig) {
			r.post(executor.Refused{Step: "node-join", Cause: "the node's secret was used twice"})
		}, "node-join", "used twice"},
		"machine starts over": {"ok deploy.image", func(r *rig) { r.event("boot.script.refused", "reason", "lease is consumed") }, "deploy", "started over"},
		"agent gone":          {"ok disk.wipe", func(r *rig) { time.Sleep(31 * time.Minute) }, "wipe", "waited 30m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.until(c.until)
				c.do(r)
				synctest.Wait()
				r.wantFailed(c.step, c.why)
				// The same end after a restart.
				r.restart()
				r.wantFailed(c.step, c.why)
				if _, err := r.ex.Provision(t.Context(), r.order()); err != nil {
					t.Errorf("provision after a failure: %v", err)
				}
				synctest.Wait()
			})
		})
	}
}

// A workflow that fails before its machine joined closes the lease in the store and at the site; one after that closes nothing twice.
func TestFailureClosesLease(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.until("boot.tftp.served")
		run, _, err := r.repo.Run(t.Context(), r.wf)
		if err != nil {
			t.Fatal(err)
		}
		r.event("boot.tftp.failed", "reason", "no such file")
		if l, err := r.repo.Lease(t.Context(), run.Plan.LeaseID); err != nil || l.State != fleet.LeaseCancelled {
			t.Errorf("got lease %s (%v), want cancelled", l.State, err)
		}
		r.succeed("boot.cleanUp", &sitev1.CleanUpBootResult{})
		if run, _, err = r.repo.Run(t.Context(), r.wf); err != nil || !run.Closed {
			t.Errorf("got closed %t (%v), want closed once the site was told", run.Closed, err)
		}
		if err := r.ex.Post(t.Context(), r.wf, executor.Section{Name: "cpu"}); !errors.Is(err, executor.ErrNotOpen) {
			t.Errorf("got %v for a fact after the end, want ErrNotOpen", err)
		}
	})
}

// While nobody answers, a failed workflow stays open for the site for a bounded time only.
func TestCloseIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.until("boot.tftp.served")
		r.event("boot.tftp.failed", "reason", "no such file")
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		if run, _, err := r.repo.Run(t.Context(), r.wf); err != nil || !run.Closed {
			t.Errorf("got closed %t (%v), want closed after the window", run.Closed, err)
		}
	})
}

func TestPauseAndResume(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.until("ok diag.nvml")
		m := r.show()
		if m.State != fleet.MachinePaused || r.step("wipe").State != fleet.StepDone || r.step("diag").State != fleet.StepPaused {
			t.Fatalf("got %s, want paused between wipe and diag", r.describe())
		}
		if m.Waiting == nil || m.Waiting.Next != "firstlight resume m1" || !m.Waiting.Until.IsZero() {
			t.Errorf("got waiting %+v, want a person, without end", m.Waiting)
		}
		r.restart()
		time.Sleep(24 * time.Hour)
		if c := r.command("diag.nvml"); c != nil {
			t.Fatal("got diag.nvml while paused, want nothing sent")
		}
		if err := r.ex.Resume(t.Context(), "m1", "root"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := r.ex.Resume(t.Context(), "m1", "root"); !errors.Is(err, executor.ErrNotPaused) {
			t.Errorf("got %v for a second resume, want ErrNotPaused", err)
		}
		all := moves()
		i := slices.IndexFunc(all, func(m move) bool { return m.name == "ok diag.nvml" })
		for _, m := range all[i:] {
			m.do(r)
		}
		wantHappyEnd(t, r)
	}, "wipe")
}

func TestOneWorkflowPerMachine(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.until("boot.tftp.served")
		_, err := r.ex.Provision(t.Context(), r.order())
		if !errors.Is(err, executor.ErrBusy) {
			t.Fatalf("got %v, want ErrBusy", err)
		}
		for _, part := range []string{r.wf, "root", "step tftp", r.show().Workflow.Started.String()} {
			if !contains(err.Error(), part) {
				t.Errorf("got %q, want it to name %q", err, part)
			}
		}
	})
}

// A firmware that brings its own iPXE asks for no file over TFTP; that is said, not failed.
func TestTFTPSkipped(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.until("boot.tftp.served")
		r.event("boot.dhcp.offered", "stage", "ipxe")
		r.event("boot.script.served")
		if s := r.step("tftp"); s.State != fleet.StepSkipped || s.Why == "" {
			t.Errorf("got tftp %s %q, want skipped with a reason", s.State, s.Why)
		}
		r.event("boot.tftp.served", "file", "snponly.efi")
		if s := r.step("tftp"); s.State != fleet.StepDone {
			t.Errorf("got tftp %s after a late report, want done", s.State)
		}
	})
}

// A result that another agent reports changes nothing.
func TestForeignReport(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.until("ok disk.wipe")
		c := r.command("disk.wipe")
		err := r.ex.Report(t.Context(), executor.Report{CommandID: c.CommandId, Node: "node-other", Role: "ramdisk", State: fleet.CommandFailed})
		if !errors.Is(err, executor.ErrForeign) {
			t.Errorf("got %v, want ErrForeign", err)
		}
		err = r.ex.Report(t.Context(), executor.Report{CommandID: "cmd-none", Node: c.Audience, Role: "ramdisk", State: fleet.CommandFailed})
		if !errors.Is(err, executor.ErrNotOpen) {
			t.Errorf("got %v for an unknown command, want ErrNotOpen", err)
		}
		if s := r.step("wipe"); s.State != fleet.StepRunning {
			t.Errorf("got wipe %s, want running", s.State)
		}
	})
}

// What the store refuses is not acknowledged, nothing is sent of it, and it goes on once the store is back.
func TestStoreRefuses(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.until("ok boot.prepareRamdisk")
		broken := errors.New("disk is full")
		r.store.FailWrites(func(string) error { return broken })
		c := r.command("boot.prepareRamdisk")
		err := r.ex.Report(t.Context(), executor.Report{CommandID: c.CommandId, Node: c.Audience, Role: "site", State: fleet.CommandSucceeded})
		if !errors.Is(err, broken) {
			t.Fatalf("got %v, want the store's error", err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if r.command("bmc.bootOverride") != nil {
			t.Error("got bmc.bootOverride sent before its intent was stored")
		}
		r.store.FailWrites(nil)
		all := moves()
		for _, m := range all[1:] {
			m.do(r)
		}
		wantHappyEnd(t, r)
	})
}

// Progress is shown, and not every word of it is a write.
func TestProgressIsThrottled(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.until("ok disk.wipe")
		writes := 0
		r.store.FailWrites(func(key string) error {
			if strings.HasPrefix(key, "workflows/") {
				writes++
			}
			return nil
		})
		for i := range 1000 {
			r.report("disk.wipe", executor.Report{State: fleet.CommandRunning, Progress: &fleet.Progress{What: "read back", Done: uint64(i), Total: 1000, Unit: "bytes"}})
			time.Sleep(10 * time.Millisecond)
		}
		if writes < 5 || writes > 20 {
			t.Errorf("got %d writes for 10 s of progress, want about 10", writes)
		}
		if p := r.step("wipe").Commands[0].Progress; p == nil || p.Done < 800 {
			t.Errorf("got progress %+v, want a recent one", p)
		}
	})
}

// A workflow that was stored without having taken its machine was never begun.
func TestOrphanIsDropped(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.stop()
		run, _, err := r.repo.Run(t.Context(), r.wf)
		if err != nil {
			t.Fatal(err)
		}
		run.ID, run.Plan.LeaseID = "wf-orphan", "lease-orphan"
		if _, err := r.repo.SaveRun(t.Context(), run, 0); err != nil {
			t.Fatal(err)
		}
		r.start()
		if _, _, err := r.repo.Run(t.Context(), "wf-orphan"); !errors.Is(err, fleet.ErrUnknown) {
			t.Errorf("got %v for the orphan, want it gone", err)
		}
		if _, _, err := r.repo.Run(t.Context(), r.wf); err != nil {
			t.Errorf("got %v for the real one, want it kept", err)
		}
	})
}
