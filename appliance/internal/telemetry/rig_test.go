package telemetry

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/store/storetest"
)

var epoch = time.Date(2030, 3, 4, 5, 6, 7, 0, time.UTC)

// at is a moment after the epoch.
func at(seconds float64) fleet.Time {
	return fleet.At(epoch.Add(time.Duration(seconds * float64(time.Second))))
}

// scrape reads the metrics as Prometheus would: by name and labels.
func scrape(t *testing.T, m *Metrics) map[string]float64 {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler(slog.New(slog.DiscardHandler)).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("scrape: got status %d: %s", w.Code, w.Body)
	}
	out := map[string]float64{}
	lines := bufio.NewScanner(w.Body)
	for lines.Scan() {
		name, value, ok := cutLast(lines.Text(), " ")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("scrape: %q: %v", lines.Text(), err)
		}
		out[name] = v
	}
	return out
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// expect compares some of the numbers; one that is not there is zero.
func expect(t *testing.T, m *Metrics, want map[string]float64) {
	t.Helper()
	got := scrape(t, m)
	for name, v := range want {
		if got[name] != v {
			t.Errorf("%s: got %v, want %v", name, got[name], v)
		}
	}
}

// rig is a fleet in memory with a follower on it. It lives in a synctest bubble.
type rig struct {
	t       *testing.T
	mem     *storetest.Memory
	repo    *fleet.Repo
	feed    *feed
	metrics *Metrics
	spans   *tracetest.InMemoryExporter
	run     *fleet.Run
	rev     int64
	// stop ends the follower and waits for it.
	stop func()
}

// feed is the fleet, whose stream of changes can be cut.
type feed struct {
	*fleet.Repo
	mu  sync.Mutex
	cut context.CancelFunc
}

func (f *feed) Changes(ctx context.Context, broken func(error)) (<-chan fleet.Change, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ctx, f.cut = context.WithCancel(ctx)
	return f.Repo.Changes(ctx, broken)
}

func newRig(t *testing.T) *rig {
	mem := storetest.New()
	repo := fleet.NewRepo(mem)
	r := &rig{t: t, mem: mem, repo: repo, feed: &feed{Repo: repo}, spans: tracetest.NewInMemoryExporter()}
	r.run = &fleet.Run{Workflow: fleet.Workflow{ID: "wf-1", Image: "debian", State: fleet.WorkflowRunning, Started: at(0)}, Machine: "m1", NodeID: "node-1"}
	for _, name := range []string{fleet.StepPowerOn, fleet.StepDHCP, fleet.StepTFTP, fleet.StepNodeJoin} {
		r.run.Steps = append(r.run.Steps, fleet.Step{Name: name, State: fleet.StepPending})
	}
	r.run.Steps[0].Commands = []fleet.Command{{ID: "cmd-1", Kind: "bmc.power", Issued: at(1), State: fleet.CommandSent}}
	return r
}

// start begins a new follower, as a new process would.
func (r *rig) start() {
	r.t.Helper()
	r.metrics = NewMetrics("test")
	traces := newTraces(TraceConfig{Site: "site-a", Version: "test"}, trace.WithSyncer(r.spans))
	f := NewFollower(FollowerConfig{Fleet: r.feed, Metrics: r.metrics, Traces: traces, SiteNode: "site-agent", Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan struct{})
	go func() { defer close(done); f.Run(ctx, func() { close(ready) }) }()
	r.stop = func() { cancel(); <-done }
	<-ready
}

func (r *rig) save() {
	r.t.Helper()
	var err error
	if r.rev, err = r.repo.SaveRun(context.Background(), r.run, r.rev); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) emit(e fleet.Event) {
	r.t.Helper()
	if err := r.repo.Emit(context.Background(), e); err != nil {
		r.t.Fatal(err)
	}
}

// step ends a step of the run.
func (r *rig) step(i int, state fleet.StepState, start, end float64) {
	s := &r.run.Steps[i]
	s.State, s.Start, s.End = state, at(start), at(end)
}

// end ends the run.
func (r *rig) end(state fleet.WorkflowState, seconds float64) {
	r.run.State, r.run.Ended, r.run.Closed = state, at(seconds), true
}

// told lists the spans by name, with their ids, parents and lengths.
func (r *rig) told() map[string]tracetest.SpanStub {
	r.t.Helper()
	out := map[string]tracetest.SpanStub{}
	for _, s := range r.spans.GetSpans() {
		if _, twice := out[s.Name]; twice {
			r.t.Errorf("span %s was sent twice", s.Name)
		}
		out[s.Name] = s
	}
	return out
}

func attributeOf(s tracetest.SpanStub, key string) string {
	for _, a := range s.Attributes {
		if string(a.Key) == key {
			return a.Value.String()
		}
	}
	return fmt.Sprintf("no %s", key)
}
