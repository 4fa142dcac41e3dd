package appliance

import (
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"firstlight/appliance/internal/api"
)

// receive is an OTLP receiver; what it gets goes to spans.
func receive(t *testing.T, spans chan<- *tracev1.Span) *httptest.Server {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body io.Reader = r.Body
		if r.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(r.Body)
			if err != nil {
				t.Error(err)
				return
			}
			body = z
		}
		b, err := io.ReadAll(body)
		in := &collector.ExportTraceServiceRequest{}
		if err == nil {
			err = proto.Unmarshal(b, in)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("got %s, %v", r.URL.Path, err)
		}
		for _, rs := range in.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				for _, s := range ss.Spans {
					spans <- s
				}
			}
		}
	}))
	t.Cleanup(srv.Close)
	return srv
}

// A workflow's trace leaves the appliance while it runs, with the id that the machine's record says.
func TestTraceLeavesTheAppliance(t *testing.T) {
	spans := make(chan *tracev1.Span, 256)
	srv := receive(t, spans)
	p := startWith(t, fmt.Sprintf("[telemetry]\notlp_endpoint = %q\n", srv.URL), func(*Config) {})
	client := api.NewClient(p.cfg.File.Socket)
	order(t, client)
	m, err := client.Machine(t.Context(), "m1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Cancel(t.Context(), "m1", api.Reason{}); err != nil {
		t.Fatal(err)
	}
	for {
		s := await(t, spans)
		if got := hex.EncodeToString(s.TraceId); got != m.Workflow.Trace || got == "" {
			t.Fatalf("span %s: got trace %s, want the workflow's, %s", s.Name, got, m.Workflow.Trace)
		}
		if s.Name != "boot" {
			continue
		}
		if text := fmt.Sprint(s.Attributes); !strings.Contains(text, "cancelled") || !strings.Contains(text, "m1") || len(s.Events) == 0 {
			t.Errorf("got %s with %d events, want the cancelled boot of m1 and what happened", text, len(s.Events))
		}
		return
	}
}
