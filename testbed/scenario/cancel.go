package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"

	"firstlight/testbed/bmcsim"
	"firstlight/testbed/judge"
	"firstlight/testbed/qemu"
)

// outcomeCancelled is how a machine ends whose workflow an operator cancelled.
const outcomeCancelled = "cancelled"

// cancelLimit bounds the run: a machine boots for each stage but the first.
const cancelLimit = 45 * time.Minute

// cancelScenario cancels one workflow after the other, each at another stage.
func cancelScenario() Scenario {
	return Scenario{Name: "cancel", What: "an operator cancels in each stage: a defined end, and what the disk holds is said", Firmware: []string{UEFI},
		outcome: outcomeCancelled, timeout: cancelLimit, drive: cancelEach, judge: func(context.Context, *run) error { return nil }}
}

// Bounds of a slow link, in bits per second: the firmware's file takes 10 s over the one, the kernel and its initrds 30 s over
// the other.
const (
	slowTFTP = 128_000
	slowHTTP = 4_000_000
)

// cancelStops in the order in which a disk goes through its states.
func cancelStops() []stop {
	bmc := &silentBMC{}
	return []stop{
		{stage: "power-on", slow: bmc.silence, also: bmc.judge, holds: oldData, bytes: patternLeft},
		{stage: "dhcp", holds: oldData, bytes: patternLeft},
		{stage: "tftp", slow: link(slowTFTP), fast: link(0), holds: oldData, bytes: patternLeft},
		{stage: "script", holds: oldData, bytes: patternLeft},
		{stage: "kernel", slow: link(slowHTTP), fast: link(0), holds: oldData, bytes: patternLeft},
		{stage: "join", holds: oldData, bytes: patternLeft},
		{stage: "inventory", pauseAfter: "join", holds: oldData, bytes: patternLeft},
		{stage: "wipe", holds: partlyWiped, bytes: halfWiped},
		{stage: "diag", pauseAfter: "wipe", holds: clean, bytes: wiped},
		{stage: "deploy", holds: partlyWritten, bytes: unstartable},
		{stage: "kexec", pauseAfter: "deploy", holds: holdsImage, bytes: deployed},
		{stage: "node-join", goesOn: true, also: nobodyJoins, holds: holdsImage, bytes: started},
	}
}

// link bounds what the machine receives, in bits per second; 0 takes the bound away.
func link(bits int64) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error { return r.lab.Throttle(ctx, r.machine.index, bits) }
}

// silentBMC is a controller that takes requests and does not answer, for a while.
type silentBMC struct {
	held   chan struct{}
	before bmcsim.Stats
}

func (s *silentBMC) silence(_ context.Context, r *run) error {
	s.held, s.before = make(chan struct{}), r.bmc.server.Stats()
	r.bmc.server.SetFaults(bmcsim.Faults{Pause: s.held})
	return nil
}

// judge lets the controller answer again, and checks that nothing reaches it late.
func (s *silentBMC) judge(ctx context.Context, r *run, prefix string) error {
	r.bmc.server.SetFaults(bmcsim.Faults{})
	close(s.held)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(quietTime):
	}
	now := r.bmc.server.Stats()
	r.add(judge.Of(prefix+"the machine stays off", !r.rack.Powered() && now.Resets == s.before.Resets && now.OverridePatches == s.before.OverridePatches,
		"powered %v; %d resets and %d boot overrides accepted since the order", r.rack.Powered(), now.Resets-s.before.Resets, now.OverridePatches-s.before.OverridePatches))
	return nil
}

// refusedJoin is what the node agent says on the console when the gateway will not have it.
var refusedJoin = regexp.MustCompile(`the gateway refused this machine: ([^\r\n]*)`)

// nobodyJoins waits until the installed system's agent was refused, and checks that the machine is no node.
func nobodyJoins(ctx context.Context, r *run, prefix string) error {
	serial, err := judge.ReadSerial(r.serialPath())
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, comebackTime)
	defer cancel()
	said, _, err := qemu.WaitSerial(waiting, r.serialPath(), refusedJoin, int64(len(serial)))
	if err != nil {
		r.add(judge.Fail(prefix+"the installed system's agent is refused", "%v", err))
		return ctx.Err()
	}
	rec, err := r.show(ctx, r.machine)
	if err != nil {
		return err
	}
	r.add(judge.Of(prefix+"the installed system's agent is refused", strings.Contains(said[1], outcomeCancelled), "the console says: %s", said[0]))
	role := "none"
	if rec.Connected != nil {
		role = rec.Connected.Role
	}
	r.add(judge.Of(prefix+"nobody joined", rec.State == outcomeCancelled && rec.NodeKeyID == "" && role != "node", "machine is %s, its node's key is %q, session as %s", rec.State, rec.NodeKeyID, role))
	return nil
}

// cancelled is what `firstlight cancel --json` says.
type cancelled struct {
	State  string `json:"state"`
	Cancel *struct {
		By      string `json:"by"`
		Reason  string `json:"reason"`
		Step    string `json:"step"`
		Outcome string `json:"outcome"`
		Next    string `json:"next"`
	} `json:"cancel"`
}

func cancelEach(ctx context.Context, r *run) error {
	for _, s := range cancelStops() {
		if err := r.cancelOne(ctx, s); err != nil {
			return fmt.Errorf("cancel at %s: %w", s.stage, err)
		}
	}
	return nil
}

func (r *run) cancelOne(ctx context.Context, s stop) error {
	if s.slow != nil {
		if err := s.slow(ctx, r); err != nil {
			return err
		}
	}
	if err := r.meet(ctx, s); err != nil {
		return err
	}
	if err := r.cancelAt(ctx, s); err != nil {
		return err
	}
	if s.fast == nil {
		return nil
	}
	return s.fast(ctx, r)
}

func (r *run) cancelAt(ctx context.Context, s stop) error {
	const reason = "another machine is needed first"
	out, err := r.firstlight(ctx, "--json", "cancel", r.name, "--reason", reason)
	if err != nil {
		return err
	}
	var c cancelled
	if err := json.Unmarshal(out, &c); err != nil {
		return err
	}
	rec, err := r.show(ctx, r.machine)
	if err != nil {
		return err
	}
	prefix := s.stage + ": "
	r.add(judge.Of(prefix+"the workflow is cancelled there", c.State == outcomeCancelled && rec.State == outcomeCancelled && rec.Workflow.State == outcomeCancelled &&
		c.Cancel != nil && c.Cancel.Step == s.stage, "machine %s, workflow %s, %s", rec.State, rec.Workflow.State, c.words()))
	r.add(judge.Of(prefix+"it says by whom, why, how it ended and what next", c.Cancel != nil && c.Cancel.By != "" && c.Cancel.Reason == reason && c.Cancel.Outcome != "" &&
		strings.Contains(c.Cancel.Next, "firstlight provision"), "%s", c.words()))
	if s.holds == oldData && c.Cancel != nil {
		r.add(judge.Of(prefix+"it says that nothing was written", strings.Contains(c.Cancel.Outcome, "nothing was written"), "%s", c.Cancel.Outcome))
	}
	if !s.goesOn {
		if err := r.quiet(ctx, prefix); err != nil {
			return err
		}
	}
	if s.also != nil {
		if err := s.also(ctx, r, prefix); err != nil {
			return err
		}
	}
	return r.judgeStop(ctx, prefix, s)
}

// words says the cancellation in a line.
func (c cancelled) words() string {
	if c.Cancel == nil {
		return "no cancellation in the record"
	}
	return fmt.Sprintf("cancelled by %s (%s) at %s: %s; next: %s", c.Cancel.By, c.Cancel.Reason, c.Cancel.Step, c.Cancel.Outcome, c.Cancel.Next)
}
