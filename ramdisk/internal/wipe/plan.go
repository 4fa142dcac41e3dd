package wipe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"firstlight/ramdisk/internal/disk"
)

// MaxDisks bounds one command.
const MaxDisks = 64

// parallel is how many disks are erased at once.
const parallel = 8

// DiskResult is the result of one disk of a command.
type DiskResult struct {
	Disk disk.Disk
	// Touched says that a write was begun; a disk that was not touched is as it was.
	Touched bool
	Result
}

// ErrNotClean: at least one disk is not clean.
var ErrNotClean = errors.New("not every disk is clean")

// Command is one wipe of several disks.
type Command struct {
	// Discard is Options.Discard, for the drives that can.
	Discard bool
	// Ledger forgets each disk before it is written and learns the clean ones, for Workflow; nil for none.
	Ledger   *Ledger
	Workflow string
	// Progress is called from several goroutines, one at a time; nil for nobody.
	Progress func(Progress)
	// Ended is called when a disk's result is known, one at a time; nil for nobody.
	Ended func(DiskResult)
}

// Disks erases the disks that the selectors name, all or none: every one is chosen, opened and checked before the first byte of any
// is changed. After that a failing disk does not stop the others, and a disk that is clean stays clean when ctx ends. The error is
// nil only if every disk is clean; the results are those of all disks once they were chosen.
func Disks(ctx context.Context, sys disk.System, selectors []disk.Selector, cmd Command) ([]DiskResult, error) {
	if len(selectors) == 0 || len(selectors) > MaxDisks {
		return nil, fmt.Errorf("wipe: nothing was written: %d disks named, want 1 to %d", len(selectors), MaxDisks)
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("wipe: nothing was written: %w: %w", ErrStopped, context.Cause(ctx))
	}
	claimed, err := claimAll(sys, selectors)
	if err != nil {
		return nil, fmt.Errorf("wipe: nothing was written: %w", err)
	}
	p := newProgress(claimed, cmd)
	out := make([]DiskResult, len(claimed))
	limit := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for i, c := range claimed {
		wg.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			defer c.Close()
			p.begin(i)
			if cmd.Ledger != nil {
				cmd.Ledger.Take(cmd.Workflow, c.Disk)
			}
			r := one(ctx, c, cmd.Discard, func(done, _ int64) { p.set(i, done) })
			out[i] = DiskResult{c.Disk, c.Wrote(), r}
			if cmd.Ledger != nil && r.Outcome == Clean {
				cmd.Ledger.Record(cmd.Workflow, c.Disk)
			}
			p.end(i, out[i])
		})
	}
	wg.Wait()
	return out, verdict(out)
}

// one erases one disk; a panic is that disk's failure and nobody else's.
func one(ctx context.Context, c *disk.Claimed, discard bool, progress func(int64, int64)) (r Result) {
	defer func() {
		if v := recover(); v != nil {
			r = Result{Outcome: Failed, Err: fmt.Errorf("erase: internal error: %v", v), Started: r.Started, Ended: time.Now(),
				NotWritten: Range{0, c.Disk.Size}}
		}
	}()
	r = Disk(ctx, c, Options{Size: c.Disk.Size, Discard: discard && c.Disk.Discards, Progress: progress})
	if r.Outcome == Clean {
		// The old partitions' nodes must not outlive their table. A kernel that cannot re-read keeps stale nodes, no data.
		if err := c.RereadPartitions(); err != nil && !errors.Is(err, disk.ErrUnsupported) {
			r.Note = join(r.Note, "the kernel did not read the empty partition table: "+err.Error())
		}
	}
	return r
}

func claimAll(sys disk.System, selectors []disk.Selector) ([]*disk.Claimed, error) {
	var out []*disk.Claimed
	seen := map[string]disk.Selector{}
	for _, s := range selectors {
		c, err := disk.Claim(sys, s)
		if err == nil {
			if twin, ok := seen[c.Disk.Name]; ok {
				c.Close()
				err = fmt.Errorf("%s and %s name the same disk", twin, s)
			}
		}
		if err != nil {
			for _, c := range out {
				c.Close()
			}
			return nil, err
		}
		seen[c.Disk.Name] = s
		out = append(out, c)
	}
	return out, nil
}

func verdict(rs []DiskResult) error {
	var bad []string
	touched := false
	for _, r := range rs {
		touched = touched || r.Touched
		if r.Outcome != Clean {
			bad = append(bad, r.Sentence())
		}
	}
	if len(bad) == 0 {
		return nil
	}
	head := "wipe: "
	if !touched {
		head = "wipe: nothing was written: "
	}
	return &notClean{fmt.Sprintf("%s%v (%d of %d): %s", head, ErrNotClean, len(bad), len(rs), strings.Join(bad, "; ")), rs}
}

// notClean says in one sentence what became of the disks, and wraps what each of them ended with.
type notClean struct {
	text string
	rs   []DiskResult
}

func (e *notClean) Error() string { return e.text }

func (e *notClean) Unwrap() []error {
	out := []error{ErrNotClean}
	for _, r := range e.rs {
		if r.Err != nil {
			out = append(out, r.Err)
		}
	}
	return out
}

// Sentence says for people what became of the disk.
func (r DiskResult) Sentence() string {
	if r.Outcome == Clean {
		return fmt.Sprintf("%s is clean: %s erased by %s and read back", r.Disk, disk.Bytes(r.Verified), r.Method)
	}
	s := fmt.Sprintf("%s %s: %v", r.Disk, r.Outcome, r.Err)
	switch {
	case !r.Touched:
		return s + "; nothing was written to it"
	case r.NotWritten.Len > 0:
		return fmt.Sprintf("%s; %d bytes erased, bytes %d to %d not", s, r.Erased, r.NotWritten.Off, r.NotWritten.End()-1)
	}
	return fmt.Sprintf("%s; all %d bytes erased, %d read back: it does not count as clean", s, r.Erased, r.Verified)
}
