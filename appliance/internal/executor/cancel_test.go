package executor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
)

// cancel orders it and returns where its answer will be.
func (r *rig) cancel() <-chan error {
	r.t.Helper()
	out := make(chan error, 1)
	ctx, ex := r.t.Context(), r.ex
	go func() { out <- ex.Cancel(ctx, "m1", "uid 0 (root)", "wrong rack") }()
	synctest.Wait()
	return out
}

func (r *rig) wantCancelled(step string) {
	r.t.Helper()
	m := r.show()
	if m.State != fleet.MachineCancelled || m.Cancel == nil || m.Waiting != nil || m.Failure != nil {
		r.t.Fatalf("got %s with cancel %+v, want cancelled", r.describe(), m.Cancel)
	}
	if x := m.Cancel; x.Step != step || x.By != "uid 0 (root)" || x.Reason != "wrong rack" || x.Outcome == "" || x.Next == "" || x.Since.IsZero() {
		r.t.Errorf("got cancel %+v, want by whom, why, at step %s, with outcome and next", x, step)
	}
	after := false
	for _, s := range m.Workflow.Steps {
		want := fleet.StepSkipped
		switch {
		case s.Name == step:
			after, want = true, fleet.StepCancelled
		case !after && s.State != fleet.StepDone && s.State != fleet.StepSkipped:
			r.t.Errorf("got step %s before the cancelled one %s, want it over", s.Name, s.State)
		}
		if (after || want == fleet.StepCancelled) && s.State != want {
			r.t.Errorf("got step %s %s, want %s", s.Name, s.State, want)
		}
		if after && !strings.Contains(s.Why, "cancelled") {
			r.t.Errorf("got step %s because %q, want the cancellation named", s.Name, s.Why)
		}
	}
}

func (r *rig) wantDisk(holds, why string) {
	r.t.Helper()
	d := r.show().DiskState
	if len(d) != 1 || d[0].Serial != serial || d[0].Holds != holds || !strings.Contains(d[0].Why, why) || d[0].Why == "" {
		r.t.Errorf("got disks %+v, want %s to hold %q because of %q", d, serial, holds, why)
	}
}

// inHand returns the newest command of the current step that an agent has and has not answered.
func (r *rig) inHand() *fleet.Command {
	for _, s := range r.show().Workflow.Steps {
		for _, c := range s.Commands {
			if !s.State.Ended() && c.State == fleet.CommandSent {
				return &c
			}
		}
	}
	return nil
}

// Cancelled before any move, with an agent that stops or one that is silent: a defined end, the boot closed at the site, nothing
// begun any more, also over a restart of the appliance, and what the disk holds is said.
func TestCancelAnywhere(t *testing.T) {
	for i, at := range moves() {
		for _, mode := range []string{"answered", "silent", "restarted"} {
			t.Run(fmt.Sprintf("%02d before %s %s", i, at.name, mode), func(t *testing.T) {
				bubble(t, func(t *testing.T, r *rig) {
					r.until(at.name)
					step, before := r.current(), len(r.sender.sent)
					holds := r.show().DiskState[0].Holds
					c := r.inHand()
					done := r.cancel()
					if c != nil {
						m := r.show()
						if w := m.Waiting; m.State != fleet.MachineCancelling || w == nil || w.For == "" || w.Since.IsZero() || w.Until.IsZero() || w.Next == "" {
							t.Errorf("got %s waiting %+v, want cancelling with what for, since, until, next", m.State, w)
						}
						if len(r.sender.cancels) != 1 || !strings.HasPrefix(r.sender.cancels[0], c.ID+" by uid 0 (root): wrong rack") {
							t.Errorf("got cancels %q, want one for %s", r.sender.cancels, c.ID)
						}
						switch mode {
						case "answered":
							r.report(c.Kind, executor.Report{State: fleet.CommandCancelled, Message: "stopped", Attested: true})
						case "restarted":
							r.restart()
							if len(r.sender.cancels) < 2 {
								t.Errorf("got cancels %q after the restart, want it told again", r.sender.cancels)
							}
							r.report(c.Kind, executor.Report{State: fleet.CommandCancelled, Message: "stopped", Attested: true})
						case "silent":
							time.Sleep(2*time.Minute + time.Second)
						}
						synctest.Wait()
					}
					if err := <-done; err != nil && !errors.Is(err, executor.ErrStopped) {
						t.Errorf("got %v, want the cancellation's end", err)
					}
					r.wantCancelled(step)
					r.wantSaid(step)
					for _, s := range r.sender.sent[before:] {
						if s.body.Kind != "boot.cleanUp" {
							t.Errorf("got %s sent after the cancellation, want nothing new", s.body.Kind)
						}
					}
					run, _, err := r.repo.Run(t.Context(), r.wf)
					if err != nil {
						t.Fatal(err)
					}
					if l, err := r.repo.Lease(t.Context(), run.Plan.LeaseID); err != nil || l.State == fleet.LeaseOpen {
						t.Errorf("got lease %s (%v), want it closed", l.State, err)
					}
					if c != nil && c.Kind != "boot.prepareRamdisk" && c.Kind[:3] == "bmc" && r.command("boot.cleanUp") == nil {
						t.Error("got no boot.cleanUp, want the site told")
					}
					if c != nil && c.Kind == "disk.wipe" {
						holds = fleet.HoldsPartlyWiped
					}
					if c != nil && c.Kind == "deploy.image" {
						holds = fleet.HoldsPartlyWritten
					}
					r.wantDisk(holds, "")
					if err := r.ex.Cancel(t.Context(), "m1", "x", ""); !errors.Is(err, executor.ErrNothingToCancel) && err != nil {
						t.Errorf("got %v for a second cancellation, want nothing to cancel", err)
					}
				})
			})
		}
	}
}

// wantSaid looks at what the cancellation says of the machine, by the step at which it came.
func (r *rig) wantSaid(step string) {
	r.t.Helper()
	names := fleet.StepNames()
	x, before := r.show().Cancel, slices.Index(names, step) < slices.Index(names, fleet.StepWipe)
	if silent := strings.Contains(x.Outcome, "may still be at it"); before != strings.Contains(x.Outcome, "nothing was written") && !silent {
		r.t.Errorf("got outcome %q at step %s, want it to say that nothing was written before the wipe, and only then", x.Outcome, step)
	}
	if step == fleet.StepNodeJoin && x.Outcome != "image demo is written whole and its system was started; nobody joined, and its join secret is void" {
		r.t.Errorf("got outcome %q at step %s", x.Outcome, step)
	}
	runs := step == fleet.StepNodeJoin || step == fleet.StepActive
	if runs != strings.Contains(x.Next, "the installed system runs") && !strings.Contains(x.Outcome, "may still be at it") {
		r.t.Errorf("got next %q at step %s, want it to say whether the installed system runs", x.Next, step)
	}
	if !strings.Contains(x.Next, "firstlight provision") {
		r.t.Errorf("got next %q, want how to begin again", x.Next)
	}
}

// A command that waits for its agent is in nobody's hands: cancelled, it says that it wrote nothing.
func TestCancelBeforeTheWipeIsSent(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		last := "section " + executor.Sections()[len(executor.Sections())-1]
		r.until(last)
		r.sender.up["ramdisk"] = false
		r.post(executor.Section{Name: executor.Sections()[len(executor.Sections())-1]})
		if err := <-r.cancel(); err != nil {
			t.Fatal(err)
		}
		r.wantCancelled(fleet.StepWipe)
		r.wantDisk(fleet.HoldsOldData, "never wrote")
		if got, want := r.show().Cancel.Outcome, "disk.wipe cancelled: it was never sent, nothing was written"; got != want {
			t.Errorf("got outcome %q, want %q", got, want)
		}
	})
}

func (r *rig) current() string {
	for _, s := range r.show().Workflow.Steps {
		if !s.State.Ended() {
			return s.Name
		}
	}
	return ""
}

func marshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// WIPE-07: cancel is CANCELLED per disk, and no disk that is not proven clean is called clean.
func TestWIPE07_WhatTheDiskHoldsAfterCancel(t *testing.T) {
	disk := func(outcome string, erased, verified uint64) *agentv1.DiskWipeResult {
		return &agentv1.DiskWipeResult{Disks: []*agentv1.WipedDisk{{Serial: serial, SizeBytes: diskSize, BytesErased: erased, BytesVerified: verified, Outcome: outcome}}}
	}
	untouched := disk("cancelled", 0, 0)
	untouched.Disks[0].Message = "DISK0001 cancelled: stopped; nothing was written to it"
	for name, c := range map[string]struct {
		state      fleet.CommandState
		result     proto.Message
		progress   uint64
		holds, why string
	}{
		"stopped in the middle":          {fleet.CommandCancelled, disk("cancelled", 7, 0), 7, fleet.HoldsPartlyWiped, "7 of"},
		"stopped before the first write": {fleet.CommandCancelled, untouched, 0, fleet.HoldsOldData, "nothing was written"},
		"stopped before the first flush": {fleet.CommandCancelled, disk("cancelled", 0, 0), 0, fleet.HoldsPartlyWiped, "0 of"},
		"this disk was done":             {fleet.CommandCancelled, disk("clean", diskSize, diskSize), 7, fleet.HoldsClean, "read back"},
		"said clean, not read back":      {fleet.CommandCancelled, disk("clean", diskSize, 5), 7, fleet.HoldsPartlyWiped, ""},
		"no word about the disk":         {fleet.CommandCancelled, &agentv1.DiskWipeResult{}, 7, fleet.HoldsPartlyWiped, ""},
		"too late, it was done":          {fleet.CommandSucceeded, wiped(serial), 7, fleet.HoldsClean, "read back"},
		"failed by itself":               {fleet.CommandFailed, disk("failed", 9, 0), 9, fleet.HoldsPartlyWiped, "9 of"},
		"rejected":                       {fleet.CommandRejected, nil, 0, fleet.HoldsOldData, "never wrote"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.until("ok disk.wipe")
				r.wantDisk(fleet.HoldsOldData, "never wrote")
				if c.progress > 0 {
					r.report("disk.wipe", executor.Report{State: fleet.CommandRunning, Progress: &fleet.Progress{What: "wipe", Done: c.progress, Total: diskSize, Unit: "bytes"}})
					r.wantDisk(fleet.HoldsPartlyWiped, "runs")
				}
				done := r.cancel()
				rep := executor.Report{State: c.state, Message: "the operator stopped it", Attested: true}
				if c.result != nil {
					rep.Result = marshal(t, c.result)
				}
				r.report("disk.wipe", rep)
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				r.wantCancelled(fleet.StepWipe)
				r.wantDisk(c.holds, c.why)
			})
		})
	}
}

// What a disk holds is carried through the workflow, and into the next one.
func TestDiskStateThroughTheWorkflow(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		want := map[string]string{"site connects": fleet.HoldsOldData, "ok disk.wipe": fleet.HoldsOldData, "ok diag.nvml": fleet.HoldsClean,
			"ok deploy.image": fleet.HoldsClean, "ok boot.kexec": fleet.HoldsImage("demo")}
		for _, m := range moves() {
			if w := want[m.name]; w != "" {
				r.wantDisk(w, "")
			}
			m.do(r)
		}
		wantHappyEnd(t, r)
		r.wantDisk(fleet.HoldsImage("demo"), "read back")
		since := r.show().DiskState[0].Since
		time.Sleep(time.Hour)
		if _, err := r.ex.Provision(t.Context(), r.order()); !errors.Is(err, executor.ErrInUse) || !contains(err.Error(), "active with image demo") {
			t.Errorf("got %v for an active machine, want it refused in words", err)
		}
		o := r.order()
		o.Reinstall = true
		if _, err := r.ex.Provision(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if d := r.show().DiskState[0]; d.Holds != fleet.HoldsImage("demo") || d.Since != since {
			t.Errorf("got %+v at the next workflow's begin, want what the last one left", d)
		}
	})
}

// A deploy that is stopped says what it left; one that wrote nothing left the disk clean.
func TestDiskStateOfADeploy(t *testing.T) {
	const small, stopped = "deploy: nothing was written: image is too large", "deploy to vda: cancelled; the disk was left unbootable on purpose: cleared"
	shown := map[string]string{small: "image is too large. Nothing was written", stopped: stopped}
	for message, holds := range map[string]string{small: fleet.HoldsClean, stopped: fleet.HoldsPartlyWritten} {
		bubble(t, func(t *testing.T, r *rig) {
			r.until("ok deploy.image")
			r.report("deploy.image", executor.Report{State: fleet.CommandFailed, Message: message, Attested: true})
			r.wantFailed(fleet.StepDeploy, shown[message])
			r.wantDisk(holds, message)
			if _, err := r.ex.Provision(t.Context(), r.order()); err != nil {
				t.Errorf("got %v for a failed machine, want it provisioned again", err)
			}
		})
	}
}

// A deploy that had begun to run and was stopped is taken to have written, unless it says that it did not.
func TestDiskStateOfACancelledDeploy(t *testing.T) {
	for message, holds := range map[string]string{
		"cancelled: wrong rack":                              fleet.HoldsPartlyWritten,
		"deploy: nothing was written: cancelled: wrong rack": fleet.HoldsClean,
	} {
		bubble(t, func(t *testing.T, r *rig) {
			r.until("ok deploy.image")
			r.report("deploy.image", executor.Report{State: fleet.CommandRunning})
			done := r.cancel()
			r.report("deploy.image", executor.Report{State: fleet.CommandCancelled, Message: message, Attested: true})
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			r.wantCancelled(fleet.StepDeploy)
			r.wantDisk(holds, message)
		})
	}
}

// The wait for a cancellation ends with the caller's patience, not with the cancellation.
func TestCancelOutlivesItsCaller(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.until("ok disk.wipe")
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if err := r.ex.Cancel(ctx, "m1", "uid 0 (root)", "wrong rack"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the caller's deadline", err)
		}
		time.Sleep(3 * time.Minute)
		r.wantCancelled(fleet.StepWipe)
		r.wantDisk(fleet.HoldsPartlyWiped, "did not say how far")
		r.report("disk.wipe", executor.Report{State: fleet.CommandCancelled, Message: "stopped", Attested: true,
			Result: marshal(t, &agentv1.DiskWipeResult{Disks: []*agentv1.WipedDisk{{Serial: serial, SizeBytes: 9, BytesErased: 3, Outcome: "cancelled"}}})})
		r.wantDisk(fleet.HoldsPartlyWiped, "3 of 9 bytes erased")
	})
}
