package roster

import (
	"fmt"
	"strings"
	"time"

	"firstlight/appliance/internal/fleet"
)

// alarmFresh is how long an alarm makes a machine need a person: nobody acknowledges alarms, and one of last week is history.
const alarmFresh = 24 * time.Hour

// minPace is how long a command must have been seen to go on before a time left is said.
const minPace = 2 * time.Second

// line is what is said of a machine in one line, but for its clock.
type line struct {
	serial, text string
	since, until fleet.Time
	changed      fleet.Time
	progress     *fleet.Progress
	// need is always so, alarmed until then.
	need      bool
	alarmed   time.Time
	why, next string
}

func lineOf(m *fleet.Machine, rec *fleet.Record) line {
	l := line{changed: changed(m, rec)}
	if m.Hardware != nil {
		l.serial = m.Hardware.Serial
	}
	l.say(m, rec)
	if n := len(m.Alarms); n > 0 && !l.need {
		a := m.Alarms[n-1]
		l.alarmed, l.why, l.next = a.Time.Add(alarmFresh), a.Text, "look at the machine and at what else is on its network; the alarm ends by itself after a day"
	}
	return l
}

// say words the state.
func (l *line) say(m *fleet.Machine, rec *fleet.Record) {
	w := m.Workflow
	switch m.State {
	case fleet.MachineNew:
		l.text, l.since = "Ready to be provisioned", rec.Added
	case fleet.MachineDiscovered:
		l.text, l.since = "Booted here and is nobody's yet", rec.Discovered
		l.next = "give it a name: firstlight machine add NAME --from " + m.Name
	case fleet.MachineAdopted:
		l.text, l.since = "Runs what others installed", rec.Added
	case fleet.MachineActive:
		l.text, l.since = "Runs image "+m.Image, w.Ended
		if m.Connected == nil {
			l.text = "Installed with image " + m.Image + ", its node agent is not connected"
		}
	case fleet.MachineCancelled:
		l.text, l.since = "Cancelled", w.Ended
		if m.Cancel != nil {
			l.text, l.next = "Cancelled at "+m.Cancel.Step+" by "+m.Cancel.By, m.Cancel.Next
		}
	case fleet.MachineFailed:
		l.text, l.since, l.need = "Stopped", w.Ended, true
		if f := m.Failure; f != nil {
			l.text, l.why, l.next = f.What, f.Why, f.Next
		}
	default:
		l.work(m)
	}
}

// work words an open workflow.
func (l *line) work(m *fleet.Machine) {
	l.text, l.since = "Working", m.Workflow.Started
	s := current(m.Workflow)
	if s != nil {
		l.progress = progressOf(s)
		l.text = doing(m, s.Name, l.progress)
		if !s.Start.IsZero() {
			l.since = s.Start
		}
	}
	w := m.Waiting
	if w == nil {
		return
	}
	l.until = w.Until
	// A wait that began otherwise than its step is for something else than the step: a person, or an agent that is away.
	if s == nil || m.State != fleet.MachineProvisioning || !w.Since.Equal(s.Start.Time) {
		l.text, l.since, l.progress = "Waiting for "+w.For, w.Since, nil
	}
	if m.State == fleet.MachinePaused {
		l.need, l.why, l.next = true, "waiting for "+w.For, w.Next
	}
}

func current(w *fleet.Workflow) *fleet.Step {
	for i := range w.Steps {
		if !w.Steps[i].State.Ended() {
			return &w.Steps[i]
		}
	}
	return nil
}

func progressOf(s *fleet.Step) *fleet.Progress {
	for _, c := range s.Commands {
		if s.State == fleet.StepRunning && c.State == fleet.CommandRunning && c.Progress != nil {
			return c.Progress
		}
	}
	return nil
}

// doing is what a machine does in a step; p is nil where its agent told nothing yet.
func doing(m *fleet.Machine, step string, p *fleet.Progress) string {
	switch step {
	case fleet.StepPowerOn:
		return "Waiting for its controller to power it on"
	case fleet.StepDHCP:
		return "Waiting for its firmware to ask for a network boot"
	case fleet.StepTFTP:
		return "Waiting for its firmware to fetch the boot file"
	case fleet.StepScript:
		return "Waiting for iPXE to fetch its script"
	case fleet.StepKernel:
		return "Waiting for iPXE to fetch kernel and RAM disk"
	case fleet.StepJoin:
		return "Waiting for the RAM disk to start and join"
	case fleet.StepInventory:
		return "Waiting for the RAM disk's inventory"
	case fleet.StepWipe:
		return "Wiping " + disks(m.DiskSerials)
	case fleet.StepDiag:
		return "Testing the hardware"
	case fleet.StepDeploy:
		return deploying(m.Image, p)
	case fleet.StepKexec:
		return "Starting the installed system"
	case fleet.StepNodeJoin:
		return "Waiting for the installed system to join"
	case fleet.StepActive:
		return "Waiting for the node's first inventory"
	}
	return "Working at " + step
}

// deploying tells the phases of a deploy apart, each with progress of its own, by the first word that its agent says of them.
func deploying(image string, p *fleet.Progress) string {
	if p == nil {
		return "Writing image " + image
	}
	switch first, _, _ := strings.Cut(p.What, " "); first {
	case "erasing":
		return "Erasing what image " + image + " leaves free"
	case "waiting":
		return "Waiting for the image server"
	}
	return "Writing image " + image
}

func disks(serials []string) string {
	if len(serials) == 1 {
		return "disk " + serials[0]
	}
	return fmt.Sprintf("%d disks", len(serials))
}

// full adds progress or clock to a line.
func (l *line) full(p *pace, now time.Time) (text string, percent *int, left *int64) {
	text = l.text
	if l.progress != nil && l.progress.Total > 0 {
		n := int(min(100, l.progress.Done*100/l.progress.Total))
		text += fmt.Sprintf(", %d %%", n)
		percent = &n
		if p != nil {
			left = p.left(l.progress, now)
		}
		if left != nil {
			text += ", " + about(time.Duration(*left)*time.Second) + " left"
		}
		return text, percent, left
	}
	if !l.until.IsZero() && !l.since.IsZero() {
		total := l.until.Sub(l.since.Time)
		spent := min(max(0, now.Sub(l.since.Time)), total)
		text += fmt.Sprintf(", %s of %s", about(spent), about(total))
	}
	return text, nil, nil
}

// about is a duration with one unit too few.
func about(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Round(time.Second)/time.Second))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Round(time.Minute)/time.Minute))
	}
	return fmt.Sprintf("%d h", int(d.Round(time.Hour)/time.Hour))
}

// pace is how far a command was when it was first seen, and when it was seen last.
type pace struct {
	command, what string
	first, last   time.Time
	from          uint64
}

// see takes a workflow's running command. Another phase of it (its What up to the first digit) begins anew.
func (p *pace) see(r *fleet.Run, now time.Time) {
	s := r.Current()
	if s == nil {
		return
	}
	for _, c := range s.Commands {
		if c.State != fleet.CommandRunning || c.Progress == nil {
			continue
		}
		what := c.Progress.What
		if i := strings.IndexAny(what, "0123456789"); i >= 0 {
			what = what[:i]
		}
		if p.command != c.ID || p.what != what || c.Progress.Done < p.from {
			*p = pace{command: c.ID, what: what, first: now, from: c.Progress.Done}
		}
		p.last = now
		return
	}
}

// left is how many seconds a command still takes at the pace that was seen; nil while nobody can say.
func (p *pace) left(x *fleet.Progress, now time.Time) *int64 {
	spent := p.last.Sub(p.first)
	if spent < minPace || x.Done <= p.from || x.Total < x.Done {
		return nil
	}
	left := time.Duration(float64(spent) / float64(x.Done-p.from) * float64(x.Total-x.Done))
	s := int64(max(0, left-now.Sub(p.last)).Round(time.Second) / time.Second)
	return &s
}

// changed is the newest moment in what is shown.
func changed(m *fleet.Machine, rec *fleet.Record) fleet.Time {
	out := rec.Added
	add := func(t fleet.Time) {
		if t.After(out.Time) {
			out = t
		}
	}
	add(rec.Discovered)
	if m.Connected != nil {
		add(m.Connected.Since)
	}
	if m.Protected != nil {
		add(m.Protected.Since)
	}
	if m.Cancel != nil {
		add(m.Cancel.Since)
	}
	for _, a := range m.Alarms {
		add(a.Time)
	}
	if m.Workflow == nil {
		return out
	}
	add(m.Workflow.Started)
	add(m.Workflow.Ended)
	for i := range m.Workflow.Steps {
		s := &m.Workflow.Steps[i]
		add(s.Start)
		add(s.End)
		for j := range s.Commands {
			add(s.Commands[j].Issued)
			add(s.Commands[j].Ended)
		}
	}
	return out
}
