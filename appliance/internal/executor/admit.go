package executor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/planner"
)

// Why a machine may not be taken, besides ErrBusy and ErrStoppedAll.
var (
	// ErrProtected: a person protects the machine's disks.
	ErrProtected = planner.ErrProtected
	// ErrInUse: the machine is active or adopted, and the order does not say that it may be installed again.
	ErrInUse = errors.New("machine is in use")
	// ErrNotEnrolled: the machine was discovered and nobody enrolled it.
	ErrNotEnrolled = planner.ErrNotEnrolled
)

// admit says whether a new workflow may take the machine, and returns its newest workflow, nil when it had none.
func (e *Executor) admit(ctx context.Context, rec *fleet.Record, o Order) (*fleet.Run, error) {
	bad := func(err error, format string, args ...any) error {
		return fmt.Errorf("provision %q: %w: %s", rec.Name, err, fmt.Sprintf(format, args...))
	}
	stop, err := e.cfg.Fleet.Stop(ctx)
	if err != nil {
		return nil, fmt.Errorf("provision %q: %w", rec.Name, err)
	}
	var last *fleet.Run
	if rec.Workflow != "" {
		last, _, err = e.cfg.Fleet.Run(ctx, rec.Workflow)
		if err != nil && !errors.Is(err, fleet.ErrUnknown) {
			return nil, fmt.Errorf("provision %q: %w", rec.Name, err)
		}
	}
	switch {
	case !rec.Discovered.IsZero():
		return nil, bad(ErrNotEnrolled, "it was discovered at %s, and nothing is ever done to a machine that is nobody's", rec.Discovered)
	case rec.Protected != nil:
		return nil, bad(ErrProtected, "it is %s", rec.Protected)
	case last != nil && last.State.Open():
		step := "its end"
		if s := last.Current(); s != nil {
			step = "step " + s.Name
		}
		return nil, bad(ErrBusy, "%s has been provisioning it since %s (workflow %s, at %s)", last.By, last.Started, last.ID, step)
	case stop != nil:
		return nil, fmt.Errorf("provision %q: %w%s", rec.Name, ErrStoppedAll, strings.TrimPrefix(stop.String(), ErrStoppedAll.Error()))
	case o.Reinstall:
	case last != nil && last.State == fleet.WorkflowDone:
		return nil, bad(ErrInUse, "it is active with image %s since %s", last.Image, last.Ended)
	case last == nil && rec.Adopted:
		return nil, bad(ErrInUse, "it was adopted at %s as a machine that runs", rec.Added)
	}
	return last, nil
}

// Preview is what an order would do. Nothing was sent.
type Preview struct {
	Machine string    `json:"machine"`
	NodeID  string    `json:"node_id"`
	MACs    []string  `json:"macs"`
	BMC     fleet.BMC `json:"bmc"`
	Image   string    `json:"image"`
	// Disks are the only ones that would be written, the one that gets the image first.
	Disks []PreviewDisk `json:"disks"`
	Steps []string      `json:"steps"`
	// Sent is false, always: it is there so that nobody takes a preview for an order.
	Sent bool `json:"sent"`
}

// PreviewDisk is one disk that would be written. Model and size are as last seen, empty when it was never seen.
type PreviewDisk struct {
	Serial    string `json:"serial"`
	Model     string `json:"model"`
	SizeBytes uint64 `json:"size_bytes"`
	// Would is "wiped" or "wiped, then written with image NAME".
	Would string `json:"would"`
	Holds string `json:"holds"`
	// Doubt says what speaks against it in the last inventory; empty for nothing.
	Doubt string `json:"doubt"`
}

// DryRun says what an order would do, or why it would be refused. It changes nothing.
func (e *Executor) DryRun(ctx context.Context, o Order) (Preview, error) {
	rec, err := e.cfg.Fleet.Machine(ctx, o.Machine)
	if err != nil {
		return Preview{}, fmt.Errorf("provision: %w", err)
	}
	last, err := e.admit(ctx, &rec, o)
	if err != nil {
		return Preview{}, err
	}
	run, err := e.newRun(&rec, last, o, e.cfg.Now())
	if err != nil {
		return Preview{}, fmt.Errorf("provision %q: %w", o.Machine, err)
	}
	p := Preview{Machine: rec.Name, NodeID: rec.NodeID, MACs: rec.MACs, BMC: rec.BMC, Image: o.Image.Name, Disks: []PreviewDisk{}, Steps: fleet.StepNames()}
	for i, d := range run.Disks {
		x := PreviewDisk{Serial: d.Serial, Would: "wiped", Holds: d.Holds}
		if i == 0 {
			x.Would = "wiped, then written with image " + o.Image.Name
		}
		seen(&x, rec.Hardware)
		p.Disks = append(p.Disks, x)
	}
	return p, nil
}

// seen adds what the last inventory says of a disk.
func seen(x *PreviewDisk, h *fleet.Hardware) {
	if h == nil {
		x.Doubt = "the machine never sent its inventory"
		return
	}
	n := 0
	for _, d := range h.Disks {
		if d.Serial != x.Serial {
			continue
		}
		n++
		x.Model, x.SizeBytes = d.Model, d.SizeBytes
		if !d.Candidate {
			x.Doubt = "it may not be written: " + d.ExcludedBecause
		}
	}
	switch {
	case n == 0:
		x.Doubt = "the last inventory has no disk with this serial number"
	case n > 1:
		x.Doubt = fmt.Sprintf("the last inventory has %d disks with this serial number", n)
	}
}
