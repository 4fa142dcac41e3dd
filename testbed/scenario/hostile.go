package scenario

import (
	"context"
	"os"
	"path/filepath"

	"firstlight/testbed/hostile"
)

// outcomeUnharmed is how a machine ends that refused everything.
const outcomeUnharmed = "unharmed"

// hostileScenario puts a machine before a gateway in an attacker's hands. The appliance takes no part: the machine is booted
// straight from the kernel, with overlays that name that gateway.
func hostileScenario() Scenario {
	return Scenario{Name: "hostile-gateway", What: "a gateway withholds, replays, reorders, swaps, tampers and signs with others' keys: nothing is written, each refusal names its check",
		Core: true, Firmware: []string{BIOS}, machines: []box{{disks: []drive{{size: 1 << 20}}}}, outcome: outcomeUnharmed, drive: meetHostile,
		judge: func(context.Context, *run) error { return nil }}
}

func meetHostile(ctx context.Context, r *run) error {
	dir := filepath.Join(r.dir, "victim")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	r.ended = outcomeUnharmed
	return hostile.Run(ctx, hostile.Config{Dir: dir, Lab: r.lab, RAMDisk: r.ramdisk, Port: gatewayPort, Check: r.add, Say: r.out.say, Log: r.log})
}
