package telemetry

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"firstlight/appliance/internal/fleet"
)

// receiver takes OTLP/HTTP as a collector would.
type receiver struct {
	mu   sync.Mutex
	path string
	got  []*collector.ExportTraceServiceRequest
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var body io.Reader = req.Body
	if req.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(req.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = z
	}
	b, err := io.ReadAll(body)
	in := &collector.ExportTraceServiceRequest{}
	if err == nil {
		err = proto.Unmarshal(b, in)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.path, r.got = req.URL.Path, append(r.got, in)
	w.Header().Set("Content-Type", "application/x-protobuf")
	w.WriteHeader(http.StatusOK)
}

// What goes over the wire is OTLP, below the base that was configured, and says who sends.
func TestTracesReachAnOTLPReceiver(t *testing.T) {
	t.Parallel()
	r := &receiver{}
	srv := httptest.NewServer(r)
	defer srv.Close()
	traces, err := NewTraces(t.Context(), TraceConfig{Endpoint: srv.URL + "/base", Site: "site-a", Version: "v9", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	run := &fleet.Run{Workflow: fleet.Workflow{ID: "wf-1"}}
	traces.step(run, &fleet.Step{Name: fleet.StepDHCP, State: fleet.StepDone, Start: at(1), End: at(3), Why: strings.Repeat("long ", 1000)})
	if err := traces.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(r.got) != 1 || r.path != "/base/v1/traces" {
		t.Fatalf("got %d requests at %q, want one at /base/v1/traces", len(r.got), r.path)
	}
	rs := r.got[0].ResourceSpans[0]
	if text := rs.Resource.String(); !strings.Contains(text, "site-a") || !strings.Contains(text, "v9") {
		t.Errorf("resource: got %s, want the site and the version", text)
	}
	s := rs.ScopeSpans[0].Spans[0]
	parent := span("wf-1", "").SpanID()
	if s.Name != "dhcp" || !bytes.Equal(s.ParentSpanId, parent[:]) || s.EndTimeUnixNano-s.StartTimeUnixNano != uint64(2*time.Second) {
		t.Errorf("got %v, want the step dhcp, two seconds, below the boot", s)
	}
	for _, a := range s.Attributes {
		if n := len(a.Value.GetStringValue()); n > maxAttribute {
			t.Errorf("attribute %s: got %d bytes, want at most %d", a.Key, n, maxAttribute)
		}
	}
}

// A receiver that takes nothing costs spans, never time: the appliance goes on and ends.
func TestDeadReceiverHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer srv.Close()
	defer close(release)
	traces, err := NewTraces(t.Context(), TraceConfig{Endpoint: srv.URL, Site: "s", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	run := &fleet.Run{Workflow: fleet.Workflow{ID: "wf-1"}}
	start := time.Now()
	for range 3 * maxQueue {
		traces.step(run, &fleet.Step{Name: fleet.StepDHCP, State: fleet.StepDone, Start: at(1), End: at(3)})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := traces.Close(ctx); err == nil {
		t.Error("got no error of a receiver that does not answer")
	}
	if d := time.Since(start); d > sendTimeout/2 {
		t.Errorf("took %s, want far below the time-out of a request", d)
	}
}

func TestNoTracesIsFine(t *testing.T) {
	t.Parallel()
	var none *Traces
	run := &fleet.Run{}
	none.step(run, &fleet.Step{})
	none.command(run, &fleet.Step{}, &fleet.Command{})
	none.boot(t.Context(), run, nil)
	if err := none.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
