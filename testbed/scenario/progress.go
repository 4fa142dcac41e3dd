package scenario

import (
	"fmt"
	"io"
	"sync"
	"time"

	"firstlight/testbed/judge"
)

// beat is how often a running stage says that it still runs.
const beat = 15 * time.Second

// progress tells a person what happens, a line for each change. Several may write to one writer.
type progress struct {
	w       io.Writer
	mu      *sync.Mutex // held while w is written to
	started time.Time
	label   string
	states  map[string]string
	last    time.Time
}

func newProgress(w io.Writer) *progress {
	return &progress{w: w, mu: &sync.Mutex{}, started: time.Now(), states: map[string]string{}, last: time.Now()}
}

// labelled is a progress of its own to the same writer, each line with a label.
func (p *progress) labelled(label string) *progress {
	return &progress{w: p.w, mu: p.mu, started: p.started, label: label + ": ", states: map[string]string{}, last: p.last}
}

func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = time.Now()
	fmt.Fprintf(p.w, "[%6.1f s] %s%s\n", time.Since(p.started).Seconds(), p.label, fmt.Sprintf(format, args...))
}

// record says what changed since the last record, and now and then how far the running stage is.
func (p *progress) record(rec *judge.Record) {
	for _, name := range judge.Stages {
		s := rec.Step(name)
		if s == nil || s.Start == nil || s.State == p.states[name] || s.State == "paused" {
			continue
		}
		p.states[name] = s.State
		switch {
		case s.State == "running":
			p.say("%-10s begins", name)
		case s.End != nil:
			why := ""
			if s.Why != "" {
				why = ": " + s.Why
			}
			p.say("%-10s %s (%.1f s)%s", name, s.State, s.End.Sub(*s.Start).Seconds(), why)
		}
	}
	p.mu.Lock()
	quiet := time.Since(p.last)
	p.mu.Unlock()
	if quiet < beat {
		return
	}
	for _, name := range judge.Stages {
		if s := rec.Step(name); s != nil && s.State == "running" {
			p.say("%-10s %s", name, doing(s))
			return
		}
	}
}

// doing is what a running step is at.
func doing(s *judge.Step) string {
	for i := len(s.Commands) - 1; i >= 0; i-- {
		c := s.Commands[i]
		if pr := c.Progress; pr != nil && c.Ended == nil {
			if pr.Total > 0 {
				return fmt.Sprintf("%s: %s, %d of %d %s (%d %%)", c.Kind, pr.What, pr.Done, pr.Total, pr.Unit, 100*pr.Done/pr.Total)
			}
			return fmt.Sprintf("%s: %s", c.Kind, pr.What)
		}
	}
	if s.Waiting != nil {
		return "waits for " + s.Waiting.For
	}
	return "runs"
}
