package roster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/store/storetest"
)

var now = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

type lab struct {
	store  *storetest.Memory
	repo   *fleet.Repo
	roster *Roster
}

// start starts a roster over a store in memory that put filled.
func start(t *testing.T, put func(*lab)) *lab {
	t.Helper()
	l := &lab{store: storetest.New()}
	l.repo = fleet.NewRepo(l.store)
	l.roster = New(Config{Source: l.repo, Now: func() time.Time { return now }})
	if put != nil {
		put(l)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := l.roster.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); l.roster.Wait() })
	return l
}

func (l *lab) put(t testing.TB, key string, v any) {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var rev int64
	if e, err := l.store.Get(t.Context(), key); err == nil {
		rev = e.Rev
	}
	if _, err := l.store.Put(t.Context(), key, b, rev); err != nil {
		t.Fatal(err)
	}
}

func (l *lab) machine(t testing.TB, r fleet.Record) {
	t.Helper()
	l.put(t, "machines/"+r.Name, r)
}

// watch returns the roster's changes and, read from there, the next one.
func (l *lab) watch(t *testing.T, machine string, rev int64) func() Change {
	t.Helper()
	out, err := l.roster.Watch(t.Context(), machine, rev)
	if err != nil {
		t.Fatal(err)
	}
	return func() Change {
		t.Helper()
		select {
		case c := <-out:
			return c
		case <-time.After(10 * time.Second):
			t.Fatal("no change came")
			return Change{}
		}
	}
}

func record(i int) fleet.Record {
	return fleet.Record{Name: fmt.Sprintf("r%02du%02d", i/40, i%40), NodeID: fmt.Sprintf("node-%04d", i), MACs: []string{fmt.Sprintf("52:54:00:00:%02x:%02x", i/256, i%256)},
		UUID: fmt.Sprintf("4c4c4544-0000-0000-0000-%012d", i), DiskSerials: []string{fmt.Sprintf("S4X%06d", i)}, Place: fmt.Sprintf("rack %d unit %d", i/40, i%40),
		Added: fleet.At(now.Add(time.Duration(i) * time.Second)), Hardware: &fleet.Hardware{Serial: fmt.Sprintf("SN%05d", i), Product: "R760"}}
}

func working(machine string, done uint64) fleet.Run {
	w := fleet.Workflow{ID: "wf-" + machine, Image: "demo", State: fleet.WorkflowRunning, Started: fleet.At(now.Add(-time.Minute)), Steps: []fleet.Step{
		{Name: fleet.StepWipe, State: fleet.StepDone, Start: fleet.At(now.Add(-time.Minute)), End: fleet.At(now.Add(-30 * time.Second))},
		{Name: fleet.StepDeploy, State: fleet.StepRunning, Start: fleet.At(now.Add(-30 * time.Second)), Commands: []fleet.Command{{ID: "c1", State: fleet.CommandRunning,
			Progress: &fleet.Progress{What: "writing chunk 3", Done: done, Total: 100, Unit: "bytes"}}}}}}
	w.Steps[1].Waiting = &fleet.Waiting{For: "the RAM disk", Since: w.Steps[1].Start, Until: fleet.At(now.Add(time.Hour)), Next: "wait"}
	return fleet.Run{Workflow: w, Machine: machine}
}

func names(p Page) string {
	var out []string
	for _, r := range p.Rows {
		out = append(out, r.Machine.Name)
	}
	return strings.Join(out, " ")
}

func TestSearch(t *testing.T) {
	l := start(t, func(l *lab) {
		for i := range 60 {
			l.machine(t, record(i))
		}
		r := record(60)
		r.Name, r.Workflow = "busy", "wf-busy"
		l.machine(t, r)
		l.put(t, "workflows/wf-busy", working("busy", 62))
	})
	for _, tc := range []struct {
		q    Query
		want string
	}{
		{Query{Text: "SN00007"}, "r00u07"},
		{Query{Text: "5254.0000.0007"}, "r00u07"},
		{Query{Text: "52-54-00-00-00-07"}, "r00u07"},
		{Query{Text: "52:54:00:00:00:07"}, "r00u07"},
		{Query{Text: "R01U03"}, "r01u03"},
		{Query{Text: "rack 1 unit 4"}, "r01u04"},
		{Query{Text: "000000000012"}, "r00u12"},
		{Query{Text: "node-0013"}, "r00u13"},
		{Query{Text: "provisioning"}, "busy"},
		{Query{States: []string{Working}}, "busy"},
		{Query{Text: "r00u0", States: []string{"active"}}, ""},
		{Query{Text: "<img src=x>"}, ""},
		{Query{Text: "r01u1", Sort: "-name"}, "r01u19 r01u18 r01u17 r01u16 r01u15 r01u14 r01u13 r01u12 r01u11 r01u10"},
		{Query{Text: "r01u1", Sort: "-since", Limit: 2}, "r01u19 r01u18"},
	} {
		if tc.q.Limit == 0 {
			tc.q.Limit = 50
		}
		p, err := l.roster.Page(tc.q, 10)
		if err != nil || names(p) != tc.want {
			t.Errorf("%+v: got %q, %v, want %q", tc.q, names(p), err, tc.want)
		}
		if p.Counts[All] != 61 || p.Counts["new"] != 60 || p.Counts[Working] != 1 {
			t.Errorf("%+v: got counts %v, want those of the whole fleet", tc.q, p.Counts)
		}
	}
	for _, q := range []Query{{Sort: "colour"}, {States: []string{"happy"}}, {Cursor: "???"}, {Cursor: cursor{Sort: "place"}.String()}} {
		q.Limit = 1
		if _, err := l.roster.Page(q, 1); err == nil {
			t.Errorf("%+v: want it refused", q)
		}
	}
}

// Paging shows every machine once, also when machines come, go and change their place in the order meanwhile.
func TestPagesHoldStill(t *testing.T) {
	l := start(t, func(l *lab) {
		for i := range 100 {
			l.machine(t, record(i))
		}
	})
	for _, sort := range []string{"", "-name", "place", "-changed", "state"} {
		var got []string
		q := Query{Sort: sort, Limit: 7}
		for {
			p, err := l.roster.Page(q, 0)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, strings.Fields(names(p))...)
			if p.Next == "" {
				break
			}
			q.Cursor = p.Next
		}
		slices.Sort(got)
		if len(got) != 100 || len(slices.Compact(got)) != 100 {
			t.Errorf("%q: got %d machines, want each of 100 once", sort, len(got))
		}
	}
	p, err := l.roster.Page(Query{Limit: 10}, 0)
	if err != nil {
		t.Fatal(err)
	}
	next := l.watch(t, "", 0)
	last, err := l.store.Get(t.Context(), "machines/r00u09")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.store.Delete(t.Context(), last.Key, last.Rev); err != nil {
		t.Fatal(err)
	}
	if c := next(); c.Kind != Gone || c.Name != "r00u09" {
		t.Fatalf("got %+v, want r00u09 gone", c)
	}
	p, err = l.roster.Page(Query{Limit: 1, Cursor: p.Next}, 0)
	if err != nil || names(p) != "r00u10" {
		t.Errorf("got %q, %v, want the next machine though the last one shown is gone", names(p), err)
	}
}

func TestNeed(t *testing.T) {
	l := start(t, func(l *lab) {
		for i, name := range []string{"broken", "odd", "old"} {
			r := record(i)
			r.Name = name
			if name == "broken" {
				r.Workflow = "wf-broken"
			}
			l.machine(t, r)
		}
		run := working("broken", 1)
		run.State, run.Ended = fleet.WorkflowFailed, fleet.At(now.Add(-4*time.Minute))
		run.Failure = &fleet.Failure{Step: "dhcp", What: "dhcp", Why: "second DHCP server on the segment", Next: "unplug it"}
		l.put(t, "workflows/wf-broken", run)
		odd, old := record(1), record(2)
		odd.Name, odd.Alarms = "odd", []fleet.Alarm{{Time: fleet.At(now.Add(-time.Hour)), Text: "a second machine"}}
		old.Name, old.Alarms = "old", []fleet.Alarm{{Time: fleet.At(now.Add(-48 * time.Hour)), Text: "a second machine"}}
		l.machine(t, odd)
		l.machine(t, old)
	})
	p, err := l.roster.Page(Query{Limit: 10, States: []string{Need}}, 10)
	if err != nil || names(p) != "broken odd" || p.Counts[Need] != 2 || len(p.Need) != 2 {
		t.Fatalf("got %q, %v, counts %v, want broken and odd", names(p), err, p.Counts)
	}
	if r := p.Rows[0]; r.Line != "Could not boot it from the network" || r.Why != "second DHCP server on the segment" || r.Next != "unplug it" {
		t.Errorf("got %+v, want what happened, why and what next", r)
	}
	if r, _ := l.roster.Row("old"); r.Need || r.Why != "" {
		t.Errorf("got %+v, want an old alarm to need nobody", r)
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	run := working("m", 62)
	waiting := working("m", 0)
	waiting.Steps[1] = fleet.Step{Name: fleet.StepDHCP, State: fleet.StepRunning, Start: fleet.At(now.Add(-40 * time.Second)),
		Waiting: &fleet.Waiting{For: "the machine's firmware", Since: fleet.At(now.Add(-40 * time.Second)), Until: fleet.At(now.Add(140 * time.Second))}}
	paused := working("m", 62)
	paused.State, paused.Steps[1].Waiting = fleet.WorkflowPaused, &fleet.Waiting{For: "a person: the workflow was to pause after step wipe", Since: fleet.At(now), Next: "resume it"}
	lost := working("m", 62)
	lost.Steps[1].Waiting = &fleet.Waiting{For: "the RAM disk to come back", Since: fleet.At(now.Add(-5 * time.Second)), Until: fleet.At(now.Add(55 * time.Second))}
	done := working("m", 0)
	done.State, done.Ended = fleet.WorkflowDone, fleet.At(now)
	for want, r := range map[string]*fleet.Run{
		"Writing image demo, 62 %, 38 s left":                               &run,
		"Waiting for its firmware to ask for a network boot, 40 s of 3 min": &waiting,
		"Waiting for a person: the workflow was to pause after step wipe":   &paused,
		"Waiting for the RAM disk to come back, 5 s of 60 s":                &lost,
		"Installed with image demo, its node agent is not connected":        &done,
		"Ready to be provisioned":                                           nil,
	} {
		rec := record(0)
		m := fleet.View(&rec, r)
		l := lineOf(&m, &rec)
		p := pace{first: now.Add(-62 * time.Second), last: now}
		if got, _, _ := l.full(&p, now); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestPace(t *testing.T) {
	t.Parallel()
	var p pace
	run := working("m", 10)
	p.see(&run, now)
	if p.left(run.Steps[1].Commands[0].Progress, now) != nil {
		t.Error("a time left was said at first sight")
	}
	run = working("m", 30)
	p.see(&run, now.Add(10*time.Second))
	if left := p.left(run.Steps[1].Commands[0].Progress, now.Add(15*time.Second)); left == nil || *left != 30 {
		t.Errorf("got %v, want 70 at 2 a second, 5 s ago: 30 s", left)
	}
	run.Steps[1].Commands[0].Progress.What = "reading back"
	p.see(&run, now.Add(20*time.Second))
	if p.left(run.Steps[1].Commands[0].Progress, now.Add(20*time.Second)) != nil {
		t.Error("another phase has the pace of the one before")
	}
}

func TestWatch(t *testing.T) {
	l := start(t, func(l *lab) { l.machine(t, record(1)) })
	p, err := l.roster.Page(Query{Limit: 1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	next := l.watch(t, "", p.Rev)
	r := record(1)
	r.Place = "elsewhere"
	l.machine(t, r)
	c := next()
	if c.Kind != Machine || c.Name != "r00u01" || c.Rev <= p.Rev {
		t.Fatalf("got %+v, want the change after %d", c, p.Rev)
	}
	if row, _ := l.roster.Row("r00u01"); row.Machine.Place != "elsewhere" {
		t.Errorf("got %+v, want the new place", row.Machine)
	}
	if err := l.repo.Emit(t.Context(), fleet.Event{Machine: "other", Kind: "x"}); err != nil {
		t.Fatal(err)
	}
	if c := next(); c.Kind != Event || c.Event.Machine != "other" {
		t.Errorf("got %+v, want the event", c)
	}
	// Who comes back gets what he missed; who was away for too long, or from another time, starts over.
	if c := l.watch(t, "", p.Rev)(); c.Name != "r00u01" {
		t.Errorf("got %+v, want what was missed", c)
	}
	if c := l.watch(t, "other", p.Rev)(); c.Kind != Event {
		t.Errorf("got %+v, want what is about that machine only", c)
	}
	for _, rev := range []int64{1, p.Rev + 1000} {
		if c := l.watch(t, "", rev)(); c.Kind != Reset {
			t.Errorf("after %d: got %+v, want a reset", rev, c)
		}
	}
}

func TestRefreshSeesAtOnce(t *testing.T) {
	l := start(t, func(l *lab) { l.machine(t, record(1)) })
	r := record(1)
	r.Workflow = "wf-x"
	run := working("r00u01", 5)
	run.ID = "wf-x"
	l.put(t, "workflows/wf-x", run)
	l.machine(t, r)
	if err := l.roster.Refresh(t.Context(), "r00u01"); err != nil {
		t.Fatal(err)
	}
	if row, ok := l.roster.Row("r00u01"); !ok || row.Machine.State != fleet.MachineProvisioning {
		t.Errorf("got %+v, want the workflow that was just begun", row.Machine)
	}
	e, err := l.store.Get(t.Context(), "machines/r00u01")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.store.Delete(t.Context(), e.Key, e.Rev); err != nil {
		t.Fatal(err)
	}
	if err := l.roster.Refresh(t.Context(), "r00u01"); err != nil {
		t.Fatal(err)
	}
	if row, ok := l.roster.Row("r00u01"); ok {
		t.Errorf("got %+v, want it gone", row.Machine)
	}
}

func TestSlowWatcherIsDropped(t *testing.T) {
	l := start(t, nil)
	out, err := l.roster.Watch(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range watcherBuffer + 1 {
		l.roster.apply(fleet.Change{Event: &fleet.Event{Seq: uint64(i)}})
	}
	n := 0
	for range out {
		n++
	}
	if n != watcherBuffer {
		t.Errorf("got %d changes before the end, want %d", n, watcherBuffer)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	l := start(t, nil)
	first := l.roster.rev
	for range 3 * historySize {
		l.roster.apply(fleet.Change{Event: &fleet.Event{}})
	}
	if n := len(l.roster.history); n < historySize || n > 2*historySize {
		t.Errorf("got %d changes kept, want %d to %d", n, historySize, 2*historySize)
	}
	if c := l.watch(t, "", first)(); c.Kind != Reset {
		t.Errorf("got %+v, want a reset", c)
	}
	if c := l.watch(t, "", l.roster.rev-historySize)(); c.Rev != l.roster.rev-historySize+1 {
		t.Errorf("got %+v, want the change after the one that was seen", c)
	}
}

func TestTallyHasRoom(t *testing.T) {
	if len(states) > len(tally{}.states) {
		t.Errorf("got %d states, tally counts %d", len(states), len(tally{}.states))
	}
}

// big is a store of 10,000 machines, every one with a workflow.
func big(b testing.TB) *lab {
	l := &lab{store: storetest.New()}
	l.repo = fleet.NewRepo(l.store)
	l.roster = New(Config{Source: l.repo, Now: func() time.Time { return now }})
	var all []fleet.Change
	for i := range 10_000 {
		r := record(i)
		r.Workflow = "wf-" + r.Name
		run := working(r.Name, uint64(i%100))
		if i%7 == 0 {
			run.State, run.Failure = fleet.WorkflowFailed, &fleet.Failure{Step: "wipe", Why: "drive is frozen", Next: "power-cycle it"}
		}
		all = append(all, fleet.Change{Rev: int64(i + 1), Machine: r.Name, Record: &r}, fleet.Change{Rev: int64(i + 1), RunID: run.ID, Run: &run})
	}
	l.roster.replace(all)
	return l
}

// queries are what pages ask for, the dear ones among them.
var queries = []Query{
	{Limit: 50}, {Limit: 50, Text: "sn09999"}, {Limit: 50, Text: "52-54-00-00-27"}, {Limit: 50, Text: "rack 2", Sort: "-changed"},
	{Limit: 50, Sort: "place"}, {Limit: 500, Sort: "-state"}, {Limit: 50, States: []string{Need}, Sort: "since"}, {Limit: 50, Text: "nothing has this"},
}

func TestPageAt10k(t *testing.T) {
	l := big(t)
	for _, q := range queries {
		p, err := l.roster.Page(q, 50)
		if err != nil || p.Counts[All] != 10_000 || len(p.Need) != 50 || len(p.Rows) > q.Limit {
			t.Errorf("%+v: got %d rows, counts %v, %v", q, len(p.Rows), p.Counts, err)
		}
	}
}

// BenchmarkList10k is the list's answer at 10,000 machines. Its p99 is to be at most 20 ms.
func BenchmarkList10k(b *testing.B) {
	l := big(b)
	took := make([]time.Duration, 0, 1024)
	for i := 0; b.Loop(); i++ {
		start := time.Now()
		if _, err := l.roster.Page(queries[i%len(queries)], 50); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100])/1e6, "p99-ms")
	b.ReportMetric(float64(took[len(took)/2])/1e6, "p50-ms")
}

// A phase of a deploy that counts by itself has its own words.
func TestDeployPhases(t *testing.T) {
	t.Parallel()
	for what, want := range map[string]string{
		"writing the image and reading it back":                            "Writing image demo, 40 %",
		"erasing what the image leaves out":                                "Erasing what image demo leaves free, 40 %",
		"waiting 2s for the image server (try 2 of 5: connection refused)": "Waiting for the image server, 40 %",
	} {
		run := working("m", 40)
		run.Steps[1].Commands[0].Progress.What = what
		rec := record(0)
		m := fleet.View(&rec, &run)
		l := lineOf(&m, &rec)
		if got, _, _ := l.full(nil, now); got != want {
			t.Errorf("%q: got %q, want %q", what, got, want)
		}
	}
}
