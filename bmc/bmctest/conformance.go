package bmctest

import (
	"context"
	"errors"
	"testing"
	"time"

	"firstlight/bmc"
)

// caseLimit bounds one case of the suite.
const caseLimit = 30 * time.Second

// Run holds a driver to the contract of bmc.Controller and, where it has the
// ability, of bmc.BootOverrider. open gives a connection to a machine of its
// own for each case, powered off and without an override; the suite closes it.
func Run(t *testing.T, open func(t *testing.T) bmc.Controller) {
	t.Helper()
	for _, c := range []struct {
		name string
		run  func(*testing.T, context.Context, bmc.Controller)
	}{
		{"starts off", startsOff},
		{"on is read back", onReadBack},
		{"on twice", onTwice},
		{"off when off", offWhenOff},
		{"off", off},
		{"cycle when off turns on", cycleOff},
		{"cycle when on ends on", cycleOn},
		{"native cycle ends on", nativeCycle},
		{"unknown action", unknownAction},
		{"override is read back", overrideReadBack},
		{"override once is consumed by the power on", overrideOnce},
		{"override until changed stays", overrideStays},
		{"override is cleared", overrideCleared},
		{"mode stays as it is unless one is ordered", modeStays},
		{"unknown device", unknownDevice},
		{"ended context", endedContext},
		{"closed", closed},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), caseLimit)
			defer cancel()
			m := open(t)
			defer func() {
				if err := m.Close(ctx); err != nil {
					t.Errorf("close: %v", err)
				}
			}()
			c.run(t, ctx, m)
		})
	}
}

func act(t *testing.T, ctx context.Context, m bmc.Controller, a bmc.PowerAction, want bmc.PowerState) {
	t.Helper()
	got, err := bmc.SetPower(ctx, m, a)
	if err != nil || got != want {
		t.Fatalf("power %s: got %q, %v; want %q", a, got, err, want)
	}
	wantState(t, ctx, m, want)
}

func wantState(t *testing.T, ctx context.Context, m bmc.Controller, want bmc.PowerState) {
	t.Helper()
	if got, err := m.PowerState(ctx); err != nil || got != want {
		t.Fatalf("power state: got %q, %v; want %q", got, err, want)
	}
}

func overrider(t *testing.T, m bmc.Controller) bmc.BootOverrider {
	t.Helper()
	o, ok := m.(bmc.BootOverrider)
	if !ok {
		t.Skip("reason: the driver has no boot override")
	}
	return o
}

func set(t *testing.T, ctx context.Context, m bmc.Controller, want bmc.Override) {
	t.Helper()
	got, err := bmc.SetBootOverride(ctx, m, want)
	if err != nil || !got.Meets(want) {
		t.Fatalf("set boot override: got %s, %v; want %s", got, err, want)
	}
}

func wantOverride(t *testing.T, ctx context.Context, m bmc.Controller, want bmc.Override) {
	t.Helper()
	if got, err := overrider(t, m).BootOverride(ctx); err != nil || !got.Meets(want) {
		t.Fatalf("boot override: got %s, %v; want %s", got, err, want)
	}
}

func startsOff(t *testing.T, ctx context.Context, m bmc.Controller) {
	wantState(t, ctx, m, bmc.PowerOff)
}

func onReadBack(t *testing.T, ctx context.Context, m bmc.Controller) {
	act(t, ctx, m, bmc.ActionOn, bmc.PowerOn)
}

func onTwice(t *testing.T, ctx context.Context, m bmc.Controller) {
	act(t, ctx, m, bmc.ActionOn, bmc.PowerOn)
	if err := m.SetPower(ctx, bmc.ActionOn); err != nil {
		t.Errorf("second on: got %v, want nil", err)
	}
	wantState(t, ctx, m, bmc.PowerOn)
}

func offWhenOff(t *testing.T, ctx context.Context, m bmc.Controller) {
	if err := m.SetPower(ctx, bmc.ActionOff); err != nil {
		t.Errorf("off when off: got %v, want nil", err)
	}
	wantState(t, ctx, m, bmc.PowerOff)
}

func off(t *testing.T, ctx context.Context, m bmc.Controller) {
	act(t, ctx, m, bmc.ActionOn, bmc.PowerOn)
	act(t, ctx, m, bmc.ActionOff, bmc.PowerOff)
}

func cycleOff(t *testing.T, ctx context.Context, m bmc.Controller) {
	act(t, ctx, m, bmc.ActionCycle, bmc.PowerOn)
}

func cycleOn(t *testing.T, ctx context.Context, m bmc.Controller) {
	act(t, ctx, m, bmc.ActionOn, bmc.PowerOn)
	act(t, ctx, m, bmc.ActionCycle, bmc.PowerOn)
}

// nativeCycle asks the driver itself for a cycle of a running machine. Only an
// override that the power on consumes tells that it happened.
func nativeCycle(t *testing.T, ctx context.Context, m bmc.Controller) {
	overrider(t, m)
	act(t, ctx, m, bmc.ActionOn, bmc.PowerOn)
	set(t, ctx, m, bmc.Override{Device: bmc.BootPXE, Once: true, Mode: bmc.ModeUEFI})
	if err := m.SetPower(ctx, bmc.ActionCycle); err != nil {
		t.Fatalf("cycle: got %v, want nil", err)
	}
	for {
		got, err := overrider(t, m).BootOverride(ctx)
		if err != nil {
			t.Fatalf("boot override after the cycle: %v", err)
		}
		if got.Same(bmc.Override{}) {
			break
		}
	}
	wantState(t, ctx, m, bmc.PowerOn)
}

func unknownAction(t *testing.T, ctx context.Context, m bmc.Controller) {
	if err := m.SetPower(ctx, "explode"); !errors.Is(err, bmc.ErrUnsupported) {
		t.Errorf("unknown action: got %v, want %v", err, bmc.ErrUnsupported)
	}
	wantState(t, ctx, m, bmc.PowerOff)
}

func overrideReadBack(t *testing.T, ctx context.Context, m bmc.Controller) {
	overrider(t, m)
	wantOverride(t, ctx, m, bmc.Override{})
	for _, o := range []bmc.Override{
		{Device: bmc.BootPXE, Once: true, Mode: bmc.ModeUEFI},
		{Device: bmc.BootPXE, Once: true, Mode: bmc.ModeBIOS},
		{Device: bmc.BootDisk, Mode: bmc.ModeUEFI},
		{Device: bmc.BootCD, Once: true, Mode: bmc.ModeUEFI},
	} {
		set(t, ctx, m, o)
		wantOverride(t, ctx, m, o)
	}
}

func overrideOnce(t *testing.T, ctx context.Context, m bmc.Controller) {
	overrider(t, m)
	o := bmc.Override{Device: bmc.BootPXE, Once: true, Mode: bmc.ModeUEFI}
	set(t, ctx, m, o)
	wantState(t, ctx, m, bmc.PowerOff)
	act(t, ctx, m, bmc.ActionOn, bmc.PowerOn)
	wantOverride(t, ctx, m, bmc.Override{})
}

func overrideStays(t *testing.T, ctx context.Context, m bmc.Controller) {
	overrider(t, m)
	o := bmc.Override{Device: bmc.BootPXE, Mode: bmc.ModeUEFI}
	set(t, ctx, m, o)
	act(t, ctx, m, bmc.ActionOn, bmc.PowerOn)
	wantOverride(t, ctx, m, o)
	act(t, ctx, m, bmc.ActionCycle, bmc.PowerOn)
	wantOverride(t, ctx, m, o)
}

func overrideCleared(t *testing.T, ctx context.Context, m bmc.Controller) {
	overrider(t, m)
	set(t, ctx, m, bmc.Override{Device: bmc.BootDisk, Mode: bmc.ModeUEFI})
	set(t, ctx, m, bmc.Override{Device: bmc.BootNone})
	wantOverride(t, ctx, m, bmc.Override{})
}

// modeStays orders no mode after each mode: the machine keeps the one that it has, also over a power on.
func modeStays(t *testing.T, ctx context.Context, m bmc.Controller) {
	overrider(t, m)
	for _, mode := range []bmc.FirmwareMode{bmc.ModeBIOS, bmc.ModeUEFI} {
		set(t, ctx, m, bmc.Override{Device: bmc.BootDisk, Mode: mode})
		set(t, ctx, m, bmc.Override{Device: bmc.BootPXE, Once: true})
		wantOverride(t, ctx, m, bmc.Override{Device: bmc.BootPXE, Once: true, Mode: mode})
		act(t, ctx, m, bmc.ActionCycle, bmc.PowerOn)
		set(t, ctx, m, bmc.Override{Device: bmc.BootPXE, Once: true})
		wantOverride(t, ctx, m, bmc.Override{Device: bmc.BootPXE, Once: true, Mode: mode})
	}
}

func unknownDevice(t *testing.T, ctx context.Context, m bmc.Controller) {
	b := overrider(t, m)
	if err := b.SetBootOverride(ctx, bmc.Override{Device: "drum"}); !errors.Is(err, bmc.ErrUnsupported) {
		t.Errorf("unknown device: got %v, want %v", err, bmc.ErrUnsupported)
	}
	wantOverride(t, ctx, m, bmc.Override{})
}

func endedContext(t *testing.T, ctx context.Context, m bmc.Controller) {
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := m.SetPower(ended, bmc.ActionOn); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: got %v, want %v", err, context.Canceled)
	}
	wantState(t, ctx, m, bmc.PowerOff)
}

func closed(t *testing.T, ctx context.Context, m bmc.Controller) {
	for range 2 {
		if err := m.Close(ctx); err != nil {
			t.Errorf("close: got %v, want nil", err)
		}
	}
	if _, err := m.PowerState(ctx); !errors.Is(err, bmc.ErrClosed) {
		t.Errorf("power state after close: got %v, want %v", err, bmc.ErrClosed)
	}
	if err := m.SetPower(ctx, bmc.ActionOn); !errors.Is(err, bmc.ErrClosed) {
		t.Errorf("power on after close: got %v, want %v", err, bmc.ErrClosed)
	}
}
