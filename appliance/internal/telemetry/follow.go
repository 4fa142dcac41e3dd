package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"time"

	"firstlight/appliance/internal/fleet"
)

const (
	// followAgain is the pause before the follower starts anew after its channel was closed.
	followAgain = time.Second
	// maxKinds bounds the kinds of events that are counted by name; our own are about fifty.
	maxKinds = 128
)

// kindWord is what the kind of an event of ours looks like.
var kindWord = regexp.MustCompile(`^[a-z][a-z.-]{0,47}$`)

// Fleet is what a Follower needs of fleet.Repo.
type Fleet interface {
	Runs(ctx context.Context) ([]fleet.Run, error)
	Events(ctx context.Context, machine string, limit int) ([]fleet.Event, error)
	Changes(ctx context.Context, broken func(error)) (<-chan fleet.Change, error)
}

// Follower counts what is stored, and traces it. What was over before it began is not told again, and what happens while it loses
// its channel is told when it has a new one.
type Follower struct {
	fleet   Fleet
	metrics *Metrics
	// traces is nil where none are sent.
	traces *Traces
	// machine says whether an agent's node id is a machine's: what machines call their events is not believed.
	machine func(node string) bool
	log     *slog.Logger

	// known are the workflows whose end was not seen yet, kinds the kinds of events by name, last the newest event.
	known map[string]*known
	kinds map[string]bool
	last  uint64
}

// known is what was told of a workflow.
type known struct {
	state    fleet.WorkflowState
	steps    map[string]bool
	commands map[string]bool
}

// FollowerConfig is what a Follower is made of.
type FollowerConfig struct {
	Fleet   Fleet
	Metrics *Metrics
	// Traces is nil where none are sent.
	Traces *Traces
	// SiteNode is the site agent's node id: its events are counted by their kind.
	SiteNode string
	Log      *slog.Logger
}

// NewFollower returns a follower that Run starts.
func NewFollower(cfg FollowerConfig) *Follower {
	return &Follower{fleet: cfg.Fleet, metrics: cfg.Metrics, traces: cfg.Traces, log: cfg.Log,
		machine: func(node string) bool { return node != "control" && node != cfg.SiteNode },
		known:   map[string]*known{}, kinds: map[string]bool{}}
}

// Run follows until ctx ends. Ready, if not nil, is called once, when nothing that happens from then on is missed.
func (f *Follower) Run(ctx context.Context, ready func()) {
	began := false
	for ctx.Err() == nil {
		err := f.follow(ctx, !began, func() {
			if !began && ready != nil {
				ready()
			}
			began = true
		})
		if ctx.Err() != nil {
			return
		}
		f.log.Warn("telemetry follows the store anew", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(followAgain):
		}
	}
}

// follow tells what changed since the last time, then what changes, until the channel is closed. The first time, what there is
// already was told by the process before.
func (f *Follower) follow(ctx context.Context, first bool, ready func()) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	changes, err := f.fleet.Changes(ctx, func(err error) { f.log.Warn("telemetry left something out", "err", err) })
	if err != nil {
		return err
	}
	if err := f.catchUp(ctx, first); err != nil {
		return err
	}
	ready()
	for c := range changes {
		switch {
		case c.Run != nil:
			f.run(ctx, c.Run)
		case c.Event != nil:
			f.event(c.Event)
		}
	}
	return errors.New("changes were lost")
}

func (f *Follower) catchUp(ctx context.Context, first bool) error {
	runs, err := f.fleet.Runs(ctx)
	if err != nil {
		return err
	}
	events, err := f.fleet.Events(ctx, "", 0)
	if err != nil {
		return err
	}
	for i := range runs {
		r := &runs[i]
		switch {
		case first && !r.Closed:
			f.known[r.ID] = seen(r)
		case !first:
			f.run(ctx, r)
		}
	}
	for i := range events {
		if first {
			f.last = events[i].Seq
			continue
		}
		f.event(&events[i])
	}
	f.countOpen()
	return nil
}

// seen is what there is to tell of a workflow, all of it told.
func seen(r *fleet.Run) *known {
	k := &known{state: r.State, steps: map[string]bool{}, commands: map[string]bool{}}
	for i := range r.Steps {
		s := &r.Steps[i]
		k.steps[s.Name] = s.State.Ended()
		for j := range s.Commands {
			k.commands[s.Commands[j].ID] = s.Commands[j].State.Ended()
		}
	}
	return k
}

// run tells what is new of a workflow.
func (f *Follower) run(ctx context.Context, r *fleet.Run) {
	before := f.known[r.ID]
	if before == nil {
		if r.Closed {
			return
		}
		before = &known{state: fleet.WorkflowRunning}
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		for j := range s.Commands {
			if c := &s.Commands[j]; c.State.Ended() && !before.commands[c.ID] {
				f.metrics.command(c)
				f.traces.command(r, s, c)
			}
		}
		if s.State.Ended() && !before.steps[s.Name] {
			f.metrics.step(s)
			f.traces.step(r, s)
		}
	}
	if before.state.Open() && !r.State.Open() {
		f.metrics.boot(&r.Workflow)
		f.traces.boot(ctx, r, f.fleet)
	}
	if r.Closed {
		delete(f.known, r.ID)
	} else {
		f.known[r.ID] = seen(r)
	}
	f.countOpen()
}

func (f *Follower) countOpen() {
	n := map[fleet.WorkflowState]int{fleet.WorkflowRunning: 0, fleet.WorkflowPaused: 0, fleet.WorkflowCancelling: 0}
	for _, k := range f.known {
		if k.state.Open() {
			n[k.state]++
		}
	}
	for state, count := range n {
		f.metrics.open.WithLabelValues(string(state)).Set(float64(count))
	}
}

func (f *Follower) event(e *fleet.Event) {
	if e.Seq <= f.last {
		return
	}
	f.last = e.Seq
	kind := e.Kind
	switch {
	case f.machine(e.Source):
		kind = "agent"
	case f.kinds[kind]:
	case len(f.kinds) < maxKinds && kindWord.MatchString(kind):
		f.kinds[kind] = true
	default:
		kind = Other
	}
	f.metrics.events.WithLabelValues(kind).Inc()
}

func (m *Metrics) boot(w *fleet.Workflow) {
	m.boots.WithLabelValues(string(w.State)).Inc()
	if d, ok := between(w.Started, w.Ended); ok {
		m.bootSeconds.WithLabelValues(string(w.State)).Observe(d.Seconds())
	}
}

func (m *Metrics) step(s *fleet.Step) {
	m.steps.WithLabelValues(s.Name, string(s.State)).Inc()
	if d, ok := between(s.Start, s.End); ok && s.State != fleet.StepSkipped {
		m.stepSeconds.WithLabelValues(s.Name, string(s.State)).Observe(d.Seconds())
	}
}

func (m *Metrics) command(c *fleet.Command) {
	m.commands.WithLabelValues(c.Kind, string(c.State)).Inc()
	if d, ok := between(c.Issued, c.Ended); ok {
		m.commandSeconds.WithLabelValues(c.Kind, string(c.State)).Observe(d.Seconds())
	}
}

// between is the time from start to end; false where one is not known or the clock was set back.
func between(start, end fleet.Time) (time.Duration, bool) {
	if start.IsZero() || end.IsZero() || end.Before(start.Time) {
		return 0, false
	}
	return end.Sub(start.Time), true
}
