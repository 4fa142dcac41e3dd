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

func provisionScenario() Scenario {
	return Scenario{Name: Provision, What: "one machine from power-off to a running node agent, then a power cycle", Core: true, Firmware: []string{UEFI, BIOS},
		Breaks: breakNames(func(breakKind) bool { return true }), CoreBreaks: breakNames(func(b breakKind) bool { return b.core }),
		HoldAfter: []string{"wipe", "deploy"}}
}

// clockScenario is the whole chain of a machine whose clock starts with that year.
func clockScenario(name string, year int) Scenario {
	return Scenario{Name: name, What: fmt.Sprintf("the same with a machine whose clock says %d", year), Firmware: []string{UEFI},
		machines: []box{{rtc: fmt.Sprintf("%d-01-01T00:00:00", year), year: year}}}
}

// pollEvery is how often the record is read.
const pollEvery = 500 * time.Millisecond

// writeLog is who wrote when: the disks' counters beside the stage that ran.
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

// add takes a sample of all disks that is older than the record: what it counts was written before the record's newest stage.
func (w *writeLog) add(rec *judge.Record, stats ...qemu.BlockStat) {
	stage := ""
	for _, name := range judge.Stages {
		if rec.Reached(name) {
			stage = name
		}
	}
	var read, written int64
	for _, s := range stats {
		read, written = read+s.ReadBytes, written+s.WriteBytes
	}
	if !rec.Reached("wipe") {
		w.samples++
		w.before = max(w.before, written)
	}
	if len(w.lines) < maxSamples {
		w.lines = append(w.lines, writeSample{stamp(time.Now()), stage, read, written})
	}
}

func (m *machine) saveWrites() error {
	f, err := os.Create(filepath.Join(m.dir, "blockstats.jsonl"))
	if err != nil {
		return err
	}
	defer f.Close()
	e := json.NewEncoder(f)
	for _, l := range m.writes.lines {
		if err := e.Encode(l); err != nil {
			return err
		}
	}
	return nil
}

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

// provisionOne starts the first machine's workflow and follows it to its end or to the stage after which the run holds.
func provisionOne(ctx context.Context, r *run) error {
	if err := r.order(ctx, r.machine, r.pauses()...); err != nil {
		return err
	}
	f := following{paused: func(ctx context.Context, stage string) (bool, error) {
		if r.spoil != nil {
			return false, r.spoil.paused(ctx, r, stage)
		}
		r.judgePause(r.machine, stage)
		r.held = r.HoldAfter == stage
		return r.held, nil
	}}
	if r.spoil != nil && r.spoil.step != nil {
		f.step = func(ctx context.Context, rec *judge.Record) error { return r.spoil.step(ctx, r, rec) }
	}
	return r.follow(ctx, r.machine, f)
}

// order asks for the machine's provisioning.
func (r *run) order(ctx context.Context, m *machine, pauseAfter ...string) error {
	args := []string{"provision", m.name, "--image", imageName}
	if len(pauseAfter) > 0 {
		args = append(args, "--pause-after", strings.Join(pauseAfter, ","))
	}
	_, err := r.firstlight(ctx, args...)
	return err
}

// orderAndFollow provisions without a pause.
func orderAndFollow(ctx context.Context, r *run, m *machine) error {
	if err := r.order(ctx, m); err != nil {
		return err
	}
	return r.follow(ctx, m, following{})
}

// following is what to do on the way; nil does nothing.
type following struct {
	// step is called with each new record.
	step func(ctx context.Context, rec *judge.Record) error
	// paused is called when the workflow paused after that stage, while the machine stands still. done leaves both as they are and
	// ends the following; otherwise both go on.
	paused func(ctx context.Context, stage string) (done bool, err error)
}

// over are the states of a machine that nothing more happens to.
var over = []string{"active", "failed", "cancelled"}

// follow reads the machine's record and counters until its workflow is over, or paused says that it is enough.
func (r *run) follow(ctx context.Context, m *machine, f following) error {
	handled := map[string]bool{}
	for {
		stats, statErr := m.counters(ctx)
		rec, err := r.show(ctx, m)
		if err != nil {
			return err
		}
		m.say.record(rec)
		if statErr == nil {
			m.writes.add(rec, stats...)
		}
		if slices.Contains(over, rec.State) {
			return m.saveWrites()
		}
		if rec.State == "paused" {
			if stage := pausedAfter(rec); stage != "" && !handled[stage] {
				handled[stage] = true
				if done, err := r.standStill(ctx, m, stage, f); done || err != nil {
					return errors.Join(err, m.saveWrites())
				}
			}
		}
		if f.step != nil {
			if err := f.step(ctx, rec); err != nil {
				return err
			}
		}
		if err := r.wait(ctx, rec); err != nil {
			return err
		}
	}
}

// wait waits until the record is to be read again.
func (r *run) wait(ctx context.Context, rec *judge.Record) error {
	select {
	case <-ctx.Done():
		return r.late(ctx)
	case <-r.appliance.exited:
		return fmt.Errorf("appliance ended: %v: %s", r.appliance.err, r.lastServeLine())
	case <-time.After(pollEvery):
		return nil
	}
}

// late says what a run that did not end in time was at.
func (r *run) late(ctx context.Context) error {
	what := "nothing had begun"
	if r.record != nil {
		what = "machine is " + r.record.State
	}
	for _, name := range judge.Stages {
		if s := r.record.Step(name); s != nil && s.State == "running" {
			what = name + ": " + doing(s)
		}
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("run did not end within %s; %s", r.Timeout, what)
	}
	return fmt.Errorf("run was interrupted; %s", what)
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

// standStill stops the machine, has the stage looked at, and lets both go on. done says that they do not.
func (r *run) standStill(ctx context.Context, m *machine, stage string, f following) (done bool, err error) {
	m.say.say("%-10s paused, the machine stands still", stage)
	vm := m.rack.VM()
	if vm == nil {
		return false, fmt.Errorf("machine is off in the pause after %s", stage)
	}
	if err := vm.Pause(ctx); err != nil {
		return false, err
	}
	if m.stats[stage], err = vm.BlockStats(ctx); err != nil {
		return false, fmt.Errorf("counters in the pause after %s: %w", stage, err)
	}
	if f.paused != nil {
		if done, err := f.paused(ctx, stage); done || err != nil {
			return done, err
		}
	}
	if err := vm.Resume(ctx); err != nil {
		return false, err
	}
	_, err = r.firstlight(ctx, "resume", m.name)
	return false, err
}

// judgePause looks at the disk after a wipe or a deploy, while nothing runs in the machine.
func (r *run) judgePause(m *machine, stage string) {
	s, d := m.stats[stage][m.box.target], m.disk()
	switch stage {
	case "wipe":
		r.add(judge.Of("nobody wrote before the wipe", m.writes.samples > 0 && m.writes.before == 0,
			"%d samples from power on to the wipe, %d bytes written", m.writes.samples, m.writes.before))
		r.add(named("wipe: ", judge.NoTrace(d.path, d.pattern)))
		r.add(judge.Of("wipe: the disk was written and read back", s.WriteOps > 0 && s.ReadBytes >= d.size,
			"%d bytes written, %d discarded, %d read since power on; the disk has %d", s.WriteBytes, s.UnmapBytes, s.ReadBytes, d.size))
	case "deploy":
		for _, c := range judge.Deployed(d.path, r.image.Manifest, filepath.Join(r.image.Dir, "blobs")) {
			r.add(named("deploy: ", c))
		}
		r.add(named("deploy: ", judge.NoTrace(d.path, d.pattern)))
		before := m.stats["wipe"][m.box.target]
		want := r.image.Manifest.DataSize()
		wrote, read := s.WriteBytes-before.WriteBytes, s.ReadBytes-before.ReadBytes
		r.add(judge.Of("deploy: chunks were written and read back", wrote >= want && read >= want,
			"%d bytes written and %d read since the wipe; the image's chunks have %d", wrote, read, want))
	}
}
