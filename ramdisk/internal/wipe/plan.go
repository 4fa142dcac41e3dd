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
	Result
}

// ErrNotClean: at least one disk is not clean.
var ErrNotClean = errors.New("not every disk is clean")

// Disks erases the disks that the selectors name, all or none: every one is chosen, opened and checked before the first byte of any
// is changed. After that a failing disk does not stop the others. The error is nil only if every disk is clean; the results are
// those of the disks that were begun.
func Disks(ctx context.Context, sys disk.System, selectors []disk.Selector, o Options) ([]DiskResult, error) {
	if len(selectors) == 0 || len(selectors) > MaxDisks {
		return nil, fmt.Errorf("wipe: %d disks named, want 1 to %d", len(selectors), MaxDisks)
	}
	claimed, err := claimAll(sys, selectors)
	if err != nil {
		return nil, fmt.Errorf("wipe: nothing was changed: %w", err)
	}
	p := newProgress(claimed, o.Progress)
	out := make([]DiskResult, len(claimed))
	limit := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for i, c := range claimed {
		wg.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			defer c.Close()
			out[i] = DiskResult{c.Disk, one(ctx, c, o, func(done, _ int64) { p.set(i, done) })}
		})
	}
	wg.Wait()
	return out, verdict(out)
}

// one erases one disk; a panic is that disk's failure and nobody else's.
func one(ctx context.Context, c *disk.Claimed, o Options, progress func(int64, int64)) (r Result) {
	defer func() {
		if v := recover(); v != nil {
			r = Result{Outcome: Failed, Err: fmt.Errorf("erase: internal error: %v", v), Started: r.Started, Ended: time.Now(),
				NotWritten: Range{0, c.Disk.Size}}
		}
	}()
	o.Size, o.Progress, o.Discard = c.Disk.Size, progress, o.Discard && c.Disk.Discards
	r = Disk(ctx, c, o)
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
	for _, r := range rs {
		if r.Outcome != Clean {
			bad = append(bad, r.Sentence())
		}
	}
	if len(bad) == 0 {
		return nil
	}
	return fmt.Errorf("wipe: %w (%d of %d): %s", ErrNotClean, len(bad), len(rs), strings.Join(bad, "; "))
}

// Sentence says for people what became of the disk.
func (r DiskResult) Sentence() string {
	if r.Outcome == Clean {
		return fmt.Sprintf("%s is clean: %s erased by %s and read back", r.Disk, disk.Bytes(r.Verified), r.Method)
	}
	s := fmt.Sprintf("%s %s: %v", r.Disk, r.Outcome, r.Err)
	if r.NotWritten.Len > 0 {
		s += fmt.Sprintf("; %d bytes erased, bytes %d to %d not", r.Erased, r.NotWritten.Off, r.NotWritten.End()-1)
	}
	return s
}

type progress struct {
	mu    sync.Mutex
	done  []int64
	total int64
	tell  func(done, total int64)
}

func newProgress(cs []*disk.Claimed, tell func(done, total int64)) *progress {
	p := &progress{done: make([]int64, len(cs)), tell: tell}
	for _, c := range cs {
		p.total += 2 * c.Disk.Size
	}
	return p
}

func (p *progress) set(i int, done int64) {
	if p.tell == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done[i] = done
	sum := int64(0)
	for _, d := range p.done {
		sum += d
	}
	p.tell(sum, p.total)
}
