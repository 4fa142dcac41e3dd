package demo

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"firstlight/testbed/judge"
)

// picture is what is known at one moment.
type picture struct {
	started, now time.Time
	machines     []seen
	past         past
}

// seen is a machine of the rack and what the API said of it last.
type seen struct {
	who, mac string
	// unknown: nobody enrolled it. goal: it is to become active.
	unknown, goal bool
	// since is when somebody pressed its button; zero where an order switches it on.
	since time.Time
	// rec is nil while the appliance knows no such machine.
	rec *machine
}

func (s seen) state() string {
	if s.rec == nil {
		return ""
	}
	return s.rec.State
}

// settled says whether nothing more happens to the machine by itself.
func (s seen) settled() bool {
	return slices.Contains([]string{"active", "failed", "cancelled"}, s.state()) || s.found()
}

// found says whether a machine that nobody enrolled has said what it is.
func (s seen) found() bool { return s.state() == "discovered" && s.rec.Hardware != nil }

// line is one thing that a person reads.
type line struct {
	// key tells a line of render's from every other one, so that it is said once; empty for what is said by hand.
	key string
	// at counts from the demo's start; took is zero where nothing is to be said of it.
	at, took time.Duration
	mark     mark
	who      string
	text     string
	more     []string
}

// mark is a line's shape; the word beside it never depends on it.
type mark int

const (
	markDone mark = iota
	markSkipped
	markWorking
	markWaiting
	markFailed
)

// render gives what is over, oldest first, and what goes on, in the order of the rack.
func render(p picture) (done, live []line) {
	for _, s := range p.machines {
		if s.rec == nil || s.rec.State == "discovered" && !s.found() {
			if !s.since.IsZero() {
				live = append(live, line{at: p.now.Sub(p.started), mark: markWorking, who: s.who,
					text: "Somebody pressed its button: boots to say what it is" + p.past.left(s.who+"/discovered", p.now.Sub(s.since))})
			}
			continue
		}
		done = append(done, p.over(s)...)
		if s.rec.Workflow != nil && !s.settled() {
			live = append(live, p.working(s))
		}
	}
	slices.SortStableFunc(done, func(a, b line) int { return int(a.at - b.at) })
	return done, live
}

// over are the lines of what a machine has behind it.
func (p picture) over(s seen) []line {
	var out []line
	if s.found() {
		out = append(out, line{key: s.who + "/discovered", at: s.rec.Row.Since.Sub(p.started), mark: markWaiting, who: s.who,
			text: "Waits for a person to name it: " + hardware(s.rec), more: []string{"next  " + plain(s.rec.Row.Next)}})
	}
	w := s.rec.Workflow
	if w == nil {
		return out
	}
	for _, stage := range judge.Stages {
		step := s.rec.Step(stage)
		if step == nil || step.Start == nil || step.End == nil {
			continue
		}
		l := line{key: s.who + "/" + w.ID + "/" + stage, at: step.End.Sub(p.started), took: step.End.Sub(*step.Start), who: s.who}
		switch step.State {
		case "done":
			l.text = doneWords(stage, s.rec)
		case "skipped":
			l.mark, l.text, l.took = markSkipped, "Skipped "+stage+": "+plain(strings.TrimPrefix(step.Why, "skipped: ")), 0
		default:
			l.mark, l.text = markFailed, plain(s.rec.Row.Line)
			if f := s.rec.Failure; f != nil {
				l.text, l.more = plain(f.What), []string{"why   " + plain(f.Why), "next  " + plain(f.Next)}
			}
		}
		out = append(out, l)
	}
	return out
}

// working is the line of what a machine is at: in the API's words, with the time left that the last demo tells where the API knows no progress.
func (p picture) working(s seen) line {
	l := line{at: p.now.Sub(p.started), mark: markWorking, who: s.who, text: plain(s.rec.Row.Line)}
	if s.rec.State == "paused" {
		l.mark = markWaiting
		return l
	}
	for _, stage := range judge.Stages {
		step := s.rec.Step(stage)
		if step == nil || step.State != "running" || step.Start == nil || s.rec.Row.Percent != nil {
			continue
		}
		if left := p.past.left(s.who+"/"+stage, p.now.Sub(*step.Start)); left != "" {
			l.text = deadline.ReplaceAllString(l.text, "") + left
		}
	}
	if left, ok := p.past.whole(s, p.now); ok && s.goal {
		l.more = []string{"active in about " + rough(left)}
	}
	return l
}

// deadline is how the API ends a line of a step that is given up at some time: less than what the last demo tells.
var deadline = regexp.MustCompile(`, [0-9]+ (s|min|h) of [0-9]+ (s|min|h)$`)

// doneWords says what a machine has done in a step.
func doneWords(stage string, m *machine) string {
	switch stage {
	case "power-on":
		return "Switched on by its controller, network first"
	case "dhcp":
		return "Asked for a network boot and was answered"
	case "tftp":
		return "Fetched iPXE"
	case "script":
		return "Fetched the script of this very boot"
	case "kernel":
		return "Fetched kernel and RAM disk"
	case "join":
		return "RAM disk joined with its boot's assertion"
	case "inventory":
		return "Told its hardware: " + hardware(m)
	case "wipe":
		return "Wiped disk " + plain(strings.Join(m.DiskSerials, ", ")) + " and read it back"
	case "diag":
		return "Tested its hardware"
	case "deploy":
		return "Wrote image " + plain(m.Workflow.Image) + " and read it back"
	case "kexec":
		return "Started the installed system without a reset"
	case "node-join":
		return "Node agent joined with this deploy's secret"
	case "active":
		return "Active"
	}
	return "Finished " + stage
}

// hardware is a machine's inventory in short.
func hardware(m *machine) string {
	h := m.Hardware
	if h == nil {
		return "nothing known yet"
	}
	disks := make([]string, len(h.Disks))
	for i, d := range h.Disks {
		disks[i] = fmt.Sprintf("%s (%d MiB)", plain(d.Serial), d.SizeBytes>>20)
	}
	return fmt.Sprintf("%s %s, disk %s", plain(h.Manufacturer), plain(h.Product), strings.Join(disks, ", "))
}

// plain keeps what came from a wire from steering a terminal.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
}

// rough is a time left, with one unit too few.
func rough(d time.Duration) string {
	if d < 2*time.Minute {
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return fmt.Sprintf("%.0f min", d.Minutes())
}

// exact is a time that something took.
func exact(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	d = d.Round(time.Second)
	return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
}
