package scenario

import (
	"slices"
	"testing"

	"firstlight/testbed/netlab"
)

func TestScenariosAreWhole(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, s := range All() {
		if s.Name == "" || s.What == "" || len(s.Firmware) == 0 || seen[s.Name] {
			t.Errorf("scenario %q: lacks a part or comes twice", s.Name)
		}
		seen[s.Name] = true
		if n := len(s.boxes()); n > netlab.MaxMachines || s.Guests() > n || s.Guests() > guestsAtOnce {
			t.Errorf("scenario %s: %d machines, %d guests at a time", s.Name, n, s.Guests())
		}
		for i, b := range s.boxes() {
			if b.target < 0 || b.target > 0 && b.target >= len(b.disks) || b.firmware != "" && !slices.Contains([]string{UEFI, BIOS}, b.firmware) {
				t.Errorf("scenario %s: box %d has target %d of %d disks, firmware %q", s.Name, i, b.target, len(b.disks), b.firmware)
			}
		}
		if s.outcome != "" && (s.drive == nil || s.judge == nil) {
			t.Errorf("scenario %s ends %s without a drive or judge of its own", s.Name, s.outcome)
		}
		if len(s.Breaks) > 0 && s.Name != Provision {
			t.Errorf("scenario %s takes breaks", s.Name)
		}
	}
}

func TestDeclareNamesMachines(t *testing.T) {
	t.Parallel()
	r := &run{Options: Options{Firmware: BIOS}, out: newProgress(t.Output())}
	r.declare([]box{{}, {name: "left", firmware: UEFI, uuid: "u"}})
	a, b := r.machines[0], r.machines[1]
	if r.machine != a || a.name != "rack1-node1" || a.box.firmware != BIOS || a.uuid == "" || len(a.box.disks) != 1 {
		t.Errorf("first machine %+v, want rack1-node1 with bios, a UUID and a disk, and the run's own", a.box)
	}
	if b.name != "left" || b.box.firmware != UEFI || b.uuid != "u" || b.index != 1 {
		t.Errorf("second machine %+v, want what the box says", b.box)
	}
}
