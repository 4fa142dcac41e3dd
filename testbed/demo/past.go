package demo

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"time"

	"firstlight/testbed/judge"
)

// maxPast bounds the file of durations, in bytes.
const maxPast = 64 << 10

// past is how many seconds each part took in the last demo that came so far: "build", "r1u01/wipe", "r1u02/discovered".
type past map[string]float64

// readPast reads the file; without one that can be read, nothing is known.
func readPast(path string) past {
	b, err := os.ReadFile(path)
	p := past{}
	if err != nil || len(b) > maxPast || json.Unmarshal(b, &p) != nil || p == nil {
		return past{}
	}
	maps.DeleteFunc(p, func(_ string, s float64) bool { return !(s >= 0 && s < 24*3600) })
	return p
}

func (p past) write(path string) error {
	b, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".part", append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}

func (p past) took(key string) (time.Duration, bool) {
	s, ok := p[key]
	return time.Duration(s * float64(time.Second)), ok
}

// left words how much longer a part takes, as far as the last demo tells; empty when it does not.
func (p past) left(key string, spent time.Duration) string {
	took, ok := p.took(key)
	switch {
	case !ok || took < time.Second:
		return ""
	case spent < took:
		return fmt.Sprintf(", about %s left", rough(took-spent))
	case spent < took+took/2:
		return ", nearly over"
	}
	return fmt.Sprintf(", longer than last time (%s)", rough(took))
}

// whole is how long a machine still needs to be active; not ok where neither the API nor the last demo tells.
func (p past) whole(s seen, now time.Time) (time.Duration, bool) {
	var sum time.Duration
	for _, stage := range judge.Stages {
		step := s.rec.Step(stage)
		if step == nil || step.End != nil {
			continue
		}
		took, ok := p.took(s.who + "/" + stage)
		if !ok {
			return 0, false
		}
		if step.Start != nil {
			took -= now.Sub(*step.Start)
			if left := s.rec.Row.LeftS; left != nil {
				took = time.Duration(*left) * time.Second
			}
			if took < 0 {
				return 0, false // slower than last time: so may the rest be
			}
		}
		sum += took
	}
	return sum, sum > 0
}

// learn takes what a machine's steps took.
func (p past) learn(s seen) {
	if s.rec == nil {
		return
	}
	for _, stage := range judge.Stages {
		if step := s.rec.Step(stage); step != nil && step.Start != nil && step.End != nil {
			p[s.who+"/"+stage] = step.End.Sub(*step.Start).Seconds()
		}
	}
	if !s.since.IsZero() && s.found() && s.rec.Row.Since.After(s.since) {
		p[s.who+"/discovered"] = s.rec.Row.Since.Sub(s.since).Seconds()
	}
}
