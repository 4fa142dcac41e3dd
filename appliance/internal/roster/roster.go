// Package roster is the fleet in memory, as people look at it: an index over all machines that answers searches, pages, counts and
// subscriptions without asking the store.
//
// It is for appliance and its internal packages; api asks it. It keeps nothing of its own: it follows the store's changes, and at a
// restart, or when changes were lost, it reads everything again. What it answers is as old as the store's watch is late (a few
// milliseconds); whoever just changed a machine and wants to see that asks [Roster.Refresh] first.
package roster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"firstlight/appliance/internal/fleet"
)

// Bounds.
const (
	// historySize is how many changes are kept for watchers that come back.
	historySize = 8192
	// watcherBuffer is how many changes a watcher may lag behind before its channel is closed.
	watcherBuffer = 1024
	// maxWatchers bounds the watchers at one time.
	maxWatchers = 256
	// retry is when the store is followed again after it could not be.
	retry = 2 * time.Second
)

// ErrTooMany: there are as many watchers as there may be.
var ErrTooMany = errors.New("too many watchers")

// Source is what the roster follows: fleet.Repo.
type Source interface {
	Snapshot(ctx context.Context) ([]fleet.Change, error)
	Changes(ctx context.Context, broken func(error)) (<-chan fleet.Change, error)
	MachineChange(ctx context.Context, name string) ([]fleet.Change, error)
}

// Config of a Roster. Log may be nil.
type Config struct {
	Source Source
	Now    func() time.Time
	Log    *slog.Logger
}

// Roster is safe for use from many goroutines. New, Start, and at the end: cancel Start's context, Wait.
type Roster struct {
	cfg Config
	wg  sync.WaitGroup
	// lists are what Page sorts in: of 10,000 machines they are half a megabyte, which would be most of what a page costs.
	lists sync.Pool

	mu       sync.RWMutex
	machines map[string]*entry
	// sorted are the machines by name.
	sorted []*entry
	runs   map[string]*run
	// rev is the number of the newest change, counted from the clock at the start so that it also grows over restarts.
	rev      int64
	history  []Change
	watchers map[*watcher]struct{}
}

// entry is one machine. Its fields are replaced, never changed: whoever took it under the lock may read it after.
type entry struct {
	rec     *fleet.Record
	rev     int64
	machine fleet.Machine
	run     *run
	// text is what a search looks at, macs the MACs without separators.
	text, macs string
	line       line
	// place, since and changed are what lists are ordered by; state is the state's index in states.
	place, since, changed string
	state                 int
}

type run struct {
	run *fleet.Run
	rev int64
	// pace is how fast the command that runs goes on.
	pace pace
}

// New returns a roster that is empty before Start.
func New(cfg Config) *Roster {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Roster{cfg: cfg, lists: sync.Pool{New: func() any { return new([2][]keyed) }}, machines: map[string]*entry{}, runs: map[string]*run{}, watchers: map[*watcher]struct{}{}, rev: cfg.Now().UnixMicro()}
}

// Start reads the fleet and follows it until ctx ends.
func (r *Roster) Start(ctx context.Context) error {
	changes, err := r.load(ctx)
	if err != nil {
		return fmt.Errorf("read the fleet: %w", err)
	}
	r.wg.Go(func() { r.follow(ctx, changes) })
	return nil
}

// Wait returns when what Start began has ended.
func (r *Roster) Wait() { r.wg.Wait() }

// load watches first and reads then, so that nothing is missed.
func (r *Roster) load(ctx context.Context) (<-chan fleet.Change, error) {
	changes, err := r.cfg.Source.Changes(ctx, func(err error) { r.cfg.Log.Error("follow the fleet", "error", err) })
	if err != nil {
		return nil, err
	}
	all, err := r.cfg.Source.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	r.replace(all)
	return changes, nil
}

func (r *Roster) follow(ctx context.Context, changes <-chan fleet.Change) {
	for {
		for c := range changes {
			r.apply(c)
		}
		var err error
		for {
			if ctx.Err() != nil {
				r.end()
				return
			}
			if changes, err = r.load(ctx); err == nil {
				break
			}
			r.cfg.Log.Warn("read the fleet", "error", err)
			timer := time.NewTimer(retry)
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
			timer.Stop()
		}
	}
}

// end closes all watchers' channels.
func (r *Roster) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := range r.watchers {
		r.drop(w)
	}
}

// replace takes a snapshot for everything there is. Watchers that were there see a reset.
func (r *Roster) replace(all []fleet.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.runs
	r.machines, r.runs, r.sorted = make(map[string]*entry, len(all)/2), map[string]*run{}, nil
	for _, c := range all {
		if c.Run != nil {
			x := &run{run: c.Run, rev: c.Rev}
			if was := old[c.RunID]; was != nil {
				x.pace = was.pace
			}
			x.pace.see(c.Run, r.cfg.Now())
			r.runs[c.RunID] = x
		}
	}
	for _, c := range all {
		if c.Record != nil {
			e := r.made(c.Record, c.Rev)
			r.machines[c.Machine] = e
			r.sorted = append(r.sorted, e)
		}
	}
	slices.SortFunc(r.sorted, func(a, b *entry) int { return strings.Compare(a.rec.Name, b.rec.Name) })
	r.history = nil
	r.tell(Change{Kind: Reset})
}

func (r *Roster) apply(c fleet.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case c.Event != nil:
		r.tell(Change{Kind: Event, Name: c.Event.Machine, Event: c.Event})
	case c.Machine != "":
		r.applyMachine(c)
	case c.RunID != "":
		r.applyRun(c)
	}
}

func (r *Roster) applyMachine(c fleet.Change) {
	was := r.machines[c.Machine]
	if was != nil && was.rev >= c.Rev {
		return
	}
	if c.Record == nil {
		if was != nil {
			r.forget(c.Machine)
		}
		return
	}
	r.set(r.made(c.Record, c.Rev))
}

// set puts a machine in its place and tells it.
func (r *Roster) set(e *entry) {
	name := e.rec.Name
	if i, there := r.find(name); there {
		r.sorted[i] = e
	} else {
		r.sorted = slices.Insert(r.sorted, i, e)
	}
	r.machines[name] = e
	r.tell(Change{Kind: Machine, Name: name})
}

func (r *Roster) find(name string) (int, bool) {
	return slices.BinarySearchFunc(r.sorted, name, func(e *entry, name string) int { return strings.Compare(e.rec.Name, name) })
}

func (r *Roster) forget(name string) {
	delete(r.machines, name)
	if i, there := r.find(name); there {
		r.sorted = slices.Delete(r.sorted, i, i+1)
	}
	r.tell(Change{Kind: Gone, Name: name})
}

func (r *Roster) applyRun(c fleet.Change) {
	was := r.runs[c.RunID]
	if was != nil && was.rev >= c.Rev {
		return
	}
	if c.Run == nil {
		delete(r.runs, c.RunID)
		return
	}
	next := &run{run: c.Run, rev: c.Rev}
	if was != nil {
		next.pace = was.pace
	}
	next.pace.see(c.Run, r.cfg.Now())
	r.runs[c.RunID] = next
	m := r.machines[c.Run.Machine]
	if m == nil || m.rec.Workflow != c.RunID {
		return
	}
	r.set(r.made(m.rec, m.rev))
}

// made joins a record and its newest workflow; the lock is held. A workflow that is not here yet comes with a later change.
func (r *Roster) made(rec *fleet.Record, rev int64) *entry {
	e := &entry{rec: rec, rev: rev, run: r.runs[rec.Workflow]}
	var newest *fleet.Run
	if e.run != nil {
		newest = e.run.run
	}
	e.machine = fleet.View(rec, newest)
	e.line = lineOf(&e.machine, rec)
	e.text = strings.ToLower(strings.Join([]string{rec.Name, rec.NodeID, rec.UUID, e.line.serial, rec.Place, string(e.machine.State), e.machine.Image,
		strings.Join(rec.MACs, "\n")}, "\n"))
	e.place, e.since, e.changed = strings.ToLower(rec.Place), moment(e.line.since), moment(e.line.changed)
	e.state = max(0, slices.Index(states, e.machine.State))
	e.macs = strings.ReplaceAll(strings.Join(rec.MACs, " "), ":", "")
	return e
}

// Refresh reads one machine from the store, so that what its caller just changed is seen.
func (r *Roster) Refresh(ctx context.Context, name string) error {
	all, err := r.cfg.Source.MachineChange(ctx, name)
	if errors.Is(err, fleet.ErrUnknown) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.machines[name] != nil {
			r.forget(name)
		}
		return nil
	}
	if err != nil {
		return err
	}
	// The workflow first: a record whose workflow is not known would be shown without one.
	slices.Reverse(all)
	for _, c := range all {
		r.apply(c)
	}
	return nil
}
