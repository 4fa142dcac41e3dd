package executor_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
)

// lose ends the RAM disk's session as a gateway notices it.
func (r *rig) lose() {
	r.t.Helper()
	r.sender.up["ramdisk"] = false
	r.post(executor.SessionDown{Role: "ramdisk", Why: "no frame for 45s"})
}

// progress is a running command's word on how far it is.
func (r *rig) progress(kind string, done uint64) {
	r.t.Helper()
	r.report(kind, executor.Report{State: fleet.CommandRunning, Progress: &fleet.Progress{What: "at work", Done: done, Total: 400, Unit: "bytes"}})
}

func pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

// Lost in each step of the RAM disk: people read since when and until when, and then the step fails and says what the disk holds.
func TestLostSession(t *testing.T) {
	for name, c := range map[string]struct {
		at   string
		how  func(r *rig)
		step string
		// says is what the failure must say besides, and why the disk holds that.
		says, holds, why string
	}{
		"inventory": {"section system", nil, "inventory", "nothing was written", fleet.HoldsOldData, "never wrote"},
		"wipe, handed over": {"ok disk.wipe", nil, "wipe", "disk.wipe was in its hands; it never said how far it was",
			fleet.HoldsPartlyWiped, "did not say how far"},
		"wipe, running": {"ok disk.wipe", func(r *rig) { r.progress("disk.wipe", 100) }, "wipe", "it last said: at work, 100 of 400 bytes",
			fleet.HoldsPartlyWiped, "100 of 400"},
		"diag": {"ok diag.nvml", nil, "diag", "diag.nvml was in its hands", fleet.HoldsClean, "read back whole"},
		"deploy": {"ok deploy.image", func(r *rig) { r.progress("deploy.image", 300) }, "deploy", "it last said: at work, 300 of 400 bytes",
			fleet.HoldsPartlyWritten, "300 of 400"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.until(c.at)
				if c.how != nil {
					c.how(r)
				}
				since := fleet.At(time.Now())
				r.lose()
				until := fleet.At(since.Add(3 * time.Minute))
				w := r.show().Waiting
				if w == nil || !contains(w.For, "session is lost since "+since.String()) || !contains(w.For, "may come back until "+until.String()) ||
					!contains(w.For, "no frame for 45s") || w.Since != since || w.Until != until || w.Next == "" {
					t.Errorf("got waiting %+v, want what for, since %s, until %s, next", w, since, until)
				}
				pass(3*time.Minute - time.Second)
				if m := r.show(); m.State != fleet.MachineProvisioning {
					t.Fatalf("got %s before the time was up, want it still waiting", r.describe())
				}
				pass(time.Second)
				r.wantFailed(c.step, c.says)
				m := r.show()
				for _, part := range []string{"lost since " + since.String(), "no frame for 45s", "waited for until " + until.String(), "disk " + serial + " holds " + c.holds} {
					if !contains(m.Failure.Why, part) {
						t.Errorf("got cause %q, want it to say %q", m.Failure.Why, part)
					}
				}
				if !contains(m.Failure.Next, "firstlight provision") || !contains(m.Failure.Next, "switch it off") {
					t.Errorf("got next %q, want the machine off and provisioned again", m.Failure.Next)
				}
				r.wantDisk(c.holds, c.why)
			})
		})
	}
}

// A link that flaps takes nothing away: each loss has its whole time, and the commands are there again.
func TestLostSessionComesBack(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.until("ok disk.wipe")
		r.progress("disk.wipe", 100)
		for range 3 {
			r.lose()
			pass(2*time.Minute + 59*time.Second)
			r.connect("ramdisk")
			if w := r.step("wipe").Waiting; w == nil || contains(w.For, "lost") {
				t.Errorf("got waiting %+v after it came back, want the wipe's", w)
			}
			pass(2 * time.Minute)
		}
		for _, m := range moves()[18:] {
			m.do(r)
		}
		wantHappyEnd(t, r)
	})
}

// The end of a session that a newer one took over, and of another role's, is no loss.
func TestLostSessionOfAnOlderEpoch(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.until("ok disk.wipe")
		r.post(executor.SessionUp{Role: "ramdisk", Epoch: 8})
		r.post(executor.SessionDown{Role: "ramdisk", Epoch: 7, Why: "superseded"})
		r.post(executor.SessionDown{Role: "node", Epoch: 9, Why: "the connection is gone"})
		pass(10 * time.Minute)
		if m := r.show(); m.State != fleet.MachineProvisioning || contains(m.Waiting.For, "lost") {
			t.Errorf("got %s waiting %+v, want the wipe at work", r.describe(), m.Waiting)
		}
	})
}

// After a start of the appliance no session is there: an agent that does not come back is given its whole time from then.
func TestLostSessionOverARestart(t *testing.T) {
	for _, before := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost before %t", before), func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.until("ok disk.wipe")
				if before {
					r.lose()
					pass(2 * time.Minute)
				}
				r.sender.up["ramdisk"] = false
				r.restart()
				pass(time.Minute)
				if w := r.show().Waiting; w == nil || !contains(w.For, "lost since") {
					t.Errorf("got waiting %+v, want the lost session", w)
				}
				pass(2*time.Minute - time.Second)
				if m := r.show(); m.State != fleet.MachineProvisioning {
					t.Fatalf("got %s, want the whole time after the start", r.describe())
				}
				pass(time.Second)
				r.wantFailed("wipe", "session is lost since")
			})
		})
	}
}

// An agent that finds the appliance again soon after its start was never lost: nothing is written of it, so that an appliance that
// dies over its first writes, again and again, still comes further each time.
func TestNoLossIsWrittenOfASessionThatComesBackAfterARestart(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.until("ok disk.wipe")
		r.sender.up["ramdisk"] = false
		r.restart()
		pass(30 * time.Second)
		if w := r.show().Waiting; w == nil || contains(w.For, "lost") {
			t.Errorf("got waiting %+v half a minute after the start, want the wipe's", w)
		}
		r.sender.up["ramdisk"] = true
		r.post(executor.SessionUp{Role: "ramdisk", Epoch: 9})
		pass(2 * time.Minute)
		if w := r.show().Waiting; w == nil || contains(w.For, "lost") {
			t.Errorf("got waiting %+v, want the wipe's: its agent is back", w)
		}
	})
}

// A machine that is seen to boot again while its RAM disk is gone is not waited for; the packet alone, which anybody can send, ends
// nothing.
func TestMachineStartedOver(t *testing.T) {
	ask := func(r *rig) { pass(time.Second); r.event("boot.ignored", "mac", "52:54:00:00:00:01") }
	for name, how := range map[string]func(r *rig){
		"asked, then noticed": func(r *rig) { ask(r); pass(45 * time.Second); r.lose() },
		"noticed, then asked": func(r *rig) { r.lose(); pass(time.Minute); ask(r) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.until("ok deploy.image")
				how(r)
				r.wantFailed("deploy", "the machine started over: it asked for a network boot at")
				r.wantDisk(fleet.HoldsPartlyWritten, "did not say how far")
			})
		})
	}
	t.Run("before it opened a session", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			r.until("ramdisk connects")
			ask(r)
			r.wantFailed("inventory", "before it opened its session")
		})
	})
	for name, how := range map[string]func(r *rig){
		"a packet alone":     func(r *rig) { ask(r); pass(10 * time.Minute); ask(r) },
		"long before a flap": func(r *rig) { ask(r); pass(2 * time.Minute); r.lose() },
		"before the join": func(r *rig) {
			r.post(executor.SiteEvent{Kind: "boot.ignored", At: time.Now().Add(-time.Hour)})
			r.lose()
		},
		"a clock that is off": func(r *rig) {
			r.post(executor.SiteEvent{Kind: "boot.ignored", At: time.Now().Add(time.Hour)})
			pass(2 * time.Minute)
			r.lose()
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.until("ok disk.wipe")
				how(r)
				if m := r.show(); m.State != fleet.MachineProvisioning {
					t.Errorf("got %s, want it at work", r.describe())
				}
			})
		})
	}
}

// Lost while it pauses: nothing ends it, and when it goes on it is judged.
func TestLostWhilePaused(t *testing.T) {
	for _, asked := range []bool{false, true} {
		t.Run(fmt.Sprintf("started over %t", asked), func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.until("ok diag.nvml")
				r.lose()
				if asked {
					pass(time.Second)
					r.event("boot.ignored")
				}
				pass(time.Hour)
				if m := r.show(); m.State != fleet.MachinePaused {
					t.Fatalf("got %s, want paused", r.describe())
				}
				if err := r.ex.Resume(t.Context(), "m1", "root"); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if !asked {
					pass(3*time.Minute - time.Second)
					if m := r.show(); m.State != fleet.MachineProvisioning {
						t.Fatalf("got %s, want the whole time after the pause", r.describe())
					}
					pass(time.Second)
				}
				r.wantFailed("diag", "lost since")
				r.wantDisk(fleet.HoldsClean, "read back whole")
				if c := r.command("diag.nvml"); c != nil {
					t.Errorf("got %s sent to an agent that is not there", c.Kind)
				}
			}, "wipe")
		})
	}
}

// At kexec the session ends anyhow. A power cut there is none the worse: the disk is written whole, and its system joins.
func TestLostAtKexec(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.until("ok boot.kexec")
		r.event("boot.ignored")
		r.lose()
		pass(5 * time.Minute)
		if w := r.show().Waiting; w == nil || !contains(w.For, "installed system to start") || w.Until.IsZero() {
			t.Errorf("got waiting %+v, want the installed system waited for", w)
		}
		r.post(executor.Joined{Role: "node", KeyID: "k-node"})
		if s := r.step("kexec"); s.State != fleet.StepDone || !contains(s.Why, "without the RAM disk's answer") || s.Commands[0].State != fleet.CommandCancelled {
			t.Errorf("got step %+v, want it done without an answer", s)
		}
		ms := moves()
		for _, m := range ms[len(ms)-2:] {
			m.do(r)
		}
		if m := r.show(); m.State != fleet.MachineActive {
			t.Errorf("got %s, want active", r.describe())
		}
	})
	t.Run("no system starts", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			r.until("ok boot.kexec")
			r.lose()
			pass(10 * time.Minute)
			r.wantFailed("kexec", "installed system to start")
			r.wantDisk(fleet.HoldsImage("demo"), "read back whole")
		})
	})
	t.Run("a node while the RAM disk is there", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			r.until("ok boot.kexec")
			r.post(executor.Joined{Role: "node", KeyID: "k-node"})
			if s := r.step("kexec"); s.State != fleet.StepRunning {
				t.Errorf("got step %+v, want the RAM disk's own word", s)
			}
		})
	})
}

// What a lost machine left is wiped by the next workflow before anything else.
func TestProvisionAfterALostSession(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.until("ok deploy.image")
		r.progress("deploy.image", 300)
		r.lose()
		pass(3 * time.Minute)
		r.wantFailed("deploy", "lost since")
		r.sender.sent = nil
		var err error
		if r.wf, err = r.ex.Provision(t.Context(), r.order()); err != nil {
			t.Fatal(err)
		}
		r.wantDisk(fleet.HoldsPartlyWritten, "")
		for _, m := range moves() {
			m.do(r)
		}
		wantHappyEnd(t, r)
		var kinds []string
		for _, s := range r.sender.sent {
			if destructiveKind(s.body.Kind) {
				kinds = append(kinds, s.body.Kind)
			}
		}
		if strings.Join(kinds, " ") != "disk.wipe deploy.image" {
			t.Errorf("got %v, want a wipe and then a deploy", kinds)
		}
	})
}

func destructiveKind(k string) bool { return k == "disk.wipe" || k == "deploy.image" }

// An agent that was killed and started again says that it was interrupted; that a wipe's agent never said how far it was then means
// nothing good.
func TestInterruptedWipe(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.until("ok disk.wipe")
		r.report("disk.wipe", executor.Report{State: fleet.CommandFailed, Message: "interrupted: the agent was restarted while it ran disk.wipe"})
		r.wantFailed("wipe", "interrupted: the agent was restarted while it ran disk.wipe; disk "+serial+" holds partly wiped")
		if next := r.show().Failure.Next; !contains(next, "console") || !contains(next, "firstlight provision") {
			t.Errorf("got next %q, want where to look and how to begin again", next)
		}
		r.wantDisk(fleet.HoldsPartlyWiped, "interrupted")
	})
}

// The RAM disk of a workflow that was given up, still connected, does not speak for the one of the next workflow.
func TestRAMDiskOfAnEarlierWorkflow(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.until("ramdisk connects")
		for _, s := range executor.Sections() {
			r.post(executor.Section{Name: s, KeyID: "k-earlier"})
		}
		r.sender.up["ramdisk"] = true
		r.post(executor.SessionUp{Role: "ramdisk", KeyID: "k-earlier", Epoch: 3})
		if s := r.step("inventory"); s.State != fleet.StepRunning {
			t.Fatalf("got %s, want the inventory of the RAM disk that joined", r.describe())
		}
		r.post(executor.SessionUp{Role: "ramdisk", KeyID: "k-ram", Epoch: 4})
		for _, s := range executor.Sections() {
			r.post(executor.Section{Name: s, KeyID: "k-ram"})
		}
		if s := r.step("wipe"); s.State != fleet.StepRunning {
			t.Errorf("got %s, want it to go on with its own", r.describe())
		}
	})
}
