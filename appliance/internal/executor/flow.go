package executor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"firstlight/appliance/internal/fleet"
)

// flow is the pure half: it changes a private copy of a workflow's record and does nothing else.
type flow struct {
	run *fleet.Run
	now time.Time
	// notBefore is the earliest moment at which a deadline may strike; began is when this process took the workflow up.
	notBefore time.Time
	began     time.Time
	// mint signs a command and adds it to run; a failed mint changes nothing and is tried again.
	mint func(step string, c fleet.PlannedCommand, notAfter time.Time, background bool) error
	// unsent says whether a pending command is surely in no agent's hands.
	unsent func(c *fleet.Command) bool
	// protected returns the machine's protection as it is now, nil for none.
	protected func() (*fleet.Protection, error)
}

// apply adds a fact. The error, if any, is for whoever posted it; the record is then not stored.
func (f *flow) apply(fact Fact) error {
	if r, ok := fact.(Report); ok {
		return f.report(r)
	}
	if !f.run.State.Open() {
		return ErrNotOpen
	}
	if f.run.State == fleet.WorkflowCancelling && spoils(fact) {
		return nil
	}
	switch v := fact.(type) {
	case SiteEvent:
		f.site(v)
	case Joined:
		f.see(factJoined+v.Role, v.At, v.KeyID)
		if v.Role == roleRAMDisk {
			f.run.RAMDiskKeyID = v.KeyID
		} else {
			f.run.NodeKeyID = v.KeyID
		}
	case SessionUp:
		if v.Role != roleRAMDisk || f.mine(v.KeyID) {
			f.up(v)
		}
	case SessionDown:
		f.down(v)
	case Section:
		if slices.Contains(Sections(), v.Name) && f.mine(v.KeyID) {
			f.see(factSection+v.Name, v.At, "")
		}
	case Refused:
		f.refused(v)
	case Resumed:
		return f.resume(v)
	case Cancelled:
		return f.cancel(v)
	case Stopped:
		return f.stopped(v)
	case Thawed:
		f.thaw()
	case Forbidden:
		f.unhanded(v)
	default:
		return fmt.Errorf("fact %T is not known", fact)
	}
	return nil
}

// spoils says whether a fact could fail a workflow: of one that is being cancelled nobody wants to know.
func spoils(fact Fact) bool {
	switch fact.(type) {
	case SiteEvent, Refused:
		return true
	}
	return false
}

func (f *flow) see(name string, at time.Time, text string) {
	if _, ok := f.run.Facts[name]; ok {
		return
	}
	if at.IsZero() || at.After(f.now) {
		at = f.now
	}
	if f.run.Facts == nil {
		f.run.Facts = map[string]fleet.Fact{}
	}
	f.run.Facts[name] = fleet.Fact{At: fleet.At(at), Text: fleet.Clip(text)}
}

// mine says whether a RAM disk with this key is the one that joined for this workflow.
func (f *flow) mine(keyID string) bool { return keyID == "" || keyID == f.run.RAMDiskKeyID }

func (f *flow) seen(name string) (time.Time, bool) {
	v, ok := f.run.Facts[name]
	return v.At.Time, ok
}

// seenAny returns the first of the named facts that is there.
func (f *flow) seenAny(names ...string) (time.Time, bool) {
	for _, n := range names {
		if at, ok := f.seen(n); ok {
			return at, true
		}
	}
	return time.Time{}, false
}

// site turns an event of the site agent into facts or a failure.
func (f *flow) site(e SiteEvent) {
	why := e.Fields["reason"]
	switch e.Kind {
	case kindOffered:
		f.see(factOffered, e.At, e.Fields["file"])
	case kindTFTP:
		f.see(factTFTP, e.At, e.Fields["file"])
		if s := f.run.Step(fleet.StepTFTP); s.State == fleet.StepSkipped {
			s.State, s.Why = fleet.StepDone, ""
		}
	case kindScript:
		f.see(factScript, e.At, e.Fields["client"])
	case kindFile:
		switch n := e.Fields["name"]; n {
		case "kernel", "ramdisk", "site", lastBootFile:
			f.see(factFile+n, e.At, "")
		}
	case kindTFTPFail:
		if f.run.Step(fleet.StepTFTP).State.Ended() {
			return
		}
		f.fail(fleet.StepTFTP, fmt.Sprintf("serve boot file %q over TFTP", e.Fields["file"]), orText(why, e.Text),
			"see that the boot file is in the site's firmware directory and readable")
	case kindScriptDeny:
		f.scriptRefused(orText(why, e.Text))
	case kindFileDeny:
		// Before anybody joined it is somebody at another address who asked, and the machine goes on.
		if f.run.RAMDiskKeyID != "" {
			f.scriptRefused(orText(why, e.Text))
		}
	case kindReport:
		f.machineSays(orText(e.Fields["text"], e.Text))
	case kindIgnored:
		f.asked(e)
	}
}

// machineSays fails the step in which the machine is when it gives up by itself: iPXE while it loads, the RAM disk after that. It
// is a hint that nobody signed, so it counts only until something was done to the machine.
func (f *flow) machineSays(text string) {
	if !f.before(fleet.StepWipe) {
		return
	}
	step, what := fleet.StepKernel, "load the kernel and its initrds"
	switch {
	case f.run.Step(fleet.StepJoin).State.Ended():
		step, what = fleet.StepInventory, "open the RAM disk's session"
	case f.run.Step(fleet.StepKernel).State.Ended():
		step, what = fleet.StepJoin, "start the RAM disk and join"
	}
	f.fail(step, what, "the machine says: "+text, "")
}

// scriptRefused: before the inventory it is this boot that got no script (whoever joined with its lease, it was not this
// machine); later it is the machine that started over in the middle.
func (f *flow) scriptRefused(why string) {
	const what = "serve this boot's script"
	if f.before(fleet.StepWipe) {
		next := "begin again with firstlight provision: a boot lease is good for one join"
		if _, joined := f.seen(factJoined + roleRAMDisk); joined {
			next = "a machine had joined with this boot already: either this one started over, or another machine on the boot segment joined in its place. Find out which, then begin again with firstlight provision"
		}
		f.fail(fleet.StepScript, what, why, next)
		return
	}
	if s := f.run.Current(); s != nil {
		f.fail(s.Name, s.Name, "the machine started over and asked for its boot script again, or another machine had joined in its place: "+why,
			"find out whether this machine restarted or another machine on the boot segment took its place, then begin again with firstlight provision")
	}
}

// refused fails the step that a refused join belongs to. A refused discovery counts until something was done to the machine;
// after that it is an alarm (control raises it), not a reason to stop, unless it shows that another machine may have joined.
func (f *flow) refused(r Refused) {
	if r.Step == fleet.StepJoin && !f.before(fleet.StepWipe) && !r.Contest {
		return
	}
	f.fail(r.Step, "join", r.Cause, r.Next)
}

func (f *flow) resume(r Resumed) error {
	s := f.run.Current()
	if f.run.Stopped != nil {
		f.thaw()
		return nil
	}
	if f.run.State != fleet.WorkflowPaused || s == nil {
		return ErrNotPaused
	}
	f.run.Resumed = append(f.run.Resumed, f.previous(s.Name))
	return nil
}

// before says whether the workflow has not begun the named step.
func (f *flow) before(step string) bool {
	s := f.run.Step(step)
	return s != nil && s.Start.IsZero() && !s.State.Ended()
}

func (f *flow) previous(step string) string {
	prev := ""
	for _, s := range f.run.Steps {
		if s.Name == step {
			return prev
		}
		prev = s.Name
	}
	return ""
}

// fail ends the workflow at a step, which may already have counted as done: what came after it is void. Steps before it that are
// not over count as done, since the later one was reached; steps after it are skipped.
func (f *flow) fail(step, what, why, next string) {
	if !f.run.State.Open() {
		return
	}
	if next == "" {
		next = f.run.Plan.Step(step).Next
	}
	why = fleet.Clip(why)
	at := fleet.At(f.now)
	if s := f.run.Current(); s != nil {
		if c := f.inHand(s); c != nil && f.begun(c) {
			f.doubt(c)
		}
	}
	reached := false
	for i := range f.run.Steps {
		s := &f.run.Steps[i]
		s.Waiting = nil
		switch {
		case s.Name == step:
			reached = true
			s.State, s.Why, s.End = fleet.StepFailed, why, at
		case reached:
			s.State, s.Why, s.End = fleet.StepSkipped, "not reached: step "+step+" failed", fleet.Time{}
			if s.Start.IsZero() {
				continue
			}
			s.End = at
		case !s.State.Ended():
			s.State, s.Why, s.End = fleet.StepDone, "known from what came after", at
		}
		if s.Start.IsZero() {
			s.Start = at
		}
	}
	f.run.Failure = &fleet.Failure{Step: step, What: what, Why: why, Next: next}
	f.over(fleet.WorkflowFailed)
}

func (f *flow) over(s fleet.WorkflowState) {
	f.run.State, f.run.Ended = s, fleet.At(f.now)
	f.run.CloseBy = fleet.At(f.now.Add(closeWindow))
}

// settle moves the workflow as far as its facts allow.
func (f *flow) settle() error {
	for f.run.State.Open() {
		if f.run.State == fleet.WorkflowCancelling {
			f.cancelled()
			if f.run.State.Open() {
				return nil
			}
			break
		}
		s := f.run.Current()
		if s == nil {
			f.over(fleet.WorkflowDone)
			break
		}
		if f.frozen(s) {
			return nil
		}
		if s.State != fleet.StepRunning && !f.begin(s) {
			return nil
		}
		ended, err := f.advance(s)
		if err != nil || !ended {
			if f.run.State.Open() {
				f.wait(s)
			}
			return err
		}
	}
	return f.close()
}

// begin starts a pending or paused step; false when it stays paused.
func (f *flow) begin(s *fleet.Step) bool {
	prev := f.previous(s.Name)
	if slices.Contains(f.run.PauseAfter, prev) && !slices.Contains(f.run.Resumed, prev) {
		if s.State != fleet.StepPaused {
			s.State, f.run.State = fleet.StepPaused, fleet.WorkflowPaused
			s.Waiting = &fleet.Waiting{For: "a person: the workflow was to pause after step " + prev, Since: fleet.At(f.now),
				Next: "firstlight resume " + f.run.Machine}
		}
		return false
	}
	s.State, s.Start, f.run.State = fleet.StepRunning, fleet.At(f.now), fleet.WorkflowRunning
	return true
}

// stallLimit is how long past its deadline a step may go on without getting further: how long a wipe or a deploy takes is the size
// of the disk, which no plan knows.
const stallLimit = 10 * time.Minute

// deadline is when a running step is over by time.
func (f *flow) deadline(s *fleet.Step) time.Time {
	from := s.Start.Time
	if f.run.Thawed.After(from) {
		from = f.run.Thawed.Time
	}
	d := from.Add(time.Duration(f.run.Plan.Step(s.Name).Deadline))
	if t := f.run.Moved.Add(stallLimit); f.run.Moved.After(s.Start.Time) && t.After(d) {
		d = t
	}
	if d.Before(f.notBefore) {
		return f.notBefore
	}
	return d
}

// wait writes what a running step waits for.
func (f *flow) wait(s *fleet.Step) {
	if f.waitLost(s) {
		return
	}
	p := f.run.Plan.Step(s.Name)
	w := &fleet.Waiting{For: p.For + f.soFar(s.Name), Since: s.Start, Until: fleet.At(f.deadline(s)), Next: p.Next}
	if n := len(s.Commands); n > 0 {
		c := s.Commands[n-1]
		i := slices.IndexFunc(p.Commands, func(p fleet.PlannedCommand) bool { return p.Kind == c.Kind })
		switch {
		case c.State == fleet.CommandPending:
			w.For = fmt.Sprintf("the %s agent to connect and take %s", f.run.Sent[c.ID].Role, c.Kind)
		case i >= 0 && p.Commands[i].For != "":
			w.For = p.Commands[i].For
		}
	}
	if f.run.Stopped != nil {
		w.For += "; then it stands still, for " + f.run.Stopped.String()
	}
	s.Waiting = w
}

// soFar is what a waiting step has seen already of what it waits for; empty for nothing.
func (f *flow) soFar(step string) string {
	if step != fleet.StepKernel {
		return ""
	}
	var have []string
	for _, n := range []string{"kernel", "ramdisk", "site"} {
		if _, ok := f.seen(factFile + n); ok {
			have = append(have, n)
		}
	}
	if len(have) == 0 {
		return ""
	}
	return " (so far: " + strings.Join(have, ", ") + ")"
}

// advance looks whether a running step is over, and issues what comes next in it.
func (f *flow) advance(s *fleet.Step) (ended bool, err error) {
	if f.gone(s) {
		return true, nil
	}
	p := f.run.Plan.Step(s.Name)
	at, why, ok := f.observed(s.Name)
	state := fleet.StepDone
	if joined, here := f.arrived(s); here {
		at, why, ok = joined, "the installed system started, without the RAM disk's answer", true
	} else if len(p.Commands) > 0 {
		at, why = f.now, ""
		ok, err = f.commands(s, p)
		if err != nil || !f.run.State.Open() {
			return !f.run.State.Open(), err
		}
		if ok {
			state, why = outcome(s)
		}
	} else if why != "" && s.Name == fleet.StepTFTP {
		state = fleet.StepSkipped
	}
	if !ok {
		if !f.now.Before(f.deadline(s)) {
			f.fail(s.Name, s.Name, f.late(s, p), p.Next)
			return true, nil
		}
		return false, nil
	}
	if at.Before(s.Start.Time) {
		at = s.Start.Time
	}
	for _, c := range p.After {
		if err := f.mint(s.Name, c, f.now.Add(closeWindow), true); err != nil {
			return false, err
		}
	}
	s.State, s.Why, s.End, s.Waiting = state, why, fleet.At(at), nil
	return true, nil
}

// observed says whether facts alone end a step, when, and with what remark.
func (f *flow) observed(step string) (at time.Time, why string, ok bool) {
	const joined = factJoined + roleRAMDisk
	files := []string{factFile + "kernel", factFile + "ramdisk", factFile + "site", factFile + lastBootFile}
	after := func(own string, remark string, later ...string) (time.Time, string, bool) {
		if at, ok := f.seen(own); ok {
			return at, "", true
		}
		at, ok := f.seenAny(later...)
		return at, remark, ok
	}
	switch step {
	case fleet.StepDHCP:
		return after(factOffered, "known from what came after", append([]string{factTFTP, factScript, joined}, files...)...)
	case fleet.StepTFTP:
		return after(factTFTP, "the machine asked for no file over TFTP: its firmware already had iPXE or booted over HTTP",
			append([]string{factScript, joined}, files...)...)
	case fleet.StepScript:
		return after(factScript, "known from what came after", append([]string{joined}, files...)...)
	case fleet.StepKernel:
		return after(factFile+lastBootFile, "known from what came after", joined)
	case fleet.StepJoin:
		at, ok = f.seen(joined)
		return at, "", ok
	case fleet.StepInventory:
		at, ok = f.seen(factSession + roleRAMDisk)
		for _, n := range Sections() {
			t, have := f.seen(factSection + n)
			if ok = ok && have; t.After(at) {
				at = t
			}
		}
		return at, "", ok
	case fleet.StepNodeJoin:
		at, ok = f.seen(factJoined + roleNode)
		return at, "", ok
	}
	return time.Time{}, "", false
}

// late is why a step failed by time.
func (f *flow) late(s *fleet.Step, p fleet.PlannedStep) string {
	what := p.For
	if s.Waiting != nil {
		what = s.Waiting.For
	}
	return fmt.Sprintf("waited %s for %s", f.now.Sub(s.Start.Time).Round(time.Second), what)
}

// close issues what is to be told at the end, and closes the record once it is told or time is up.
func (f *flow) close() error {
	if f.run.State.Open() || f.run.Closed {
		return nil
	}
	told := true
	mine := map[string]bool{}
	for i := range f.run.Steps {
		for _, c := range f.run.Steps[i].Commands {
			if f.run.Sent[c.ID].Background {
				mine[c.Kind] = true
				told = told && c.State.Ended()
			}
		}
	}
	_, joined := f.seen(factJoined + roleRAMDisk)
	if len(f.run.Step(fleet.StepPowerOn).Commands) > 0 && !joined {
		for _, c := range f.run.Plan.OnCancel {
			if mine[c.Kind] {
				continue
			}
			if err := f.mint(f.lastStep(), c, f.run.CloseBy.Time, true); err != nil {
				return err
			}
			told = false
		}
	}
	if f.run.Cancel != nil {
		// What did not end in time may still say how it ended.
		told = told && f.inHand(f.run.Step(f.run.Cancel.Step)) == nil
	}
	f.run.Closed = told || !f.now.Before(f.run.CloseBy.Time)
	return nil
}

// lastStep is the step at which the workflow ended before its time.
func (f *flow) lastStep() string {
	switch {
	case f.run.Failure != nil:
		return f.run.Failure.Step
	case f.run.Cancel != nil:
		return f.run.Cancel.Step
	}
	return fleet.StepActive
}

func orText(a, b string) string {
	if strings.TrimSpace(a) != "" {
		return a
	}
	return b
}
