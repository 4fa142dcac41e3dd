package scenario

import (
	"time"

	"firstlight/testbed/judge"
)

// Outcomes beside what a record's state says.
const (
	OutcomeActive      = "active"
	OutcomeFailed      = "failed"
	OutcomeTimeout     = "timeout"
	OutcomeInterrupted = "interrupted"
	// outcomeHeld is followed by the stage.
	outcomeHeld = "held-after-"
)

// Report is what a run ended with, as --json writes it.
type Report struct {
	Scenario string `json:"scenario"`
	Firmware string `json:"firmware"`
	Break    string `json:"break,omitempty"`
	// Outcome is OutcomeActive for a whole run, else a word for how it ended.
	Outcome string        `json:"outcome"`
	Machine string        `json:"machine"`
	Stages  []Stage       `json:"stages"`
	Checks  []judge.Check `json:"checks"`
	WallS   float64       `json:"wall_s"`
	Errors  []string      `json:"errors"`
	// Logs is the folder with what is left of the run; empty when nothing is.
	Logs string `json:"logs,omitempty"`

	// met is what a break was for: it ended where and how it should, and nothing else went wrong.
	met bool
}

// Stage is one stage that the machine reached.
type Stage struct {
	Name  string `json:"name"`
	Start string `json:"start"`
	End   string `json:"end"`
	// State is done, failed or skipped.
	State string `json:"state"`
	Why   string `json:"why"`
}

// timeLayout is RFC 3339 with milliseconds.
const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// Satisfied says whether the judge has nothing to complain of. Never for a break: its machine did not become a node.
func (r *Report) Satisfied() bool {
	return r.Break == "" && len(r.Errors) == 0 && judge.AllOK(r.Checks)
}

// BrokeAsSaid says whether a break ended in the stage and for the cause that it stands for, and everything that must hold then holds.
func (r *Report) BrokeAsSaid() bool { return r.Break != "" && r.met && judge.AllOK(r.Checks) }

// stages turns the record's steps into stages: those that were reached, in their order.
func stages(rec *judge.Record, ended time.Time) []Stage {
	out := []Stage{}
	for _, name := range judge.Stages {
		s := rec.Step(name)
		if s == nil || s.Start == nil || s.State == "pending" || s.State == "paused" {
			continue
		}
		st := Stage{Name: name, Start: stamp(*s.Start), State: s.State, Why: s.Why}
		switch {
		case s.State == "running":
			st.State, st.End = "failed", stamp(ended)
			st.Why = "the run ended while this stage was under way"
			if s.Waiting != nil {
				st.Why += "; it waited for " + s.Waiting.For
			}
		case s.End != nil:
			st.End = stamp(*s.End)
		default:
			st.End = stamp(ended)
		}
		out = append(out, st)
	}
	return out
}

func stamp(t time.Time) string { return t.UTC().Format(timeLayout) }
