// Package scenario runs machines through the whole chain and has them judged from outside.
//
// A run makes everything itself: namespaces, BMCs, disks full of a pattern, the RAM disk and an image. It drives the programs
// in bin/ as a person would, and QEMU as a BMC would; package judge then looks at the disk files, the serial lines, the packets
// and the public record. A break is the provision run with one link spoiled from outside (package fault); it must end where it
// broke.
//
// # Adding a scenario
//
// A Scenario is a cabling list, then hooks. Put a function that returns one in a file of its own and name it in All. The
// machines are declared (box, drive), the appliance is set (settings), the image spoiled (image), and then, in this order:
//
//	setup     before the appliance starts: men in the middle (run.proxy), other addresses in run.serve
//	enrolled  the appliance serves, knows the image and each machine whose box is not unknown; nothing is powered on
//	drive     what happens: run.order and run.follow a machine, run.powerOn one that nobody ordered, run.firstlight anything
//	judge     what must hold: run.add(judge.Of(…)); read files, packets (run.trace) and records, change nothing
//
// Every hook may be nil: then the first machine is provisioned, and judged as an active one that a power cycle does not change.
// run.machines holds the machines in the order of the list, each with its rack.Machine, BMC, tap, disks and newest record; the
// run's own fields and methods are those of the first (run.rack, run.record, run.untouched …). What a drive ends with is compared
// with the scenario's outcome word, by default the state of the first machine's record, and run.ended says another one. A judge
// adds at least one check, whatever happened.
//
// It is for testbed/cmd/testbed, and imports the testbed's packages and public clients only.
package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"firstlight/testbed/fixtures"
)

// Scenario names one kind of run, and declares it.
type Scenario struct {
	Name string `json:"name"`
	// What says in a line what must hold.
	What string `json:"what"`
	// Core ones run at every change; Breaks and CoreBreaks name what `--break` takes.
	Core bool `json:"core"`
	// Firmware is what `--firmware` takes, the first one when it says nothing; it is for boxes that name none themselves.
	Firmware   []string `json:"firmware"`
	Breaks     []string `json:"breaks,omitempty"`
	CoreBreaks []string `json:"core_breaks,omitempty"`
	HoldAfter  []string `json:"hold_after,omitempty"`

	// machines is the cabling list; empty is one enrolled machine with one disk.
	machines []box
	// appliance changes the appliance's configuration.
	appliance settings
	// image spoils the image before it is packed; without are boot programs that the site lacks.
	image   fixtures.Variant
	without []string
	// outcome is the word that the run must end with; empty is OutcomeActive.
	outcome string
	// timeout bounds a run when Options.Timeout is zero; zero is DefaultTimeout.
	timeout time.Duration

	setup    func(r *run) error
	enrolled func(ctx context.Context, r *run) error
	drive    func(ctx context.Context, r *run) error
	judge    func(ctx context.Context, r *run) error
}

// settings are what a site's owner decides.
type settings struct {
	// discovery answers machines that nobody enrolled.
	discovery bool
	// replaceROM gives a BIOS machine undionly.kpxe although its card has an iPXE of its own.
	replaceROM bool
	// page is the loopback address and port, in the appliance's namespace, of a page in plain HTTP; empty is none.
	page string
}

// Want is the outcome that satisfies the judge.
func (s Scenario) Want() string {
	if s.outcome == "" {
		return OutcomeActive
	}
	return s.outcome
}

// Limit bounds a run when Options.Timeout is zero.
func (s Scenario) Limit() time.Duration { return cmp.Or(s.timeout, DefaultTimeout) }

// guestsAtOnce bounds the virtual machines of a run that are on at a time: one CPU each, on two cores.
const guestsAtOnce = 2

// Guests is how many virtual machines run at a time, at most.
func (s Scenario) Guests() int { return min(len(s.boxes()), guestsAtOnce) }

// boxes is the cabling list with its default.
func (s Scenario) boxes() []box {
	if len(s.machines) == 0 {
		return []box{{}}
	}
	return s.machines
}

// Firmware kinds.
const (
	UEFI = "uefi"
	BIOS = "bios"
)

// Provision is the one scenario that takes breaks and holds.
const Provision = "provision"

// DefaultTimeout bounds a run when neither its options nor its scenario say otherwise.
const DefaultTimeout = 20 * time.Minute

// Options say what to run.
type Options struct {
	Scenario string
	// Firmware is empty for the scenario's first.
	Firmware  string
	Break     string
	HoldAfter string
	// Keep leaves the run's folder where it is, disk and all.
	Keep bool
	// Timeout bounds the whole run; 0 is the scenario's Limit.
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
	case o.Firmware != "" && !slices.Contains(s.Firmware, o.Firmware):
		return bad("firmware %q: want %s", o.Firmware, strings.Join(s.Firmware, " or "))
	case o.HoldAfter != "" && !slices.Contains(s.HoldAfter, o.HoldAfter):
		return bad("hold after %q: scenario %s holds after %s", o.HoldAfter, s.Name, orNothing(s.HoldAfter))
	case o.Break != "" && o.HoldAfter != "":
		return bad("break and hold-after in one run")
	case o.Break != "" && o.Firmware == BIOS:
		return bad("break %q with firmware bios: breaks are for UEFI machines", o.Break)
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
	s, b, err := o.check()
	if err != nil {
		return nil, err
	}
	if o.Firmware == "" {
		o.Firmware = s.Firmware[0]
	}
	if o.Timeout == 0 {
		o.Timeout = s.Limit()
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	limited, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	r := &run{Options: o, scenario: s, spoil: b, started: time.Now(), out: newProgress(o.Out)}
	r.declare(s.boxes())
	return r.do(limited), nil
}
