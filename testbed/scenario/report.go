package scenario

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
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
	// Outcome is OutcomeActive for a whole run, else a word for how it ended; the scenario says which one it must be.
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
	// want is the outcome that satisfies the judge; empty in a report that was read.
	want string
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
	return r.Break == "" && r.asWanted() && len(r.Errors) == 0 && judge.AllOK(r.Checks)
}

func (r *Report) asWanted() bool { return r.want == "" || r.Outcome == r.want }

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

// report says how the run ended. attempt's error, if any, is its first cause.
func (r *run) report(ctx context.Context, err error) *Report {
	rep := &Report{Scenario: r.scenario.Name, Firmware: r.Firmware, Break: r.Break, Outcome: OutcomeFailed, Machine: r.name,
		Stages: stages(r.record, time.Now()), Checks: r.checks, want: r.scenario.Want()}
	switch {
	case err != nil:
		rep.Outcome = r.outcome(ctx)
	case r.held:
		rep.Outcome = outcomeHeld + r.HoldAfter
		rep.want = rep.Outcome
	case r.ended != "":
		rep.Outcome = r.ended
	case r.record != nil:
		rep.Outcome = r.record.State
	}
	// A failure that was wanted is a check's business.
	if r.record != nil && (r.Break != "" || rep.Outcome != rep.want) {
		if cause := r.record.Cause(); cause != "" {
			rep.Errors = append(rep.Errors, cause)
			rep.Errors = append(rep.Errors, r.lastWords()...)
		}
	}
	if err != nil {
		rep.Errors = append(rep.Errors, err.Error())
	}
	if len(rep.Checks) == 0 {
		rep.Checks = []judge.Check{judge.Fail("run", "it ended before there was anything to judge")}
	}
	rep.met = r.spoil != nil && err == nil
	for _, c := range rep.Checks {
		if !c.OK {
			rep.Errors = append(rep.Errors, "check: "+c.Name+": "+c.Detail)
		}
	}
	if rep.Errors == nil {
		rep.Errors = []string{}
	}
	return rep
}

func (r *run) outcome(ctx context.Context) string {
	switch ctx.Err() {
	case context.DeadlineExceeded:
		return OutcomeTimeout
	case context.Canceled:
		return OutcomeInterrupted
	}
	return OutcomeFailed
}

// lastWords is what the machine said last on its serial line.
func (r *run) lastWords() []string {
	serial, err := judge.ReadSerial(r.serialPath())
	if err != nil {
		return nil
	}
	var out []string
	for _, line := range judge.LastWords(serial, 2) {
		out = append(out, "serial line: "+line)
	}
	return out
}

// keep leaves the run's folder where it helps, and nothing otherwise. Keys, credentials and the disks stay only when asked for.
func (r *run) keep(rep *Report) {
	if r.dir == "" {
		return
	}
	if !r.Keep && (rep.Satisfied() || rep.BrokeAsSaid() || rep.Outcome == OutcomeInterrupted) {
		if err := os.RemoveAll(r.dir); err != nil {
			rep.Errors = append(rep.Errors, err.Error())
		}
		return
	}
	rep.Logs = r.dir
	files := map[string][]byte{"report.json": r.encode(rep), "record.json": r.recordJSON}
	for _, m := range r.machines[1:] {
		files["record-"+m.name+".json"] = m.recordJSON
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(r.dir, name), b, 0o600); err != nil {
			rep.Errors = append(rep.Errors, err.Error())
		}
	}
	if r.Keep {
		return
	}
	gone := []string{filepath.Join(r.dir, "data"), filepath.Join(r.dir, "socket")}
	for _, m := range r.machines {
		for _, d := range m.disks {
			gone = append(gone, d.path)
		}
	}
	for _, path := range gone {
		if err := os.RemoveAll(path); err != nil {
			rep.Errors = append(rep.Errors, err.Error())
		}
	}
}

func (r *run) encode(rep *Report) []byte {
	b, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return []byte(err.Error())
	}
	return append(b, '\n')
}
