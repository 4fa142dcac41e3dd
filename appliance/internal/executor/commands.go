package executor

import (
	"fmt"
	"strings"

	"firstlight/appliance/internal/fleet"
)

// commands runs a step's planned commands one after the other: it mints the next one when the ones before succeeded, and fails the
// step with the first that did not. ok when all succeeded.
func (f *flow) commands(s *fleet.Step, p fleet.PlannedStep) (ok bool, err error) {
	var own []*fleet.Command
	for i := range s.Commands {
		if c := &s.Commands[i]; !f.run.Sent[c.ID].Background {
			own = append(own, c)
		}
	}
	for _, c := range own {
		switch {
		case !c.State.Ended():
			return false, nil
		case c.State != fleet.CommandSucceeded:
			f.fail(s.Name, c.Kind, f.cause(c), f.remedy(c, p))
			return false, nil
		}
	}
	if len(own) == len(p.Commands) {
		return true, nil
	}
	next := p.Commands[len(own)]
	if destructive(next.Kind) {
		mark, err := f.protected()
		if err != nil {
			return false, err
		}
		if mark != nil {
			f.forbidden(s.Name, next.Kind, mark)
			return false, nil
		}
	}
	return false, f.mint(s.Name, next, f.deadline(s), false)
}

// forbidden ends the workflow before a command that would write to a protected machine's disks.
func (f *flow) forbidden(step, kind string, mark *fleet.Protection) {
	f.fail(step, kind, fmt.Sprintf("machine %s is %s: nothing was ordered that touches its disks", f.run.Machine, mark),
		"when it may be wiped after all: firstlight machine unprotect "+f.run.Machine+", then firstlight provision")
}

// unhanded ends the workflow at a command that must not be handed over any more, or not again.
func (f *flow) unhanded(v Forbidden) {
	c := f.run.Command(v.CommandID)
	switch {
	case c == nil || c.State.Ended():
	case f.begun(c):
		f.fail(f.run.Sent[c.ID].Step, c.Kind, fmt.Sprintf("machine %s is %s, and %s was sent before that: its agent did not say that it has it, and it is not sent again", f.run.Machine, &v.Mark, c.Kind),
			"switch the machine off, so that nothing goes on there, and look at its disks; when it may be wiped after all: firstlight machine unprotect "+f.run.Machine+", then firstlight provision")
	default:
		c.State, c.Ended, c.Message = fleet.CommandCancelled, fleet.At(f.now), "it was never sent"
		f.forbidden(f.run.Sent[c.ID].Step, c.Kind, &v.Mark)
	}
}

// unanswered says of a command whether its agent has said nothing about it.
func unanswered(c *fleet.Command) bool {
	return c.State == fleet.CommandPending || c.State == fleet.CommandSent
}

// cause is why a command's step failed.
func (f *flow) cause(c *fleet.Command) string {
	if strings.HasPrefix(c.Message, interrupted) {
		return c.Message + "; " + holding(f.run.Disks)
	}
	return orText(c.Message, c.Kind+" "+string(c.State))
}

// remedy is what to do about a command that did not succeed.
func (f *flow) remedy(c *fleet.Command, p fleet.PlannedStep) string {
	if strings.HasPrefix(c.Message, interrupted) {
		return "the machine's console says how its agent died; then begin again with firstlight provision, which wipes the disks first"
	}
	if sent := f.run.Sent[c.ID]; sent != nil && c.State == fleet.CommandRejected {
		switch sent.Reject {
		case "UNTRUSTED_KEY", "BAD_SIGNATURE", "UNSIGNED":
			return "nothing was done on the machine: see that the appliance's worker key and its certificate (data_dir/pki/worker) are the ones that its command root signed, and who changed them; then begin again with firstlight provision"
		case "EXPIRED":
			return "compare the clocks of the appliance and of the agent; then begin again with firstlight provision"
		}
	}
	return orText(p.Remedy, p.Next)
}

// outcome is the state of a step whose commands all succeeded. A diagnosis that tested nothing is skipped, never passed.
func outcome(s *fleet.Step) (fleet.StepState, string) {
	var skipped []string
	n := 0
	for _, c := range s.Commands {
		n++
		if strings.HasPrefix(c.Message, skippedPrefix) {
			skipped = append(skipped, c.Message)
		}
	}
	switch {
	case s.Name != fleet.StepDiag || len(skipped) == 0:
		return fleet.StepDone, ""
	case len(skipped) == n:
		return fleet.StepSkipped, skipped[0]
	}
	return fleet.StepDone, "in part " + strings.Join(skipped, ", ")
}

// report applies an agent's update on a command. Updates never take a command back, so that a repeated or late one is harmless.
func (f *flow) report(r Report) error {
	c, sent := f.run.Command(r.CommandID), f.run.Sent[r.CommandID]
	if c == nil || sent == nil {
		return ErrNotOpen
	}
	if sent.Node != r.Node || sent.Role != r.Role {
		return fmt.Errorf("command %s went to the %s agent %s, reported by the %s agent %s: %w", c.ID, sent.Role, sent.Node, r.Role, r.Node, ErrForeign)
	}
	if !c.State.Before(r.State) {
		return nil
	}
	if r.Attested && r.AttestedKind != c.Kind {
		r.Attested, r.AttestError = false, fmt.Sprintf("it is about %q", r.AttestedKind)
	}
	c.State, c.Attested = r.State, r.Attested
	if r.Progress != nil {
		if c.Progress == nil || c.Progress.Done != r.Progress.Done {
			f.run.Moved = fleet.At(f.now)
		}
		c.Progress = r.Progress
	}
	if !c.State.Ended() {
		f.hold(c, r)
		return nil
	}
	c.Ended = fleet.At(f.now)
	switch r.State {
	case fleet.CommandSucceeded:
		f.judge(c, sent, r)
	case fleet.CommandRejected:
		sent.Reject = r.Reject
		c.Message = fleet.Clip(fmt.Sprintf("the %s agent rejected %s: %s: %s", sent.Role, c.Kind, r.Reject, r.Message))
	default:
		c.Message = fleet.Clip(r.Message)
	}
	f.hold(c, r)
	return nil
}

// judge looks at a success: what the machine must vouch for needs its valid report, and what it says must be what was ordered.
func (f *flow) judge(c *fleet.Command, sent *fleet.Sent, r Report) {
	if sent.Attested && !r.Attested {
		c.State = fleet.CommandFailed
		c.Message = fleet.Clip("the result of " + c.Kind + " carries no valid report by the machine's key: " + orText(r.AttestError, "there is none"))
		return
	}
	message, err := judge(c.Kind, sent.Wire, r.Result)
	if err != nil {
		c.State, message = fleet.CommandFailed, fmt.Sprintf("%s reported success, but %v", c.Kind, err)
	}
	c.Message = fleet.Clip(message)
}
