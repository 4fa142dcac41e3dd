package telemetry

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"firstlight/appliance/internal/fleet"
)

// Bounds of what is sent.
const (
	// maxQueue is how many spans wait for the receiver; more are dropped, never waited for.
	maxQueue = 4096
	// maxAttribute bounds an attribute's text in bytes, maxTold the events of one boot's span.
	maxAttribute, maxTold = 512, 128
	// sendTimeout bounds one request to the receiver.
	sendTimeout = 10 * time.Second
	// complainEvery is how often a receiver that does not take spans is told of in the log.
	complainEvery = time.Minute
)

// tracesPath is where an OTLP/HTTP receiver takes traces (OTLP 1.9, section "OTLP/HTTP Request").
const tracesPath = "/v1/traces"

// Traces makes one trace per workflow: the boot from the order to the node's join, a span for each step that ended, and in it one for
// each command that ended. A span is made after the fact, of what is stored, and its id follows from what it is about; so a workflow
// that goes on after a restart goes on in the same trace, and a span that is sent twice is one span. A nil *Traces sends nothing.
type Traces struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// TraceConfig is where traces go and what they say of their sender.
type TraceConfig struct {
	// Endpoint is the receiver's base URL, such as "http://otel.example:4318".
	Endpoint      string
	Site, Version string
	Log           *slog.Logger
}

// NewTraces returns traces that go to an OTLP/HTTP receiver. Nothing is sent before there is something to tell.
func NewTraces(ctx context.Context, cfg TraceConfig) (*Traces, error) {
	u, err := url.Parse(cfg.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("send traces: %w", err)
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(u.JoinPath(tracesPath).String()), otlptracehttp.WithTimeout(sendTimeout))
	if err != nil {
		return nil, fmt.Errorf("send traces: %w", err)
	}
	seldom := rate.NewLimiter(rate.Every(complainEvery), 1)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		if seldom.Allow() {
			cfg.Log.Warn("traces not sent", "endpoint", u.Redacted(), "err", err)
		}
	}))
	return newTraces(cfg, sdktrace.WithBatcher(exporter, sdktrace.WithMaxQueueSize(maxQueue))), nil
}

func newTraces(cfg TraceConfig, out sdktrace.TracerProviderOption) *Traces {
	limits := sdktrace.NewSpanLimits()
	limits.AttributeValueLengthLimit, limits.EventCountLimit = maxAttribute, maxTold
	p := sdktrace.NewTracerProvider(out, sdktrace.WithIDGenerator(ids{}), sdktrace.WithRawSpanLimits(limits),
		sdktrace.WithSampler(sdktrace.AlwaysSample()), sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "firstlight"), attribute.String("service.version", cfg.Version),
			attribute.String("service.instance.id", cfg.Site))))
	return &Traces{provider: p, tracer: p.Tracer("firstlight/appliance")}
}

// Close sends what waits, until ctx ends.
func (t *Traces) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// wanted is the id that the next span of a context gets.
type wanted struct{}

// ids takes a span's id from its context: here a span is made only with one.
type ids struct{}

// NewIDs implements sdktrace.IDGenerator.
func (ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	c, _ := ctx.Value(wanted{}).(trace.SpanContext)
	return c.TraceID(), c.SpanID()
}

// NewSpanID implements sdktrace.IDGenerator.
func (ids) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	c, _ := ctx.Value(wanted{}).(trace.SpanContext)
	return c.SpanID()
}

// span names a span of a workflow: what it is about, nothing for the whole boot.
func span(workflow, about string) trace.SpanContext {
	id, _ := trace.TraceIDFromHex(fleet.TraceID(workflow))
	sum := sha256.Sum256([]byte("firstlight span\x00" + workflow + "\x00" + about))
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: trace.SpanID(sum[:8]), TraceFlags: trace.FlagsSampled})
}

// tell makes a span that is over already. The parent of the whole boot is nil.
func (t *Traces) tell(self trace.SpanContext, parent *trace.SpanContext, name string, start, end fleet.Time, bad string, events []fleet.Event, about ...attribute.KeyValue) {
	ctx := context.WithValue(context.Background(), wanted{}, self)
	if parent != nil {
		ctx = trace.ContextWithRemoteSpanContext(ctx, *parent)
	}
	_, s := t.tracer.Start(ctx, name, trace.WithTimestamp(start.Time), trace.WithAttributes(about...))
	for _, e := range events {
		s.AddEvent(e.Kind, trace.WithTimestamp(e.Time.Time), trace.WithAttributes(attribute.String("message", e.Message)))
	}
	if bad != "" {
		s.SetStatus(codes.Error, bad)
	}
	s.End(trace.WithTimestamp(end.Time))
}

func (t *Traces) command(r *fleet.Run, s *fleet.Step, c *fleet.Command) {
	if t == nil || c.Issued.IsZero() || c.Ended.IsZero() {
		return
	}
	bad := ""
	if c.State != fleet.CommandSucceeded {
		bad = c.Message
	}
	parent := span(r.ID, s.Name)
	t.tell(span(r.ID, c.ID), &parent, c.Kind, c.Issued, c.Ended, bad, nil, attribute.String("firstlight.command", c.ID),
		attribute.String("firstlight.outcome", string(c.State)), attribute.Bool("firstlight.attested", c.Attested))
}

func (t *Traces) step(r *fleet.Run, s *fleet.Step) {
	if t == nil || s.Start.IsZero() || s.End.IsZero() {
		return
	}
	bad := ""
	if s.State == fleet.StepFailed || s.State == fleet.StepCancelled {
		bad = s.Why
		if bad == "" {
			bad = string(s.State)
		}
	}
	root := span(r.ID, "")
	t.tell(span(r.ID, s.Name), &root, s.Name, s.Start, s.End, bad, nil,
		attribute.String("firstlight.outcome", string(s.State)), attribute.String("firstlight.why", s.Why))
}

// boot tells of the whole boot, with what happened meanwhile in it: packets, files, joins.
func (t *Traces) boot(ctx context.Context, r *fleet.Run, from Fleet) {
	if t == nil || r.Started.IsZero() || r.Ended.IsZero() {
		return
	}
	all, err := from.Events(ctx, r.Machine, 0)
	told := []attribute.KeyValue{
		attribute.String("firstlight.machine", r.Machine), attribute.String("firstlight.node", r.NodeID), attribute.String("firstlight.workflow", r.ID),
		attribute.String("firstlight.image", r.Image), attribute.String("firstlight.outcome", string(r.State)),
	}
	if err != nil {
		told = append(told, attribute.String("firstlight.events_missing", err.Error()))
	}
	var events []fleet.Event
	for _, e := range all {
		if e.Workflow == r.ID && e.Kind != "workflow.step" {
			events = append(events, e)
		}
	}
	bad := ""
	if r.State != fleet.WorkflowDone {
		bad = string(r.State)
	}
	if r.Failure != nil {
		bad = r.Failure.Step + ": " + r.Failure.Why
	}
	t.tell(span(r.ID, ""), nil, "boot", r.Started, r.Ended, bad, events, told...)
}
