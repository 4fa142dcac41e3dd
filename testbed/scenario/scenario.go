// Package scenario runs one machine through the whole chain and has it judged from outside.
//
// A run makes everything itself: namespaces, a BMC, a disk full of a pattern, the RAM disk and an image. It drives the programs
// in bin/ as a person would, and QEMU as a BMC would; package judge then looks at the disk file, the serial line, the packets and
// the public record. A break is the same run with one link spoiled from outside (package fault); it must end where it broke.
//
// It is for testbed/cmd/testbed, and imports the testbed's packages and public clients only.
package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Scenario names one kind of run.
type Scenario struct {
	Name string `json:"name"`
	// What says in a line what must hold.
	What string `json:"what"`
	// Core ones run at every change; Breaks and CoreBreaks name what `--break` takes.
	Core       bool     `json:"core"`
	Firmware   []string `json:"firmware"`
	Breaks     []string `json:"breaks,omitempty"`
	CoreBreaks []string `json:"core_breaks,omitempty"`
	HoldAfter  []string `json:"hold_after,omitempty"`

	// rtc is the machine's clock at power on; empty is the host's. year is what the agent must then find.
	rtc  string
	year int
}

// Firmware kinds.
const (
	UEFI = "uefi"
	BIOS = "bios"
)

// Provision is the one scenario that takes breaks and holds.
const Provision = "provision"

// All lists the scenarios.
func All() []Scenario {
	return []Scenario{
		{Name: Provision, What: "one machine from power-off to a running node agent, then a power cycle", Core: true, Firmware: []string{UEFI},
			Breaks: breakNames(func(breakKind) bool { return true }), CoreBreaks: breakNames(func(b breakKind) bool { return b.core }),
			HoldAfter: []string{"wipe", "deploy"}},
		{Name: "clock-past", What: "the same with a machine whose clock says 2000", Firmware: []string{UEFI}, rtc: "2000-01-01T00:00:00", year: 2000},
		{Name: "clock-future", What: "the same with a machine whose clock says 2090", Firmware: []string{UEFI}, rtc: "2090-01-01T00:00:00", year: 2090},
	}
}

// DefaultTimeout bounds a run when Options.Timeout is zero.
const DefaultTimeout = 20 * time.Minute

// Options say what to run.
type Options struct {
	Scenario  string
	Firmware  string // empty is uefi
	Break     string
	HoldAfter string
	// Keep leaves the run's folder where it is, disk and all.
	Keep bool
	// Timeout bounds the whole run; 0 is DefaultTimeout.
	Timeout time.Duration
	// Bin holds firstlight, imagebuild, machine-agent and inputs.
	Bin string
	// Out takes progress, for people.
	Out io.Writer
}

// ErrUsage is wrapped by what is wrong with Options: nothing was started.
var ErrUsage = errors.New("not a run that there is")

func (o Options) check() (Scenario, *breakKind, error) {
	bad := func(format string, args ...any) (Scenario, *breakKind, error) {
		return Scenario{}, nil, fmt.Errorf("%w: "+format, append([]any{ErrUsage}, args...)...)
	}
	at := slices.IndexFunc(All(), func(s Scenario) bool { return s.Name == o.Scenario })
	if at < 0 {
		return bad("scenario %q; see testbed list", o.Scenario)
	}
	s := All()[at]
	switch {
	case o.Firmware == BIOS:
		return bad("firmware bios: the chain boots UEFI machines only until the BIOS path is built")
	case !slices.Contains(s.Firmware, o.Firmware):
		return bad("firmware %q: want %s", o.Firmware, strings.Join(s.Firmware, " or "))
	case o.HoldAfter != "" && !slices.Contains(s.HoldAfter, o.HoldAfter):
		return bad("hold after %q: scenario %s holds after %s", o.HoldAfter, s.Name, orNothing(s.HoldAfter))
	case o.Break != "" && o.HoldAfter != "":
		return bad("break and hold-after in one run")
	case o.Timeout < 0:
		return bad("timeout %s", o.Timeout)
	}
	if o.Break == "" {
		return s, nil, nil
	}
	if !slices.Contains(s.Breaks, o.Break) {
		return bad("break %q: scenario %s breaks at %s", o.Break, s.Name, orNothing(s.Breaks))
	}
	return s, findBreak(o.Break), nil
}

func orNothing(words []string) string {
	if len(words) == 0 {
		return "nothing"
	}
	return strings.Join(words, ", ")
}

// Run runs and judges. The report is complete whenever Run returns one, also when ctx ended the run early; without one, the
// error wraps ErrUsage.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Firmware == "" {
		o.Firmware = UEFI
	}
	s, b, err := o.check()
	if err != nil {
		return nil, err
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	limited, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	r := &run{Options: o, scenario: s, spoil: b, started: time.Now(), out: newProgress(o.Out)}
	return r.do(limited), nil
}
