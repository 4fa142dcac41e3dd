package executor_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/planner"
)

// Every waiting state says what for, since when, until when and what next: in the step, and for the machine.
func TestWhatEachStepWaitsFor(t *testing.T) {
	const console = "look at the machine's console"
	for _, c := range []struct {
		until, step, what, next string
		deadline                time.Duration
	}{
		{"site connects", "power-on", "the site agent to connect and take boot.prepareRamdisk", "see that the site agent is running", planner.PowerOnDeadline},
		{"ok boot.prepareRamdisk", "power-on", "the site agent to open the boot lease for m1", "see that the site agent is running", planner.PowerOnDeadline},
		{"ok bmc.bootOverride", "power-on", "the BMC at https://10.78.0.1 to take the network boot", "reaches the BMC at https://10.78.0.1", planner.PowerOnDeadline},
		{"ok bmc.power", "power-on", "the BMC at https://10.78.0.1 to switch the machine off and on", "reaches the BMC at https://10.78.0.1", planner.PowerOnDeadline},
		{"boot.dhcp.offered", "dhcp", "firmware to ask for a network boot from one of [52:54:00:00:00:01]", "check the cable and switch port", planner.DHCPDeadline},
		{"boot.tftp.served", "tftp", "firmware to fetch its boot file over TFTP", "UDP port 69", planner.TFTPDeadline},
		{"boot.script.served", "script", "iPXE to fetch this boot's script over HTTP", console, planner.ScriptDeadline},
		{"boot.file.served", "kernel", "iPXE to fetch the kernel and its initrds over HTTP", console, planner.KernelDeadline},
		{"ramdisk joins", "join", "the RAM disk to start and to join", console, planner.JoinDeadline},
		{"ramdisk connects", "inventory", "the RAM disk to open its session and to send its inventory", console, planner.InventoryDeadline},
		{"ok disk.wipe", "wipe", "wipe the disks with serial [DISK0001] and to read them back", console, planner.WipeDeadline},
		{"ok diag.nvml", "diag", "test the GPUs", console, planner.DiagDeadline},
		{"ok deploy.image", "deploy", `write image "demo" to the disk with serial DISK0001`, console, planner.DeployDeadline},
		{"ok boot.kexec", "kexec", "load the installed system's kernel and to enter it", console, planner.KexecDeadline},
		{"node joins", "node-join", "the installed system to start and its node agent to join", console, planner.NodeJoinDeadline},
		{"node connects", "active", "the node agent to connect and take inventory.refresh", console, planner.ActiveDeadline},
		{"ok inventory.refresh", "active", "answer a signed inventory.refresh", console, planner.ActiveDeadline},
	} {
		t.Run(c.until, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.until(c.until)
				m := r.show()
				w := m.Waiting
				s := r.step(c.step)
				if w == nil || s.Waiting == nil || *s.Waiting != *w || s.State != fleet.StepRunning {
					t.Fatalf("got %s, machine waiting %+v, step %+v; want both waiting at step %s", r.describe(), w, s.Waiting, c.step)
				}
				if !strings.Contains(w.For, c.what) || !strings.Contains(w.Next, c.next) {
					t.Errorf("got waiting for %q, next %q; want %q, next %q", w.For, w.Next, c.what, c.next)
				}
				if w.Since.IsZero() || !w.Until.Equal(w.Since.Add(c.deadline)) {
					t.Errorf("got since %s until %s, want %s between them", w.Since, w.Until, c.deadline)
				}
			})
		})
	}
}

// What a kernel that comes file by file has brought is said, and stands in the failure when the rest does not come.
func TestKernelSaysWhatItHas(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.until("boot.file.served")
		r.event("boot.file.served", "name", "kernel")
		r.event("boot.file.served", "name", "ramdisk")
		const want = "iPXE to fetch the kernel and its initrds over HTTP (so far: kernel, ramdisk)"
		if w := r.show().Waiting; w == nil || w.For != want {
			t.Errorf("got waiting %+v, want for %q", w, want)
		}
		time.Sleep(planner.KernelDeadline + time.Second)
		r.wantFailed(fleet.StepKernel, want)
	})
}

// A workflow says what it waits for from its first record on, also when the appliance dies before it does anything.
func TestWaitingFromTheFirstRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := idleRig(t)
		const writes = 3 // the lease, the workflow, the machine that it takes
		r.fate = &fate{Store: r.store, at: writes}
		r.sender.fate = r.fate
		r.start()
		defer func() { r.stop() }()
		_, err := r.ex.Provision(t.Context(), r.order())
		synctest.Wait()
		m := r.show()
		if !r.fate.killed() || m.State != fleet.MachineProvisioning || m.Workflow.Steps[0].State != fleet.StepPending {
			t.Fatalf("got %s (%v), want a workflow that did not begin", r.describe(), err)
		}
		if w := m.Waiting; w == nil || !strings.Contains(w.For, "sign the first order of "+m.Workflow.ID) || w.Next == "" || w.Since.IsZero() || !w.Until.After(w.Since.Time) {
			t.Errorf("got waiting %+v, want the appliance named", w)
		}
	})
}

// A large disk takes hours: a wipe that gets further is not over by time, and one that stands still is.
func TestStepThatGetsFurtherHasTime(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.until("ok disk.wipe")
		said := time.Now()
		for i := range uint64(60) {
			pass(5 * time.Minute)
			r.progress("disk.wipe", i+1)
			said = time.Now()
		}
		w := r.show().Waiting
		if w == nil || !w.Until.Equal(fleet.At(said.Add(10*time.Minute)).Time) {
			t.Fatalf("got %s waiting %+v, want the wipe at work until 10 minutes after its last word", r.describe(), w)
		}
		pass(5 * time.Minute)
		r.progress("disk.wipe", 60) // no further
		pass(5*time.Minute - time.Second)
		if m := r.show(); m.State != fleet.MachineProvisioning {
			t.Fatalf("got %s, want it at work still", r.describe())
		}
		pass(2 * time.Second)
		r.wantFailed(fleet.StepWipe, "to wipe the disks")
	})
}
