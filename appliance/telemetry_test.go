package appliance

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// The running appliance shows its numbers to its owner: of the process, and of what it did so far.
func TestMetricsOnTheSocket(t *testing.T) {
	p := start(t)
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", p.cfg.File.Socket)
	}}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr, Timeout: patience}).Get("http://appliance/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("got %s, %v", resp.Status, err)
	}
	for _, want := range []string{"\ngo_goroutines ", "\nprocess_resident_memory_bytes ", "\nfirstlight_store_size_bytes ",
		`firstlight_store_writes_total{operation="put",outcome="durable"} `, `firstlight_workflows_open{state="running"} 0`, `firstlight_machines{state="active"} 0`, "\nfirstlight_machines_need_person 0"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the metrics lack %q", strings.TrimSpace(want))
		}
	}
}
