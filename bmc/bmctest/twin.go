// Package bmctest has the in-memory twin of a management controller and the
// conformance suite that the twin, every driver and every emulator must pass.
//
// It is for tests only, of this folder and of the packages that take a
// bmc.Controller; nothing in production imports it.
package bmctest

import (
	"context"
	"fmt"
	"sync"

	"firstlight/bmc"
)

// Twin is a machine with its controller, in memory. It starts powered off,
// in UEFI mode, without an override. The zero value is ready.
type Twin struct {
	mu       sync.Mutex
	on       bool
	override bmc.Override
	mode     bmc.FirmwareMode // "" is ModeUEFI
	closed   bool
	boots    []bmc.BootDevice
	faults   Faults
}

// Faults makes the twin answer to the test.
type Faults struct {
	// IgnorePower accepts power actions and does nothing.
	IgnorePower bool
	// IgnoreOverride accepts an override and keeps the old one.
	IgnoreOverride bool
	// Err is returned by every call but Close.
	Err error
}

var (
	_ bmc.Controller    = (*Twin)(nil)
	_ bmc.BootOverrider = (*Twin)(nil)
)

// SetFaults replaces the faults in force.
func (t *Twin) SetFaults(f Faults) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults = f
}

// Boots lists the device of every power on so far: BootNone where no override
// was in force.
func (t *Twin) Boots() []bmc.BootDevice {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]bmc.BootDevice(nil), t.boots...)
}

// begin locks the twin for one call.
func (t *Twin) begin(ctx context.Context, what string) error {
	t.mu.Lock()
	err := ctx.Err()
	switch {
	case err != nil:
	case t.closed:
		err = bmc.ErrClosed
	default:
		err = t.faults.Err
	}
	if err != nil {
		t.mu.Unlock()
		return fmt.Errorf("twin: %s: %w", what, err)
	}
	return nil
}

// PowerState implements bmc.Controller.
func (t *Twin) PowerState(ctx context.Context) (bmc.PowerState, error) {
	if err := t.begin(ctx, "power state"); err != nil {
		return "", err
	}
	defer t.mu.Unlock()
	if t.on {
		return bmc.PowerOn, nil
	}
	return bmc.PowerOff, nil
}

// SetPower implements bmc.Controller. A power on consumes an override that
// holds once.
func (t *Twin) SetPower(ctx context.Context, a bmc.PowerAction) error {
	if err := t.begin(ctx, "set power"); err != nil {
		return err
	}
	defer t.mu.Unlock()
	if a != bmc.ActionOn && a != bmc.ActionOff && a != bmc.ActionCycle {
		return fmt.Errorf("twin: set power %q: %w", string(a), bmc.ErrUnsupported)
	}
	if t.faults.IgnorePower {
		return nil
	}
	if a == bmc.ActionOff || a == bmc.ActionCycle {
		t.on = false
	}
	if a == bmc.ActionOff || t.on {
		return nil
	}
	t.on = true
	device := t.override.Device
	if device == "" {
		device = bmc.BootNone
	}
	t.boots = append(t.boots, device)
	if t.override.Once {
		t.override = bmc.Override{}
	}
	return nil
}

// BootOverride implements bmc.BootOverrider.
func (t *Twin) BootOverride(ctx context.Context) (bmc.Override, error) {
	if err := t.begin(ctx, "boot override"); err != nil {
		return bmc.Override{}, err
	}
	defer t.mu.Unlock()
	if t.override.Same(bmc.Override{}) {
		return bmc.Override{Device: bmc.BootNone}, nil
	}
	o := t.override
	if o.Mode = t.mode; o.Mode == bmc.ModeAsIs {
		o.Mode = bmc.ModeUEFI
	}
	return o, nil
}

// SetBootOverride implements bmc.BootOverrider.
func (t *Twin) SetBootOverride(ctx context.Context, o bmc.Override) error {
	if err := t.begin(ctx, "set boot override"); err != nil {
		return err
	}
	defer t.mu.Unlock()
	switch o.Device {
	case "", bmc.BootNone, bmc.BootPXE, bmc.BootDisk, bmc.BootCD:
	default:
		return fmt.Errorf("twin: boot device %q: %w", string(o.Device), bmc.ErrUnsupported)
	}
	if t.faults.IgnoreOverride {
		return nil
	}
	if o.Mode != bmc.ModeAsIs {
		t.mode = o.Mode
	}
	t.override = o
	return nil
}

// Close implements bmc.Controller. The machine keeps its power state.
func (t *Twin) Close(context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	return nil
}
