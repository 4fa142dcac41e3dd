package disk_test

import (
	"strings"
	"testing"

	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/systest"
)

// TestScanOfARealKernel scans what a kernel showed of a machine with every kind of controller.
func TestScanOfARealKernel(t *testing.T) {
	sys, _ := systest.Load(t, "q35.txt")
	disks, err := disk.Scan(sys, nil)
	if err != nil {
		t.Fatal(err)
	}
	var can, cannot []string
	for _, d := range disks {
		if d.Excluded == "" {
			can = append(can, d.String())
		} else {
			cannot = append(cannot, d.String()+": "+d.Excluded)
		}
	}
	t.Logf("candidates:\n%s\nothers:\n%s", strings.Join(can, "\n"), strings.Join(cannot, "\n"))
	if d, err := disk.Select(disks, disk.Selector{Serial: "S1"}); err != nil || d.Serial != "S1" || len(d.Partitions) != 2 || d.Sequence == 0 || d.Transport != "virtio" {
		t.Errorf("S1: got %+v, %v, want the virtio disk with two partitions", d, err)
	}
	if d, err := disk.Select(disks, disk.Selector{Serial: "NV-4K", Namespace: 1}); err != nil || d.LogicalBlock != 4096 || d.Size != 8<<20 || d.Transport != "nvme" {
		t.Errorf("NV-4K: got %+v, %v, want 8 MiB in blocks of 4096", d, err)
	}
	_, err = disk.Select(disks, disk.Selector{Serial: "TWICE"})
	if err == nil || strings.Count(err.Error(), "serial TWICE") != 3 || !strings.Contains(err.Error(), "PCI 0000:00:1f.2 ata") {
		t.Errorf("TWICE: got %v, want both disks and their places", err)
	}
	if d, err := disk.Select(disks, disk.Selector{WWN: "5000c500a1b2c3d4"}); err != nil || d.Transport != "scsi" {
		t.Errorf("by WWN: got %v, %v, want the SCSI disk", d, err)
	}
	for serial, why := range map[string]string{"READONLY": "read-only"} {
		if _, err := disk.Select(disks, disk.Selector{Serial: serial}); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: got %v, want it refused as %s", serial, err, why)
		}
	}
}

// FuzzScan changes whole trees: whatever sysfs holds, a scan ends, and nothing without a size and a name is a candidate.
func FuzzScan(f *testing.F) {
	for _, name := range systest.Names(f) {
		f.Add(systest.Text(f, name))
	}
	f.Add([]byte("F sys/block/sda/size OAo=\nF sys/block/sda/dev ODow\nL sys/block/sdb sda\nD sys/block/vda"))
	f.Add([]byte("F sys/block/\x17/size OAo=\nF sys/block/vda/size OAo=\nF sys/block/vda/serial UzEA/w==\nF sys/block/vda/dev eA=="))
	f.Fuzz(func(t *testing.T, text []byte) {
		sys, _, err := systest.Parse(text)
		if err != nil {
			return
		}
		disks, err := disk.Scan(sys, nil)
		if err != nil {
			return
		}
		for _, d := range disks {
			if d.Excluded == "" && (d.Size <= 0 || (d.Serial == "" && d.WWN == "") || d.Transport == "usb") {
				t.Fatalf("%+v is a candidate", d)
			}
			for _, r := range d.String() {
				if r < 0x20 || r > 0x7e {
					t.Fatalf("%q is not plain text", d.String())
				}
			}
		}
		for _, d := range disk.Candidates(disks) {
			if got, err := disk.Select(disks, disk.Selector{Serial: d.Serial, WWN: d.WWN}); err == nil && got.Serial != d.Serial {
				t.Fatalf("select %q gave %q", d.Serial, got.Serial)
			}
		}
	})
}
