package telemetry

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/codes"

	"firstlight/appliance/internal/fleet"
)

// A boot is counted step by step, and is one trace: steps in the boot, commands in their step, packets as events of the boot.
func TestBootIsCountedAndTraced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		defer func() { r.stop() }()
		r.save()
		synctest.Wait()
		expect(t, r.metrics, map[string]float64{`firstlight_workflows_open{state="running"}`: 1, `firstlight_boots_total{outcome="done"}`: 0})

		r.run.Steps[0].Commands[0].State, r.run.Steps[0].Commands[0].Ended = fleet.CommandSucceeded, at(2)
		r.step(0, fleet.StepDone, 0.5, 3)
		r.save()
		r.save()
		r.emit(fleet.Event{Time: at(10), Machine: "m1", Workflow: "wf-1", Source: "site-agent", Kind: "boot.dhcp.offered", Message: "offered snponly.efi"})
		r.step(1, fleet.StepDone, 3, 10)
		r.step(2, fleet.StepSkipped, 10, 10)
		r.save()
		r.step(3, fleet.StepDone, 10, 200)
		r.end(fleet.WorkflowDone, 201)
		r.save()
		synctest.Wait()
		expect(t, r.metrics, map[string]float64{
			`firstlight_workflows_open{state="running"}`:                                           0,
			`firstlight_boots_total{outcome="done"}`:                                               1,
			`firstlight_boot_duration_seconds_sum{outcome="done"}`:                                 201,
			`firstlight_workflow_steps_total{outcome="done",step="power-on"}`:                      1,
			`firstlight_workflow_steps_total{outcome="skipped",step="tftp"}`:                       1,
			`firstlight_workflow_step_duration_seconds_count{outcome="skipped",step="tftp"}`:       0,
			`firstlight_workflow_step_duration_seconds_sum{outcome="done",step="node-join"}`:       190,
			`firstlight_workflow_step_duration_seconds_bucket{outcome="done",step="dhcp",le="10"}`: 1,
			`firstlight_workflow_step_duration_seconds_bucket{outcome="done",step="dhcp",le="5"}`:  0,
			`firstlight_commands_total{kind="bmc.power",outcome="succeeded"}`:                      1,
			`firstlight_command_duration_seconds_sum{kind="bmc.power",outcome="succeeded"}`:        1,
			`firstlight_events_total{kind="boot.dhcp.offered"}`:                                    1,
		})

		got := r.told()
		boot := got["boot"]
		if len(got) != 6 || boot.SpanContext.TraceID().String() != fleet.TraceID("wf-1") || boot.Parent.IsValid() {
			t.Fatalf("got %d spans, boot %+v: want six, and the boot without a parent in the workflow's trace", len(got), boot.SpanContext)
		}
		for name, parent := range map[string]string{"power-on": "boot", "dhcp": "boot", "node-join": "boot", "bmc.power": "power-on"} {
			if s := got[name]; s.Parent.SpanID() != got[parent].SpanContext.SpanID() || s.SpanContext.TraceID() != boot.SpanContext.TraceID() {
				t.Errorf("span %s: got parent %s, want %s in the same trace", name, s.Parent.SpanID(), parent)
			}
		}
		if s := got["node-join"]; !s.StartTime.Equal(at(10).Time) || !s.EndTime.Equal(at(200).Time) {
			t.Errorf("node-join: got %s to %s, want the step's own times", s.StartTime, s.EndTime)
		}
		if len(boot.Events) != 1 || boot.Events[0].Name != "boot.dhcp.offered" || !boot.Events[0].Time.Equal(at(10).Time) {
			t.Errorf("events of the boot: got %+v, want the DHCP packet's", boot.Events)
		}
		if attributeOf(boot, "firstlight.machine") != "m1" || boot.Status.Code == codes.Error {
			t.Errorf("boot: got %v, %v, want machine m1 and no error", boot.Attributes, boot.Status)
		}
	})
}

// A process that takes a workflow over tells what comes, in the same trace, and nothing of what the one before told.
func TestRestartContinuesTheTrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.step(0, fleet.StepDone, 0.5, 3)
		r.save()
		r.emit(fleet.Event{Time: at(1), Workflow: "wf-1", Machine: "m1", Source: "control", Kind: "workflow.started"})
		r.start()
		first := r.metrics
		r.step(1, fleet.StepDone, 3, 10)
		r.save()
		synctest.Wait()
		expect(t, first, map[string]float64{`firstlight_workflow_steps_total{outcome="done",step="power-on"}`: 0,
			`firstlight_workflow_steps_total{outcome="done",step="dhcp"}`: 1, `firstlight_events_total{kind="workflow.started"}`: 0})
		r.stop()

		r.start()
		defer func() { r.stop() }()
		r.step(2, fleet.StepFailed, 10, 310)
		r.run.Failure = &fleet.Failure{Step: "tftp", Why: "the machine fetched nothing"}
		r.end(fleet.WorkflowFailed, 310)
		r.save()
		synctest.Wait()
		expect(t, r.metrics, map[string]float64{`firstlight_workflow_steps_total{outcome="done",step="dhcp"}`: 0,
			`firstlight_workflow_steps_total{outcome="failed",step="tftp"}`: 1, `firstlight_boots_total{outcome="failed"}`: 1})
		got := r.told()
		if _, again := got["power-on"]; again || len(got) != 3 {
			t.Fatalf("got %d spans, want dhcp of the first process, tftp and boot of the second", len(got))
		}
		for _, name := range []string{"dhcp", "tftp"} {
			if got[name].Parent.SpanID() != got["boot"].SpanContext.SpanID() || got[name].SpanContext.TraceID() != got["boot"].SpanContext.TraceID() {
				t.Errorf("%s: got parent %s, want the boot's span %s", name, got[name].Parent.SpanID(), got["boot"].SpanContext.SpanID())
			}
		}
		if s := got["boot"].Status; s.Code != codes.Error || s.Description != "tftp: the machine fetched nothing" {
			t.Errorf("boot: got status %+v, want the failure", s)
		}
		if len(got["boot"].Events) != 1 {
			t.Errorf("boot: got events %v, want the one from before the restart", got["boot"].Events)
		}
	})
}

// What happened while the stream was cut is told once, when there is a new one.
func TestLostChangesAreToldOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		defer func() { r.stop() }()
		r.save()
		r.emit(fleet.Event{Source: "control", Kind: "join.granted"})
		synctest.Wait()
		r.feed.cut()
		synctest.Wait()
		r.step(0, fleet.StepDone, 0, 3)
		r.save()
		r.emit(fleet.Event{Source: "control", Kind: "join.granted"})
		select {
		case <-t.Context().Done():
		case <-time.After(2 * followAgain):
		}
		synctest.Wait()
		expect(t, r.metrics, map[string]float64{`firstlight_workflow_steps_total{outcome="done",step="power-on"}`: 1,
			`firstlight_events_total{kind="join.granted"}`: 2})
	})
}

// Whatever agents and machines call things, the number of time series has a bound, and no machine's words are among the labels.
func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		defer func() { r.stop() }()
		for i := range 1000 {
			r.emit(fleet.Event{Source: "node-evil", Machine: "evil", Kind: fmt.Sprintf("evil.%d", i)})
			r.emit(fleet.Event{Source: "site-agent", Kind: "loud." + strings.Repeat("x", i%40) + string(rune('a'+i%26))})
			r.emit(fleet.Event{Source: "site-agent", Kind: "Evil\nkind"})
		}
		synctest.Wait()
		kinds := 0
		for name := range scrape(t, r.metrics) {
			if strings.HasPrefix(name, "firstlight_events_total") {
				kinds++
			}
			if strings.Contains(strings.ToLower(name), "evil") {
				t.Errorf("got %s: a machine's word is a label", name)
			}
		}
		if kinds > maxKinds+2 || kinds < 3 {
			t.Errorf("got %d kinds, want at most %d by name, agent and other", kinds, maxKinds)
		}
		expect(t, r.metrics, map[string]float64{`firstlight_events_total{kind="agent"}`: 1000})
	})
}
