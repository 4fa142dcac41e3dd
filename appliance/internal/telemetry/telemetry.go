// Package telemetry says how the appliance does: metrics for Prometheus, one trace per boot for OpenTelemetry, and the trace's id on
// every log line about a workflow.
//
// It looks on and changes nothing. What is stored it learns by watching the store ([Follower]), the way everybody may; what is not
// stored it counts in wrappers that are put around a part where the appliance is composed ([Metrics.Services], [Metrics.Sessions],
// [Metrics.Store], [Metrics.Site]). So no part knows of it, and a part that counts nothing works the same.
//
// A label's values are words of ours or of a fixed list. No machine's name, MAC or text ever becomes one: a time series per machine
// would cost memory for ever, and whoever sends packets could make new ones. What a single machine did is in its trace and events.
//
// For appliance only.
package telemetry

import (
	"log/slog"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Bounds of one scrape.
const (
	scrapesAtOnce = 4
	scrapeTimeout = 10 * time.Second
)

// Other is the label of what is not on a list.
const Other = "other"

// Metrics are the appliance's numbers since its start. Make them with NewMetrics; all methods are safe for use from many goroutines.
type Metrics struct {
	registry   *prometheus.Registry
	goroutines *prometheus.GaugeVec

	boots, steps, commands, events           *prometheus.CounterVec
	bootSeconds, stepSeconds, commandSeconds *prometheus.HistogramVec
	open                                     *prometheus.GaugeVec
	joins, opened, closed                    *prometheus.CounterVec
	sessions                                 *prometheus.GaugeVec
	writes                                   *prometheus.CounterVec
	writeSeconds                             *prometheus.HistogramVec
	dhcp, tftp, tftpBytes, http, httpBytes   *prometheus.CounterVec
}

// minutes are the buckets of what takes seconds to an hour: steps, commands and whole boots.
var minutes = []float64{0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600}

func (m *Metrics) count() { m.goroutines.WithLabelValues().Set(float64(runtime.NumGoroutine())) }

// NewMetrics returns metrics that count nothing yet but the process itself.
func NewMetrics(version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	build := m.gauge("build_info", "Always 1; the labels say which version runs.", "version", "go_version")
	build.WithLabelValues(version, runtime.Version()).Set(1)
	m.goroutines = m.gauge("goroutines", "Goroutines before somebody asked; go_goroutines also counts some of those that gather the answer.")
	m.count()

	m.boots = m.counter("boots_total", "Workflows that ended.", "outcome")
	m.bootSeconds = m.histogram("boot_duration_seconds", "From the order to the end of a workflow.", minutes, "outcome")
	m.steps = m.counter("workflow_steps_total", "Steps of workflows that ended.", "step", "outcome")
	m.stepSeconds = m.histogram("workflow_step_duration_seconds", "From the start to the end of a step; skipped ones have none.", minutes, "step", "outcome")
	m.open = m.gauge("workflows_open", "Workflows that may still change their machine.", "state")
	m.commands = m.counter("commands_total", "Signed commands that ended.", "kind", "outcome")
	m.commandSeconds = m.histogram("command_duration_seconds", "From a command's signature to its result.", minutes, "kind", "outcome")
	m.events = m.counter("events_total", "Events recorded. Those of a machine's own agent have the kind \"agent\".", "kind")

	m.joins = m.counter("joins_total", "Answers to agents that asked to join.", "attestor", "outcome")
	m.sessions = m.gauge("sessions", "Sessions of agents that are open.", "role")
	m.opened = m.counter("sessions_opened_total", "Sessions of agents that began.", "role")
	m.closed = m.counter("sessions_closed_total", "Sessions of agents that ended.", "role", "outcome")

	m.writes = m.counter("store_writes_total", "Writes to the store.", "operation", "outcome")
	m.writeSeconds = m.histogram("store_write_duration_seconds", "How long a write to the store took to be durable, or to fail.",
		prometheus.ExponentialBuckets(0.0005, 2, 15), "operation")

	m.dhcp = m.counter("dhcp_requests_total", "Boot requests by DHCP and how they ended.", "result")
	m.tftp = m.counter("tftp_transfers_total", "TFTP transfers that ended.", "result")
	m.tftpBytes = m.counter("tftp_sent_bytes_total", "Bytes of files that TFTP transfers sent.", "result")
	m.http = m.counter("http_requests_total", "Answers of the boot HTTP server.", "file", "code")
	m.httpBytes = m.counter("http_sent_bytes_total", "Bytes of bodies that the boot HTTP server sent; images are file=\"image\".", "file")

	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler answers a scrape in Prometheus's formats.
func (m *Metrics) Handler(log *slog.Logger) http.Handler {
	gather := promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), MaxRequestsInFlight: scrapesAtOnce, Timeout: scrapeTimeout,
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.count()
		gather.ServeHTTP(w, r)
	})
}

const namespace = "firstlight"

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	m.registry.MustRegister(v)
	return v
}

func (m *Metrics) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels)
	m.registry.MustRegister(v)
	return v
}

func (m *Metrics) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}, labels)
	m.registry.MustRegister(v)
	return v
}
