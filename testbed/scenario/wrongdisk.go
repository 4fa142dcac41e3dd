package scenario

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"firstlight/testbed/judge"
)

// outcomeDeployed is a run that ends with its machines paused after their deploy.
const outcomeDeployed = "deployed"

func wrongDiskScenario() Scenario {
	same := func(driver string, serials ...string) []drive {
		var out []drive
		for _, s := range serials {
			out = append(out, drive{serial: s, driver: driver, size: smallDisk})
		}
		return out
	}
	return Scenario{Name: "wrong-disk", What: "two and three disks of one model and size, serials such as S1 and S10, in both orders: only the named one is written", Core: true,
		Firmware: []string{BIOS, UEFI},
		machines: []box{
			// A serial is in one record only; so each machine has its own letter.
			{disks: same("virtio-blk", "S1", "S10")},
			{disks: same("virtio-blk", "T10", "T1"), target: 1},
			// NVMe and ATA disks fill their serials up with spaces.
			{disks: same("nvme", "U1", "U10", "U100")},
			{disks: same("ahci", "V100", "V10", "V1"), target: 2},
		},
		outcome: outcomeDeployed,
		drive: func(ctx context.Context, r *run) error {
			for pair := range slices.Chunk(r.machines, guestsAtOnce) {
				if err := r.atOnce(ctx, pair, r.deployAndJudgeDisks); err != nil {
					return err
				}
			}
			r.ended = outcomeDeployed
			return nil
		},
		judge: func(context.Context, *run) error { return nil },
	}
}

// deployAndJudgeDisks brings a machine as far as its deploy, looks at every disk and switches it off.
func (r *run) deployAndJudgeDisks(ctx context.Context, m *machine) error {
	if err := r.order(ctx, m, "deploy"); err != nil {
		return err
	}
	paused := false
	err := r.follow(ctx, m, following{paused: func(ctx context.Context, _ string) (bool, error) {
		paused = true
		r.judgeTarget(ctx, m)
		return true, m.rack.PowerOff(ctx)
	}})
	if err == nil && !paused {
		r.add(judge.Fail(m.name+": deployed", "machine is %s: %s", m.record.State, m.record.Cause()))
	}
	return err
}

// judgeTarget checks that the image is on the target, and that no byte of another disk changed.
func (r *run) judgeTarget(ctx context.Context, m *machine) {
	d := m.disk()
	prefix := fmt.Sprintf("%s: disk %d (%s): ", m.name, m.box.target, d.serial)
	for _, c := range judge.Deployed(d.path, r.image.Manifest, filepath.Join(r.image.Dir, "blobs")) {
		r.add(named(prefix, c))
	}
	r.add(named(prefix, judge.NoTrace(d.path, d.pattern)))
	for _, c := range m.untouched(ctx, m.box.target) {
		r.add(named(m.name+": ", c))
	}
}
