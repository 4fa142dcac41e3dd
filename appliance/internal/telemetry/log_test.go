package telemetry

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"firstlight/appliance/internal/fleet"
)

// A line that names a workflow names its trace, once, whichever way the workflow came to it.
func TestLogLinesNameTheirTrace(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(LogHandler(slog.NewTextHandler(&out, nil)))
	want := "trace=" + fleet.TraceID("wf-1")
	for name, c := range map[string]struct {
		say  func()
		want int
	}{
		"argument":        {func() { log.Info("x", "machine", "m1", "workflow", "wf-1") }, 1},
		"with":            {func() { log.With("workflow", "wf-1").Info("x", "err", "e") }, 1},
		"with, and again": {func() { log.With("workflow", "wf-1").Info("x", "workflow", "wf-1") }, 1},
		"with twice":      {func() { log.With("workflow", "wf-1").With("workflow", "wf-1").Info("x") }, 1},
		"none":            {func() { log.Info("x", "machine", "m1") }, 0},
		"empty":           {func() { log.Info("x", "workflow", "") }, 0},
		"no text":         {func() { log.Info("x", "workflow", 7) }, 0},
		"in a group":      {func() { log.WithGroup("g").Info("x", "workflow", "wf-1") }, 0},
	} {
		out.Reset()
		c.say()
		if got := strings.Count(out.String(), want); got != c.want || strings.Count(out.String(), "trace=") != c.want || out.Len() == 0 {
			t.Errorf("%s: got %q, want the trace %d times", name, out.String(), c.want)
		}
	}
}
