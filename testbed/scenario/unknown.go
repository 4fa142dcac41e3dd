package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"firstlight/testbed/judge"
	"firstlight/testbed/qemu"
)

// Outcomes of machines that nobody enrolled.
const (
	outcomeRefused    = "refused"
	outcomeDiscovered = "discovered"
)

// gaveUp is what each firmware says when there is nothing that it could start.
var gaveUp = regexp.MustCompile(`No bootable (option|device)|UEFI Interactive Shell|Shell>`)

// Bounds of waiting for a machine that nobody ordered.
const (
	giveUpLimit   = 6 * time.Minute
	discoverLimit = 8 * time.Minute
)

func refuseScenario() Scenario {
	return Scenario{Name: "refuse", What: "an unknown machine asks for a boot where discovery is off: it gets nothing, and an event says why", Core: true,
		Firmware: []string{BIOS, UEFI}, machines: []box{{unknown: true}}, outcome: outcomeRefused, drive: driveRefuse, judge: judgeRefuse}
}

func discoverScenario() Scenario {
	return Scenario{Name: "discover", What: "an unknown machine where discovery is on: it appears with its inventory, and nothing on its disks is written", Core: true,
		Firmware: []string{BIOS, UEFI}, machines: []box{{unknown: true, disks: []drive{{}, {driver: "nvme"}}}},
		appliance: settings{discovery: true}, outcome: outcomeDiscovered, drive: driveDiscover, judge: judgeDiscover}
}

// powerOn switches a machine on by its button, network first.
func (r *run) powerOn(ctx context.Context, m *machine) error {
	m.say.say("power on, network first")
	return m.rack.PowerOn(ctx, "pxe")
}

// events reads the appliance's newest events.
func (r *run) events(ctx context.Context) ([]judge.Event, error) {
	out, err := r.firstlight(ctx, "--json", "events", "--limit", "1000")
	if err != nil {
		return nil, err
	}
	var list []judge.Event
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	return list, nil
}

// list reads the records that a command prints as a list.
func (r *run) list(ctx context.Context, args ...string) ([]judge.Record, error) {
	out, err := r.firstlight(ctx, append([]string{"--json"}, args...)...)
	if err != nil {
		return nil, err
	}
	var list []judge.Record
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, fmt.Errorf("read %s: %w", strings.Join(args, " "), err)
	}
	return list, nil
}

func driveRefuse(ctx context.Context, r *run) error {
	if err := r.powerOn(ctx, r.machine); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, giveUpLimit)
	defer cancel()
	if _, _, err := qemu.WaitSerial(waiting, r.serialPath(), gaveUp, 0); err != nil {
		return fmt.Errorf("wait for the firmware to give up: %w", err)
	}
	r.ended = outcomeRefused
	return nil
}

func judgeRefuse(ctx context.Context, r *run) error {
	events, err := r.events(ctx)
	if err != nil {
		return err
	}
	s, t, err := r.trace(ctx, r.machine)
	if err != nil {
		return err
	}
	r.add(s.Unanswered(t)...)
	r.add(judge.Told(events, "boot.refused", r.mac, "discovery is off", "firstlight machine add"))
	machines, err := r.list(ctx, "machine", "list")
	if err != nil {
		return err
	}
	r.add(judge.Of("record: there is none", len(machines) == 0, "%d machines are known", len(machines)))
	r.add(r.untouched(ctx)...)
	return nil
}

func driveDiscover(ctx context.Context, r *run) error {
	if err := r.powerOn(ctx, r.machine); err != nil {
		return err
	}
	limit := time.Now().Add(discoverLimit)
	for time.Now().Before(limit) {
		found, err := r.list(ctx, "discovered")
		if err != nil {
			return err
		}
		if len(found) > 0 && found[0].Hardware != nil && len(found[0].Hardware.Disks) > 0 {
			r.record, r.ended = &found[0], outcomeDiscovered
			r.out.say("%s appeared: %s %s, %d disks", found[0].Name, found[0].Hardware.Manufacturer, found[0].Hardware.Product, len(found[0].Hardware.Disks))
			return nil
		}
		if err := r.wait(ctx, &judge.Record{State: "unknown"}); err != nil {
			return err
		}
	}
	return fmt.Errorf("the machine did not appear within %s", discoverLimit)
}

func judgeDiscover(ctx context.Context, r *run) error {
	rec := r.record
	want := "found-" + strings.ReplaceAll(r.mac, ":", "")
	r.add(judge.Of("record: discovered", rec.State == "discovered" && rec.Name == want && rec.Workflow == nil && rec.Workflows == 0 && slices.Contains(rec.MACs, r.mac),
		"%s (want %s) is %s, MACs %v, %d workflows", rec.Name, want, rec.State, rec.MACs, rec.Workflows))
	r.add(judge.Of("record: inventory", strings.EqualFold(rec.Hardware.UUID, r.uuid) && r.inventoryHasDisks(rec.Hardware),
		"UUID %s (ours %s), disks %v", rec.Hardware.UUID, r.uuid, rec.Hardware.Disks))
	_, err := r.firstlight(ctx, "provision", rec.Name, "--image", imageName)
	r.add(judge.Of("a discovered machine is not provisioned", err != nil && strings.Contains(errorText(err), "machine add"), "%s", errorText(err)))
	events, err := r.events(ctx)
	if err != nil {
		return err
	}
	r.add(judge.Told(events, "machine.discovered", r.mac, rec.Name))
	s, t, err := r.trace(ctx, r.machine)
	if err != nil {
		return err
	}
	r.add(s.Boot(t)...)
	r.add(r.untouched(ctx)...)
	return nil
}

// inventoryHasDisks says whether the inventory lists each of the machine's disks by serial and size.
func (m *machine) inventoryHasDisks(hw *judge.Hardware) bool {
	for _, d := range m.disks {
		found := false
		for _, x := range hw.Disks {
			found = found || x.Serial == d.serial && x.SizeBytes == d.size
		}
		if !found {
			return false
		}
	}
	return true
}
