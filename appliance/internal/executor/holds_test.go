package executor_test

import (
	"testing"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
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
