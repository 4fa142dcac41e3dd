package redfish

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/stmcginnis/gofish"
	"github.com/stmcginnis/gofish/common"
	"github.com/stmcginnis/gofish/redfish"

	"firstlight/bmc"
)

// maxMessage bounds how much of a controller's answer an error repeats, in
// bytes.
const maxMessage = 512

// hostSystem is the member of Systems that is the machine itself: the physical
// one if there are several (a GPU baseboard is also listed as a system). The
// order of the members has no meaning.
func hostSystem(api *gofish.APIClient) (*redfish.ComputerSystem, error) {
	systems, err := api.Service.Systems()
	if err != nil {
		return nil, fmt.Errorf("list the systems: %w", firstFailure(err))
	}
	var hosts []*redfish.ComputerSystem
	for _, s := range systems {
		if s.Boot.BootSourceOverrideEnabled != "" || len(systems) == 1 {
			hosts = append(hosts, s)
		}
	}
	if len(hosts) > 1 {
		physical := slices.DeleteFunc(slices.Clone(hosts), func(s *redfish.ComputerSystem) bool {
			return s.SystemType != redfish.PhysicalSystemType
		})
		if len(physical) == 1 {
			hosts = physical
		}
	}
	switch len(hosts) {
	case 1:
		return hosts[0], nil
	case 0:
		return nil, errors.New("the controller lists no system with a boot override")
	}
	var ids []string
	for _, s := range hosts {
		ids = append(ids, s.ODataID)
	}
	slices.Sort(ids)
	return nil, fmt.Errorf("the controller lists several systems: %s", strings.Join(ids, ", "))
}

// firstFailure takes the cause out of gofish's error about a collection, which
// is a text without types.
func firstFailure(err error) error {
	var c *common.CollectionError
	if !errors.As(err, &c) || len(c.Failures) == 0 {
		return err
	}
	link := slices.Min(slices.Collect(maps.Keys(c.Failures)))
	return fmt.Errorf("%s: %w", link, c.Failures[link])
}

// powerState maps Resource.PowerState (DSP0268).
func powerState(s redfish.PowerState) (bmc.PowerState, error) {
	switch s {
	case redfish.OnPowerState, redfish.PoweringOffPowerState, redfish.PausedPowerState:
		return bmc.PowerOn, nil
	case redfish.OffPowerState, redfish.PoweringOnPowerState:
		return bmc.PowerOff, nil
	}
	return "", fmt.Errorf("unknown power state %q", string(s))
}

// resetType chooses the Resource.ResetType for an action. Empty means that
// there is nothing to do. An empty list of allowed values means that the
// controller does not advertise them; then the types that the schema made
// common are used.
func resetType(a bmc.PowerAction, now bmc.PowerState, allowed []redfish.ResetType) (redfish.ResetType, error) {
	var wish []redfish.ResetType
	switch {
	case a == bmc.ActionOn && now == bmc.PowerOn, a == bmc.ActionOff && now == bmc.PowerOff:
		return "", nil
	case a == bmc.ActionOn, a == bmc.ActionCycle && now == bmc.PowerOff:
		wish = []redfish.ResetType{redfish.OnResetType, redfish.ForceOnResetType}
	case a == bmc.ActionOff:
		wish = []redfish.ResetType{redfish.ForceOffResetType}
	case a == bmc.ActionCycle:
		wish = []redfish.ResetType{redfish.PowerCycleResetType, redfish.ForceRestartResetType}
	default:
		return "", fmt.Errorf("power action %q: %w", string(a), bmc.ErrUnsupported)
	}
	if len(allowed) == 0 {
		return wish[0], nil
	}
	for _, w := range wish {
		if slices.Contains(allowed, w) {
			return w, nil
		}
	}
	return "", fmt.Errorf("reset types %v are not among the controller's %v: %w", wish, allowed, bmc.ErrUnsupported)
}

// fromBoot reads ComputerSystem.Boot. A target that we have no word for shows
// as its own Redfish name in lower case, so that a read-back never matches it.
func fromBoot(b redfish.Boot) bmc.Override {
	if b.BootSourceOverrideEnabled == redfish.DisabledBootSourceOverrideEnabled || b.BootSourceOverrideEnabled == "" {
		return bmc.Override{Device: bmc.BootNone}
	}
	o := bmc.Override{
		Once: b.BootSourceOverrideEnabled == redfish.OnceBootSourceOverrideEnabled,
		Mode: fromMode(b.BootSourceOverrideMode),
	}
	switch b.BootSourceOverrideTarget {
	case redfish.PxeBootSourceOverrideTarget:
		o.Device = bmc.BootPXE
	case redfish.HddBootSourceOverrideTarget:
		o.Device = bmc.BootDisk
	case redfish.CdBootSourceOverrideTarget:
		o.Device = bmc.BootCD
	case redfish.NoneBootSourceOverrideTarget, "":
		return bmc.Override{Device: bmc.BootNone}
	default:
		o.Device = bmc.BootDevice(strings.ToLower(string(b.BootSourceOverrideTarget)))
	}
	return o
}

// fromMode reads Boot.BootSourceOverrideMode. A value that we have no word for
// shows as itself, so that a read-back never matches it.
func fromMode(m redfish.BootSourceOverrideMode) bmc.FirmwareMode {
	switch m {
	case redfish.UEFIBootSourceOverrideMode:
		return bmc.ModeUEFI
	case redfish.LegacyBootSourceOverrideMode:
		return bmc.ModeBIOS
	}
	return bmc.FirmwareMode(strings.ToLower(string(m)))
}

// toBoot is the PATCH for an override. The mode is sent only where one is
// ordered and the controller shows the property (RF-02).
func toBoot(o bmc.Override, now redfish.Boot) (redfish.Boot, error) {
	if o.Same(bmc.Override{}) {
		return redfish.Boot{
			BootSourceOverrideEnabled: redfish.DisabledBootSourceOverrideEnabled,
			BootSourceOverrideTarget:  redfish.NoneBootSourceOverrideTarget,
		}, nil
	}
	b := redfish.Boot{BootSourceOverrideEnabled: redfish.ContinuousBootSourceOverrideEnabled}
	if o.Once {
		b.BootSourceOverrideEnabled = redfish.OnceBootSourceOverrideEnabled
	}
	switch o.Device {
	case bmc.BootPXE:
		b.BootSourceOverrideTarget = redfish.PxeBootSourceOverrideTarget
	case bmc.BootDisk:
		b.BootSourceOverrideTarget = redfish.HddBootSourceOverrideTarget
	case bmc.BootCD:
		b.BootSourceOverrideTarget = redfish.CdBootSourceOverrideTarget
	default:
		return b, fmt.Errorf("boot device %q: %w", string(o.Device), bmc.ErrUnsupported)
	}
	switch {
	case o.Mode == bmc.ModeAsIs || now.BootSourceOverrideMode == "":
	case o.Mode == bmc.ModeUEFI:
		b.BootSourceOverrideMode = redfish.UEFIBootSourceOverrideMode
	case o.Mode == bmc.ModeBIOS:
		b.BootSourceOverrideMode = redfish.LegacyBootSourceOverrideMode
	default:
		return b, fmt.Errorf("firmware mode %q: %w", string(o.Mode), bmc.ErrUnsupported)
	}
	return b, nil
}

// explain turns gofish's error, whose text is the raw answer, into the
// controller's own sentence, bounded.
func explain(err error) error {
	var e *common.Error
	if !errors.As(err, &e) || e.HTTPReturnedStatusCode == 0 {
		return err
	}
	text := e.Message
	for _, info := range e.ExtendedInfos {
		if info.Message != "" {
			text = info.Message
			break
		}
	}
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "…"
	}
	return &answerError{text: fmt.Sprintf("the controller answered %d: %s", e.HTTPReturnedStatusCode, text), cause: err}
}

// answerError keeps the cause for errors.As and shows only our words.
type answerError struct {
	text  string
	cause error
}

func (e *answerError) Error() string { return e.text }
func (e *answerError) Unwrap() error { return e.cause }
