// Package wipe erases whole disks and proves it: a disk is clean only if every byte of it was read back, past the page cache, and
// found erased. Nothing that a device answers counts as proof, a discard least of all.
//
// It is for ramdisk's disk.wipe and, for the ranges that an image leaves out, its deploy. It chooses no disk: package disk does. It
// writes zeroes; it does no ATA or NVMe sanitize yet.
package wipe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"firstlight/ramdisk/internal/disk"
)

// Chunk is the unit of writing, flushing and reading back, in bytes.
const Chunk = 4 << 20

// ZeroOutChunk is the unit in which the kernel is asked to zero: small enough to tell progress and to stop.
const ZeroOutChunk = 64 << 20

// flushEvery is how many bytes may be written before a flush: a medium that fails must say so near the place (WIPE-07).
const flushEvery = 64 << 20

// Methods by which a disk became clean.
const (
	MethodZeroOut          = "zeroout"
	MethodOverwrite        = "overwrite"
	MethodDiscardOverwrite = "discard+overwrite"
)

// Outcomes. Only Clean is clean.
const (
	Clean     = "clean"
	Failed    = "failed"
	Cancelled = "cancelled"
)

// ErrNotErased: a byte that was read back is not zero although the device took every write.
var ErrNotErased = errors.New("old data was read back after erasing")

// ErrStopped: the erase ended between two actions because it was told to.
var ErrStopped = errors.New("stopped")

// Target is a disk that may be erased; disk.Claimed is one.
type Target interface {
	io.ReaderAt
	io.WriterAt
	ZeroOut(off, n int64) error
	Discard(off, n int64) error
	Flush() error
	// Check says whether the open handle still is the disk of the plan.
	Check() error
}

// Range is a stretch of a disk in bytes.
type Range struct{ Off, Len int64 }

// End is the first byte after the range.
func (r Range) End() int64 { return r.Off + r.Len }

// Result is what became of one disk.
type Result struct {
	Method string
	// Erased counts bytes that the device took and flushed; Verified those read back as zero.
	Erased, Verified int64
	Outcome          string
	Err              error
	// NotWritten is what is not known to be erased: as it was, or in part; empty for a disk that took every write.
	NotWritten Range
	// Note holds what went wrong without mattering, such as a discard that the device refused.
	Note           string
	Started, Ended time.Time
}

// Options of an erase.
type Options struct {
	// Size is the disk's size in bytes.
	Size int64
	// Discard tells the drive first that nothing is needed, where it can: an addition, never a proof.
	Discard bool
	// Progress is called with bytes done out of twice Size (writing, then reading back); nil for nobody.
	Progress func(done, total int64)
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Disk erases a whole disk. It never panics on a failing medium and always returns what was done. When ctx ends it stops between
// two actions, flushes, and says how far it came.
func Disk(ctx context.Context, t Target, o Options) Result {
	now := o.Now
	if now == nil {
		now = time.Now
	}
	if o.Progress == nil {
		o.Progress = func(int64, int64) {}
	}
	r := Result{Started: now(), Method: MethodZeroOut}
	r.Err = run(ctx, t, o, &r)
	r.Ended = now()
	switch {
	case r.Err == nil:
		r.Outcome = Clean
	case errors.Is(r.Err, ErrStopped):
		r.Outcome = Cancelled
	default:
		r.Outcome = Failed
	}
	return r
}

func run(ctx context.Context, t Target, o Options, r *Result) error {
	whole := Range{0, o.Size}
	if o.Size <= 0 {
		return errors.New("erase: the disk has no size")
	}
	r.NotWritten = whole
	wrote := func(done int64) {
		r.Erased, r.NotWritten = done, Range{done, o.Size - done}
		o.Progress(done, 2*o.Size)
	}
	z := &zeroing{t: t, discard: o.Discard, method: MethodZeroOut}
	err := z.run(ctx, whole, wrote)
	r.Method, r.Note = z.method, z.note
	if z.discarded {
		r.Method = MethodDiscardOverwrite
	}
	if err != nil {
		return err
	}
	verified := func(done int64) { r.Verified = done; o.Progress(o.Size+done, 2*o.Size) }
	err = Verify(ctx, t, whole, verified)
	if errors.Is(err, ErrNotErased) && z.method == MethodZeroOut {
		// The device said that it zeroed and did not: write the zeroes, then read everything again.
		r.Note, r.Verified = join(r.Note, "zeroing by the device left old data; overwritten"), 0
		if r.Method == MethodZeroOut {
			r.Method = MethodOverwrite
		}
		r.NotWritten = whole
		z = &zeroing{t: t, method: MethodOverwrite}
		if err = z.run(ctx, whole, wrote); err != nil {
			return err
		}
		err = Verify(ctx, t, whole, verified)
	}
	if err != nil {
		return err
	}
	if r.Verified != o.Size {
		return fmt.Errorf("read back: %d of %d bytes", r.Verified, o.Size)
	}
	return t.Check()
}

// Zero erases a range by the device's own zeroing where it has one, else by writing, and flushes. done counts bytes of the range
// that are flushed. It proves nothing: Verify does.
func Zero(ctx context.Context, t Target, rg Range, done func(int64)) error {
	return (&zeroing{t: t, method: MethodZeroOut}).run(ctx, rg, done)
}

// zeroing goes over a range once.
type zeroing struct {
	t Target
	// method is what is done now: ZeroOut until the device says that it cannot.
	method string
	// discard is whether each stretch is discarded before it is zeroed; discarded, whether one was; note, why none is any more.
	// Discard and zeroing go together stretch by stretch, so that what was not reached is as it was.
	discard, discarded bool
	note               string

	zeroed  bool
	zero    []byte
	flushed int64
}

func (z *zeroing) run(ctx context.Context, rg Range, done func(int64)) error {
	pending := int64(0)
	for off := rg.Off; off < rg.End(); {
		if err := stopped(ctx, "erase", off); err != nil {
			if err := z.flush(off, &pending, done); err != nil {
				return err
			}
			return err
		}
		n, err := z.step(off, rg.End())
		if err != nil {
			// What was taken before counts, if the device can still make it durable; the first error is the one to tell.
			z.flush(off, &pending, done)
			return fmt.Errorf("erase at byte %d: %w", off, err)
		}
		if off, pending = off+n, pending+n; pending >= flushEvery || off == rg.End() {
			if err := z.flush(off, &pending, done); err != nil {
				return err
			}
		}
	}
	return nil
}

func (z *zeroing) flush(off int64, pending *int64, done func(int64)) error {
	if *pending == 0 {
		return nil
	}
	if err := flush(z.t, off); err != nil {
		return err
	}
	z.flushed, *pending = z.flushed+*pending, 0
	done(z.flushed)
	return nil
}

// step erases the next stretch before end and returns its length. The first one is short: it shows what the device can.
func (z *zeroing) step(off, end int64) (int64, error) {
	n := min(Chunk, end-off)
	if z.method == MethodZeroOut && z.zeroed {
		n = min(ZeroOutChunk, end-off)
	}
	if err := z.forget(off, n); err != nil {
		return 0, err
	}
	if z.method == MethodZeroOut {
		err := z.t.ZeroOut(off, n)
		if !errors.Is(err, disk.ErrUnsupported) {
			z.zeroed = true
			return n, err
		}
		z.method, n = MethodOverwrite, min(Chunk, n)
	}
	if z.zero == nil {
		z.zero = disk.Buffer(int(n))
	}
	w, err := z.t.WriteAt(z.zero[:n], off)
	if err == nil && int64(w) != n {
		err = io.ErrShortWrite
	}
	return n, err
}

// forget discards a stretch. A drive that refuses is not asked again; one that is another disk ends everything.
func (z *zeroing) forget(off, n int64) error {
	if !z.discard {
		return nil
	}
	err := z.t.Discard(off, n)
	switch {
	case err == nil:
		z.discarded = true
	case errors.Is(err, disk.ErrDiffers):
		return err
	default:
		z.discard = false
		if !errors.Is(err, disk.ErrUnsupported) {
			z.note = "discard refused: " + err.Error()
		}
	}
	return nil
}

// stopped says that ctx ended, and why.
func stopped(ctx context.Context, doing string, off int64) error {
	if ctx.Err() == nil {
		return nil
	}
	return fmt.Errorf("%s at byte %d: %w: %w", doing, off, ErrStopped, context.Cause(ctx))
}

func flush(t Target, off int64) error {
	if err := t.Flush(); err != nil {
		return fmt.Errorf("flush at byte %d: %w", off, err)
	}
	return nil
}

// Verify reads a range back and requires every byte to be zero. done counts bytes found zero.
func Verify(ctx context.Context, t io.ReaderAt, rg Range, done func(int64)) error {
	buf := disk.Buffer(int(min(Chunk, rg.Len)))
	zero := make([]byte, len(buf))
	for off := rg.Off; off < rg.End(); {
		if err := stopped(ctx, "read back", off); err != nil {
			return err
		}
		n := min(int64(len(buf)), rg.End()-off)
		if got, err := t.ReadAt(buf[:n], off); err != nil || int64(got) != n {
			if err == nil {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("read back at byte %d: %w", off, err)
		}
		if !bytes.Equal(buf[:n], zero[:n]) {
			return fmt.Errorf("read back at byte %d: %w", off+int64(firstNonZero(buf[:n])), ErrNotErased)
		}
		off += n
		done(off - rg.Off)
	}
	return nil
}

func firstNonZero(b []byte) int {
	for i, c := range b {
		if c != 0 {
			return i
		}
	}
	return len(b)
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}
