package bmc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"firstlight/bmc"
	"firstlight/bmc/bmctest"
)

func TestSecretNeverPrints(t *testing.T) {
	t.Parallel()
	s := bmc.Secret("hunter2")
	encoded, err := json.Marshal(map[string]any{"password": s})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		fmt.Sprint(s), fmt.Sprintf("%s %v %+v %#v %q %x", s, s, s, s, s, s),
		fmt.Sprintf("%+v", struct{ Password bmc.Secret }{s}), string(encoded),
	} {
		if strings.Contains(text, "hunter2") || strings.Contains(text, fmt.Sprintf("%x", "hunter2")) {
			t.Errorf("the secret shows in %q", text)
		}
	}
}

func TestOverrideSame(t *testing.T) {
	t.Parallel()
	pxe := bmc.Override{Device: bmc.BootPXE, Once: true, Mode: bmc.ModeUEFI}
	for _, c := range []struct {
		a, b bmc.Override
		want bool
	}{
		{bmc.Override{}, bmc.Override{Device: bmc.BootNone, Once: true}, true},
		{pxe, pxe, true},
		{pxe, bmc.Override{Device: bmc.BootPXE, Mode: bmc.ModeUEFI}, false},
		{pxe, bmc.Override{Device: bmc.BootPXE, Once: true}, false},
		{pxe, bmc.Override{}, false},
	} {
		if got := c.a.Same(c.b); got != c.want {
			t.Errorf("%s same as %s: got %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

func TestOverrideMeets(t *testing.T) {
	t.Parallel()
	at := func(mode bmc.FirmwareMode) bmc.Override {
		return bmc.Override{Device: bmc.BootPXE, Once: true, Mode: mode}
	}
	for _, c := range []struct {
		got, want bmc.Override
		meets     bool
	}{
		{at(bmc.ModeUEFI), at(bmc.ModeUEFI), true},
		{at(bmc.ModeUEFI), at(bmc.ModeBIOS), false},
		{at(bmc.ModeBIOS), at(bmc.ModeAsIs), true},
		{at(bmc.ModeAsIs), at(bmc.ModeBIOS), true}, // the controller shows none (RF-02)
		{bmc.Override{Device: bmc.BootPXE, Mode: bmc.ModeUEFI}, at(bmc.ModeAsIs), false},
		{bmc.Override{Device: bmc.BootNone, Mode: bmc.ModeUEFI}, at(bmc.ModeAsIs), false},
	} {
		if got := c.got.Meets(c.want); got != c.meets {
			t.Errorf("%s meets %s: got %v, want %v", c.got, c.want, got, c.meets)
		}
	}
}

func TestSetPowerWaitsForTheReadBackAndGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var m bmctest.Twin
		m.SetFaults(bmctest.Faults{IgnorePower: true})
		start := time.Now()
		state, err := bmc.SetPower(t.Context(), &m, bmc.ActionOn)
		if !errors.Is(err, bmc.ErrNotConfirmed) || state != bmc.PowerOff {
			t.Errorf("got %q, %v; want %q and %v", state, err, bmc.PowerOff, bmc.ErrNotConfirmed)
		}
		if want := `wanted state "on", found "off"`; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a text with %s", err, want)
		}
		if waited := time.Since(start); waited != 2*time.Minute {
			t.Errorf("waited %s, want 2m", waited)
		}
	})
}

// slow reaches its states a while after it accepted the action.
type slow struct {
	bmctest.Twin
	after time.Duration
}

func (s *slow) SetPower(ctx context.Context, a bmc.PowerAction) error {
	time.AfterFunc(s.after, func() { s.Twin.SetPower(context.Background(), a) })
	return ctx.Err()
}

func TestSetPowerCycleSeesTheMachineOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &slow{after: 15 * time.Second}
		for range 2 {
			if state, err := bmc.SetPower(t.Context(), m, bmc.ActionCycle); err != nil || state != bmc.PowerOn {
				t.Fatalf("got %q, %v; want %q", state, err, bmc.PowerOn)
			}
		}
		if got, want := m.Boots(), []bmc.BootDevice{bmc.BootNone, bmc.BootNone}; !slices.Equal(got, want) {
			t.Errorf("boots: got %v, want %v", got, want)
		}
	})
}

func TestSetPowerStopsAtTheFirstError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var m bmctest.Twin
		gone := errors.New("gone")
		m.SetFaults(bmctest.Faults{Err: gone})
		if _, err := bmc.SetPower(t.Context(), &m, bmc.ActionOn); !errors.Is(err, gone) {
			t.Errorf("got %v, want %v", err, gone)
		}
	})
}

func TestSetBootOverrideNamesWhatWasFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var m bmctest.Twin
		m.SetFaults(bmctest.Faults{IgnoreOverride: true})
		_, err := bmc.SetBootOverride(t.Context(), &m, bmc.Override{Device: bmc.BootPXE, Once: true, Mode: bmc.ModeUEFI})
		if want := "wanted pxe (once, UEFI), found no override"; !errors.Is(err, bmc.ErrNotConfirmed) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a text with %q", err, want)
		}
	})
}

// powerOnly is a controller without the boot override.
type powerOnly struct{ bmc.Controller }

func TestSetBootOverrideWithoutTheAbility(t *testing.T) {
	t.Parallel()
	_, err := bmc.SetBootOverride(t.Context(), powerOnly{&bmctest.Twin{}}, bmc.Override{Device: bmc.BootPXE})
	if !errors.Is(err, bmc.ErrUnsupported) {
		t.Errorf("got %v, want %v", err, bmc.ErrUnsupported)
	}
}
