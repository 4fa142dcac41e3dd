package executor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"firstlight/appliance/internal/fleet"
	"firstlight/gateway-client/ident"
)

// cancelWait bounds how long a cancelled workflow waits for the command in hand to end.
const cancelWait = 2 * time.Minute

// ErrNothingToCancel: the machine has no open workflow.
var ErrNothingToCancel = errors.New("nothing to cancel: no workflow is open")

// Cancel ends a machine's open workflow: no command is begun any more, the one in hand is told to stop, and the site closes the
// boot. It returns once the workflow is over, which is after cancelWait at the latest. Cancelling twice is cancelling once.
func (e *Executor) Cancel(ctx context.Context, machine, by, reason string) error {
	rec, err := e.cfg.Fleet.Machine(ctx, machine)
	if err != nil {
		return fmt.Errorf("cancel: %w", err)
	}
	e.mu.Lock()
	w := e.workers[rec.Workflow]
	e.mu.Unlock()
	err = e.Post(ctx, rec.Workflow, Cancelled{By: by, Reason: reason})
	if errors.Is(err, ErrNotOpen) {
		return fmt.Errorf("cancel %q: %w", machine, ErrNothingToCancel)
	}
	if err != nil || w == nil {
		return err
	}
	select {
	case <-w.over:
		return nil
	case <-w.done:
		if w.run.State.Open() {
			return fmt.Errorf("cancel %q: ordered, and not over yet: %w", machine, ErrStopped)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cancel %q: ordered, and not over yet: %w", machine, ctx.Err())
	}
}

// cancel begins the end. What no agent has in hand is over at once.
func (f *flow) cancel(c Cancelled) error {
	if f.run.Cancel != nil {
		return nil
	}
	s := f.run.Current()
	if s == nil {
		return ErrNotOpen
	}
	f.run.Cancel = &fleet.Cancel{By: fleet.Clip(c.By), Reason: fleet.Clip(c.Reason), Since: fleet.At(f.now),
		Until: fleet.At(f.now.Add(cancelWait)), Step: s.Name, Next: f.afterCancel(s.Name)}
	f.run.State = fleet.WorkflowCancelling
	return nil
}

// again is what to do once a workflow is cancelled.
const again = "begin again with firstlight provision when you want: it wipes the disks first"

// afterCancel is what to do next about a workflow that is cancelled at a step.
func (f *flow) afterCancel(step string) string {
	switch step {
	case fleet.StepNodeJoin:
		return "the installed system runs and is no node: switch the machine off, or leave it; " + again
	case fleet.StepActive:
		return "the installed system runs, and its node agent has joined: switch the machine off if it is not to work; " + again
	}
	return again
}

// inHand returns the step's command that its agent may be at, nil when there is none.
func (f *flow) inHand(s *fleet.Step) *fleet.Command {
	for i := range s.Commands {
		if c := &s.Commands[i]; !f.run.Sent[c.ID].Background && !c.State.Ended() {
			return c
		}
	}
	return nil
}

// cancelled ends a cancelled workflow once nothing is in hand, or once that was waited for long enough.
func (f *flow) cancelled() {
	s, x := f.run.Step(f.run.Cancel.Step), f.run.Cancel
	c := f.inHand(s)
	if c != nil && c.State == fleet.CommandPending && f.unsent(c) {
		c.State, c.Ended, c.Message = fleet.CommandCancelled, fleet.At(f.now), neverSent(c.Kind)
		c = nil
	}
	until := f.cancelBy()
	switch {
	case c != nil && f.now.Before(until):
		s.Waiting = &fleet.Waiting{For: fmt.Sprintf("the %s agent to stop %s, as %s ordered", f.run.Sent[c.ID].Role, c.Kind, x.By), Since: x.Since,
			Until: fleet.At(until), Next: "wait; when the agent does not answer by then the workflow ends all the same"}
		return
	case c != nil:
		x.Outcome = fmt.Sprintf("the %s agent did not say within %s that %s ended: it may still be at it", f.run.Sent[c.ID].Role, f.now.Sub(x.Since.Time).Round(time.Second), c.Kind)
		x.Next = "switch the machine off, so that nothing goes on there; then begin again with firstlight provision when you want: it wipes the disks first"
		f.doubt(c)
	default:
		x.Outcome = f.ended(s)
	}
	at := fleet.At(f.now)
	why := "cancelled by " + x.By
	if x.Reason != "" {
		why += ": " + x.Reason
	}
	after := false
	for i := range f.run.Steps {
		t := &f.run.Steps[i]
		t.Waiting = nil
		switch {
		case t.Name == s.Name:
			after = true
			t.State, t.Why, t.End = fleet.StepCancelled, fleet.Clip(why), at
			if t.Start.IsZero() {
				t.Start = at
			}
		case after:
			t.State, t.Why = fleet.StepSkipped, "not reached: cancelled at step "+s.Name
		}
	}
	f.over(fleet.WorkflowCancelled)
}

// cancelBy is when the wait for the command in hand is over: agents get time to come back after a start of the appliance.
func (f *flow) cancelBy() time.Time {
	if t := f.run.Cancel.Until.Time; !t.Before(f.notBefore) {
		return t
	}
	return f.notBefore
}

// neverSent says of a command that its agent never had it.
func neverSent(kind string) string {
	if destructive(kind) {
		return "it was never sent, nothing was written"
	}
	return "it was never sent"
}

// ended says how the cancelled step ended: by its last command, and what that means for the machine.
func (f *flow) ended(s *fleet.Step) string {
	out := "no command was in hand at step " + s.Name
	for _, c := range s.Commands {
		if f.run.Sent[c.ID].Background {
			continue
		}
		out = fmt.Sprintf("%s %s", c.Kind, c.State)
		if c.Message != "" {
			out += ": " + c.Message
		}
	}
	switch {
	case f.before(fleet.StepWipe):
		out += "; " + nothingWritten
	case s.Name == fleet.StepNodeJoin:
		out = fmt.Sprintf("image %s is written whole and its system was started; nobody joined, and its join secret is void", f.run.Image)
	}
	return fleet.Clip(out)
}

// untold are the commands in hand whose agents do not know yet that the workflow is cancelled, or has failed.
func (w *worker) untold() []*fleet.Command {
	var out []*fleet.Command
	for i := range w.run.Steps {
		s := &w.run.Steps[i]
		for j := range s.Commands {
			if c := &s.Commands[j]; !c.State.Ended() && !w.run.Sent[c.ID].Background && !w.told[c.ID] {
				out = append(out, c)
			}
		}
	}
	return out
}

// orderedBy says who cancelled and why; the agent puts the word "cancelled" before it.
func orderedBy(run *fleet.Run) string {
	x := run.Cancel
	switch {
	case x == nil:
		return "by the appliance: the workflow failed at step " + run.Failure.Step
	case x.Reason == "":
		return "by " + x.By
	}
	return "by " + x.By + ": " + x.Reason
}

// stopCommands tells agents to stop what a cancelled or failed workflow has in their hands: once per session. A failed one does not
// wait for it: an agent whose session is lost gets none for a workflow that is over, and stops by that.
func (w *worker) stopCommands() {
	if w.run.State != fleet.WorkflowCancelling && w.run.State != fleet.WorkflowFailed {
		return
	}
	now := w.e.cfg.Now()
	for _, c := range w.untold() {
		sent := w.run.Sent[c.ID]
		if now.Before(w.again[c.ID]) {
			continue
		}
		role, err := ident.ParseRole(sent.Role)
		if err == nil {
			err = w.e.cfg.Sender.Cancel(ident.NodeID(sent.Node), role, c.ID, orderedBy(w.run))
		}
		if err != nil {
			w.again[c.ID] = now.Add(resendAfter)
			w.e.cfg.Log.Debug("cancel command", "machine", w.run.Machine, "workflow", w.id, "kind", c.Kind, "command", c.ID, "err", err)
			continue
		}
		w.told[c.ID] = true
	}
}
