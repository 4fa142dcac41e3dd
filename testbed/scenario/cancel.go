package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"firstlight/testbed/judge"
)

// outcomeCancelled is how a machine ends whose workflow an operator cancelled.
const outcomeCancelled = "cancelled"

// cancelScenario cancels one workflow after the other, each at another stage.
func cancelScenario() Scenario {
	return Scenario{Name: "cancel", What: "an operator cancels in each stage: a defined end, and what the disk holds is said", Firmware: []string{UEFI},
		outcome: outcomeCancelled, drive: cancelEach, judge: func(context.Context, *run) error { return nil }}
}

// cancelStops in the order in which a disk goes through its states.
func cancelStops() []stop {
	return []stop{
		{stage: "dhcp", holds: oldData, bytes: patternLeft},
		{stage: "script", holds: oldData, bytes: patternLeft},
		{stage: "join", holds: oldData, bytes: patternLeft},
		{stage: "inventory", pauseAfter: "join", holds: oldData, bytes: patternLeft},
		{stage: "wipe", holds: partlyWiped, bytes: halfWiped},
		{stage: "diag", pauseAfter: "wipe", holds: clean, bytes: wiped},
		{stage: "deploy", holds: partlyWritten, bytes: unstartable},
		{stage: "kexec", pauseAfter: "deploy", holds: holdsImage, bytes: deployed},
	}
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
		if err := r.meet(ctx, s); err != nil {
			return fmt.Errorf("cancel at %s: %w", s.stage, err)
		}
		if err := r.cancelAt(ctx, s); err != nil {
			return fmt.Errorf("cancel at %s: %w", s.stage, err)
		}
	}
	return nil
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
	if err := r.quiet(ctx, prefix); err != nil {
		return err
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
