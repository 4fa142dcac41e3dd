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
	// NotWritten is what is left as it was, as far as is known; empty for a disk that took every write.
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

// Disk erases a whole disk. It never panics on a failing medium and always returns what was done.
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
	case ctx.Err() != nil:
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
	if o.Discard {
		if err := t.Discard(0, o.Size); err != nil && !errors.Is(err, disk.ErrUnsupported) {
			if errors.Is(err, disk.ErrDiffers) {
				return err
			}
			r.Note = "discard refused: " + err.Error()
		} else if err == nil {
			r.Method = MethodDiscardOverwrite
		}
	}
	wrote := func(done int64) { r.Erased = done; o.Progress(done, 2*o.Size) }
	how, err := Zero(ctx, t, whole, wrote)
	if r.Method != MethodDiscardOverwrite {
		r.Method = how
	}
	if err != nil {
		r.NotWritten = Range{r.Erased, o.Size - r.Erased}
		return err
	}
	verified := func(done int64) { r.Verified = done; o.Progress(o.Size+done, 2*o.Size) }
	err = Verify(ctx, t, whole, verified)
	if errors.Is(err, ErrNotErased) && how == MethodZeroOut {
		// The device said that it zeroed and did not: write the zeroes, then read everything again.
		r.Note, r.Verified = join(r.Note, "zeroing by the device left old data; overwritten"), 0
		if r.Method == MethodZeroOut {
			r.Method = MethodOverwrite
		}
		if err = overwrite(ctx, t, whole, wrote); err != nil {
			r.NotWritten = Range{r.Erased, o.Size - r.Erased}
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
func Zero(ctx context.Context, t Target, rg Range, done func(int64)) (method string, err error) {
	flushed, pending := int64(0), int64(0)
	for off := rg.Off; off < rg.End(); {
		if err := ctx.Err(); err != nil {
			return MethodZeroOut, fmt.Errorf("erase at %s: stopped: %w", disk.Bytes(off), err)
		}
		n := min(ZeroOutChunk, rg.End()-off)
		err := t.ZeroOut(off, n)
		if errors.Is(err, disk.ErrUnsupported) {
			rest := Range{off, rg.End() - off}
			if err := flush(t, off); err != nil {
				return MethodOverwrite, err
			}
			base := off - rg.Off
			return MethodOverwrite, overwrite(ctx, t, rest, func(d int64) { done(base + d) })
		}
		if err != nil {
			return MethodZeroOut, fmt.Errorf("erase at byte %d: %w", off, err)
		}
		off, pending = off+n, pending+n
		if pending >= flushEvery || off == rg.End() {
			if err := flush(t, off); err != nil {
				return MethodZeroOut, err
			}
			flushed, pending = flushed+pending, 0
			done(flushed)
		}
	}
	return MethodZeroOut, nil
}

func overwrite(ctx context.Context, t Target, rg Range, done func(int64)) error {
	zero := disk.Buffer(int(min(Chunk, rg.Len)))
	flushed, pending := int64(0), int64(0)
	for off := rg.Off; off < rg.End(); {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("erase at %s: stopped: %w", disk.Bytes(off), err)
		}
		n := min(int64(len(zero)), rg.End()-off)
		w, err := t.WriteAt(zero[:n], off)
		if err == nil && int64(w) != n {
			err = io.ErrShortWrite
		}
		if err != nil {
			return fmt.Errorf("erase at byte %d: %w", off, err)
		}
		off, pending = off+n, pending+n
		if pending >= flushEvery || off == rg.End() {
			if err := flush(t, off); err != nil {
				return err
			}
			flushed, pending = flushed+pending, 0
			done(flushed)
		}
	}
	return nil
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
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read back at %s: stopped: %w", disk.Bytes(off), err)
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
