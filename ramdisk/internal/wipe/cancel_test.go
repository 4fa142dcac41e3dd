package wipe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/disk/disktest"
)

var errOperator = errors.New("cancelled: by the operator")

// TestWIPE07_FourDisksFourFates is the case as it was seen: an error at a flush, a short write, a cancel in the middle, and one disk
// that completes and stays clean.
func TestWIPE07_FourDisksFourFates(t *testing.T) {
	flush := disktest.New("FLUSH", size).Named("sda").Spoil(disktest.Faults{FlushErrorAfter: size / 2})
	short := disktest.New("SHORT", size).Named("sdb").Spoil(disktest.Faults{NoZeroOut: true, ShortWriteAt: 9 << 20})
	held := disktest.New("HELD", size).Named("sdc").Spoil(disktest.Faults{NoZeroOut: true})
	good := disktest.New("GOOD", size).Named("sdd")
	hold := held.HoldAt(6 << 20)
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	var ledger Ledger
	ended := make(chan DiskResult, 4)
	var sel []disk.Selector
	for _, s := range []string{"FLUSH", "SHORT", "HELD", "GOOD"} {
		sel = append(sel, disk.Selector{Serial: s})
	}
	go func() {
		<-hold.Reached
		for range 3 {
			<-ended
		}
		cancel(errOperator)
		hold.Release()
	}()
	rs, err := Disks(ctx, machine(flush, short, held, good), sel, Command{Discard: true, Ledger: &ledger, Workflow: "wf", Ended: func(r DiskResult) { ended <- r }})
	if !errors.Is(err, ErrNotClean) || !errors.Is(err, errOperator) {
		t.Fatalf("got %v, want ErrNotClean and the operator's reason", err)
	}
	for i, want := range []string{Failed, Failed, Cancelled, Clean} {
		if rs[i].Outcome != want {
			t.Errorf("%s: got %s (%v), want %s", rs[i].Disk.Serial, rs[i].Outcome, rs[i].Err, want)
		}
		if clean := ledger.Take("wf", rs[i].Disk); clean != (want == Clean) {
			t.Errorf("%s: the ledger says clean %v", rs[i].Disk.Serial, clean)
		}
	}
	// The held write was of bytes 4 MiB to 8 MiB; it was done when the cancel came.
	h := rs[2]
	if h.Erased != 8<<20 || h.NotWritten != (Range{8 << 20, size - 8<<20}) || h.Verified != 0 || !h.Touched {
		t.Errorf("HELD: got %d bytes erased, %+v not written, want 8 MiB and the rest", h.Erased, h.NotWritten)
	}
	data := held.Data()
	if !isZero(data[:8<<20]) || !bytes.HasPrefix(data[8<<20:], []byte("old data")) {
		t.Error("HELD: what is said to be erased is not, or what is said to be left is not as it was")
	}
	if want := fmt.Sprintf("%d bytes erased, bytes %d to %d not", 8<<20, 8<<20, size-1); !strings.Contains(h.Sentence(), want) || !strings.Contains(h.Sentence(), errOperator.Error()) {
		t.Errorf("HELD: got %q, want %q and the reason", h.Sentence(), want)
	}
	if !isZero(good.Data()) || strings.Contains(err.Error(), "GOOD") {
		t.Errorf("GOOD is not good any more: %v", err)
	}
}

func TestWIPE07_CancelBeforeTheFirstWriteChangesNothing(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errOperator)
	d := disktest.New("FL-1", size)
	rs, err := Disks(ctx, machine(d), []disk.Selector{{Serial: "FL-1"}}, Command{Discard: true})
	if rs != nil || !errors.Is(err, errOperator) || !strings.Contains(err.Error(), "nothing was written") || d.Changed() != 0 {
		t.Errorf("got %v, %v, %d bytes changed, want nothing written, and said", rs, err, d.Changed())
	}
	// A cancel between the choice of the disks and the first write.
	ctx, cancel = context.WithCancelCause(context.Background())
	m := machine(d)
	m.BeforeOpen = func(string) { cancel(errOperator) }
	rs, err = Disks(ctx, m, []disk.Selector{{Serial: "FL-1"}}, Command{Discard: true})
	if len(rs) != 1 || rs[0].Outcome != Cancelled || rs[0].Touched || d.Changed() != 0 || d.Discards() != 0 {
		t.Fatalf("got %+v, %d bytes changed, want cancelled and untouched", rs, d.Changed())
	}
	if !strings.Contains(err.Error(), "nothing was written") || !strings.Contains(rs[0].Sentence(), "nothing was written to it") {
		t.Errorf("got %v, want that nothing was written", err)
	}
}

func TestWIPE07_CancelWhileReadingBackIsNotClean(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	d := disktest.New("FL-1", size)
	rs, err := Disks(ctx, machine(d), []disk.Selector{{Serial: "FL-1"}}, Command{Progress: func(p Progress) {
		if p.Done > size {
			cancel(errOperator)
		}
	}})
	if !errors.Is(err, ErrNotClean) || rs[0].Outcome != Cancelled || rs[0].Erased != size || rs[0].NotWritten.Len != 0 {
		t.Fatalf("got %+v, %v, want cancelled with everything erased", rs, err)
	}
	if !strings.Contains(rs[0].Sentence(), "does not count as clean") {
		t.Errorf("got %q, want that it does not count as clean", rs[0].Sentence())
	}
}

func TestWIPE07_AFlushThatFailsAtTheCancelIsAFailure(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	d := disktest.New("FL-1", size).Spoil(disktest.Faults{NoZeroOut: true, FlushErrorAfter: 1})
	hold := d.HoldAt(6 << 20)
	go func() { <-hold.Reached; cancel(errOperator); hold.Release() }()
	rs, _ := Disks(ctx, machine(d), []disk.Selector{{Serial: "FL-1"}}, Command{})
	if rs[0].Outcome != Failed || !errors.Is(rs[0].Err, disktest.ErrIO) || rs[0].Erased != 0 || rs[0].NotWritten.Len != size {
		t.Errorf("got %+v, want failed with nothing counted as erased", rs[0])
	}
}

func TestWIPE07_AWipeThatBeginsForgetsThatTheDiskWasClean(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	d := disktest.New("FL-1", size)
	var ledger Ledger
	ledger.Record("wf", d.Info)
	Disks(ctx, machine(d), []disk.Selector{{Serial: "FL-1"}}, Command{Ledger: &ledger, Workflow: "wf", Progress: func(p Progress) {
		if p.Done > 0 {
			cancel(errOperator)
		}
	}})
	if ledger.Take("wf", d.Info) {
		t.Error("a disk whose second wipe was cancelled still counts as clean")
	}
}

func TestProgressNamesEachDisk(t *testing.T) {
	a, b := disktest.New("FL-A", size).Named("sda"), disktest.New("FL-B", size).Named("sdb").Spoil(disktest.Faults{ReadErrorFrom: 9 << 20})
	var lines []string
	Disks(context.Background(), machine(a, b), []disk.Selector{{Serial: "FL-A"}, {Serial: "FL-B"}}, Command{Progress: func(p Progress) {
		lines = append(lines, p.String())
		if p.Total != 4*size || p.Done > p.Total {
			t.Errorf("progress: %d of %d", p.Done, p.Total)
		}
	}})
	all := strings.Join(lines, "\n")
	for _, want := range []string{"FL-A erasing 100 %", "FL-A reading back 24 %", "FL-A clean", "FL-B reading back", "FL-B failed"} {
		if !strings.Contains(all, want) {
			t.Errorf("progress never says %q:\n%s", want, all)
		}
	}
}

func TestProgressOfManyDisksIsBounded(t *testing.T) {
	p := Progress{}
	for i := range 20 {
		d := DiskProgress{Disk: disk.Disk{Serial: fmt.Sprintf("S%d", i), Size: 100}, Outcome: Clean}
		if i == 19 {
			d.Outcome, d.Done, d.Begun = "", 150, true
		}
		p.Disks = append(p.Disks, d)
	}
	if got, want := p.String(), "S19 reading back 50 %, S0 clean, S1 clean, S2 clean, S3 clean, S4 clean, S5 clean, S6 clean, and 12 more"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
