package telemetry

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/store"
	"firstlight/gateway-client/gatewayserver"
	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	"firstlight/site"
)

// attestors are the ways to join that the protocol names.
var attestors = []string{"join-token", "discovery", "provisioned"}

// Services counts the joins that next decides.
func (m *Metrics) Services(next gatewayserver.Services) gatewayserver.Services {
	return services{next, m.joins}
}

type services struct {
	gatewayserver.Services
	joins *prometheus.CounterVec
}

// Join implements gatewayserver.Services.
func (s services) Join(ctx context.Context, req *agentv1.JoinRequest, addr string) (*agentv1.JoinResponse, error) {
	resp, err := s.Services.Join(ctx, req, addr)
	attestor, outcome := req.GetAttestor(), "granted"
	if !slices.Contains(attestors, attestor) {
		attestor = Other
	}
	switch status.Code(err) {
	case codes.OK:
	case codes.PermissionDenied, codes.InvalidArgument, codes.Unauthenticated:
		outcome = "refused"
	default:
		outcome = "failed"
	}
	s.joins.WithLabelValues(attestor, outcome).Inc()
	return resp, err
}

// Sessions counts the sessions that next is told of.
func (m *Metrics) Sessions(next gatewayserver.Control) gatewayserver.Control {
	return sessions{next, m}
}

type sessions struct {
	gatewayserver.Control
	m *Metrics
}

// Connected implements gatewayserver.Control.
func (s sessions) Connected(ctx context.Context, p gatewayserver.Peer, h *agentv1.Hello) {
	role := ident.RoleWord(p.Role)
	s.m.sessions.WithLabelValues(role).Inc()
	s.m.opened.WithLabelValues(role).Inc()
	s.Control.Connected(ctx, p, h)
}

// Disconnected implements gatewayserver.Control.
func (s sessions) Disconnected(ctx context.Context, p gatewayserver.Peer, why error) {
	role, outcome := ident.RoleWord(p.Role), "ended"
	switch code := status.Code(why); {
	case why == nil:
	case errors.Is(why, context.Canceled) || code == codes.Canceled:
		outcome = "cut"
	case code == codes.Aborted:
		outcome = "superseded"
	default:
		outcome = "failed"
	}
	s.m.sessions.WithLabelValues(role).Dec()
	s.m.closed.WithLabelValues(role, outcome).Inc()
	s.Control.Disconnected(ctx, p, why)
}

// Store counts and times the writes to next.
func (m *Metrics) Store(next store.Store) store.Store { return kept{next, m} }

type kept struct {
	store.Store
	m *Metrics
}

// Put implements store.Store.
func (k kept) Put(ctx context.Context, key string, value []byte, rev int64) (int64, error) {
	start := time.Now()
	next, err := k.Store.Put(ctx, key, value, rev)
	k.count("put", start, err)
	return next, err
}

// Delete implements store.Store.
func (k kept) Delete(ctx context.Context, key string, rev int64) error {
	start := time.Now()
	err := k.Store.Delete(ctx, key, rev)
	k.count("delete", start, err)
	return err
}

func (k kept) count(operation string, start time.Time, err error) {
	outcome := "durable"
	switch {
	case err == nil:
	case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrNotFound):
		outcome = "conflict"
	default:
		outcome = "failed"
	}
	k.m.writes.WithLabelValues(operation, outcome).Inc()
	k.m.writeSeconds.WithLabelValues(operation).Observe(time.Since(start).Seconds())
}

// Space shows what the store takes on disk, as space says at each scrape. It is called once at most.
func (m *Metrics) Space(space func() store.Space) {
	for _, g := range []struct {
		name, help string
		value      func(store.Space) int64
	}{
		{"store_size_bytes", "The store's database file.", func(s store.Space) int64 { return s.File }},
		{"store_used_bytes", "What of the store's database file is in use.", func(s store.Space) int64 { return s.Used }},
		{"store_quota_bytes", "What the store's database file may grow to before writes are refused.", func(s store.Space) int64 { return s.Quota }},
		{"store_alarm", "1 while the store refuses writes or is corrupt.", func(s store.Space) int64 { return int64(min(1, len(s.Alarm))) }},
	} {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Name: g.name, Help: g.help},
			func() float64 { return float64(g.value(space())) }))
	}
}

// Site counts what a site agent's boot services do.
func (m *Metrics) Site() site.Meter { return meter{m} }

type meter struct{ m *Metrics }

// DHCP implements site.Meter.
func (s meter) DHCP(result string) { s.m.dhcp.WithLabelValues(result).Inc() }

// TFTP implements site.Meter.
func (s meter) TFTP(result string, bytes int64) {
	s.m.tftp.WithLabelValues(result).Inc()
	s.m.tftpBytes.WithLabelValues(result).Add(float64(max(0, bytes)))
}

// HTTP implements site.Meter.
func (s meter) HTTP(file string, status int, bytes int64) {
	s.m.http.WithLabelValues(file, strconv.Itoa(status)).Inc()
	s.m.httpBytes.WithLabelValues(file).Add(float64(max(0, bytes)))
}

// Machines shows how many machines there are in each state, as counts says at each scrape, and how many need a person. It is called
// once at most.
func (m *Metrics) Machines(counts func() (states map[string]int, need int)) {
	m.registry.MustRegister(machines{counts})
}

var (
	machinesDesc = prometheus.NewDesc(namespace+"_machines", "Machines that the site knows.", []string{"state"}, nil)
	needDesc     = prometheus.NewDesc(namespace+"_machines_need_person", "Machines that wait for a person.", nil, nil)
)

// machineStates are shown with zero, too: a series that comes and goes is hard to watch.
var machineStates = []fleet.MachineState{fleet.MachineNew, fleet.MachineProvisioning, fleet.MachinePaused, fleet.MachineActive, fleet.MachineFailed,
	fleet.MachineCancelling, fleet.MachineCancelled, fleet.MachineAdopted, fleet.MachineDiscovered}

// machines asks the fleet only when somebody scrapes.
type machines struct {
	counts func() (map[string]int, int)
}

// Describe implements prometheus.Collector.
func (machines) Describe(out chan<- *prometheus.Desc) { out <- machinesDesc; out <- needDesc }

// Collect implements prometheus.Collector.
func (c machines) Collect(out chan<- prometheus.Metric) {
	states, need := c.counts()
	for _, s := range machineStates {
		out <- prometheus.MustNewConstMetric(machinesDesc, prometheus.GaugeValue, float64(states[string(s)]), string(s))
	}
	out <- prometheus.MustNewConstMetric(needDesc, prometheus.GaugeValue, float64(need))
}
