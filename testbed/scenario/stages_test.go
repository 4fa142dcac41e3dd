package scenario

import (
	"testing"

	"firstlight/testbed/judge"
	"firstlight/testbed/qemu"
)

func TestCountersAgree(t *testing.T) {
	t.Parallel()
	const size = 1000
	for _, c := range []struct {
		holds         string
		written, read int64
		want          bool
	}{
		{oldData, 0, 0, true}, {oldData, 1, 0, false},
		{partlyWiped, 1, 0, true}, {partlyWiped, 0, 0, false}, {partlyWiped, size + 1, 0, false},
		{clean, size, size, true}, {clean, size, size - 1, false}, {clean, size - 1, size, false},
		{partlyWritten, size + 1, size, true}, {partlyWritten, size, size, false},
		{holdsImage, size + 1, size, true}, {holdsImage, size, size, false},
	} {
		s := qemu.BlockStat{WriteBytes: c.written, WriteOps: c.written, ReadBytes: c.read}
		if got := agrees(s, size, c.holds); got.OK != c.want {
			t.Errorf("%s after %d bytes written and %d read: got %v (%s), want %v", c.holds, c.written, c.read, got.OK, got.Detail, c.want)
		}
	}
}

// A stage counts as met when what makes it long has begun.
func TestInHand(t *testing.T) {
	t.Parallel()
	at := func(stage, state string, commands ...judge.Command) *judge.Record {
		return &judge.Record{Workflow: &judge.Workflow{Steps: []judge.Step{{Name: stage, State: state, Commands: commands}}}}
	}
	for name, c := range map[string]struct {
		rec   *judge.Record
		stage string
		want  bool
	}{
		"not yet":                {at("dhcp", "pending"), "dhcp", false},
		"runs":                   {at("dhcp", "running"), "dhcp", true},
		"another":                {at("dhcp", "running"), "tftp", false},
		"the site prepares":      {at("power-on", "running", judge.Command{Kind: "boot.prepareRamdisk", State: "running"}), "power-on", false},
		"the BMC is to be asked": {at("power-on", "running", judge.Command{Kind: "bmc.bootOverride", State: "pending"}), "power-on", false},
		"the BMC is asked":       {at("power-on", "running", judge.Command{Kind: "bmc.bootOverride", State: "running"}), "power-on", true},
		"no byte wiped":          {at("wipe", "running", judge.Command{Kind: "disk.wipe", State: "running"}), "wipe", false},
	} {
		if got := inHand(c.rec, c.stage); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}
