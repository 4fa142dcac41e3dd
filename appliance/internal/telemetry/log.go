package telemetry

import (
	"context"
	"log/slog"

	"firstlight/appliance/internal/fleet"
)

// Key names on log lines. Whoever writes a line about a machine or a workflow uses the first two; the third is added here.
const (
	KeyMachine  = "machine"
	KeyWorkflow = "workflow"
	KeyTrace    = "trace"
)

// LogHandler adds the trace's id to every line that names a workflow, so that a line leads to its trace and a trace to its lines.
func LogHandler(next slog.Handler) slog.Handler { return logHandler{Handler: next} }

type logHandler struct {
	slog.Handler
	// grouped: attributes go into a group, where ours do not belong; said: the trace was added by WithAttrs.
	grouped, said bool
}

// Handle implements slog.Handler.
func (h logHandler) Handle(ctx context.Context, r slog.Record) error {
	if h.grouped || h.said {
		return h.Handler.Handle(ctx, r)
	}
	id := ""
	r.Attrs(func(a slog.Attr) bool {
		id = traceOf(a)
		return id == ""
	})
	if id != "" {
		r = r.Clone()
		r.AddAttrs(slog.String(KeyTrace, id))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		if id := traceOf(a); id != "" && !h.grouped && !h.said {
			attrs = append(append([]slog.Attr{}, attrs...), slog.String(KeyTrace, id))
			h.said = true
			break
		}
	}
	h.Handler = h.Handler.WithAttrs(attrs)
	return h
}

// WithGroup implements slog.Handler.
func (h logHandler) WithGroup(name string) slog.Handler {
	h.Handler, h.grouped = h.Handler.WithGroup(name), h.grouped || name != ""
	return h
}

// traceOf is the trace that an attribute leads to; empty for none.
func traceOf(a slog.Attr) string {
	if a.Key != KeyWorkflow || a.Value.Kind() != slog.KindString || a.Value.String() == "" {
		return ""
	}
	return fleet.TraceID(a.Value.String())
}
