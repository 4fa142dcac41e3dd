package disktest

import (
	"bytes"
	"errors"
	"testing"

	"firstlight/ramdisk/internal/disk"
)

// Run is what every Device must pass. open returns a fresh exclusive handle to one and the same disk of at least 1 MiB, whose
// content the suite may destroy.
func Run(t *testing.T, open func(t *testing.T) disk.Device) {
	block := func(fill byte, n int) []byte {
		b := disk.Buffer(n)
		for i := range b {
			b[i] = fill
		}
		return b
	}
	t.Run("write, flush, read back", func(t *testing.T) {
		d := open(t)
		defer d.Close()
		if n, err := d.WriteAt(block(0xa5, 8192), 4096); n != 8192 || err != nil {
			t.Fatalf("WriteAt: got %d, %v, want 8192, nil", n, err)
		}
		if err := d.Flush(); err != nil {
			t.Fatalf("Flush: %v", err)
		}
		got := disk.Buffer(8192)
		if _, err := d.ReadAt(got, 4096); err != nil || !bytes.Equal(got, block(0xa5, 8192)) {
			t.Fatalf("ReadAt: what was written did not come back (%v)", err)
		}
	})
	t.Run("zero out", func(t *testing.T) {
		d := open(t)
		defer d.Close()
		z, ok := d.(disk.Zeroer)
		if !ok {
			t.Skip("the device has no ZeroOut")
		}
		if _, err := d.WriteAt(block(0x5a, 65536), 0); err != nil {
			t.Fatal(err)
		}
		if err := z.ZeroOut(4096, 8192); errors.Is(err, disk.ErrUnsupported) {
			t.Skipf("not supported here: %v", err)
		} else if err != nil {
			t.Fatal(err)
		}
		if err := d.Flush(); err != nil {
			t.Fatal(err)
		}
		got := disk.Buffer(65536)
		if _, err := d.ReadAt(got, 0); err != nil {
			t.Fatal(err)
		}
		want := block(0x5a, 65536)
		clear(want[4096:12288])
		if !bytes.Equal(got, want) {
			t.Fatal("zeroing changed another range than the one asked for")
		}
	})
	t.Run("identity is stable", func(t *testing.T) {
		d := open(t)
		defer d.Close()
		a, err := d.Identify()
		if err != nil {
			t.Fatal(err)
		}
		b, err := d.Identify()
		if err != nil || a.Size != b.Size || a.Serial != b.Serial || a.Sequence != b.Sequence || a.Size <= 0 {
			t.Fatalf("Identify twice: got %v then %v, %v", a, b, err)
		}
	})
	t.Run("past the end", func(t *testing.T) {
		d := open(t)
		defer d.Close()
		a, err := d.Identify()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.WriteAt(block(1, 4096), a.Size); err == nil {
			t.Fatal("a write past the end succeeded")
		}
		if _, err := d.ReadAt(disk.Buffer(4096), a.Size); err == nil {
			t.Fatal("a read past the end succeeded")
		}
	})
}
