package executor

import (
	"fmt"
	"slices"
	"time"

	"firstlight/appliance/internal/fleet"
)

const (
	// lostLimit is how long a lost session of the RAM disk may take to come back before its step fails. A link that was away for
	// two minutes is found again within it: the agent notices after three heartbeats of 15 s, and dials again every 30 s at the latest.
	lostLimit = 3 * time.Minute
	// returnTime is how long the RAM disk's agent may take to find an appliance that started again, before that counts as a loss.
	returnTime = time.Minute
	// noticeTime bounds how long after the machine's last word its session counts as lost: the gateway waits 45 s.
	noticeTime = time.Minute
)

// ofRAMDisk says whether a step can only go on while the RAM disk's session is there. Entering the installed system ends that
// session, and a machine that starts over then starts the same system, so the later steps have nothing but their deadlines.
func ofRAMDisk(step string) bool {
	switch step {
	case fleet.StepInventory, fleet.StepWipe, fleet.StepDiag, fleet.StepDeploy:
		return true
	}
	return false
}

// up notes that a session is open.
func (f *flow) up(s SessionUp) {
	f.see(factSession+s.Role, s.At, "")
	if s.Role == roleRAMDisk {
		f.run.Epoch, f.run.Lost = max(f.run.Epoch, s.Epoch), nil
	}
}

// down notes that the RAM disk's session is lost. The end of one that a newer session took over is none.
func (f *flow) down(s SessionDown) {
	if _, ok := f.seen(factSession + roleRAMDisk); !ok || s.Role != roleRAMDisk || s.Epoch < f.run.Epoch || f.run.Lost != nil {
		return
	}
	at := s.At
	if at.IsZero() || at.After(f.now) {
		at = f.now
	}
	f.run.Lost = &fleet.Lost{Since: fleet.At(at), Why: fleet.Clip(s.Why)}
}

// asked notes that the machine's firmware wants to boot from the network again. It comes from a packet that anybody on the segment
// can send, so it means something only once the session is lost as well.
func (f *flow) asked(e SiteEvent) {
	at := e.At
	if at.IsZero() || at.After(f.now) {
		at = f.now
	}
	if joined, ok := f.seen(factJoined + roleRAMDisk); ok && at.After(joined) && at.After(f.run.BootAsked.Time) {
		f.run.BootAsked = fleet.At(at)
	}
}

// back is until when a lost session may come back: its whole time after a start of the appliance, and once the step goes on.
func (f *flow) back(s *fleet.Step) time.Time {
	from := f.run.Lost.Since.Time
	for _, t := range []time.Time{s.Start.Time, f.run.Thawed.Time, f.began} {
		if t.After(from) {
			from = t
		}
	}
	return from.Add(lostLimit)
}

// gone fails a step of the RAM disk when that will not come back: at once when the machine is known to have started over, else
// when the time is up.
func (f *flow) gone(s *fleet.Step) bool {
	if !ofRAMDisk(s.Name) {
		return false
	}
	l, asked := f.run.Lost, f.run.BootAsked
	_, opened := f.seen(factSession + roleRAMDisk)
	switch {
	case !asked.IsZero() && !opened:
		f.lost(s, fmt.Sprintf("the machine started over: it asked for a network boot at %s, after its RAM disk had joined and before it opened its session", asked), startedOver)
	case l == nil:
		return false
	case asked.After(l.Since.Add(-noticeTime)):
		f.lost(s, fmt.Sprintf("the machine started over: it asked for a network boot at %s, and its RAM disk's session is lost since %s (%s)", asked, l.Since, l.Why), startedOver)
	case !f.now.Before(f.back(s)):
		f.lost(s, fmt.Sprintf("the RAM disk's session is lost since %s (%s) and was waited for until %s: the machine lost its power or its network, or its agent died",
			l.Since, l.Why, fleet.At(f.back(s))), silent)
	default:
		return false
	}
	return true
}

// What to do about a machine whose RAM disk is gone.
const (
	startedOver = "find out why it restarted (its power, its firmware, or a person); then begin again with firstlight provision, which wipes the disks first"
	silent      = "see whether the machine has power and network, and what its console says; switch it off, so that nothing goes on there; then begin again with firstlight provision, which wipes the disks first"
)

// lost fails a step whose RAM disk is gone, with what was in its hands and what the disks hold by that.
func (f *flow) lost(s *fleet.Step, cause, next string) {
	what, at := s.Name, "no command was in its hands: nothing was written in this step"
	if c := f.inHand(s); c != nil {
		what = c.Kind
		if f.begun(c) {
			f.doubt(c)
			at = fmt.Sprintf("%s was in its hands; %s", c.Kind, lastSaid(c))
		} else {
			at = c.Kind + " was not given to it: nothing was written in this step"
		}
	}
	f.fail(s.Name, what, fmt.Sprintf("%s; %s; %s", cause, at, holding(f.run.Disks)), next)
}

// begun says whether an agent may have begun a command.
func (f *flow) begun(c *fleet.Command) bool {
	return c.State != fleet.CommandPending || destructive(c.Kind) && f.unsent != nil && !f.unsent(c)
}

// lastSaid is how far a command was when its agent last said so.
func lastSaid(c *fleet.Command) string {
	p := c.Progress
	switch {
	case p == nil:
		return "it never said how far it was"
	case p.Total == 0:
		return fmt.Sprintf("it last said: %s", p.What)
	}
	return fmt.Sprintf("it last said: %s, %d of %d %s", p.What, p.Done, p.Total, p.Unit)
}

// waitLost writes what a step waits for whose RAM disk is not there; false when it is.
func (f *flow) waitLost(s *fleet.Step) bool {
	l := f.run.Lost
	if l == nil {
		return false
	}
	switch {
	case ofRAMDisk(s.Name):
		until := fleet.At(f.back(s))
		if d := fleet.At(f.deadline(s)); d.Before(until.Time) {
			until = d
		}
		s.Waiting = &fleet.Waiting{For: fmt.Sprintf("the RAM disk to come back: its session is lost since %s (%s), it may come back until %s, then step %s fails", l.Since, l.Why, until, s.Name),
			Since: l.Since, Until: until, Next: "see whether the machine has power and network, and what its console says"}
		return true
	case s.Name == fleet.StepKexec:
		s.Waiting = &fleet.Waiting{For: fmt.Sprintf("the installed system to start: the RAM disk's session is lost since %s without an answer to boot.kexec", l.Since),
			Since: l.Since, Until: fleet.At(f.deadline(s)), Next: f.run.Plan.Step(s.Name).Next}
		return true
	}
	return false
}

// arrived says whether the installed system runs although the RAM disk never said that it enters it: the machine lost its power, or
// the RAM disk its last word. The disk was written and read back whole before that step.
func (f *flow) arrived(s *fleet.Step) (at time.Time, ok bool) {
	if s.Name != fleet.StepKexec || f.run.Lost == nil {
		return time.Time{}, false
	}
	if at, ok = f.seen(factJoined + roleNode); !ok {
		return time.Time{}, false
	}
	for i := range s.Commands {
		if c := &s.Commands[i]; !c.State.Ended() {
			c.State, c.Ended, c.Message = fleet.CommandCancelled, fleet.At(f.now), "no answer came, and the installed system runs"
		}
	}
	return at, !slices.ContainsFunc(s.Commands, func(c fleet.Command) bool {
		return c.State != fleet.CommandCancelled && c.State != fleet.CommandSucceeded
	})
}
