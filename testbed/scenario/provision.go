package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"firstlight/testbed/judge"
	"firstlight/testbed/qemu"
)

// pollEvery is how often the record is read.
const pollEvery = 500 * time.Millisecond

// bmcPort is where a BMC serves HTTPS.
const bmcPort = 443

// writeLog is who wrote when: the disk's counters beside the stage that ran.
type writeLog struct {
	samples int
	// before is the most that was written in a sample that was surely taken before the wipe began, in bytes.
	before int64
	lines  []writeSample
}

type writeSample struct {
	Time       string `json:"time"`
	Stage      string `json:"stage"`
	ReadBytes  int64  `json:"read_bytes"`
	WriteBytes int64  `json:"write_bytes"`
}

// maxSamples bounds the log of samples.
const maxSamples = 1 << 16

// pauses are the stages after which the workflow waits for the judge.
func (r *run) pauses() []string {
	switch {
	case r.spoil != nil:
		return r.spoil.pauseAfter
	case r.HoldAfter == "wipe":
		return []string{"wipe"}
	}
	return []string{"wipe", "deploy"}
}

// provision starts the workflow and follows it to its end or to the stage after which the run holds.
func (r *run) provision(ctx context.Context) error {
	args := []string{"provision", machineName, "--image", imageName}
	if p := r.pauses(); len(p) > 0 {
		args = append(args, "--pause-after", strings.Join(p, ","))
	}
	if _, err := r.firstlight(ctx, args...); err != nil {
		return err
	}
	handled := map[string]bool{}
	for {
		stat, statErr := r.sample(ctx)
		rec, err := r.show(ctx)
		if err != nil {
			return err
		}
		r.record = rec
		r.out.record(rec)
		if statErr == nil {
			r.writes.add(rec, stat)
		}
		switch rec.State {
		case "active", "failed":
			return r.saveWrites()
		case "paused":
			stage := pausedAfter(rec)
			if stage == "" || handled[stage] {
				break
			}
			handled[stage] = true
			if done, err := r.paused(ctx, stage); done || err != nil {
				return errors.Join(err, r.saveWrites())
			}
		}
		if r.spoil != nil && r.spoil.step != nil {
			if err := r.spoil.step(ctx, r, rec); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return r.late(ctx, rec)
		case <-r.appliance.exited:
			return fmt.Errorf("appliance ended: %v: %s", r.appliance.err, r.lastServeLine())
		case <-time.After(pollEvery):
		}
	}
}

// late says what a run that did not end in time was at.
func (r *run) late(ctx context.Context, rec *judge.Record) error {
	what := "machine is " + rec.State
	for _, name := range judge.Stages {
		if s := rec.Step(name); s != nil && s.State == "running" {
			what = name + ": " + doing(s)
		}
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("run did not end within %s; %s", r.Timeout, what)
	}
	return fmt.Errorf("run was interrupted; %s", what)
}

// sample reads the disk's counters.
func (r *run) sample(ctx context.Context) (qemu.BlockStat, error) {
	vm := r.box.VM()
	if vm == nil {
		return qemu.BlockStat{}, errors.New("machine is off")
	}
	stats, err := vm.BlockStats(ctx)
	if err != nil {
		return qemu.BlockStat{}, err
	}
	if len(stats) != 1 {
		return qemu.BlockStat{}, fmt.Errorf("counters of %d disks, want 1", len(stats))
	}
	return stats[0], nil
}

// add takes a sample that is older than the record: what it counts was written before the record's newest stage.
func (w *writeLog) add(rec *judge.Record, s qemu.BlockStat) {
	stage := ""
	for _, name := range judge.Stages {
		if rec.Reached(name) {
			stage = name
		}
	}
	if !rec.Reached("wipe") {
		w.samples++
		w.before = max(w.before, s.WriteBytes)
	}
	if len(w.lines) < maxSamples {
		w.lines = append(w.lines, writeSample{stamp(time.Now()), stage, s.ReadBytes, s.WriteBytes})
	}
}

func (r *run) saveWrites() error {
	f, err := os.Create(filepath.Join(r.dir, "blockstats.jsonl"))
	if err != nil {
		return err
	}
	defer f.Close()
	e := json.NewEncoder(f)
	for _, l := range r.writes.lines {
		if err := e.Encode(l); err != nil {
			return err
		}
	}
	return nil
}

// pausedAfter is the stage that a paused workflow was to pause after: the last one that is over.
func pausedAfter(rec *judge.Record) string {
	stage := ""
	for _, name := range judge.Stages {
		if rec.Over(name) && slices.Contains(rec.Workflow.PauseAfter, name) {
			stage = name
		}
	}
	return stage
}

// paused stops the machine, has the stage judged, and lets both go on. done says that the run holds here.
func (r *run) paused(ctx context.Context, stage string) (done bool, err error) {
	r.out.say("%-10s paused, the machine stands still", stage)
	vm := r.box.VM()
	if vm == nil {
		return false, fmt.Errorf("machine is off in the pause after %s", stage)
	}
	if err := vm.Pause(ctx); err != nil {
		return false, err
	}
	stats, err := vm.BlockStats(ctx)
	if err != nil || len(stats) != 1 {
		return false, fmt.Errorf("counters in the pause after %s: %d disks, %w", stage, len(stats), err)
	}
	r.stats[stage] = stats[0]
	if r.spoil != nil {
		err = r.spoil.paused(ctx, r, stage)
	} else {
		r.judgePause(stage)
	}
	if err != nil {
		return false, err
	}
	if r.HoldAfter == stage {
		r.held = true
		return true, nil
	}
	if err := vm.Resume(ctx); err != nil {
		return false, err
	}
	_, err = r.firstlight(ctx, "resume", machineName)
	return false, err
}

// judgePause looks at the disk after a wipe or a deploy, while nothing runs in the machine.
func (r *run) judgePause(stage string) {
	s := r.stats[stage]
	switch stage {
	case "wipe":
		r.add(judge.Of("nobody wrote before the wipe", r.writes.samples > 0 && r.writes.before == 0,
			"%d samples from power on to the wipe, %d bytes written", r.writes.samples, r.writes.before))
		r.add(named("wipe: ", judge.NoTrace(r.diskPath(), r.pattern)))
		r.add(judge.Of("wipe: the disk was written and read back", s.WriteOps > 0 && s.ReadBytes >= diskSize,
			"%d bytes written, %d discarded, %d read since power on; the disk has %d", s.WriteBytes, s.UnmapBytes, s.ReadBytes, diskSize))
	case "deploy":
		for _, c := range judge.Deployed(r.diskPath(), r.image.Manifest, filepath.Join(r.image.Dir, "blobs")) {
			r.add(named("deploy: ", c))
		}
		r.add(named("deploy: ", judge.NoTrace(r.diskPath(), r.pattern)))
		before := r.stats["wipe"]
		want := r.image.Manifest.DataSize()
		wrote, read := s.WriteBytes-before.WriteBytes, s.ReadBytes-before.ReadBytes
		r.add(judge.Of("deploy: chunks were written and read back", wrote >= want && read >= want,
			"%d bytes written and %d read since the wipe; the image's chunks have %d", wrote, read, want))
	}
}

// add takes a check and says it.
func (r *run) add(checks ...judge.Check) {
	for _, c := range checks {
		word := "ok"
		if !c.OK {
			word = "NOT OK"
		}
		r.out.say("  %-6s %s: %s", word, c.Name, c.Detail)
	}
	r.checks = append(r.checks, checks...)
}

func named(prefix string, c judge.Check) judge.Check {
	c.Name = prefix + c.Name
	return c
}
