package wipe

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/disk/disktest"
)

const size = 16<<20 + 512

func machine(ds ...*disktest.Disk) *disktest.Machine { return &disktest.Machine{Disks: ds} }

func wipeOne(t *testing.T, d *disktest.Disk, cmd Command) (DiskResult, error) {
	t.Helper()
	rs, err := Disks(context.Background(), machine(d), []disk.Selector{{Serial: d.Info.Serial}}, cmd)
	if len(rs) != 1 {
		t.Fatalf("got %d results (%v), want 1", len(rs), err)
	}
	if d.Open() != 0 {
		t.Errorf("%d handles left open", d.Open())
	}
	return rs[0], err
}

func isZero(b []byte) bool { return bytes.Equal(b, make([]byte, len(b))) }

func TestWipeCleansAndReadsBackEverything(t *testing.T) {
	d := disktest.New("FL-1", size)
	var last, total int64
	r, err := wipeOne(t, d, Command{Progress: func(p Progress) { last, total = p.Done, p.Total }})
	if err != nil || r.Outcome != Clean || r.Method != MethodZeroOut || r.Erased != size || r.Verified != size {
		t.Errorf("got %+v, %v, want clean with every byte erased and verified", r, err)
	}
	if !isZero(d.Data()) || last != total || total != 2*size {
		t.Errorf("zero %v, progress %d of %d", isZero(d.Data()), last, total)
	}
}

func TestWIPE06_DiscardIsNotErasure(t *testing.T) {
	for name, f := range map[string]disktest.Faults{
		"discard is a no-op":         {DiscardKeeps: true},
		"discard does half":          {DiscardHalf: true},
		"discard is refused":         {NoDiscard: true},
		"discard gives zeroes":       {},
		"no-op and no zeroing":       {DiscardKeeps: true, NoZeroOut: true},
		"no-op, and zeroing a lie":   {DiscardKeeps: true, ZeroOutKeeps: true},
		"half, and zeroing is a lie": {DiscardHalf: true, ZeroOutKeeps: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := disktest.New("FL-1", size).Spoil(f)
			r, err := wipeOne(t, d, Command{Discard: true})
			if err != nil || r.Outcome != Clean || r.Verified != size || !isZero(d.Data()) {
				t.Errorf("got %+v, %v, want clean by overwriting", r, err)
			}
			if d.Changed() < size {
				t.Errorf("only %d bytes were written", d.Changed())
			}
		})
	}
	t.Run("nothing works and everything says success", func(t *testing.T) {
		d := disktest.New("FL-1", size).Spoil(disktest.Faults{DiscardKeeps: true, ZeroOutKeeps: true, WriteKeeps: true})
		r, err := wipeOne(t, d, Command{Discard: true})
		if !errors.Is(err, ErrNotClean) || !errors.Is(r.Err, ErrNotErased) || r.Outcome != Failed || r.Verified != 0 {
			t.Errorf("got %+v, %v, want failed with ErrNotErased", r, err)
		}
	})
}

func TestWIPE07_ErrorsEndInFailedPerDisk(t *testing.T) {
	flush := disktest.New("FLUSH", size).Named("sda").Spoil(disktest.Faults{FlushErrorAfter: size / 2})
	short := disktest.New("SHORT", size).Named("sdb").Spoil(disktest.Faults{NoZeroOut: true, ShortWriteAt: 9 << 20})
	good := disktest.New("GOOD", size).Named("sdc")
	write := disktest.New("WRITE", size).Named("sdd").Spoil(disktest.Faults{NoZeroOut: true, WriteErrorFrom: 13 << 20})
	gone := disktest.New("GONE", size).Named("sde").Spoil(disktest.Faults{NoZeroOut: true, GoneAfter: 5 << 20})
	unread := disktest.New("UNREAD", size).Named("sdf").Spoil(disktest.Faults{ReadErrorFrom: 15 << 20})
	all := []*disktest.Disk{flush, short, good, write, gone, unread}
	var sel []disk.Selector
	for _, d := range all {
		sel = append(sel, disk.Selector{Serial: d.Info.Serial})
	}
	rs, err := Disks(context.Background(), machine(all...), sel, Command{})
	if !errors.Is(err, ErrNotClean) {
		t.Fatalf("got %v, want ErrNotClean", err)
	}
	for _, r := range rs {
		want := Failed
		if r.Disk.Serial == "GOOD" {
			want = Clean
		}
		if r.Outcome != want {
			t.Errorf("%s: got %s (%v), want %s", r.Disk.Serial, r.Outcome, r.Err, want)
		}
		if want == Failed && (!strings.Contains(err.Error(), r.Disk.Serial) || r.Verified == size) {
			t.Errorf("%s: error %q must name it; verified %d", r.Disk.Serial, err, r.Verified)
		}
	}
	if strings.Contains(err.Error(), "GOOD") || !isZero(good.Data()) {
		t.Errorf("the good disk must stay good: %v", err)
	}
	if r := rs[3]; r.NotWritten.End() != size || r.NotWritten.Len == 0 || r.Erased+r.NotWritten.Len != size {
		t.Errorf("WRITE: got erased %d, not written %+v, want the rest of the disk named", r.Erased, r.NotWritten)
	}
}

func TestWIPE09_AllOrNothingBeforeTheFirstByte(t *testing.T) {
	a, b := disktest.New("FL-A", size).Named("sda"), disktest.New("FL-B", size).Named("sdb")
	m := machine(a, b)
	for name, c := range map[string]struct {
		sel  []disk.Selector
		want error
	}{
		"second is missing":   {[]disk.Selector{{Serial: "FL-A"}, {Serial: "NOPE"}}, disk.ErrNotFound},
		"second differs":      {[]disk.Selector{{Serial: "FL-A"}, {Serial: "FL-B", Size: size - 512}}, disk.ErrDiffers},
		"no name":             {[]disk.Selector{{Serial: "FL-A"}, {Size: size}}, disk.ErrUnnamed},
		"the same disk twice": {[]disk.Selector{{Serial: "FL-A"}, {Serial: "FL-A"}}, nil},
		"none":                {nil, nil},
	} {
		rs, err := Disks(context.Background(), m, c.sel, Command{})
		if err == nil || (c.want != nil && !errors.Is(err, c.want)) || rs != nil {
			t.Errorf("%s: got %v, %v, want %v", name, rs, err, c.want)
		}
	}
	if a.Changed() != 0 || b.Changed() != 0 || a.Open() != 0 || b.Open() != 0 {
		t.Errorf("changed %d and %d bytes, want none", a.Changed(), b.Changed())
	}
}

func TestWIPE09_DiskExchangedWhileErasingIsNotClean(t *testing.T) {
	d := disktest.New("FL-1", size)
	r, err := wipeOne(t, d, Command{Progress: func(p Progress) {
		if p.Done > 0 {
			d.Exchange(func(i *disk.Disk) { i.Sequence = 1 << 40 })
		}
	}})
	if r.Outcome != Failed || !errors.Is(r.Err, disk.ErrDiffers) || err == nil {
		t.Errorf("got %+v, %v, want failed: the disk that was read back is another", r, err)
	}
}

func TestLedger(t *testing.T) {
	var l Ledger
	d := disktest.New("FL-1", size).Info
	if l.Take("wf", d) {
		t.Error("an unknown disk is clean")
	}
	l.Record("wf", d)
	other := d
	other.Sequence++
	if l.Take("wf", other) || l.Take("wf2", other) {
		t.Error("another device instance is clean")
	}
	l.Record("wf", d)
	if l.Take("wf2", d) {
		t.Error("another workflow relies on this one's wipe")
	}
	if l.Take("wf", d) {
		t.Error("a disk stayed clean after somebody took it to write")
	}
	l.Record("wf", d)
	if !l.Take("wf", d) || l.Take("wf", d) {
		t.Error("want clean once, then forgotten")
	}
}

// TestRealDevice erases a loop device through the kernel: exclusive, direct I/O, BLKZEROOUT, read back.
func TestRealDevice(t *testing.T) {
	sys := loopSystem(t, 24<<20)
	for _, force := range []bool{false, true} {
		sys.noZeroOut = force
		d, err := sys.Open(disk.Disk{Name: sys.name})
		if err != nil {
			t.Fatal(err)
		}
		pattern := disk.Buffer(1 << 20)
		for i := range pattern {
			pattern[i] = byte(i) | 1
		}
		for off := int64(0); off < 24<<20; off += 1 << 20 {
			if _, err := d.WriteAt(pattern, off); err != nil {
				t.Fatal(err)
			}
		}
		d.Close()
		rs, err := Disks(context.Background(), sys, []disk.Selector{{Serial: "LOOP-1", Size: 24 << 20}}, Command{})
		if err != nil || rs[0].Verified != 24<<20 {
			t.Fatalf("got %+v, %v, want clean", rs, err)
		}
		t.Logf("%s: %s", filepath.Base(sys.name), rs[0].Sentence())
	}
}
