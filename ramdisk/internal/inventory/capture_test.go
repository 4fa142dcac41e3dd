package inventory

import (
	"reflect"
	"testing"

	"firstlight/ramdisk/internal/systest"
)

// TestReadsOfARealKernel reads what a kernel showed of a machine whose firmware was never filled in.
func TestReadsOfARealKernel(t *testing.T) {
	sys, proc := systest.Load(t, "q35.txt")
	want := Claims{Manufacturer: "QEMU", Product: "Rack Server", MACs: []string{"52:54:00:aa:00:01", "52:54:00:aa:00:02"}}
	if got := ReadClaims(sys, proc); !reflect.DeepEqual(got, want) {
		t.Errorf("claims: got %+v, want %+v", got, want)
	}
	s := ReadSystem(sys, proc)
	if s.Serial != "To Be Filled By O.E.M." || s.UUID != "03000200-0400-0500-0006-000700080009" || s.FirmwareMode != "bios" || s.KernelRelease == "" {
		t.Errorf("system: got %+v, want it raw", s)
	}
	if c := ReadCPU(proc); c.Threads != 1 || c.Cores != 1 || c.Sockets != 1 || c.Model == "" {
		t.Errorf("cpu: got %+v", c)
	}
	if m := ReadMemory(proc); m < 256<<20 || m > 384<<20 {
		t.Errorf("memory: got %d", m)
	}
	drivers := map[string]bool{}
	for _, n := range ReadNICs(sys) {
		drivers[n.Driver] = true
	}
	if !drivers["virtio_net"] || !drivers["e1000e"] {
		t.Errorf("cards: got drivers %v", drivers)
	}
	if BootID(proc) == "" || GPUs(sys) != 0 {
		t.Errorf("boot id %q, %d GPUs", BootID(proc), GPUs(sys))
	}
}

// FuzzRead changes whole trees of /sys and /proc.
func FuzzRead(f *testing.F) {
	for _, name := range systest.Names(f) {
		f.Add(systest.Text(f, name))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		sys, proc, err := systest.Parse(text)
		if err != nil {
			return
		}
		c, s := ReadClaims(sys, proc), ReadSystem(sys, proc)
		for _, r := range c.Serial + c.UUID + c.Manufacturer + c.Product + s.FirmwareVendor + s.KernelRelease + BootID(proc) + ReadCPU(proc).Model {
			if r < 0x20 || r > 0x7e {
				t.Fatalf("%+v %+v is not plain text", c, s)
			}
		}
		if Placeholder(c.Serial) && c.Serial != "" || len(c.MACs) > maxNICs || ReadMemory(proc) < 0 || GPUs(sys) < 0 {
			t.Fatalf("claims %+v", c)
		}
	})
}
