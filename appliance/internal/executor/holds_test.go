package executor_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/planner"
)

// A command of which nothing was heard but its bad end may have written all the while: its progress was lost with the session.
func TestDiskStateWithoutAnyProgress(t *testing.T) {
	for _, c := range []struct {
		until, kind string
		state       fleet.CommandState
		message     string
		holds       string
	}{
		{"ok disk.wipe", "disk.wipe", fleet.CommandFailed, "disk.wipe: internal error: nil map", fleet.HoldsPartlyWiped},
		{"ok disk.wipe", "disk.wipe", fleet.CommandFailed, "result of disk.wipe: 99 bytes, want at most 9 (<nil>)", fleet.HoldsPartlyWiped},
		{"ok disk.wipe", "disk.wipe", fleet.CommandFailed, "wipe: nothing was written: no disk with serial DISK0001", fleet.HoldsOldData},
		{"ok disk.wipe", "disk.wipe", fleet.CommandCancelled, "cancelled: by root: it had not begun, nothing was written", fleet.HoldsOldData},
		{"ok deploy.image", "deploy.image", fleet.CommandCancelled, "deploy to DISK0001: stopped: cancelled: by root; the disk was left unbootable on purpose", fleet.HoldsPartlyWritten},
		{"ok deploy.image", "deploy.image", fleet.CommandCancelled, "cancelled: by root: it had not begun, nothing was written", fleet.HoldsClean},
	} {
		t.Run(c.kind+" "+c.message, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.until(c.until)
				r.lose()
				done := r.cancel()
				r.connect("ramdisk")
				r.report(c.kind, executor.Report{State: c.state, Message: c.message, Attested: true})
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				r.wantDisk(c.holds, "")
			})
		})
	}
}

// A disk is clean by the machine's own valid report, and by nothing else.
func TestNoDiskIsCleanWithoutReport(t *testing.T) {
	for _, state := range []fleet.CommandState{fleet.CommandSucceeded, fleet.CommandFailed} {
		bubble(t, func(t *testing.T, r *rig) {
			r.until("ok disk.wipe")
			r.report("disk.wipe", executor.Report{State: state, Message: "another disk failed", Result: marshal(t, wiped(serial)), AttestError: "signature does not verify"})
			r.wantFailed(fleet.StepWipe, "")
			r.wantDisk(fleet.HoldsPartlyWiped, "")
		})
	}
}

// A command that was handed over is in its agent's hands, also when the store did not take that and the session flaps: it is not
// called unsent, and no second one takes its place.
func TestHandedOverAndNotWrittenDown(t *testing.T) {
	last := executor.Sections()[len(executor.Sections())-1]
	handedOver := func(t *testing.T, r *rig) {
		r.until("section " + last)
		writes := 0
		r.store.FailWrites(func(key string) error {
			if writes++; writes > 1 && strings.HasPrefix(key, "workflows/") {
				return errors.New("no space left on device")
			}
			return nil
		})
		r.post(executor.Section{Name: last})
		r.store.FailWrites(nil)
		if c := r.step("wipe").Commands; len(c) != 1 || c[0].State != fleet.CommandPending || r.command("disk.wipe") == nil {
			t.Fatalf("got %+v, want a wipe handed over that the store calls pending", c)
		}
		r.sender.up["ramdisk"] = false
		r.available("ramdisk")
		synctest.Wait()
	}
	t.Run("cancelled", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			handedOver(t, r)
			done := r.cancel()
			pass(3 * time.Minute)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			r.wantCancelled(fleet.StepWipe)
			r.wantDisk(fleet.HoldsPartlyWiped, "did not say how far")
		})
	})
	t.Run("everything is stopped", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			handedOver(t, r)
			if _, err := r.ex.StopAll(t.Context(), "root", "smoke"); err != nil {
				t.Fatal(err)
			}
			if _, err := r.ex.ResumeAll(t.Context(), "root"); err != nil {
				t.Fatal(err)
			}
			r.connect("ramdisk")
			ids := map[string]bool{}
			for _, s := range r.sender.sent {
				if s.body.Kind == "disk.wipe" {
					ids[s.body.CommandId] = true
				}
			}
			if len(ids) != 1 {
				t.Errorf("got %d different wipes, want one", len(ids))
			}
		})
	})
}

// What may have been lost on its way to the agent is not handed over again once a person forbade it. Stopped, it waits.
func TestNoWipeBeginsAfterItWasForbidden(t *testing.T) {
	wipes := func(r *rig) (n int) {
		for _, s := range r.sender.sent {
			if s.body.Kind == "disk.wipe" {
				n++
			}
		}
		return n
	}
	t.Run("protected", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			r.until("ok disk.wipe")
			r.lose()
			if _, err := r.repo.Protect(t.Context(), "m1", "root", "it runs a database", time.Now()); err != nil {
				t.Fatal(err)
			}
			r.sender.up["ramdisk"] = true
			r.available("ramdisk")
			synctest.Wait()
			r.wantFailed(fleet.StepWipe, "protected since")
			if n := wipes(r); n != 1 {
				t.Errorf("got the wipe handed over %d times, want once", n)
			}
			if len(r.sender.cancels) != 1 {
				t.Errorf("got cancels %q, want the agent told to stop", r.sender.cancels)
			}
			r.wantDisk(fleet.HoldsPartlyWiped, "did not say how far")
		})
	})
	t.Run("everything is stopped", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			r.until("ok disk.wipe")
			r.lose()
			if _, err := r.ex.StopAll(t.Context(), "root", "smoke"); err != nil {
				t.Fatal(err)
			}
			r.connect("ramdisk")
			pass(time.Minute)
			if n := wipes(r); n != 1 {
				t.Errorf("got the wipe handed over %d times, want it held back", n)
			}
			if _, err := r.ex.ResumeAll(t.Context(), "root"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if n := wipes(r); n != 2 {
				t.Errorf("got the wipe handed over %d times, want it again when all goes on", n)
			}
		})
	})
}

// A workflow that fails by time leaves no agent at work on a disk.
func TestFailedWorkflowStopsItsAgent(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.until("ok deploy.image")
		r.progress("deploy.image", 300)
		id := r.command("deploy.image").CommandId
		pass(planner.DeployDeadline + time.Second)
		r.wantFailed(fleet.StepDeploy, "waited 30m0s")
		if got, want := strings.Join(r.sender.cancels, "; "), id+" by the appliance: the workflow failed at step deploy"; got != want {
			t.Errorf("got cancels %q, want %q", got, want)
		}
		r.wantDisk(fleet.HoldsPartlyWritten, "300 of 400")
	})
}
