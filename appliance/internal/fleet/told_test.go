package fleet_test

import (
	"testing"

	"firstlight/appliance/internal/fleet"
)

// What is shown of a failure begins with what did not work, in everyday words, and says no operation twice.
func TestFailureInWords(t *testing.T) {
	t.Parallel()
	for _, name := range fleet.StepNames() {
		stored := &fleet.Failure{Step: name, What: "operation", Why: "cable out", Next: "plug it in"}
		got := fleet.View(&fleet.Record{Name: "m"}, &fleet.Run{Workflow: fleet.Workflow{State: fleet.WorkflowFailed}, Failure: stored}).Failure
		if got.What == "operation" || got.Why != "cable out" || got.Next != "plug it in" || stored.What != "operation" {
			t.Errorf("%s: shown as %+v, stored as %+v", name, got, stored)
		}
	}
	for stored, want := range map[string]string{
		"wipe: nothing was written: no disk with serial A in this machine; its disks: serial B": "no disk with serial A in this machine; its disks: serial B. Nothing was written",
		"deploy: nothing was written: no secret.":                                               "no secret. Nothing was written",
		"deploy to A: chunk 3 differs":                                                          "deploy to A: chunk 3 differs",
		"wipe: some disks are not clean (1 of 2): A is frozen":                                  "some disks are not clean (1 of 2): A is frozen",
	} {
		run := &fleet.Run{Workflow: fleet.Workflow{State: fleet.WorkflowFailed}, Failure: &fleet.Failure{Step: fleet.StepWipe, Why: stored}}
		if got := fleet.View(&fleet.Record{Name: "m"}, run).Failure; got.Why != want {
			t.Errorf("%q is shown as %q, want %q", stored, got.Why, want)
		}
	}
}
