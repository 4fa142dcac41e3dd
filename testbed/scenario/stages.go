package scenario

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"firstlight/imagebuild/manifest"
	"firstlight/testbed/judge"
	"firstlight/testbed/qemu"
)

// stop is a stage at which something happens to a workflow, and what the disk must be like then.
type stop struct {
	stage string
	// pauseAfter is the stage before, where this one is too short to be met; empty waits until it runs.
	pauseAfter string
	// slow makes the stage long from outside, before the machine is ordered, and fast takes that back; nil changes nothing.
	slow, fast func(ctx context.Context, r *run) error
	// goesOn: the installed system runs on, and may write.
	goesOn bool
	// also looks at what else must hold, before the machine stands still; nil for nothing.
	also func(ctx context.Context, r *run, prefix string) error
	// holds is what the record must say of the disk.
	holds string
	// bytes looks at the disk file, while the machine stands still.
	bytes func(r *run) []judge.Check
}

// What the record says of a disk; design of the appliance.
const (
	oldData       = "old data"
	partlyWiped   = "partly wiped"
	clean         = "clean"
	partlyWritten = "partly written"
	holdsImage    = "image " + imageName
)

// patternLeft: nothing was written.
func patternLeft(r *run) []judge.Check {
	return []judge.Check{judge.Untouched(r.disk().path, r.disk().pattern)}
}

// halfWiped: a wipe had begun and did not end. What was wiped before by another workflow may be all zero.
func halfWiped(r *run) []judge.Check {
	return []judge.Check{unbootable(r)}
}

// wiped: no trace is left.
func wiped(r *run) []judge.Check {
	return []judge.Check{judge.NoTrace(r.disk().path, r.disk().pattern), judge.AllZero("disk is all zero", r.disk().path, 0, 0)}
}

// unbootable: no firmware finds a system on the disk, because no partition table is on it.
func unbootable(r *run) judge.Check {
	start := judge.AllZero("", r.disk().path, 0, 1<<20)
	if untouched := judge.Untouched(r.disk().path, r.disk().pattern); untouched.OK {
		return judge.Pass("disk starts no half system", "it still holds the pattern")
	}
	return judge.Of("disk starts no half system", start.OK, "%s", start.Detail)
}

func unstartable(r *run) []judge.Check {
	return []judge.Check{unbootable(r), judge.NoTrace(r.disk().path, r.disk().pattern)}
}

// started: the image, but for the file system that the deployed system has mounted since.
func started(r *run) []judge.Check {
	return append(judge.DeployedBeside(r.disk().path, r.image.Manifest, filepath.Join(r.image.Dir, "blobs"), manifest.RoleRoot),
		judge.NoTrace(r.disk().path, r.disk().pattern))
}

// deployed: the whole image, byte for byte. Only while the deployed system has not run.
func deployed(r *run) []judge.Check {
	return judge.Deployed(r.disk().path, r.image.Manifest, filepath.Join(r.image.Dir, "blobs"))
}

// meet orders the machine and returns when its workflow is at the stop.
func (r *run) meet(ctx context.Context, s stop) error {
	var pauses []string
	if s.pauseAfter != "" {
		pauses = []string{s.pauseAfter}
	}
	if err := r.order(ctx, r.machine, pauses...); err != nil {
		return err
	}
	for {
		rec, err := r.show(ctx, r.machine)
		if err != nil {
			return err
		}
		r.out.record(rec)
		switch {
		case slices.Contains(over, rec.State):
			return fmt.Errorf("workflow ended before stage %s: %s", s.stage, rec.Cause())
		case s.pauseAfter != "" && rec.State == "paused":
			return nil
		case s.pauseAfter == "" && inHand(rec, s.stage):
			return nil
		}
		if err := r.wait(ctx, rec); err != nil {
			return err
		}
	}
}

// inHand says whether a stage is under way: one that writes has begun to, one that asks the controller has asked.
func inHand(rec *judge.Record, stage string) bool {
	st := rec.Step(stage)
	if st == nil || st.State != "running" {
		return false
	}
	switch stage {
	case "power-on":
		// The controller is asked, and has not answered.
		return slices.ContainsFunc(st.Commands, func(c judge.Command) bool {
			return strings.HasPrefix(c.Kind, "bmc.") && c.Ended == nil && c.State != "pending"
		})
	case "wipe", "deploy":
		return slices.ContainsFunc(st.Commands, func(c judge.Command) bool { return c.Progress != nil && c.Progress.Done > 0 })
	}
	return true
}

// holds is what the record says of the disk, with the reason.
func (r *run) holds() (what, why string) {
	for _, d := range r.record.DiskState {
		if d.Serial == r.disk().serial {
			return d.Holds, d.Why
		}
	}
	return "nothing", ""
}

// judgeStop compares the disk with what must be on it, while the machine stands still.
func (r *run) judgeStop(ctx context.Context, prefix string, s stop) error {
	what, why := r.holds()
	r.add(judge.Of(prefix+"the record says what the disk holds", what == s.holds && why != "", "disk %s holds %s: %s", r.disk().serial, what, why))
	if err := r.pause(ctx); err != nil {
		return err
	}
	if stats, err := r.counters(ctx); err == nil { // a machine that is off has none, and nobody wrote
		r.add(named(prefix, agrees(stats[r.box.target], r.disk().size, s.holds)))
	}
	for _, c := range s.bytes(r) {
		r.add(named(prefix, c))
	}
	return nil
}

// agrees compares what the machine did to the disk since it was switched on with what the record says of the disk. A wipe writes
// every byte and reads it back, and all that comes later comes in the same power-on.
func agrees(s qemu.BlockStat, size int64, holds string) judge.Check {
	ok := s.WriteBytes >= size && s.ReadBytes >= size
	switch holds {
	case oldData:
		ok = s.WriteOps == 0 && s.UnmapOps == 0
	case partlyWiped:
		ok = s.WriteBytes > 0 && s.WriteBytes <= size
	case partlyWritten, holdsImage:
		ok = ok && s.WriteBytes > size
	}
	return judge.Of("counters agree with that", ok, "%d bytes written, %d discarded, %d read since power on; the disk has %d, holds %s",
		s.WriteBytes, s.UnmapBytes, s.ReadBytes, size, holds)
}

// quiet checks that nothing is written any more.
func (r *run) quiet(ctx context.Context, prefix string) error {
	before, err := r.counters(ctx)
	if err != nil {
		return nil // off: nothing is written
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(quietTime):
	}
	after, err := r.counters(ctx)
	if err != nil {
		return errors.Join(err, ctx.Err())
	}
	b, a := before[r.box.target], after[r.box.target]
	r.add(judge.Of(prefix+"nothing is written afterwards", a.WriteOps == b.WriteOps && a.UnmapOps == b.UnmapOps,
		"%d more writes and %d more discards within %s", a.WriteOps-b.WriteOps, a.UnmapOps-b.UnmapOps, quietTime))
	return nil
}

const quietTime = 2 * time.Second
