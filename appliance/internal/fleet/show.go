package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// View joins a record and its newest workflow (nil: none) into what is shown. The result shares nothing with its arguments that
// View itself changes, and its lists are never null.
func View(r *Record, run *Run) Machine {
	m := Machine{
		Name: r.Name, NodeID: r.NodeID, State: MachineNew, MACs: list0(r.MACs), UUID: r.UUID, DiskSerials: list0(r.DiskSerials),
		BMC: r.BMC, Place: r.Place, Added: r.Added, NodeKeyID: r.NodeKeyID, Connected: r.Connected, Hardware: r.Hardware, Workflows: r.Workflows,
		Alarms: list0(r.Alarms), Firmware: r.Firmware, Protected: r.Protected, DiskState: diskState(r, run),
	}
	switch {
	case run != nil:
	case !r.Discovered.IsZero():
		m.State = MachineDiscovered
		m.Waiting = &Waiting{For: "a person to enrol it: nothing is ever done to a machine that is nobody's", Since: r.Discovered,
			Next: "firstlight machine add NAME --from " + r.Name + " --disk-serial SERIAL and its controller, or leave it"}
	case r.Adopted:
		m.State = MachineAdopted
	}
	if run == nil {
		return m
	}
	w := run.Workflow
	w.Trace = TraceID(w.ID)
	w.PauseAfter = list0(w.PauseAfter)
	w.Steps = slices.Clone(w.Steps)
	for i := range w.Steps {
		w.Steps[i].Commands = list0(w.Steps[i].Commands)
	}
	m.Workflow, m.Image, m.Failure, m.Cancel = &w, w.Image, run.Failure.told(), run.Cancel
	switch w.State {
	case WorkflowRunning:
		m.State = MachineProvisioning
	case WorkflowPaused:
		m.State = MachinePaused
	case WorkflowDone:
		m.State = MachineActive
	case WorkflowFailed:
		m.State = MachineFailed
	case WorkflowCancelling:
		m.State = MachineCancelling
	case WorkflowCancelled:
		m.State = MachineCancelled
	}
	if w.State.Open() {
		if s := run.Current(); s != nil {
			m.Waiting = s.Waiting
		}
	}
	return m
}

// NotInNewest is why nobody knows what a disk holds that the newest workflow did not have: an earlier one may have written to it.
const NotInNewest = "the machine's newest workflow did not have this disk"

// diskState is the newest workflow's; without any workflow this appliance never wrote to the machine's disks.
func diskState(r *Record, run *Run) []DiskState {
	out := []DiskState{}
	for _, s := range r.DiskSerials {
		d := DiskState{Serial: s, Holds: HoldsUnknown, Why: "this appliance never wrote to it"}
		if run != nil {
			d.Why = NotInNewest
			if i := slices.IndexFunc(run.Disks, func(d DiskState) bool { return d.Serial == s }); i >= 0 {
				d = run.Disks[i]
			}
		}
		out = append(out, d)
	}
	return out
}

func list0[T any](in []T) []T {
	if in == nil {
		return []T{}
	}
	return slices.Clone(in)
}

// Show returns one machine as it is shown, or ErrUnknown.
func (r *Repo) Show(ctx context.Context, name string) (Machine, error) {
	rec, err := r.Machine(ctx, name)
	if err != nil {
		return Machine{}, err
	}
	return r.show(ctx, &rec)
}

// ShowAll returns all machines as they are shown, by name.
func (r *Repo) ShowAll(ctx context.Context) ([]Machine, error) {
	recs, err := r.Machines(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]Machine, 0, len(recs))
	for i := range recs {
		m, err := r.show(ctx, &recs[i])
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

func (r *Repo) show(ctx context.Context, rec *Record) (Machine, error) {
	if rec.Workflow == "" {
		return View(rec, nil), nil
	}
	run, _, err := r.Run(ctx, rec.Workflow)
	if errors.Is(err, ErrUnknown) {
		return Machine{}, fmt.Errorf("show machine %q: its workflow %s is missing from the store", rec.Name, rec.Workflow)
	}
	if err != nil {
		return Machine{}, err
	}
	return View(rec, run), nil
}
