package scenario

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"firstlight/testbed/judge"
)

func undionlyScenario() Scenario {
	return Scenario{Name: "undionly", What: "a BIOS machine whose card's own iPXE is replaced by ours, over TFTP", Firmware: []string{BIOS},
		machines: []box{{saysFirmware: true}}, appliance: settings{replaceROM: true}}
}

func twoMachinesScenario() Scenario {
	const broken, whole, other = 0, 1, 1
	return Scenario{Name: "two-machines", What: "a UEFI and a BIOS machine at once, names crossed and one record with a disk of the other: it fails, and the other is not disturbed", Firmware: []string{UEFI},
		machines: []box{
			{name: "rack1-node2", firmware: UEFI, says: func(r *run) string { return r.machines[whole].disks[other].serial }},
			{name: "rack1-node1", firmware: BIOS, disks: []drive{{}, {size: smallDisk}}},
		},
		outcome: OutcomeFailed,
		drive: func(ctx context.Context, r *run) error {
			for _, m := range r.machines {
				if err := r.order(ctx, m, "wipe", "deploy"); err != nil {
					return err
				}
			}
			return r.atOnce(ctx, r.machines, func(ctx context.Context, m *machine) error {
				return r.follow(ctx, m, following{paused: func(_ context.Context, stage string) (bool, error) {
					r.judgePause(m, stage)
					return false, nil
				}})
			})
		},
		judge: func(ctx context.Context, r *run) error {
			bad, good := r.machines[broken], r.machines[whole]
			if err := bad.pause(ctx); err != nil {
				return err
			}
			cause := regexp.MustCompile(`(?s)` + good.disks[other].serial + `.*` + bad.disk().serial)
			for _, c := range append(judge.Failed(bad.record, "wipe", cause), bad.untouched(ctx)...) {
				r.add(named(bad.name+": ", c))
			}
			if err := r.judgeActive(ctx, good); err != nil {
				return err
			}
			d := good.disks[other]
			r.add(named(good.name+": the disk that the other record names: ", judge.Untouched(d.path, d.pattern)))
			return nil
		}}
}

func duplicateUUIDScenario() Scenario {
	const uuid = "3f1f6c2e-5a0b-4f6e-9d57-0d1c2b3a4f50"
	return Scenario{Name: "duplicate-uuid", What: "two machines with one UUID at once (INV-02): each keeps its own record, workflow and disk, both are flagged", Firmware: []string{UEFI},
		machines: []box{{firmware: UEFI, uuid: uuid}, {firmware: BIOS, uuid: uuid}}, outcome: outcomeDeployed,
		drive: func(ctx context.Context, r *run) error {
			if err := r.atOnce(ctx, r.machines, r.deployAndJudgeDisks); err != nil {
				return err
			}
			r.ended = outcomeDeployed
			return nil
		},
		judge: judgeTwins}
}

// judgeTwins checks that the two records are two machines, and that a person is told.
func judgeTwins(ctx context.Context, r *run) error {
	nodes := map[string]bool{}
	for _, m := range r.machines {
		if _, err := r.show(ctx, m); err != nil {
			return err
		}
		rec := m.record
		nodes[rec.NodeID] = true
		text := ""
		for _, a := range rec.Alarms {
			text += a.Text + "\n"
		}
		r.add(judge.Of(m.name+": alarm", regexp.MustCompile(`(?i)uuid.*`+r.other(m).name).MatchString(text), "alarms: %q", text))
		r.add(judge.Of(m.name+": its own MAC", slices.Equal(rec.MACs, []string{m.mac}) && rec.Hardware != nil && len(rec.Hardware.NICs) > 0 && rec.Hardware.NICs[0].MAC == m.mac,
			"record has %v (ours %s)", rec.MACs, m.mac))
		r.add(judge.Of(m.name+": one workflow of its own", rec.Workflows == 1 && rec.Failure == nil, "%d workflows, machine is %s", rec.Workflows, rec.State))
	}
	r.add(judge.Of("two machines", len(nodes) == 2, "%d node ids", len(nodes)))
	return nil
}

// other is the other one of two machines.
func (r *run) other(m *machine) *machine { return r.machines[1-m.index] }

// atOnce calls f for each machine, all at a time, and ends when all have.
func (r *run) atOnce(ctx context.Context, machines []*machine, f func(ctx context.Context, m *machine) error) error {
	errs := make(chan error, len(machines))
	for _, m := range machines {
		go func() {
			if err := f(ctx, m); err != nil {
				errs <- fmt.Errorf("%s: %w", m.name, err)
				return
			}
			errs <- nil
		}()
	}
	var all []error
	for range machines {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}
