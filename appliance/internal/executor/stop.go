package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"firstlight/appliance/internal/fleet"
)

// ErrStoppedAll: a person stopped everything, and has not let it go on.
var ErrStoppedAll = errors.New("everything is stopped")

// Frozen is one workflow that was stopped, or let go on.
type Frozen struct {
	Machine  string `json:"machine"`
	Workflow string `json:"workflow"`
	Step     string `json:"step"`
	// InHand is the kind of the command that ends before the workflow stands still; empty when it stands.
	InHand string `json:"in_hand"`
	Text   string `json:"text"`
}

// StopAll freezes every open workflow at its next safe point: a command that an agent has in hand ends, and nothing new is begun,
// also no new workflow, until ResumeAll. It returns what was frozen and where.
func (e *Executor) StopAll(ctx context.Context, by, reason string) ([]Frozen, error) {
	e.provision.Lock()
	defer e.provision.Unlock()
	stop, err := e.cfg.Fleet.SetStop(ctx, &fleet.Stop{By: fleet.Clip(by), Reason: fleet.Clip(reason), Since: fleet.At(e.cfg.Now())})
	if err != nil {
		return nil, fmt.Errorf("stop all: %w", err)
	}
	return e.each(ctx, func(*fleet.Run) Fact { return Stopped{Stop: *stop} })
}

// ResumeAll lets everything go on that StopAll froze. Workflows that pause for another reason stay paused.
func (e *Executor) ResumeAll(ctx context.Context, by string) ([]Frozen, error) {
	e.provision.Lock()
	defer e.provision.Unlock()
	if _, err := e.cfg.Fleet.SetStop(ctx, nil); err != nil {
		return nil, fmt.Errorf("resume all: %w", err)
	}
	return e.each(ctx, func(r *fleet.Run) Fact {
		if r.Stopped == nil {
			return nil
		}
		return Thawed{By: by}
	})
}

// each posts a fact to every open workflow and says where each is then.
func (e *Executor) each(ctx context.Context, fact func(*fleet.Run) Fact) ([]Frozen, error) {
	runs, err := e.cfg.Fleet.Runs(ctx)
	if err != nil {
		return nil, err
	}
	out := []Frozen{}
	for i := range runs {
		r := &runs[i]
		if !r.State.Open() || r.State == fleet.WorkflowCancelling {
			continue
		}
		f := fact(r)
		if f == nil {
			continue
		}
		err := e.Post(ctx, r.ID, f)
		if errors.Is(err, ErrNotOpen) {
			continue
		}
		if err != nil {
			return out, err
		}
		now, _, err := e.cfg.Fleet.Run(ctx, r.ID)
		if err != nil {
			return out, err
		}
		if now.State.Open() {
			out = append(out, where(now))
		}
	}
	return out, nil
}

func where(run *fleet.Run) Frozen {
	z := Frozen{Machine: run.Machine, Workflow: run.ID}
	s := run.Current()
	if s == nil {
		return z
	}
	z.Step = s.Name
	f := flow{run: run}
	c := f.inHand(s)
	switch {
	case run.Stopped == nil:
		z.Text = "goes on at step " + s.Name
	case c != nil:
		z.InHand, z.Text = c.Kind, fmt.Sprintf("stops at step %s when %s in hand of the %s agent has ended", s.Name, c.Kind, run.Sent[c.ID].Role)
	default:
		z.Text = "stands still at step " + s.Name
	}
	return z
}

// stopped freezes the workflow. Stopping what stands still already keeps the first stop.
func (f *flow) stopped(s Stopped) error {
	if f.run.Stopped == nil && f.run.State != fleet.WorkflowCancelling {
		f.run.Stopped = &s.Stop
	}
	return nil
}

// thaw lets the workflow go on; the running step gets its whole time again.
func (f *flow) thaw() {
	if f.run.Stopped == nil {
		return
	}
	f.run.Stopped, f.run.Thawed = nil, fleet.At(f.now)
	s := f.run.Current()
	if s == nil || s.State != fleet.StepPaused {
		return
	}
	f.run.State, s.Waiting = fleet.WorkflowRunning, nil
	s.State = fleet.StepRunning
	if s.Start.IsZero() {
		s.State = fleet.StepPending
	}
}

// drop takes back a command that no agent has: its like is minted again, with new times, when the step goes on.
func (f *flow) drop(s *fleet.Step, id string) {
	s.Commands = slices.DeleteFunc(s.Commands, func(c fleet.Command) bool { return c.ID == id })
	delete(f.run.Sent, id)
}

// frozen says whether the step may not go on because everything is stopped. What an agent has in hand ends first.
func (f *flow) frozen(s *fleet.Step) bool {
	if f.run.Stopped == nil {
		return false
	}
	if c := f.inHand(s); c != nil {
		if c.State != fleet.CommandPending || !f.unsent(c) {
			return false
		}
		f.drop(s, c.ID)
	}
	if s.State != fleet.StepPaused || s.Waiting == nil {
		s.State, f.run.State = fleet.StepPaused, fleet.WorkflowPaused
	}
	s.Waiting = &fleet.Waiting{For: "a person: " + f.run.Stopped.String(), Since: f.run.Stopped.Since,
		Next: "firstlight resume-all, or firstlight resume " + f.run.Machine + " for this machine alone"}
	return true
}
