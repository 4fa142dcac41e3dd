// Package bmc says what Firstlight needs from a machine's management
// controller: its power state, power actions and, as an optional ability, the
// boot override.
//
// It is for the site agent, which acts on machines, and for the drivers below
// this folder, which speak a protocol. It is not a place for protocol details
// and not for retry or logging: drivers stay naive, wrappers are stacked where
// things are composed. It imports nothing of ours; any package of rank 2 or
// higher may import it.
package bmc

import (
	"context"
	"errors"
	"strings"
)

// PowerState is the power state of a machine as its controller reports it.
type PowerState string

// The two states that count as reached. A controller on its way between them
// reports the state that it leaves.
const (
	PowerOn  PowerState = "on"
	PowerOff PowerState = "off"
)

// PowerAction is a change of the power state.
type PowerAction string

// ActionOn and ActionOff do nothing when the state is already as wanted.
// ActionOff cuts the power without asking the operating system. ActionCycle
// turns a running machine off and on again, and turns on a machine that is off.
const (
	ActionOn    PowerAction = "on"
	ActionOff   PowerAction = "off"
	ActionCycle PowerAction = "cycle"
)

// BootDevice is the source of the next boot.
type BootDevice string

// BootNone means no override: the machine follows its own boot order.
const (
	BootNone BootDevice = "none"
	BootPXE  BootDevice = "pxe"
	BootDisk BootDevice = "disk"
	BootCD   BootDevice = "cd"
)

// FirmwareMode is how a machine's firmware boots.
type FirmwareMode string

// ModeAsIs leaves the machine's mode alone; read from a controller it says that
// the controller shows none.
const (
	ModeAsIs FirmwareMode = ""
	ModeUEFI FirmwareMode = "uefi"
	ModeBIOS FirmwareMode = "bios"
)

// Override is a change of the boot order. The zero value and every value with
// the device BootNone mean "no override"; Once and Mode are then ignored.
type Override struct {
	Device BootDevice
	// Once limits the override to the next power on. Without it the override
	// stays until it is set to BootNone.
	Once bool
	// Mode is the firmware mode that is ordered with it.
	Mode FirmwareMode
}

// Meets reports whether an override that was read from a controller is the
// wanted one. The mode counts where one is wanted and the controller shows one:
// a controller without the setting has none to get wrong (RF-02).
func (o Override) Meets(want Override) bool {
	if want.Mode == ModeAsIs || o.Mode == ModeAsIs {
		o.Mode = want.Mode
	}
	return o.Same(want)
}

// Same reports whether two overrides have the same effect.
func (o Override) Same(other Override) bool {
	if o.none() || other.none() {
		return o.none() && other.none()
	}
	return o == other
}

func (o Override) none() bool { return o.Device == "" || o.Device == BootNone }

// String is the override in words, for errors and events.
func (o Override) String() string {
	if o.none() {
		return "no override"
	}
	how := "until changed"
	if o.Once {
		how = "once"
	}
	if o.Mode != ModeAsIs {
		how += ", " + strings.ToUpper(string(o.Mode))
	}
	return string(o.Device) + " (" + how + ")"
}

// Controller is one machine's power, reached through its management
// controller.
//
// Calls may come from several goroutines; a driver serialises them where its
// protocol needs it. Every call ends when its context ends. SetPower returns
// when the controller accepted the action, which proves nothing: use the
// function SetPower of this package, which reads back.
type Controller interface {
	PowerState(ctx context.Context) (PowerState, error)
	SetPower(ctx context.Context, action PowerAction) error
	// Close gives back what the driver holds at the controller (a session),
	// also when ctx has already ended. Calls after Close return ErrClosed; a
	// second Close does nothing.
	Close(ctx context.Context) error
}

// BootOverrider is the optional ability to change the source of the next boot.
// Setting an override does not restart the machine.
type BootOverrider interface {
	BootOverride(ctx context.Context) (Override, error)
	SetBootOverride(ctx context.Context, o Override) error
}

// Errors that a caller may test for with errors.Is.
var (
	// ErrNotConfirmed: the controller accepted a change, and reading back did
	// not show it. The error's text names what was wanted and what was found.
	ErrNotConfirmed = errors.New("not confirmed by reading back")
	// ErrUnsupported: the controller does not have the ability or the value.
	ErrUnsupported = errors.New("not supported by the management controller")
	// ErrClosed: the driver was used after Close.
	ErrClosed = errors.New("connection to the management controller is closed")
	// ErrCredentials: the controller refused the user name or the password.
	ErrCredentials = errors.New("the management controller refused the credentials")
)

// Secret is a password. It prints as "[secret]" with every verb and encodes as
// "[secret]" in JSON and text; only the driver that sends it converts it.
type Secret string

const redacted = "[secret]"

// String returns "[secret]".
func (Secret) String() string { return redacted }

// GoString returns "[secret]".
func (Secret) GoString() string { return redacted }

// MarshalText returns "[secret]".
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
