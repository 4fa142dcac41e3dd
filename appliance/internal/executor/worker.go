package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/store"
	"firstlight/gateway-client/ident"
)

// worker owns one workflow.
type worker struct {
	e  *Executor
	id string

	// run and rev are what is stored; only the worker's goroutine touches them, and nobody after done.
	run *fleet.Run
	rev int64
	// attempts counts the hand-overs of a command by this process: one that has any is in its agent's hands, whatever is stored.
	// delivered: its agent's present session has it. again is when to try one next.
	attempts  map[string]uint32
	delivered map[string]bool
	again     map[string]time.Time
	// began is when this process took the workflow up.
	began        time.Time
	progressedAt time.Time
	// heard: what became of the RAM disk's session since began is known.
	heard bool

	inbox chan request
	// wake says that gone agents are back; which ones is in back, guarded by the executor's mutex.
	wake chan struct{}
	back [][2]string
	done chan struct{}
	// over is closed when the workflow is over, however long its telling still takes.
	over     chan struct{}
	overOnce sync.Once
	// told: the agent's present session knows that the command is cancelled.
	told map[string]bool
}

type request struct {
	fact  Fact
	reply chan error
}

func (w *worker) post(ctx context.Context, f Fact) error {
	r := request{fact: f, reply: make(chan error, 1)}
	select {
	case w.inbox <- r:
	case <-w.done:
		return w.gone()
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-r.reply:
		return err
	case <-w.done:
		select {
		case err := <-r.reply:
			return err
		default:
			return w.gone()
		}
	case <-ctx.Done():
		return ctx.Err()
	}
}

// gone is the answer after the goroutine's end: that the workflow is over only if it is.
func (w *worker) gone() error {
	if w.run.Closed {
		return fmt.Errorf("workflow %s: %w", w.id, ErrNotOpen)
	}
	return fmt.Errorf("workflow %s: %w", w.id, ErrStopped)
}

// available is called with the executor's mutex held.
func (w *worker) available(node, role string) {
	if len(w.back) < inboxSize {
		w.back = append(w.back, [2]string{node, role})
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *worker) loop(ctx context.Context) {
	w.catchUp(ctx)
	for {
		next := w.act(ctx)
		if w.run.Closed {
			return
		}
		timer := time.NewTimer(next)
		select {
		case r := <-w.inbox:
			r.reply <- w.apply(ctx, r.fact)
		case <-w.wake:
			w.welcomeBack()
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// catchUp learns what other records say happened while this one was not told.
func (w *worker) catchUp(ctx context.Context) {
	if l, err := w.e.cfg.Fleet.Lease(ctx, w.run.Plan.LeaseID); err == nil && l.State == fleet.LeaseConsumed && w.run.RAMDiskKeyID == "" {
		_ = w.apply(ctx, Joined{Role: roleRAMDisk, KeyID: l.KeyID, At: l.Consumed.Time})
	}
	switch stop, err := w.e.cfg.Fleet.Stop(ctx); {
	case err != nil || !w.run.State.Open():
	case stop == nil && w.run.Stopped != nil:
		_ = w.apply(ctx, Thawed{By: w.run.Stopped.By})
	case stop != nil && stop.Since.After(w.run.Thawed.Time):
		_ = w.apply(ctx, Stopped{Stop: *stop})
	}
	secrets, err := w.e.cfg.Fleet.NodeSecrets(ctx)
	if err != nil {
		return
	}
	for _, s := range secrets {
		if s.Workflow == w.id && s.KeyID != "" && w.run.NodeKeyID == "" {
			_ = w.apply(ctx, Joined{Role: roleNode, KeyID: s.KeyID, At: s.Used.Time})
		}
	}
}

func (w *worker) welcomeBack() {
	w.e.mu.Lock()
	back := w.back
	w.back = nil
	w.e.mu.Unlock()
	for _, a := range back {
		for id, s := range w.run.Sent {
			if s.Node == a[0] && s.Role == a[1] {
				delete(w.delivered, id)
				delete(w.told, id)
				delete(w.again, id)
			}
		}
	}
}

// flow returns a private copy of the workflow to change.
func (w *worker) flow(ctx context.Context) (*flow, error) {
	b, err := json.Marshal(w.run)
	if err != nil {
		return nil, fmt.Errorf("copy workflow %s: %w", w.id, err)
	}
	run := new(fleet.Run)
	if err := json.Unmarshal(b, run); err != nil {
		return nil, fmt.Errorf("copy workflow %s: %w", w.id, err)
	}
	now := w.e.cfg.Now()
	f := &flow{run: run, now: now, notBefore: w.began.Add(restartGrace), began: w.began}
	f.unsent = func(c *fleet.Command) bool { return w.attempts[c.ID] == 0 && !c.Issued.Before(fleet.At(w.began).Time) }
	f.protected = func() (*fleet.Protection, error) {
		rec, err := w.e.cfg.Fleet.Machine(ctx, run.Machine)
		return rec.Protected, err
	}
	f.mint = func(step string, c fleet.PlannedCommand, notAfter time.Time, background bool) error {
		return mint(run, w.e.cfg.Signer(), step, c, now, notAfter, background)
	}
	return f, nil
}

// apply adds a fact and stores the result. Nothing is changed when it returns an error.
func (w *worker) apply(ctx context.Context, fact Fact) error {
	if r, ok := fact.(Report); ok && w.idle(r) {
		return nil
	}
	f, err := w.flow(ctx)
	if err != nil {
		return err
	}
	if err := f.apply(fact); err != nil {
		return err
	}
	if err := f.settle(); err != nil {
		return err
	}
	if err := w.store(ctx, f.run); err != nil {
		return err
	}
	if up, ok := fact.(SessionUp); ok && up.Role == roleRAMDisk {
		w.heard = true
	}
	return nil
}

// miss notes the loss of a RAM disk's session that ended with the process before this one and was not opened again. Before its time is
// up nothing is written: an appliance that does not live long would write of nothing but its own deaths.
func (w *worker) miss(ctx context.Context) error {
	if w.heard || w.e.cfg.Now().Before(w.began.Add(returnTime)) {
		return nil
	}
	if w.run.State.Open() && w.run.Lost == nil {
		lost := SessionDown{Role: roleRAMDisk, Epoch: w.run.Epoch, At: w.began, Why: "the appliance started again, which ends every session"}
		if err := w.apply(ctx, lost); err != nil {
			return err
		}
	}
	w.heard = true
	return nil
}

// idle says whether a report is only progress, too soon after the last that was stored.
func (w *worker) idle(r Report) bool {
	c := w.run.Command(r.CommandID)
	if c == nil || r.State != fleet.CommandRunning || c.State != fleet.CommandRunning {
		return false
	}
	now := w.e.cfg.Now()
	if now.Sub(w.progressedAt) < progressPeriod {
		return true
	}
	w.progressedAt = now
	return false
}

// store writes the workflow if it changed, and tells what changed.
func (w *worker) store(ctx context.Context, run *fleet.Run) error {
	before, err := json.Marshal(w.run)
	if err != nil {
		return fmt.Errorf("store workflow %s: %w", w.id, err)
	}
	after, err := json.Marshal(run)
	if err != nil {
		return fmt.Errorf("store workflow %s: %w", w.id, err)
	}
	if string(before) == string(after) {
		return nil
	}
	rev, err := w.e.cfg.Fleet.SaveRun(ctx, run, w.rev)
	if errors.Is(err, store.ErrConflict) {
		return w.reload(ctx, err)
	}
	if err != nil {
		return fmt.Errorf("store workflow %s: %w", w.id, err)
	}
	w.committed(ctx, run, rev)
	return nil
}

// reload resolves a conflict: nobody else writes a workflow, so either an earlier write of ours that seemed to fail succeeded, or
// the record is broken. The caller's change is not made; whoever posted it posts again.
func (w *worker) reload(ctx context.Context, cause error) error {
	run, rev, err := w.e.cfg.Fleet.Run(ctx, w.id)
	if err != nil {
		return fmt.Errorf("store workflow %s: %w", w.id, errors.Join(cause, err))
	}
	w.committed(ctx, run, rev)
	return fmt.Errorf("store workflow %s: %w", w.id, cause)
}

func (w *worker) committed(ctx context.Context, run *fleet.Run, rev int64) {
	old := w.run
	w.run, w.rev = run, rev
	w.e.know(w)
	w.tell(ctx, old)
}

// tell emits an event for each step and for the workflow where the state changed.
func (w *worker) tell(ctx context.Context, old *fleet.Run) {
	for i, s := range w.run.Steps {
		ended := w.run.State == fleet.WorkflowFailed || w.run.State == fleet.WorkflowCancelled
		if s.State == old.Steps[i].State || s.State == fleet.StepSkipped && ended {
			continue
		}
		text := fmt.Sprintf("step %s is %s", s.Name, s.State)
		if s.Why != "" {
			text += ": " + s.Why
		}
		w.e.emit(ctx, w.run, "workflow.step", map[string]string{"step": s.Name, "state": string(s.State)}, text)
	}
	if w.run.State == old.State {
		return
	}
	text := fmt.Sprintf("the workflow is %s", w.run.State)
	if s := w.run.Current(); s != nil && s.Waiting != nil && w.run.State == fleet.WorkflowPaused {
		text += ": it waits for " + s.Waiting.For + "; next: " + s.Waiting.Next
	}
	if x := w.run.Failure; x != nil {
		text = fmt.Sprintf("step %s failed: %s; next: %s", x.Step, x.Why, x.Next)
	}
	if x := w.run.Cancel; x != nil {
		text = fmt.Sprintf("%s cancelled the workflow at step %s: %s", x.By, x.Step, orText(x.Reason, "no reason given"))
		if w.run.State == fleet.WorkflowCancelled {
			text += "; " + x.Outcome + "; " + holding(w.run.Disks)
		}
	}
	w.e.emit(ctx, w.run, "workflow."+string(w.run.State), nil, text)
	w.e.cfg.Log.Info("workflow changed", "machine", w.run.Machine, "workflow", w.id, "state", string(w.run.State))
}

// act settles, sends what is to be sent, and returns how long the worker may rest.
func (w *worker) act(ctx context.Context) time.Duration {
	err := w.miss(ctx)
	if err == nil {
		err = w.settle(ctx)
	}
	if err != nil {
		w.e.cfg.Log.Warn("move workflow", "machine", w.run.Machine, "workflow", w.id, "err", err)
		return storeRetry
	}
	if err := w.endLease(ctx); err != nil {
		w.e.cfg.Log.Warn("cancel boot lease", "machine", w.run.Machine, "workflow", w.id, "err", err)
		return storeRetry
	}
	w.send(ctx)
	w.stopCommands()
	if !w.run.State.Open() {
		w.overOnce.Do(func() { close(w.over) })
	}
	return w.rest()
}

// settle moves the workflow on as far as it goes now.
func (w *worker) settle(ctx context.Context) error {
	f, err := w.flow(ctx)
	if err != nil {
		return err
	}
	if err := f.settle(); err != nil {
		return err
	}
	return w.store(ctx, f.run)
}

// endLease makes sure that nobody joins with the lease of a workflow that is over.
func (w *worker) endLease(ctx context.Context) error {
	if w.run.State.Open() {
		return nil
	}
	l, err := w.e.cfg.Fleet.Lease(ctx, w.run.Plan.LeaseID)
	if err != nil || l.State != fleet.LeaseOpen {
		if errors.Is(err, fleet.ErrUnknown) {
			return nil
		}
		return err
	}
	_, err = w.e.cfg.Fleet.UpdateLease(ctx, l.ID, func(l *fleet.Lease) error {
		if l.State == fleet.LeaseOpen {
			l.State = fleet.LeaseCancelled
		}
		return nil
	})
	return err
}

// due returns the commands that may be in an agent's hands now, in the order of their issue.
func (w *worker) due() []*fleet.Command {
	var out []*fleet.Command
	for i := range w.run.Steps {
		s := &w.run.Steps[i]
		for j := range s.Commands {
			c := &s.Commands[j]
			sent := w.run.Sent[c.ID]
			live := s.State == fleet.StepRunning && w.run.State == fleet.WorkflowRunning || sent.Background
			if live && !c.State.Ended() && w.e.cfg.Now().Before(sent.NotAfter.Time) {
				out = append(out, c)
			}
		}
	}
	return out
}

// send hands over what is due and not in the agent's hands.
func (w *worker) send(ctx context.Context) {
	now := w.e.cfg.Now()
	for _, c := range w.due() {
		if w.run.Stopped != nil && destructive(c.Kind) && unanswered(c) {
			delete(w.again, c.ID) // nothing is tried before everything goes on
			continue
		}
		if w.delivered[c.ID] || now.Before(w.again[c.ID]) {
			continue
		}
		if forbidden, err := w.forbidden(ctx, c); forbidden || err != nil {
			if err != nil {
				w.again[c.ID] = now.Add(storeRetry)
				w.e.cfg.Log.Warn("look whether the machine is protected", "machine", w.run.Machine, "workflow", w.id, "err", err)
			}
			return
		}
		if err := w.handOver(c); err != nil {
			w.again[c.ID] = now.Add(resendAfter)
			w.e.cfg.Log.Debug("send command", "machine", w.run.Machine, "workflow", w.id, "kind", c.Kind, "command", c.ID, "err", err)
			continue
		}
		delete(w.again, c.ID)
		w.delivered[c.ID] = true
		if c.State == fleet.CommandPending {
			w.mark(ctx, c.ID)
		}
	}
}

// forbidden says whether a command that writes to disks must not be handed over any more, because the machine was protected since
// it was minted; then the workflow has failed by it. What was handed over and may have been lost on the way is not handed over
// again; what its agent has answered is in its hands.
func (w *worker) forbidden(ctx context.Context, c *fleet.Command) (bool, error) {
	if !destructive(c.Kind) || !unanswered(c) {
		return false, nil
	}
	rec, err := w.e.cfg.Fleet.Machine(ctx, w.run.Machine)
	if err != nil || rec.Protected == nil {
		return false, err
	}
	return true, w.apply(ctx, Forbidden{CommandID: c.ID, Mark: *rec.Protected})
}

func (w *worker) handOver(c *fleet.Command) error {
	sent := w.run.Sent[c.ID]
	role, err := ident.ParseRole(sent.Role)
	if err != nil {
		return err
	}
	cmd, err := unwire(sent.Wire, w.attempts[c.ID]+1)
	if err != nil {
		return err
	}
	if err := w.e.cfg.Sender.Send(ident.NodeID(sent.Node), role, cmd); err != nil {
		return err
	}
	w.attempts[c.ID]++
	return nil
}

// mark writes down that a command left. Losing that is harmless: it would be sent again under its id.
func (w *worker) mark(ctx context.Context, id string) {
	f, err := w.flow(ctx)
	if err == nil {
		f.run.Command(id).State = fleet.CommandSent
		if err = f.settle(); err == nil {
			err = w.store(ctx, f.run)
		}
	}
	if err != nil {
		w.e.cfg.Log.Warn("note that a command was sent", "machine", w.run.Machine, "workflow", w.id, "command", id, "err", err)
	}
}

// rest is how long nothing will happen by itself.
func (w *worker) rest() time.Duration {
	now := w.e.cfg.Now()
	until := now.Add(time.Hour)
	earlier := func(t time.Time) {
		if t.Before(until) {
			until = t
		}
	}
	f := flow{run: w.run, notBefore: w.began.Add(restartGrace), began: w.began}
	switch s := w.run.Current(); {
	case w.run.State == fleet.WorkflowCancelling:
		earlier(f.cancelBy())
	case s != nil && s.State == fleet.StepRunning:
		earlier(f.deadline(s))
		if w.run.Lost != nil && ofRAMDisk(s.Name) {
			earlier(f.back(s))
		}
	}
	if !w.heard {
		earlier(w.began.Add(returnTime))
	}
	if !w.run.State.Open() {
		earlier(w.run.CloseBy.Time)
	}
	waits := w.due()
	if w.run.State == fleet.WorkflowCancelling {
		waits = append(waits, w.untold()...)
	}
	for _, c := range waits {
		if t, ok := w.again[c.ID]; ok {
			earlier(t)
		}
	}
	return max(until.Sub(now), time.Millisecond)
}
