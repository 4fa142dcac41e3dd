package executor_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
)

// Stopped before any move: what an agent has in hand ends, nothing new is begun for as long as it takes, no deadline strikes, a
// restart of the appliance changes nothing; let go on, the machine comes to its end.
func TestStopAllAnywhere(t *testing.T) {
	for i, at := range moves() {
		for _, by := range []string{"resume-all", "resume"} {
			t.Run(fmt.Sprintf("%02d before %s %s", i, at.name, by), func(t *testing.T) {
				bubble(t, func(t *testing.T, r *rig) {
					r.until(at.name)
					step, c := r.current(), r.inHand()
					frozen, err := r.ex.StopAll(t.Context(), "uid 0 (root)", "smoke in the hall")
					if err != nil || len(frozen) != 1 {
						t.Fatalf("got %+v, %v, want one frozen workflow", frozen, err)
					}
					z := frozen[0]
					if z.Machine != "m1" || z.Step != step || z.Text == "" || (z.InHand != "") != (c != nil) {
						t.Errorf("got %+v, want m1 at %s with %v in hand", z, step, c)
					}
					if c != nil {
						at.do(r)
					}
					before := len(r.sender.sent)
					if c == nil && i > 0 {
						at.do(r)
					}
					r.restart()
					time.Sleep(24 * time.Hour)
					m := r.show()
					if w := m.Waiting; m.State != fleet.MachinePaused || w == nil || !contains(w.For, "everything is stopped") || !contains(w.For, "smoke in the hall") ||
						w.Since.IsZero() || !contains(w.Next, "resume-all") {
						t.Fatalf("got %s waiting %+v, want paused with who stopped everything, since when and what next", r.describe(), w)
					}
					for _, s := range r.sender.sent[before:] {
						if s.body.Kind != "boot.cleanUp" {
							t.Errorf("got %s sent while everything is stopped, want nothing new", s.body.Kind)
						}
					}
					if _, err := r.ex.Provision(t.Context(), r.order()); !errors.Is(err, executor.ErrBusy) {
						t.Errorf("got %v for another order, want busy", err)
					}
					if by == "resume" {
						err = r.ex.Resume(t.Context(), "m1", "uid 0 (root)")
					} else {
						_, err = r.ex.ResumeAll(t.Context(), "uid 0 (root)")
					}
					if err != nil {
						t.Fatal(err)
					}
					r.restart()
					want := fleet.MachineProvisioning
					if i == len(moves())-1 {
						want = fleet.MachineActive
					}
					if m := r.show(); m.State != want {
						t.Errorf("got %s after it was let go on, want %s", r.describe(), want)
					}
				})
			})
		}
	}
}

// While everything is stopped no new workflow begins, and a step that was stopped gets its whole time again.
func TestStopAllAndNewWorkflows(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		if err := r.ex.Cancel(t.Context(), "m1", "x", ""); err != nil {
			t.Fatal(err)
		}
		if z, err := r.ex.StopAll(t.Context(), "uid 0 (root)", ""); err != nil || len(z) != 0 {
			t.Errorf("got %+v, %v, want nothing to freeze", z, err)
		}
		if _, err := r.ex.Provision(t.Context(), r.order()); !errors.Is(err, executor.ErrStoppedAll) || !contains(err.Error(), "uid 0 (root)") {
			t.Errorf("got %v, want it refused because everything is stopped, by whom", err)
		}
		if _, err := r.ex.ResumeAll(t.Context(), "uid 0 (root)"); err != nil {
			t.Fatal(err)
		}
		if _, err := r.ex.Provision(t.Context(), r.order()); err != nil {
			t.Error(err)
		}
	})
	bubble(t, func(t *testing.T, r *rig) {
		r.until("boot.dhcp.offered")
		time.Sleep(5 * time.Minute)
		if _, err := r.ex.StopAll(t.Context(), "x", ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if _, err := r.ex.ResumeAll(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if m := r.show(); m.State != fleet.MachineProvisioning {
			t.Errorf("got %s 5 minutes after it was let go on, want its deadline of 6 minutes to begin anew", r.describe())
		}
		time.Sleep(2 * time.Minute)
		r.wantFailed(fleet.StepDHCP, "waited")
	})
}

// A pause that was ordered for a step stays one when everything is stopped and let go on meanwhile.
func TestStopAllKeepsAPause(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.until("ok diag.nvml")
		if _, err := r.ex.StopAll(t.Context(), "x", ""); err != nil {
			t.Fatal(err)
		}
		if _, err := r.ex.ResumeAll(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		if m := r.show(); m.State != fleet.MachinePaused || !contains(m.Waiting.For, "pause after step wipe") {
			t.Errorf("got %s waiting %+v, want the ordered pause", r.describe(), m.Waiting)
		}
		if err := r.ex.Resume(t.Context(), "m1", "x"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if r.command("diag.nvml") == nil {
			t.Error("got no diag.nvml after the pause, want it sent")
		}
	}, fleet.StepWipe)
}

// A protected machine is refused before the workflow, before the order is signed, and before it is handed over.
func TestProtected(t *testing.T) {
	protect := func(t *testing.T, r *rig) {
		t.Helper()
		_, err := r.repo.Update(t.Context(), "m1", func(m *fleet.Record) error {
			m.Protected = &fleet.Protection{Since: fleet.At(time.Now()), By: "uid 0 (root)", Why: "customer data"}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Run("before the workflow", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			if err := r.ex.Cancel(t.Context(), "m1", "x", ""); err != nil {
				t.Fatal(err)
			}
			protect(t, r)
			o := r.order()
			o.Reinstall = true
			if _, err := r.ex.Provision(t.Context(), o); !errors.Is(err, executor.ErrProtected) || !contains(err.Error(), "customer data") {
				t.Errorf("got %v, want it refused with who protects it and why", err)
			}
			if _, err := r.ex.DryRun(t.Context(), o); !errors.Is(err, executor.ErrProtected) {
				t.Errorf("got %v for a dry run, want the same refusal", err)
			}
		})
	})
	for _, before := range []string{"section nics", "ok diag.dcgm"} {
		t.Run("before the order is signed, at "+before, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.until(before)
				protect(t, r)
				for _, m := range moves() {
					if m.name == before {
						m.do(r)
					}
				}
				step, kind := fleet.StepWipe, "disk.wipe"
				if before == "ok diag.dcgm" {
					step, kind = fleet.StepDeploy, "deploy.image"
				}
				r.wantFailed(step, "protected since")
				if r.command(kind) != nil {
					t.Errorf("got a %s sent to a protected machine, want none", kind)
				}
			})
		})
	}
	t.Run("before it is handed over", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			r.until("section nics")
			r.sender.up["ramdisk"] = false
			r.post(executor.Section{Name: "nics"})
			if c := r.step(fleet.StepWipe).Commands; len(c) != 1 || c[0].State != fleet.CommandPending {
				t.Fatalf("got commands %+v, want a wipe that waits for its agent", c)
			}
			protect(t, r)
			r.sender.up["ramdisk"] = true
			r.available("ramdisk")
			time.Sleep(time.Minute)
			r.wantFailed(fleet.StepWipe, "protected since")
			if r.command("disk.wipe") != nil {
				t.Error("got a disk.wipe sent to a protected machine, want none")
			}
			r.wantDisk(fleet.HoldsOldData, "never wrote")
		})
	})
}

func TestDryRun(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		if _, err := r.ex.DryRun(t.Context(), r.order()); !errors.Is(err, executor.ErrBusy) {
			t.Errorf("got %v, want busy", err)
		}
		if err := r.ex.Cancel(t.Context(), "m1", "x", ""); err != nil {
			t.Fatal(err)
		}
		before := len(r.sender.sent)
		p, err := r.ex.DryRun(t.Context(), r.order())
		if err != nil || p.Machine != "m1" || p.Image != "demo" || p.Sent || len(p.Disks) != 1 || p.BMC.URL == "" || len(p.MACs) != 1 {
			t.Fatalf("got %+v, %v, want the machine, its controller, MACs, image and one disk, and nothing sent", p, err)
		}
		if d := p.Disks[0]; d.Serial != serial || d.Would != "wiped, then written with image demo" || d.Doubt == "" || d.Holds != fleet.HoldsOldData {
			t.Errorf("got disk %+v, want what would happen to it, and that it was never seen", d)
		}
		_, err = r.repo.Update(t.Context(), "m1", func(m *fleet.Record) error {
			m.Hardware = &fleet.Hardware{Disks: []fleet.Disk{{Serial: serial, Model: "M", SizeBytes: 5, Candidate: true}}}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if p, err = r.ex.DryRun(t.Context(), r.order()); err != nil || p.Disks[0].Model != "M" || p.Disks[0].SizeBytes != 5 || p.Disks[0].Doubt != "" {
			t.Errorf("got %+v, %v, want model and size as last seen", p, err)
		}
		if m := r.show(); m.Workflows != 1 || len(r.sender.sent) != before {
			t.Errorf("got %d workflows and %d commands, want a dry run to change nothing", m.Workflows, len(r.sender.sent)-before)
		}
	})
}
