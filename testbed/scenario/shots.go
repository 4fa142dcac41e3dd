package scenario

import (
	"context"
	"fmt"

	"firstlight/testbed/judge"
	"firstlight/testbed/qemu"
)

// The stages in whose middle the appliance is killed, and how much of a stage's bytes is its middle.
var shotStages = []string{"wipe", "deploy"}

const (
	middleFrom = 0.1
	middleTo   = 0.9
	// shotTime is how long a stage's writes last at least, in seconds: the disk is slowed to that until the shot.
	shotTime = 60
)

// shot is one kill -9 while the machine writes.
type shot struct {
	stage string
	// written is what the guest had written in the stage then, of is all that it writes there; in bytes.
	written, of int64
}

// aim is what is known of the stage that is to be hit.
type aim struct {
	vm *qemu.VM
	// slowed is the stage for which the disk of vm is slow.
	slowed string
	// armed: the next life is to be long; listens: it answers, and heard is the progress that its first record showed.
	armed, listens bool
	heard          uint64
}

// writes are the bytes that a stage writes to the target in all.
func (s *crashes) writes(r *run, stage string) int64 {
	if stage == "wipe" {
		return r.disk().size
	}
	return r.image.Manifest.DataSize()
}

// next is the stage that is to be hit next; empty for none.
func (s *crashes) next() string {
	if len(s.shots) == len(shotStages) {
		return ""
	}
	return shotStages[len(s.shots)]
}

// shoot kills the appliance once in the middle of each stage's writes: one that lives long enough to hear the machine, so that it is
// no death at a write of the journal. answered: the record is this life's.
func (s *crashes) shoot(ctx context.Context, r *run, disk qemu.BlockStat, answered bool) error {
	stage := s.next()
	slowed := stage
	if stage == "deploy" && !r.record.Over("wipe") {
		slowed = "" // the rest of the wipe is not to last
	}
	if err := s.slow(ctx, r, slowed); err != nil || stage == "" || r.record == nil {
		return err
	}
	step := r.record.Step(stage)
	if step == nil || step.State != "running" {
		return nil
	}
	written := disk.WriteBytes
	if stage == "deploy" {
		written -= s.wiped.WriteBytes
	}
	part := float64(written) / float64(s.writes(r, stage))
	switch heard := progressOf(step); {
	case part < middleFrom || part > middleTo:
	case !s.aim.armed:
		s.aim.armed, s.aim.listens = true, false
		s.setCalm(true)
	case !answered || !s.longLife():
	case !s.aim.listens:
		s.aim.listens, s.aim.heard = true, heard
	case heard > s.aim.heard:
		r.out.say("           kill -9 in the middle of %s: %.0f %% written", stage, 100*part)
		s.shots = append(s.shots, shot{stage: stage, written: written, of: s.writes(r, stage)})
		s.aim.armed = false
		return s.kill()
	}
	return nil
}

// progressOf is how far the newest command of a step says that it is.
func progressOf(step *judge.Step) uint64 {
	n := len(step.Commands)
	if n == 0 || step.Commands[n-1].Progress == nil {
		return 0
	}
	return step.Commands[n-1].Progress.Done
}

// slow makes the target slow enough for the stage's middle to be met; with no stage it is as fast as it was.
func (s *crashes) slow(ctx context.Context, r *run, stage string) error {
	vm := r.rack.VM()
	if vm == nil || s.aim.vm == vm && s.aim.slowed == stage {
		return nil
	}
	rate := int64(0)
	if stage != "" {
		rate = s.writes(r, stage) / shotTime
	}
	if err := vm.SlowWrites(ctx, r.box.target, rate); err != nil {
		if r.rack.VM() != vm {
			return nil // it was switched off meanwhile
		}
		return err
	}
	s.aim.vm, s.aim.slowed = vm, stage
	return nil
}

func (s *crashes) setCalm(calm bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calm = calm
}

// longLife says whether the present life does not die by its journal.
func (s *crashes) longLife() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.long
}

// kill ends a long life; the next one dies by its journal again.
func (s *crashes) kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calm, s.long = false, false
	if err := s.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill appliance: %w", err)
	}
	return nil
}

// judgeShots says what was hit.
func (s *crashes) judgeShots(r *run) []judge.Check {
	var out []judge.Check
	for i, stage := range shotStages {
		name := "appliance was killed in the middle of the bytes of " + stage
		if i >= len(s.shots) {
			out = append(out, judge.Fail(name, "it was not: the middle passed before an appliance lived that heard the machine"))
			continue
		}
		x := s.shots[i]
		out = append(out, judge.Of(name, x.stage == stage && s.within(r.record.Step(stage)) > 0, "at %d of %d bytes", x.written, x.of))
	}
	return out
}
