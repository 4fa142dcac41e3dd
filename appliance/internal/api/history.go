package api

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
)

func (s *Server) events(r *http.Request) (any, error) {
	const op = "list events"
	machine := r.URL.Query().Get("machine")
	limit, err := number(r, op, "limit", MaxEvents, MaxEvents)
	if err != nil {
		return nil, err
	}
	if machine != "" {
		if _, err := s.show(r.Context(), op, machine); err != nil {
			return nil, err
		}
	}
	all, err := s.cfg.Fleet.Events(r.Context(), machine, limit)
	if err != nil {
		return nil, fault.Of(err, op, machine)
	}
	return all, nil
}

// moment is an entry with its place in the timeline: by time, then by kind and number, so that no two are the same.
type moment struct {
	key   string
	entry TimelineEntry
}

func at(t fleet.Time, of string, n uint64, e TimelineEntry) moment {
	e.Time, e.Of = t, of
	return moment{fmt.Sprintf("%016x.%s.%016x", max(0, t.UnixMilli()), of, n), e}
}

// timeline is what happened to a machine, from the first packet to the running node, newest first.
func (s *Server) timeline(r *http.Request) (any, error) {
	const op = "show timeline"
	name := r.PathValue("name")
	limit, err := number(r, op, "limit", MaxTimeline, MaxTimeline)
	if err != nil {
		return nil, err
	}
	before := r.URL.Query().Get("before")
	if len(before) > maxCursor {
		return nil, fault.New(fault.Usage, op, name, errors.New("before is no place in a timeline"), "take it from the page before")
	}
	m, err := s.show(r.Context(), op, name)
	if err != nil {
		return nil, err
	}
	events, err := s.cfg.Fleet.Events(r.Context(), name, 0)
	if err != nil {
		return nil, fault.Of(err, op, name)
	}
	all := moments(&m.Machine, events)
	slices.SortFunc(all, func(a, b moment) int { return strings.Compare(b.key, a.key) })
	if before != "" {
		i, _ := slices.BinarySearchFunc(all, before, func(x moment, key string) int { return strings.Compare(key, x.key) })
		for i < len(all) && all[i].key >= before {
			i++
		}
		all = all[i:]
	}
	page := TimelinePage{Entries: []TimelineEntry{}}
	if len(all) > limit {
		all = all[:limit]
		page.Before = all[limit-1].key
	}
	for _, x := range all {
		page.Entries = append(page.Entries, x.entry)
	}
	return page, nil
}

// maxCursor bounds a place in a timeline, in bytes.
const maxCursor = 64

// ended says how a step ended.
var ended = map[fleet.StepState]string{fleet.StepDone: " is done", fleet.StepFailed: " failed", fleet.StepSkipped: " was skipped"}

func moments(m *fleet.Machine, events []fleet.Event) []moment {
	var all []moment
	for _, e := range events {
		if m.Workflow != nil && e.Workflow == m.Workflow.ID && e.Kind == "workflow.step" {
			continue // its steps are entries by themselves
		}
		all = append(all, at(e.Time, TimelineEvent, e.Seq, TimelineEntry{Kind: e.Kind, Text: e.Message, Source: e.Source, Workflow: e.Workflow, Fields: e.Fields}))
	}
	for i, a := range m.Alarms {
		all = append(all, at(a.Time, TimelineAlarm, uint64(i), TimelineEntry{Kind: "alarm", Text: a.Text, Source: "control"}))
	}
	if m.Workflow == nil {
		return all
	}
	for i := range m.Workflow.Steps {
		st := &m.Workflow.Steps[i]
		e := TimelineEntry{Kind: st.Name, Source: "control", Workflow: m.Workflow.ID}
		if !st.Start.IsZero() {
			e.State, e.Text = string(fleet.StepRunning), "step "+st.Name+" began"
			all = append(all, at(st.Start, TimelineStep, uint64(2*i), e))
		}
		if !st.End.IsZero() {
			e.State, e.Text = string(st.State), "step "+st.Name+ended[st.State]
			if st.Why != "" {
				e.Text += ": " + st.Why
			}
			all = append(all, at(st.End, TimelineStep, uint64(2*i+1), e))
		}
	}
	return all
}

// said tells whether an event is an agent's own word.
func said(e *fleet.Event) bool { return e.Source != "" && e.Source != "control" }

func lineOf(e *fleet.Event) LogLine {
	return LogLine{Seq: e.Seq, Time: e.Time, Source: e.Source, Kind: e.Kind, Text: e.Message, Fields: e.Fields}
}

// logLines are the newest lines of a machine's log, oldest of them first.
func (s *Server) logLines(r *http.Request) ([]LogLine, error) {
	const op = "show log"
	name := r.PathValue("name")
	limit, err := number(r, op, "limit", MaxTimeline, MaxTimeline)
	if err != nil {
		return nil, err
	}
	m, err := s.show(r.Context(), op, name)
	if err != nil {
		return nil, err
	}
	events, err := s.cfg.Fleet.Events(r.Context(), name, 0)
	if err != nil {
		return nil, fault.Of(err, op, name)
	}
	out := []LogLine{}
	for i := range events {
		if said(&events[i]) {
			out = append(out, lineOf(&events[i]))
		}
	}
	if out, err = s.withSaid(op, name, m.NodeID, out, limit); err != nil {
		return nil, err
	}
	return out[max(0, len(out)-limit):], nil
}
