package gpt

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"firstlight/ramdisk/internal/gpt/gpttest"
)

// memory is a disk.
type memory []byte

func (m memory) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off+int64(len(p)) > int64(len(m)) {
		return 0, errors.New("outside")
	}
	return copy(p, m[off:]), nil
}

func (m memory) apply(ws []Write) {
	for _, w := range ws {
		copy(m[w.Off:], w.Data)
	}
}

func image(blocks, block, count, each int64) memory {
	var ps []gpttest.Partition
	for i := range 3 {
		p := gpttest.Partition{Type: strings.Repeat("0", 7) + string(rune('1'+i)) + "-0000-0000-0000-000000000000", Name: "part", First: int64(40 + i*8), Last: int64(47 + i*8)}
		if i == 2 {
			p.Type = TypeESP
		}
		ps = append(ps, p)
	}
	return memory(gpttest.Image(blocks, block, count, each, ps))
}

func TestDEP05_SecondCopyMovesToTheEnd(t *testing.T) {
	for _, c := range []struct{ block, count, each int64 }{{512, 128, 128}, {512, 128, 256}, {4096, 128, 128}} {
		img := image(200, c.block, c.count, c.each)
		rand.Read(img[:446]) // boot code for BIOS machines and the disk's signature
		disk := make(memory, 1000*c.block)
		copy(disk, img)
		before, err := Read(disk, int64(len(img)), int(c.block))
		if err != nil {
			t.Fatal(err)
		}
		writes, err := before.Fit(disk, int64(len(disk)))
		if err != nil || len(writes) != 4 {
			t.Fatalf("%+v: got %d writes, %v", c, len(writes), err)
		}
		disk.apply(writes)
		after, err := Read(disk, int64(len(disk)), int(c.block))
		if err != nil || after.Recovered {
			t.Fatalf("%+v: %v, recovered %v", c, err, after != nil && after.Recovered)
		}
		if !bytes.Equal(before.entries, after.entries) || len(after.Partitions()) != 3 || after.Partitions()[2].Type != TypeESP || after.Partitions()[0].Name != "part" {
			t.Errorf("%+v: entries changed: %+v", c, after.Partitions())
		}
		if after.u64(32) != 999 || after.u64(48) != uint64(999-1-int64(len(after.entries))/c.block) || !bytes.Equal(before.header[56:72], after.header[56:72]) {
			t.Errorf("%+v: alternate block %d, last usable %d", c, after.u64(32), after.u64(48))
		}
		if got := binary.LittleEndian.Uint32(disk[446+12:]); got != 999 {
			t.Errorf("%+v: protective MBR covers %d blocks, want 999", c, got)
		}
		if !bytes.Equal(disk[:446], img[:446]) || !bytes.Equal(disk[510:c.block], img[510:c.block]) {
			t.Errorf("%+v: block 0 changed beside the partition entries: a BIOS finds other boot code", c)
		}
		copy(disk[c.block:], make([]byte, c.block)) // the first copy is lost: the moved one must do
		second, err := Read(disk, int64(len(disk)), int(c.block))
		if err != nil || !second.Recovered || !bytes.Equal(second.entries, before.entries) {
			t.Errorf("%+v: the moved copy is not valid: %v", c, err)
		}
		if again, err := after.Fit(disk, int64(len(disk))); err != nil || again == nil {
			t.Errorf("%+v: a lost first copy must be written again: %v, %v", c, again, err)
		}
	}
}

func TestDEP05_OneRunSufficesAndExactFitIsLeftAlone(t *testing.T) {
	img := image(200, 512, 128, 128)
	table, err := Read(img, int64(len(img)), 512)
	if err != nil {
		t.Fatal(err)
	}
	if ws, err := table.Fit(img, int64(len(img))); err != nil || ws != nil {
		t.Errorf("exact fit: got %d writes, %v, want none", len(ws), err)
	}
}

func TestDEP05_DamagedFirstCopyIsRecoveredOrAnError(t *testing.T) {
	img := image(200, 512, 128, 128)
	disk := make(memory, 1000*512)
	img[512+60] ^= 1
	copy(disk, img)
	table, err := Read(disk, int64(len(img)), 512)
	if err != nil || !table.Recovered {
		t.Fatalf("got %v, want the second copy", err)
	}
	ws, err := table.Fit(disk, int64(len(disk)))
	if err != nil {
		t.Fatal(err)
	}
	disk.apply(ws)
	if fixed, err := Read(disk, int64(len(disk)), 512); err != nil || fixed.Recovered || len(fixed.Partitions()) != 3 {
		t.Errorf("after recovery: %v", err)
	}
	img[199*512+60] ^= 1
	if _, err := Read(img, int64(len(img)), 512); !errors.Is(err, ErrNoTable) {
		t.Errorf("both damaged: got %v, want ErrNoTable", err)
	}
}

func TestDEP04_HybridMBRStaysAsItIs(t *testing.T) {
	img := image(200, 512, 128, 128)
	copy(img, "boot code")
	img[446+16+4] = 0x07 // a second entry, of another type
	binary.LittleEndian.PutUint32(img[446+12:], 39)
	disk := make(memory, 1000*512)
	copy(disk, img)
	table, err := Read(disk, int64(len(img)), 512)
	if err != nil {
		t.Fatal(err)
	}
	writes, err := table.Fit(disk, int64(len(disk)))
	if err != nil {
		t.Fatal(err)
	}
	disk.apply(writes)
	if !bytes.Equal(disk[:512], img[:512]) {
		t.Error("the hybrid MBR was changed")
	}
	if after, err := Read(disk, int64(len(disk)), 512); err != nil || after.u64(32) != 999 {
		t.Errorf("the second copy is not at the disk's end: %v", err)
	}
}

func TestTooSmallDisk(t *testing.T) {
	img := image(200, 512, 128, 128)
	table, err := Read(img, int64(len(img)), 512)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Fit(img, 80*512); err == nil {
		t.Error("a disk that ends before its partitions was accepted")
	}
}

func FuzzRead(f *testing.F) {
	small := func(block, count, each int64) []byte {
		return gpttest.Image(16, block, count, each, []gpttest.Partition{{Type: TypeESP, Name: "esp", First: 4, Last: 5}, {Type: TypeESP, Name: "two", First: 6, Last: 6}})
	}
	f.Add(small(512, 4, 128), int64(200*512), false)
	f.Add(small(512, 4, 256), int64(1<<30), false)
	f.Add(small(512, 2, 512)[:3*512], int64(16*512), false)
	f.Add(small(4096, 32, 128), int64(1<<30), true)
	f.Add(small(4096, 32, 128), int64(1<<30), false)
	f.Fuzz(func(t *testing.T, b []byte, size int64, big bool) {
		if len(b) > 1<<20 {
			return
		}
		block := 512
		if big {
			block = 4096
		}
		ReadFirst(memory(b), int64(len(b)), block)
		table, err := Read(memory(b), int64(len(b)), block)
		if err != nil {
			return
		}
		table.DiskGUID()
		for _, p := range table.Partitions() {
			if p.Start < 0 || p.Size <= 0 || p.Number < 1 {
				t.Fatalf("partition %+v", p)
			}
		}
		if size > 0 && size < 1<<40 {
			table.Fit(memory(b), size)
		}
	})
}
