package telemetry

import (
	"context"
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/store"
	"firstlight/appliance/internal/store/storetest"
	"firstlight/gateway-client/gatewayserver"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// A store with a counter around it is a store.
func TestStoreIsCounted(t *testing.T) {
	t.Parallel()
	m := NewMetrics("test")
	mem := storetest.New()
	storetest.Run(t, m.Store(mem))
	before := scrape(t, m)
	s := m.Store(mem)
	rev, err := s.Put(t.Context(), "counted", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(t.Context(), "counted", nil, 0); !errors.Is(err, store.ErrConflict) {
		t.Fatalf("got %v, want a conflict", err)
	}
	if err := s.Delete(t.Context(), "counted", rev); err != nil {
		t.Fatal(err)
	}
	full := errors.New("full")
	mem.FailWrites(func(string) error { return full })
	if _, err := s.Put(t.Context(), "counted", nil, 0); !errors.Is(err, full) {
		t.Fatalf("got %v, want the store's own error", err)
	}
	after := scrape(t, m)
	for name, n := range map[string]float64{
		`firstlight_store_writes_total{operation="put",outcome="durable"}`:    1,
		`firstlight_store_writes_total{operation="put",outcome="conflict"}`:   1,
		`firstlight_store_writes_total{operation="put",outcome="failed"}`:     1,
		`firstlight_store_writes_total{operation="delete",outcome="durable"}`: 1,
		`firstlight_store_write_duration_seconds_count{operation="put"}`:      3,
	} {
		if got := after[name] - before[name]; got != n {
			t.Errorf("%s: got %v more, want %v", name, got, n)
		}
	}
}

func TestSpaceIsShown(t *testing.T) {
	t.Parallel()
	m := NewMetrics("test")
	now := store.Space{File: 4096, Used: 1024, Quota: 2 << 30}
	m.Space(func() store.Space { return now })
	expect(t, m, map[string]float64{"firstlight_store_size_bytes": 4096, "firstlight_store_used_bytes": 1024, "firstlight_store_quota_bytes": 2 << 30, "firstlight_store_alarm": 0})
	now.Alarm = "NOSPACE"
	expect(t, m, map[string]float64{"firstlight_store_alarm": 1})
}

// joins answers as it is told.
type joins struct {
	gatewayserver.Services
	err error
}

func (j *joins) Join(context.Context, *agentv1.JoinRequest, string) (*agentv1.JoinResponse, error) {
	return &agentv1.JoinResponse{}, j.err
}

func TestJoinsAreCounted(t *testing.T) {
	t.Parallel()
	m, j := NewMetrics("test"), &joins{}
	s := m.Services(j)
	for _, c := range []struct {
		attestor string
		err      error
	}{
		{"discovery", nil}, {"discovery", status.Error(codes.PermissionDenied, "no")}, {"provisioned", errors.New("disk")},
		{"52:54:00:77:00:01", status.Error(codes.InvalidArgument, "what")}, {"evil", status.Error(codes.InvalidArgument, "what")},
	} {
		j.err = c.err
		if _, err := s.Join(t.Context(), &agentv1.JoinRequest{Attestor: c.attestor}, "peer"); !errors.Is(err, c.err) {
			t.Errorf("%s: got %v, want the answer unchanged", c.attestor, err)
		}
	}
	expect(t, m, map[string]float64{
		`firstlight_joins_total{attestor="discovery",outcome="granted"}`:  1,
		`firstlight_joins_total{attestor="discovery",outcome="refused"}`:  1,
		`firstlight_joins_total{attestor="provisioned",outcome="failed"}`: 1,
		`firstlight_joins_total{attestor="other",outcome="refused"}`:      2,
	})
}

type listener struct{ gatewayserver.Control }

func (listener) Connected(context.Context, gatewayserver.Peer, *agentv1.Hello) {}
func (listener) Disconnected(context.Context, gatewayserver.Peer, error)       {}

func TestSessionsAreCounted(t *testing.T) {
	t.Parallel()
	m := NewMetrics("test")
	s := m.Sessions(listener{})
	site := gatewayserver.Peer{Role: commonv1.AgentRole_AGENT_ROLE_SITE}
	ram := gatewayserver.Peer{Role: commonv1.AgentRole_AGENT_ROLE_RAMDISK}
	s.Connected(t.Context(), site, nil)
	for _, why := range []error{nil, context.Canceled, status.Error(codes.Aborted, "newer"), status.Error(codes.InvalidArgument, "bad")} {
		s.Connected(t.Context(), ram, nil)
		s.Disconnected(t.Context(), ram, why)
	}
	expect(t, m, map[string]float64{
		`firstlight_sessions{role="site"}`: 1, `firstlight_sessions{role="ramdisk"}`: 0,
		`firstlight_sessions_opened_total{role="ramdisk"}`:                      4,
		`firstlight_sessions_closed_total{outcome="ended",role="ramdisk"}`:      1,
		`firstlight_sessions_closed_total{outcome="cut",role="ramdisk"}`:        1,
		`firstlight_sessions_closed_total{outcome="superseded",role="ramdisk"}`: 1,
		`firstlight_sessions_closed_total{outcome="failed",role="ramdisk"}`:     1,
	})
}

func TestSiteIsCounted(t *testing.T) {
	t.Parallel()
	m := NewMetrics("test")
	s := m.Site()
	s.DHCP("offered")
	s.TFTP("served", 1000)
	s.TFTP("failed", 24)
	s.HTTP("image", 206, 4<<20)
	s.HTTP("image", 404, 10)
	expect(t, m, map[string]float64{
		`firstlight_dhcp_requests_total{result="offered"}`:        1,
		`firstlight_tftp_transfers_total{result="failed"}`:        1,
		`firstlight_tftp_sent_bytes_total{result="served"}`:       1000,
		`firstlight_http_requests_total{code="206",file="image"}`: 1,
		`firstlight_http_sent_bytes_total{file="image"}`:          4<<20 + 10,
	})
}

func TestMachinesAreShown(t *testing.T) {
	t.Parallel()
	m := NewMetrics("test")
	m.Machines(func() (map[string]int, int) { return map[string]int{"active": 7, "all": 9, "need": 2}, 2 })
	expect(t, m, map[string]float64{`firstlight_machines{state="active"}`: 7, `firstlight_machines{state="failed"}`: 0, "firstlight_machines_need_person": 2})
	if _, ok := scrape(t, m)[`firstlight_machines{state="all"}`]; ok {
		t.Error("got a sum among the states")
	}
}

// touched is every metric with a value: one without is not in a scrape.
func touched(t *testing.T) *Metrics {
	t.Helper()
	m := NewMetrics("test")
	m.Space(func() store.Space { return store.Space{} })
	m.Machines(func() (map[string]int, int) { return map[string]int{"active": 7, "all": 9}, 2 })
	m.Site().DHCP("offered")
	m.Site().TFTP("served", 1)
	m.Site().HTTP("image", 200, 1)
	m.boot(&fleet.Workflow{State: fleet.WorkflowDone, Started: at(0), Ended: at(1)})
	m.step(&fleet.Step{Name: fleet.StepDHCP, State: fleet.StepDone, Start: at(0), End: at(1)})
	m.command(&fleet.Command{Kind: "disk.wipe", State: fleet.CommandSucceeded, Issued: at(0), Ended: at(1)})
	m.open.WithLabelValues("running").Set(1)
	m.events.WithLabelValues("alarm").Inc()
	m.joins.WithLabelValues("discovery", "granted").Inc()
	m.sessions.WithLabelValues("site").Inc()
	m.opened.WithLabelValues("site").Inc()
	m.closed.WithLabelValues("site", "ended").Inc()
	if _, err := m.Store(storetest.New()).Put(t.Context(), "k", nil, 0); err != nil {
		t.Fatal(err)
	}
	return m
}

// Names, units and help are as Prometheus wants them.
func TestNamesAreInPrometheusStyle(t *testing.T) {
	t.Parallel()
	families, err := touched(t).registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	have := map[string]bool{}
	for _, f := range families {
		have[f.GetName()] = true
	}
	for _, name := range []string{"go_goroutines", "process_resident_memory_bytes", "process_open_fds", "firstlight_build_info"} {
		if !have[name] {
			t.Errorf("%s is missing", name)
		}
	}
}
