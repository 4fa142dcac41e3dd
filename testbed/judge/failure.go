package judge

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Event is one line of `firstlight events --json`.
type Event struct {
	Time    time.Time         `json:"time"`
	Machine string            `json:"machine"`
	Kind    string            `json:"kind"`
	Fields  map[string]string `json:"fields"`
	Message string            `json:"message"`
}

// Failed checks that the machine's workflow failed first in that stage, that the record names the cause in words which match, and
// that it says what to do next.
func Failed(r *Record, stage string, cause *regexp.Regexp) []Check {
	first := "none"
	if s := r.FirstFailed(); s != nil {
		first = s.Name
	}
	what, next := "record has no failure", ""
	if f := r.Failure; f != nil {
		what, next = f.What+": "+f.Why, f.Next
	}
	return []Check{
		Of("record: failed where it should", first == stage && r.State == "failed", "first failed stage is %s (want %s), machine is %s", first, stage, r.State),
		Of("record: cause is named", cause.MatchString(r.Cause()), "%s", r.Cause()),
		Of("record: says what to do next", r.Failure != nil && what != ": " && next != "", "%s", next),
		Of("record: machine is no node", r.Connected == nil || r.Connected.Role != "node", "node key %q", r.NodeKeyID),
	}
}

// Told checks that there is an event of that kind, whose fields and message hold each of the words.
func Told(events []Event, kind string, words ...string) Check {
	name := "event: " + kind
	for _, e := range events {
		if e.Kind != kind {
			continue
		}
		text := fmt.Sprint(e.Message, " ", e.Fields)
		if !slices.ContainsFunc(words, func(w string) bool { return !regexp.MustCompile(`(?i)` + regexp.QuoteMeta(w)).MatchString(text) }) {
			return Pass(name, "%s %v", e.Message, e.Fields)
		}
	}
	return Fail(name, "no such event that holds %q among %d events", words, len(events))
}

// Skipped checks that a step was passed over, for a reason that holds the word.
func Skipped(r *Record, step, word string) Check {
	name := "record: " + step + " is skipped"
	s := r.Step(step)
	if s == nil {
		return Fail(name, "there is no such step")
	}
	return Of(name, s.State == "skipped" && strings.Contains(s.Why, word), "step %s is %s: %s", step, s.State, s.Why)
}
