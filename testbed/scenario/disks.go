package scenario

import (
	"context"
	"regexp"

	"firstlight/testbed/judge"
)

// smallDisk is enough for the demo image, in bytes.
const smallDisk = 256 << 20

func ambiguousDiskScenario() Scenario {
	twins := []drive{{serial: "TWICE", size: smallDisk}, {serial: "TWICE", size: smallDisk}, {serial: "OTHER", size: smallDisk}}
	return Scenario{Name: "ambiguous-disk", What: "two disks with the serial that the record names: refused with the list, nothing is written",
		Firmware: []string{BIOS, UEFI}, machines: []box{{disks: twins}}, outcome: OutcomeFailed,
		drive: func(ctx context.Context, r *run) error { return orderAndFollow(ctx, r, r.machine) },
		judge: func(ctx context.Context, r *run) error {
			if err := r.pause(ctx); err != nil {
				return err
			}
			r.add(judge.Failed(r.record, "wipe", regexp.MustCompile(`(?s)TWICE.*PCI [0-9a-f:.]+.*PCI [0-9a-f:.]+`))...)
			r.add(judge.Of("record: the list has no disk that does not fit", !regexp.MustCompile(`OTHER`).MatchString(r.record.Cause()), "%s", r.record.Cause()))
			r.add(r.untouched(ctx)...)
			return nil
		}}
}
