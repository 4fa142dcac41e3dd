package redfish

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stmcginnis/gofish/redfish"

	"firstlight/bmc"
)

// RF-07: the type is chosen from the advertised set, and from the present state.
func TestRF07_ResetType(t *testing.T) {
	t.Parallel()
	all := []redfish.ResetType{"On", "ForceOff", "GracefulShutdown", "ForceRestart", "PowerCycle"}
	for _, c := range []struct {
		action  bmc.PowerAction
		now     bmc.PowerState
		allowed []redfish.ResetType
		want    redfish.ResetType
		err     error
	}{
		{bmc.ActionOn, bmc.PowerOff, all, "On", nil},
		{bmc.ActionOn, bmc.PowerOn, all, "", nil},
		{bmc.ActionOff, bmc.PowerOff, all, "", nil},
		{bmc.ActionOff, bmc.PowerOn, all, "ForceOff", nil},
		{bmc.ActionCycle, bmc.PowerOff, all, "On", nil},
		{bmc.ActionCycle, bmc.PowerOn, all, "PowerCycle", nil},
		{bmc.ActionCycle, bmc.PowerOn, []redfish.ResetType{"On", "ForceRestart"}, "ForceRestart", nil},
		{bmc.ActionOn, bmc.PowerOff, []redfish.ResetType{"ForceOn"}, "ForceOn", nil},
		{bmc.ActionOn, bmc.PowerOff, nil, "On", nil},
		// A graceful shutdown is never taken for a hard one, nor the reverse.
		{bmc.ActionOff, bmc.PowerOn, []redfish.ResetType{"On", "GracefulShutdown"}, "", bmc.ErrUnsupported},
		{"nap", bmc.PowerOn, all, "", bmc.ErrUnsupported},
	} {
		got, err := resetType(c.action, c.now, c.allowed)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("resetType(%s, %s, %v): got %q, %v; want %q, %v", c.action, c.now, c.allowed, got, err, c.want, c.err)
		}
	}
}

func TestPowerStateOnItsWayIsWhatItLeaves(t *testing.T) {
	t.Parallel()
	for in, want := range map[redfish.PowerState]bmc.PowerState{
		"On": bmc.PowerOn, "Off": bmc.PowerOff, "PoweringOn": bmc.PowerOff, "PoweringOff": bmc.PowerOn,
	} {
		if got, err := powerState(in); got != want || err != nil {
			t.Errorf("powerState(%q): got %q, %v; want %q", in, got, err, want)
		}
	}
	if got, err := powerState(""); err == nil {
		t.Errorf("powerState of nothing: got %q, want an error", got)
	}
}

// FuzzSystem feeds a controller's system resource through gofish to our values.
func FuzzSystem(f *testing.F) {
	for _, seed := range []string{
		`{"PowerState":"On","Boot":{"BootSourceOverrideEnabled":"Once","BootSourceOverrideTarget":"Pxe","BootSourceOverrideMode":"UEFI"}}`,
		`{"PowerState":"PoweringOff","Boot":{"BootSourceOverrideEnabled":"Continuous","BootSourceOverrideTarget":"UefiTarget"}}`,
		`{"PowerState":null,"Boot":null,"MemorySummary":{"TotalSystemMemoryGiB":null}}`,
		`{"Boot":[]}`, `{}`, `[]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var s redfish.ComputerSystem
		if json.Unmarshal(body, &s) != nil {
			return
		}
		state, err := powerState(s.PowerState)
		if (err == nil) != (state == bmc.PowerOn || state == bmc.PowerOff) {
			t.Errorf("power state: got %q, %v", state, err)
		}
		o := fromBoot(s.Boot)
		b, err := toBoot(o, s.Boot)
		if err == nil && s.Boot.BootSourceOverrideMode != "" && !fromBoot(b).Same(o) {
			t.Errorf("override %s does not survive the way out and back: %s", o, fromBoot(b))
		}
	})
}
