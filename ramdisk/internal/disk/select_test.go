package disk_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/disk/disktest"
)

// slot is one place for a disk in a rack: how each kind of controller shows a serial number, and where a technician finds it.
type slot struct {
	kind  string
	plug  func(s sysfs, n int, serial string)
	place string
}

var slots = []slot{
	{"virtio", func(s sysfs, n int, serial string) {
		s.add(fmt.Sprintf("vd%c", 'a'+n), fmt.Sprintf("pci0000:00/0000:00:0%d.0/virtio%d", n+3, n), 252, 16*n, "1048576\n", map[string]string{"serial": serial})
	}, "PCI 0000:00:0%d.0"},
	{"nvme", func(s sysfs, n int, serial string) {
		s.add(fmt.Sprintf("nvme%dn1", n), fmt.Sprintf("pci0000:00/0000:00:0%d.0/nvme/nvme%d", n+3, n), 259, n, "1048576\n",
			map[string]string{"device/serial": serial + "\n", "device/model": "SAME MODEL   \n", "nsid": "1\n"})
	}, "PCI 0000:00:0%d.0"},
	{"sata", func(s sysfs, n int, serial string) {
		s.add(fmt.Sprintf("sd%c", 'a'+n), fmt.Sprintf("pci0000:00/0000:00:1f.2/ata%d/host%d/target%d:0:0/%d:0:0:0", n+3, n, n, n), 8, 16*n, "1048576\n",
			map[string]string{"device/type": "0\n", "device/model": "SAME MODEL\n", "device/vpd_pg80": vpd80(serial)})
	}, "PCI 0000:00:1f.2 ata%d"},
}

// scanned plugs the serials in, in that order, and scans.
func (l slot) scanned(t *testing.T, serials ...string) []disk.Disk {
	t.Helper()
	s := sysfs{}
	for n, serial := range serials {
		l.plug(s, n, serial)
	}
	disks, err := disk.Scan(fstest.MapFS(s), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(disk.Candidates(disks)); got != len(serials) {
		t.Fatalf("%s: got %d candidates, want %d", l.kind, got, len(serials))
	}
	return disks
}

// TestWIPE09_OnlyTheNamedDisk is the wrong-disk scenario on every kind of controller: same model and size, serials of which one is
// the beginning of the other, padding, and both orders in which the kernel may find them.
func TestWIPE09_OnlyTheNamedDisk(t *testing.T) {
	for _, l := range slots {
		for _, order := range [][]string{{"S1", "S10"}, {"S10", "S1"}, {"S1", "S10", "S100"}, {"S100", "S10", "S1"}, {"S1  ", "  S10"}, {" S10 ", " S1"}, {"s1", "S1", "S 1"}} {
			disks := l.scanned(t, order...)
			for _, named := range []string{"S1", " S1", "S1   "} {
				d, err := disk.Select(disks, disk.Selector{Serial: named})
				if err != nil || d.Serial != "S1" {
					t.Errorf("%s %q, select %q: got %v, %v, want S1 alone", l.kind, order, named, d, err)
				}
			}
			if d, err := disk.Select(disks, disk.Selector{Serial: "S10"}); slices.Contains(order, "s1") != errors.Is(err, disk.ErrNotFound) || (err == nil && d.Serial != "S10") {
				t.Errorf("%s %q, select S10: got %v, %v", l.kind, order, d, err)
			}
			// Nothing but padding is forgiven.
			for _, no := range []string{"S", "S1\x00", "S01", "1", "S1O", "S1*"} {
				if d, err := disk.Select(disks, disk.Selector{Serial: no}); !errors.Is(err, disk.ErrNotFound) {
					t.Errorf("%s %q, select %q: got %v, %v, want ErrNotFound", l.kind, order, no, d, err)
				}
			}
		}
	}
}

// TestWIPE09_OnlyTheNamedDiskIsWritten claims on twins, in both orders: the other disk is not even opened.
func TestWIPE09_OnlyTheNamedDiskIsWritten(t *testing.T) {
	for _, order := range [][2]string{{"S1", "S10"}, {"S10", "S1"}} {
		a, b := disktest.New(order[0], 1<<20).Named("sda"), disktest.New(order[1], 1<<20).Named("sdb")
		var opened []string
		m := &disktest.Machine{Disks: []*disktest.Disk{a, b}, BeforeOpen: func(name string) { opened = append(opened, name) }}
		c, err := disk.Claim(m, disk.Selector{Serial: "S1  ", Size: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.WriteAt(disk.Buffer(4096), 0); err != nil {
			t.Fatal(err)
		}
		c.Close()
		for _, d := range []*disktest.Disk{a, b} {
			if want := map[string]int64{"S1": 4096, "S10": 0}[d.Info.Serial]; d.Changed() != want {
				t.Errorf("order %q: %s: %d bytes changed, want %d", order, d.Info.Serial, d.Changed(), want)
			}
		}
		if len(opened) != 1 {
			t.Errorf("order %q: opened %q, want the named disk alone", order, opened)
		}
	}
}

// TestINV04_TwoDisksWithOneSerialAreListed is the ambiguous-disk scenario: refused, with what a technician needs to find them.
func TestINV04_TwoDisksWithOneSerialAreListed(t *testing.T) {
	for _, l := range slots {
		disks := l.scanned(t, "TWICE", "OTHER", "TWICE  ")
		_, err := disk.Select(disks, disk.Selector{Serial: "TWICE", Size: 512 << 20})
		if !errors.Is(err, disk.ErrAmbiguous) {
			t.Fatalf("%s: got %v, want ErrAmbiguous", l.kind, err)
		}
		for _, want := range []string{"serial TWICE", "512 MiB", fmt.Sprintf(l.place, 3), fmt.Sprintf(l.place, 5)} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want it to say %q", l.kind, err, want)
			}
		}
		if strings.Contains(err.Error(), "OTHER") {
			t.Errorf("%s: got %v, want only the disks that fit", l.kind, err)
		}
	}
}

func TestINV04_AmbiguousDiskIsNotOpened(t *testing.T) {
	a, b := disktest.New("TWICE", 1<<20).Named("sda").At("PCI 0000:00:03.0"), disktest.New("TWICE", 1<<20).Named("sdb").At("PCI 0000:00:04.0")
	m := &disktest.Machine{Disks: []*disktest.Disk{a, b}, BeforeOpen: func(name string) { t.Errorf("%s was opened", name) }}
	_, err := disk.Claim(m, disk.Selector{Serial: "TWICE"})
	if !errors.Is(err, disk.ErrAmbiguous) || !strings.Contains(err.Error(), "PCI 0000:00:03.0") || !strings.Contains(err.Error(), "PCI 0000:00:04.0") {
		t.Errorf("got %v, want both places", err)
	}
}

func TestAddress(t *testing.T) {
	s := sysfs{}
	s.add("sda", sasBus, 8, 0, "8\n", nil)
	s.add("sdb", usbBus, 8, 16, "8\n", nil)
	s.add("vda", "pci0000:00/0000:00:1c.0/0000:01:00.0/virtio0", 252, 0, "8\n", nil)
	s.add("nvme0n1", "virtual/nvme-subsystem/nvme-subsys0", 259, 0, "8\n", map[string]string{"device/address": "0000:3b:00.0\n"})
	s.add("loop0", "virtual", 7, 0, "8\n", nil)
	disks, err := disk.Scan(fstest.MapFS(s), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"sda": "PCI 0000:00:05.0 0:0:0:0", "sdb": "PCI 0000:00:14.0 1-1 6:0:0:0", "vda": "PCI 0000:01:00.0", "nvme0n1": "PCI 0000:3b:00.0", "loop0": ""}
	for _, d := range disks {
		if d.Address != want[d.Name] {
			t.Errorf("%s: got %q, want %q", d.Name, d.Address, want[d.Name])
		}
	}
}
