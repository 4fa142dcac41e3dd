//go:build linux

package disk_test

import (
	"os"
	"path/filepath"
	"testing"

	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/disk/disktest"
	"firstlight/ramdisk/internal/disk/looptest"
)

// TestLinuxDevice runs the conformance suite of disktest on a real block device of the kernel.
func TestLinuxDevice(t *testing.T) {
	dev := looptest.Attach(t, 4<<20)
	name := filepath.Base(dev)
	disktest.Run(t, func(t *testing.T) disk.Device {
		d, err := disk.OpenName(name)
		if err != nil {
			t.Fatal(err)
		}
		return d
	})
	t.Run("exclusive", func(t *testing.T) {
		first, err := disk.OpenName(name)
		if err != nil {
			t.Fatal(err)
		}
		defer first.Close()
		if second, err := disk.OpenName(name); err == nil {
			second.Close()
			t.Error("a second exclusive handle was given out")
		}
		id, err := first.Identify()
		if err != nil {
			t.Fatal(err)
		}
		if id.Name != name || id.Size != 4<<20 || id.Sequence == 0 {
			t.Errorf("identity: got %+v, want %s of 4 MiB with a sequence number", id, name)
		}
	})
	t.Run("never a candidate", func(t *testing.T) {
		disks, err := disk.Linux{}.Scan()
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range disks {
			if d.Name == name && d.Excluded == "" {
				t.Errorf("%s is a candidate", name)
			}
		}
	})
	if _, err := disk.OpenName("../" + name); err == nil {
		t.Error("a path was taken for a name")
	}
	if _, err := os.Stat(dev); err != nil {
		t.Fatal(err)
	}
}
