// Package executor carries out plans: one goroutine per open workflow, which alone writes that workflow's record.
//
// # How it works
//
// Whoever learns something (the control package, from joins and sessions; a person's command) posts a [Fact] with [Executor.Post]
// or [Executor.Report] and gets an answer once the workflow's record that contains it is stored: so an agent's event or result is
// acknowledged only when it is durable. Facts are only ever added. From facts, plan and time the pure half (flow.go) derives the
// states of steps and which command is next. That a fact comes early, twice or late therefore changes nothing.
//
// A command is minted with its id and signature, stored with the workflow, and only then handed to a session; it is handed over
// again, the same bytes, whenever its agent connects, until its result is stored. After a crash the records say what to resend:
// there is never a second command for the same intent. Of steps that are over nothing is sent any more, save what nobody waits
// for (closing a boot lease at the site).
//
// # Not here
//
// It makes no choice that the plan does not hold, speaks to no network (see [Sender]) and judges no join.
// For appliance only.
package executor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/planner"
	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// Bounds and periods.
const (
	// inboxSize bounds the facts that wait for one workflow; whoever posts beyond it waits.
	inboxSize = 64
	// resendAfter is when a command is offered again to a session that could not take it.
	resendAfter = 5 * time.Second
	// storeRetry is when a refused write of the store is tried again.
	storeRetry = time.Second
	// closeWindow bounds how long a finished workflow tries to tell the site that its boot is over.
	closeWindow = 10 * time.Minute
	// restartGrace is the least time that a step gets after a start of the appliance, whatever its deadline.
	restartGrace = 2 * time.Minute
	// progressPeriod is how often progress alone is stored.
	progressPeriod = time.Second
	// keepRuns bounds the finished workflows kept per machine.
	keepRuns = 20
)

var (
	// ErrBusy: the machine has an open workflow; the error says which, since when and by whom.
	ErrBusy = errors.New("machine is busy")
	// ErrNotOpen: the workflow is over or unknown: a fact about it changes nothing.
	ErrNotOpen = errors.New("workflow is not open")
	// ErrNotPaused: there is nothing to resume.
	ErrNotPaused = errors.New("machine is not paused")
	// ErrForeign: the agent reports on a command that is not its own.
	ErrForeign = errors.New("command belongs to another agent")
	// ErrStopped: the executor is not running.
	ErrStopped = errors.New("executor is stopped")
)

// Sender hands a command to an agent's session. It is called from the workflows' goroutines and must not block for long. Any
// error means that the command was not taken: it is offered again after a while, and when the agent connects (Executor.Available).
type Sender interface {
	Send(node ident.NodeID, role commonv1.AgentRole, c *agentv1.Command) error
	// Cancel tells the session's agent to stop a command; one that it does not have changes nothing.
	Cancel(node ident.NodeID, role commonv1.AgentRole, commandID, reason string) error
}

// Config of an executor. All fields but Log are required.
type Config struct {
	Fleet  *fleet.Repo
	Sender Sender
	// Signer returns what signs commands (purpose "command").
	Signer func() envelope.Signer
	Site   planner.Site
	Now    func() time.Time
	// Log is for the operator of the appliance; nil discards.
	Log *slog.Logger
}

// Executor runs workflows. New, Start, and at the end: cancel Start's context, Wait.
type Executor struct {
	cfg Config

	// provision serializes Provision.
	provision sync.Mutex

	mu      sync.Mutex
	ctx     context.Context
	workers map[string]*worker
	// commands finds the workflow of an open command.
	commands map[string]*worker
	wg       sync.WaitGroup
}

// New returns an executor that does nothing before Start.
func New(cfg Config) (*Executor, error) {
	if cfg.Fleet == nil || cfg.Sender == nil || cfg.Signer == nil || cfg.Now == nil {
		return nil, errors.New("executor: incomplete configuration")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Executor{cfg: cfg, workers: map[string]*worker{}, commands: map[string]*worker{}}, nil
}

// Start takes up every workflow that is not closed. Workflows run until ctx ends. It is called once.
func (e *Executor) Start(ctx context.Context) error {
	runs, err := e.cfg.Fleet.Runs(ctx)
	if err != nil {
		return fmt.Errorf("start executor: %w", err)
	}
	e.mu.Lock()
	e.ctx = ctx
	e.mu.Unlock()
	for i := range runs {
		run := &runs[i]
		if run.Closed {
			continue
		}
		rec, err := e.cfg.Fleet.Machine(ctx, run.Machine)
		if err != nil && !errors.Is(err, fleet.ErrUnknown) {
			return fmt.Errorf("start executor: %w", err)
		}
		if run.State.Open() && rec.Workflow != run.ID {
			// Provision stopped between storing the workflow and taking the machine: nothing was sent.
			if err := e.cfg.Fleet.DeleteRun(ctx, run); err != nil {
				return fmt.Errorf("start executor: drop workflow %s: %w", run.ID, err)
			}
			continue
		}
		if err := e.launch(run.ID); err != nil {
			return fmt.Errorf("start executor: workflow %s: %w", run.ID, err)
		}
	}
	return nil
}

// Wait returns when every workflow's goroutine has ended, which follows the end of Start's context.
func (e *Executor) Wait() { e.wg.Wait() }

// Order is a person's order to provision a machine.
type Order struct {
	Machine string
	Image   planner.Image
	// PauseAfter are step names; see planner.Input.
	PauseAfter []string
	// Reinstall: a person knows that the machine is in use, and wants it wiped and installed again.
	Reinstall bool
	// By is who ordered it, for people.
	By string
}

// Provision plans a workflow, takes the machine, and begins. It returns the workflow's id, or why the machine may not be taken: one
// of ErrBusy, ErrProtected, ErrInUse, ErrNotEnrolled and ErrStoppedAll.
func (e *Executor) Provision(ctx context.Context, o Order) (string, error) {
	e.provision.Lock()
	defer e.provision.Unlock()
	now := e.cfg.Now()
	rec, err := e.cfg.Fleet.Machine(ctx, o.Machine)
	if err != nil {
		return "", fmt.Errorf("provision: %w", err)
	}
	last, err := e.admit(ctx, &rec, o)
	if err != nil {
		return "", err
	}
	run, err := e.newRun(&rec, last, o, now)
	if err != nil {
		return "", fmt.Errorf("provision %q: %w", o.Machine, err)
	}
	lease := fleet.Lease{ID: run.Plan.LeaseID, Workflow: run.ID, Machine: rec.Name, NodeID: rec.NodeID, State: fleet.LeaseOpen,
		Expires: run.Plan.LeaseExpires}
	if err := e.cfg.Fleet.CreateLease(ctx, &lease); err != nil {
		return "", fmt.Errorf("provision %q: open boot lease: %w", o.Machine, err)
	}
	if _, err := e.cfg.Fleet.SaveRun(ctx, run, 0); err != nil {
		return "", fmt.Errorf("provision %q: store workflow: %w", o.Machine, err)
	}
	_, err = e.cfg.Fleet.Update(ctx, rec.Name, func(r *fleet.Record) error {
		if r.Workflow != rec.Workflow {
			return fmt.Errorf("provision %q: %w: somebody else began meanwhile", rec.Name, ErrBusy)
		}
		if r.Protected != nil {
			return fmt.Errorf("provision %q: %w: it is %s", rec.Name, ErrProtected, r.Protected)
		}
		if !r.Alike(&rec) {
			return fmt.Errorf("provision %q: %w: somebody changed its record meanwhile; look at it and order again", rec.Name, ErrBusy)
		}
		r.Workflow, r.Workflows = run.ID, r.Workflows+1
		return nil
	})
	if err != nil {
		return "", errors.Join(err, e.cfg.Fleet.DeleteRun(ctx, run))
	}
	e.emit(ctx, run, "workflow.started", map[string]string{"image": o.Image.Name, "by": o.By},
		fmt.Sprintf("%s began to provision %s with image %s", o.By, rec.Name, o.Image.Name))
	e.prune(ctx, rec.Name)
	return run.ID, e.launch(run.ID)
}

// newRun plans a workflow; last is the machine's newest, nil when it had none.
func (e *Executor) newRun(rec *fleet.Record, last *fleet.Run, o Order, now time.Time) (*fleet.Run, error) {
	in := planner.Input{Machine: rec, Image: o.Image, Site: e.cfg.Site, PauseAfter: o.PauseAfter, Now: now,
		WorkflowID: ident.New("wf"), LeaseID: ident.New("lease")}
	plan, err := planner.Plan(in)
	if err != nil {
		return nil, err
	}
	run := &fleet.Run{
		Workflow: fleet.Workflow{ID: in.WorkflowID, Generation: uint64(rec.Workflows) + 1, Image: o.Image.Name,
			ManifestSHA256: hex.EncodeToString(o.Image.ManifestSHA256[:]), State: fleet.WorkflowRunning,
			PauseAfter: slices.Clone(o.PauseAfter), Started: fleet.At(now)},
		Machine: rec.Name, NodeID: rec.NodeID, By: o.By, Plan: plan,
		Facts: map[string]fleet.Fact{}, Sent: map[string]*fleet.Sent{}, Disks: inherit(rec, last, now),
	}
	for _, s := range plan.Steps {
		run.Steps = append(run.Steps, fleet.Step{Name: s.Name, State: fleet.StepPending, Commands: []fleet.Command{}})
	}
	first := plan.Steps[0]
	run.Steps[0].Waiting = &fleet.Waiting{For: "the appliance to sign the first order of " + run.ID, Since: run.Started,
		Until: fleet.At(now.Add(time.Duration(first.Deadline))), Next: "see the appliance's own log: what it cannot store or sign stands there"}
	return run, nil
}

// prune drops the oldest closed workflows of a machine; what it cannot drop now it drops next time.
func (e *Executor) prune(ctx context.Context, machine string) {
	runs, err := e.cfg.Fleet.Runs(ctx)
	if err != nil {
		e.cfg.Log.Warn("list workflows to drop old ones", "err", err)
		return
	}
	runs = slices.DeleteFunc(runs, func(r fleet.Run) bool { return r.Machine != machine || !r.Closed })
	for i := range max(0, len(runs)-keepRuns) {
		if err := e.cfg.Fleet.DeleteRun(ctx, &runs[i]); err != nil {
			e.cfg.Log.Warn("drop old workflow", "machine", runs[i].Machine, "workflow", runs[i].ID, "err", err)
		}
	}
}

// Resume lets a paused machine's workflow go on.
func (e *Executor) Resume(ctx context.Context, machine, by string) error {
	rec, err := e.cfg.Fleet.Machine(ctx, machine)
	if err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	err = e.Post(ctx, rec.Workflow, Resumed{By: by})
	if errors.Is(err, ErrNotOpen) || errors.Is(err, ErrNotPaused) {
		return fmt.Errorf("resume %q: %w", machine, ErrNotPaused)
	}
	return err
}

// Post gives a fact to a workflow and returns once it is stored, or ErrNotOpen.
func (e *Executor) Post(ctx context.Context, workflow string, f Fact) error {
	e.mu.Lock()
	w, err := e.workers[workflow], e.running()
	e.mu.Unlock()
	if err == nil && w == nil {
		err = ErrNotOpen
	}
	if err != nil {
		return fmt.Errorf("workflow %q: %w", workflow, err)
	}
	return w.post(ctx, f)
}

// Report gives an agent's report on a command to the command's workflow and returns once it is stored; ErrNotOpen when no open
// workflow has the command, ErrForeign when it went to another agent.
func (e *Executor) Report(ctx context.Context, r Report) error {
	e.mu.Lock()
	w, err := e.commands[r.CommandID], e.running()
	e.mu.Unlock()
	if err == nil && w == nil {
		err = ErrNotOpen
	}
	if err != nil {
		return fmt.Errorf("command %q: %w", r.CommandID, err)
	}
	return w.post(ctx, r)
}

// Available tells the executor that an agent has opened a session: what it has not answered yet is sent again.
func (e *Executor) Available(node ident.NodeID, role commonv1.AgentRole) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range e.workers {
		w.available(string(node), ident.RoleWord(role))
	}
}

// running says whether workflows run; the mutex is held. A fact must not be taken for settled only because nobody is there to
// hear it.
func (e *Executor) running() error {
	if e.ctx == nil || e.ctx.Err() != nil {
		return ErrStopped
	}
	return nil
}

// launch begins the goroutine of a stored workflow.
func (e *Executor) launch(id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.running(); err != nil {
		return err
	}
	if e.workers[id] != nil {
		return nil
	}
	run, rev, err := e.cfg.Fleet.Run(e.ctx, id)
	if err != nil {
		return err
	}
	w := &worker{e: e, id: id, run: run, rev: rev, inbox: make(chan request, inboxSize), wake: make(chan struct{}, 1),
		done: make(chan struct{}), over: make(chan struct{}), told: map[string]bool{}, attempts: map[string]uint32{}, delivered: map[string]bool{}, again: map[string]time.Time{}, began: e.cfg.Now()}
	e.workers[id] = w
	for cmd := range run.Sent {
		e.commands[cmd] = w
	}
	e.wg.Add(1)
	go func() {
		defer e.wg.Done()
		w.loop(e.ctx)
		e.forget(w)
	}()
	return nil
}

func (e *Executor) forget(w *worker) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.workers, w.id)
	for id, x := range e.commands {
		if x == w {
			delete(e.commands, id)
		}
	}
	close(w.done)
}

// know makes a stored command findable.
func (e *Executor) know(w *worker) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id := range w.run.Sent {
		e.commands[id] = w
	}
}

func (e *Executor) emit(ctx context.Context, run *fleet.Run, kind string, fields map[string]string, message string) {
	err := e.cfg.Fleet.Emit(ctx, fleet.Event{Time: fleet.At(e.cfg.Now()), Machine: run.Machine, NodeID: run.NodeID, Workflow: run.ID,
		Source: "control", Kind: kind, Fields: fields, Message: message})
	if err != nil {
		e.cfg.Log.Warn("store event", "kind", kind, "machine", run.Machine, "workflow", run.ID, "err", err)
	}
}

// digestText is a SHA-256 as hex, for messages.
func digestText(b []byte) string {
	if len(b) != sha256.Size {
		return fmt.Sprintf("%d bytes", len(b))
	}
	return hex.EncodeToString(b)
}
