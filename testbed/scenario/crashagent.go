package scenario

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"time"

	"firstlight/testbed/judge"
	"firstlight/testbed/qemu"
)

// crashAgentScenario cuts the power of two machines in each stage, and kills the agent of one alone.
func crashAgentScenario() Scenario {
	small := box{disks: []drive{{size: smallDisk}}}
	return Scenario{Name: "crash-agent", What: "a power cut in each stage, and the RAM disk's agent killed alone: the workflow ends in words or goes on, never on a half-written disk",
		Firmware: []string{UEFI}, machines: []box{small, small}, timeout: crashAgentLimit,
		setup: func(r *run) error {
			// Else the kernel takes no key that kills.
			r.serve.Boot.KernelArgs = append(r.serve.Boot.KernelArgs, "sysrq_always_enabled")
			return nil
		},
		drive: func(ctx context.Context, r *run) error {
			return r.atOnce(ctx, r.machines, func(ctx context.Context, m *machine) error {
				for _, w := range agentDeaths()[m.index] {
					if err := r.liveThrough(ctx, m, w); err != nil {
						return err
					}
				}
				return nil
			})
		},
		judge: func(context.Context, *run) error { return nil }}
}

// crashAgentLimit bounds the run: some eight boots on each of two machines, and one wait for a machine that stays away.
const crashAgentLimit = 40 * time.Minute

// death is a way in which a machine's agent dies, and what must come of it.
type death struct {
	stage string
	// pauseAfter is the stage before, where this one is too short to be met: it begins while the machine stands still.
	pauseAfter string
	// alone: the kernel kills the agent, and the machine goes on. Otherwise its power is cut.
	alone bool
	// back is what the firmware starts from once there is power again, "pxe" or "disk"; empty: there is none any more.
	back string
	// cause is how the workflow must end there, within that time; nil: it goes on.
	cause  *regexp.Regexp
	within time.Duration
	// holds is what the record must say of the disk, bytes what must be true of its file once the agent is dead.
	holds string
	bytes func(r *run, m *machine) []judge.Check
}

// Bounds of an end: a killed agent is started again after 2 s and says so; a machine that starts over is noticed after 45 s without
// a word, and its firmware takes its time; one that stays away is waited for three minutes from then. Software emulation is slow.
const (
	saysSoTime    = time.Minute
	startOverTime = 150 * time.Second
	stayAwayTime  = 5 * time.Minute
)

var (
	startedOverSaid = regexp.MustCompile(`the machine started over: it asked for a network boot at`)
	lostSaid        = regexp.MustCompile(`the RAM disk's session is lost since .* and was waited for until .*disk\.wipe was in its hands.*holds partly wiped`)
	interruptedSaid = regexp.MustCompile(`interrupted: the agent was restarted while it ran (disk\.wipe|deploy\.image); disk \S+ holds partly w`)
	waitingSaid     = regexp.MustCompile(`session is lost since .*, it may come back until .*, then step \S+ fails`)
)

// agentDeaths are each machine's workflows, one after the other, each with its deaths, but for power-on, where the machine is off until
// the stage's last command. A workflow whose last death ends it is followed by another that must begin with a wipe; the last one of a
// machine makes it active.
func agentDeaths() [][][]death {
	early := func(stage string) death {
		return death{stage: stage, back: "pxe", holds: oldData, bytes: stillPattern}
	}
	return [][][]death{
		{
			{early("dhcp"), early("tftp"), early("script"), early("kernel"), early("join"),
				{stage: "inventory", pauseAfter: "join", back: "pxe", cause: startedOverSaid, within: startOverTime, holds: oldData, bytes: stillPattern}},
			{{stage: "wipe", cause: lostSaid, within: stayAwayTime, holds: partlyWiped, bytes: halfPattern}},
			{{stage: "kexec", pauseAfter: "deploy", back: "disk", holds: holdsImage, bytes: wholeImage}},
		},
		{
			{{stage: "wipe", alone: true, cause: interruptedSaid, within: saysSoTime, holds: partlyWiped, bytes: halfPattern}},
			{{stage: "deploy", alone: true, cause: interruptedSaid, within: saysSoTime, holds: partlyWritten, bytes: startsNothing}},
			{{stage: "diag", pauseAfter: "wipe", back: "pxe", cause: startedOverSaid, within: startOverTime, holds: clean, bytes: allClean}},
			{{stage: "deploy", back: "disk", cause: startedOverSaid, within: startOverTime, holds: partlyWritten, bytes: startsNothing}},
			{{stage: "node-join", back: "disk", holds: holdsImage, bytes: runsAlready},
				{stage: "active", pauseAfter: "node-join", back: "disk", holds: holdsImage, bytes: runsAlready}},
		},
	}
}

// liveThrough orders a machine and has its agent die as told. Unless the last death ends the workflow, it must become active.
func (r *run) liveThrough(ctx context.Context, m *machine, deaths []death) error {
	var pauses []string
	for _, d := range deaths {
		if d.pauseAfter != "" {
			pauses = append(pauses, d.pauseAfter)
		}
	}
	if err := r.order(ctx, m, pauses...); err != nil {
		return err
	}
	rec, err := r.show(ctx, m)
	if err != nil {
		return err
	}
	workflow, from := rec.Workflow.ID, int64(0)
	for _, d := range deaths {
		if from, err = r.die(ctx, m, d); err != nil {
			return fmt.Errorf("death at %s: %w", d.stage, err)
		}
	}
	if deaths[len(deaths)-1].cause == nil {
		err = r.follow(ctx, m, following{})
	}
	r.add(judge.Of(fmt.Sprintf("%s: %s: one workflow, one wipe and one deploy at most", m.name, deaths[len(deaths)-1].stage),
		m.record.Workflow.ID == workflow && onceEach(m.record), "commands: %v", m.record.Commands()))
	if err != nil || deaths[len(deaths)-1].cause != nil {
		return err
	}
	return r.judgeCameBack(ctx, m, deaths[len(deaths)-1].stage, from)
}

// onceEach says whether a workflow wiped and deployed once at most.
func onceEach(rec *judge.Record) bool {
	n := map[string]int{}
	for _, s := range rec.Workflow.Steps {
		for _, c := range s.Commands {
			n[c.Kind]++
		}
	}
	return n["disk.wipe"] <= 1 && n["deploy.image"] <= 1
}

// die brings a machine to a death, has it die, and judges what comes of it. It returns where the serial log ended then.
func (r *run) die(ctx context.Context, m *machine, d death) (from int64, err error) {
	stats, err := r.meetDeath(ctx, m, d)
	if err != nil {
		return 0, err
	}
	prefix := m.name + ": " + d.stage + ": "
	if d.alone {
		prefix = m.name + ": " + d.stage + ", the agent alone: "
	}
	if n := r.stageBytes(m, d.stage); n > 0 {
		part := float64(stats.WriteBytes) / float64(n)
		r.add(judge.Of(prefix+"met in the middle", part >= middleFrom && part <= middleTo, "%d of %d bytes written in the stage", stats.WriteBytes, n))
	}
	serial, err := judge.ReadSerial(m.serialPath())
	if err != nil {
		return 0, err
	}
	from = int64(len(serial))
	died := time.Now()
	if d.alone {
		err = r.killAgent(ctx, m, prefix, from)
	} else {
		err = m.cutPower(ctx, d)
	}
	if err != nil {
		return from, err
	}
	if d.cause == nil {
		for _, c := range d.bytes(r, m) {
			r.add(named(prefix, c))
		}
		return from, m.comeBack(ctx, d)
	}
	return from, r.judgeEnd(ctx, m, d, prefix, from, died)
}

// meetDeath returns once the workflow is in the stage and the machine stands still, with what was written in that stage until then.
func (r *run) meetDeath(ctx context.Context, m *machine, d death) (qemu.BlockStat, error) {
	var base qemu.BlockStat
	slowed, narrowed := false, false
	before, err := judge.ReadSerial(m.serialPath())
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // it was never switched on
		return base, err
	}
	for {
		stats, statErr := m.counters(ctx)
		rec, err := r.show(ctx, m)
		if err != nil {
			return base, err
		}
		m.say.record(rec)
		step, vm := rec.Step(d.stage), m.rack.VM()
		if vm != nil && !slowed && slowFrom(rec, d.stage) {
			slowed = true
			if err := vm.SlowWrites(ctx, m.box.target, r.stageBytes(m, d.stage)/slowTime); err != nil {
				return base, err
			}
		}
		if !narrowed && d.stage == "inventory" {
			if narrowed, err = r.narrow(ctx, m, len(before)); err != nil {
				return base, err
			}
		}
		switch {
		case slices.Contains(over, rec.State):
			return base, fmt.Errorf("workflow ended before: %s", rec.Cause())
		case vm == nil || statErr != nil:
		case d.pauseAfter != "":
			if rec.State == "paused" && pausedAfter(rec) == d.pauseAfter {
				err := r.beginStill(ctx, m, d.stage)
				if narrowed {
					err = errors.Join(err, r.lab.Throttle(ctx, m.index, 0))
				}
				return base, err
			}
		case !rec.Reached(d.stage):
			base = stats[m.box.target]
		case r.stageBytes(m, d.stage) == 0:
			return base, vm.Pause(ctx)
		case step.State == "running":
			now := stats[m.box.target]
			now.WriteBytes -= base.WriteBytes
			if float64(now.WriteBytes) >= middleFrom*float64(r.stageBytes(m, d.stage)) {
				return now, vm.Pause(ctx)
			}
		}
		if err := r.wait(ctx, rec); err != nil {
			return base, err
		}
	}
}

// slowJoin bounds what a machine receives from its join on, in bits per second: its session's handshake takes seconds then, in which it
// can be met before it has sent its inventory.
const slowJoin = 16_000

// narrow slows what a machine receives once its agent has started, so that nothing which the firmware loads is slowed.
func (r *run) narrow(ctx context.Context, m *machine, from int) (bool, error) {
	serial, err := judge.ReadSerial(m.serialPath())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || !strings.Contains(serial[min(from, len(serial)):], agentStarts) {
		return false, err
	}
	return true, r.lab.Throttle(ctx, m.index, slowJoin)
}

// agentStarts begins the agent's first line on the console.
const agentStarts = "firstlight: machine agent"

// slowTime is how long the writes of a stage last at least, in seconds.
const slowTime = 20

// slowFrom says whether the disk is to be slow from now on, for the stage to be met in its middle. Nothing is written before the wipe,
// which begins with a large stretch at once; a deploy is slow enough in itself to be met when it runs.
func slowFrom(rec *judge.Record, stage string) bool {
	switch stage {
	case "wipe":
		return rec.Reached("kernel")
	case "deploy":
		return rec.Reached("deploy")
	}
	return false
}

// stageBytes are what a stage writes in all; 0 for one that does not write.
func (r *run) stageBytes(m *machine, stage string) int64 {
	switch stage {
	case "wipe":
		return m.disk().size
	case "deploy":
		return r.image.Manifest.DataSize()
	}
	return 0
}

// beginStill lets a paused workflow go on while the machine stands still, and returns when its next stage has begun.
func (r *run) beginStill(ctx context.Context, m *machine, stage string) error {
	if err := m.pause(ctx); err != nil {
		return err
	}
	if _, err := r.firstlight(ctx, "resume", m.name); err != nil {
		return err
	}
	for {
		rec, err := r.show(ctx, m)
		if err != nil {
			return err
		}
		// A command waits for a session that the machine did not open before it stood still.
		if s := rec.Step(stage); s != nil && s.State == "running" && (len(s.Commands) == 0 || s.Commands[0].State != "pending" || rec.Connected == nil) {
			m.say.say("%-10s begins, the machine stands still", stage)
			return nil
		}
		if rec.Over(stage) {
			return fmt.Errorf("stage %s was over before the machine stood still", stage)
		}
		if err := r.wait(ctx, rec); err != nil {
			return err
		}
	}
}

// cutPower cuts the power. What the guest had written is in the disk's file.
func (m *machine) cutPower(ctx context.Context, d death) error {
	m.say.say("%-10s the power is cut", d.stage)
	return m.rack.PowerOff(ctx)
}

// comeBack gives a machine power again.
func (m *machine) comeBack(ctx context.Context, d death) error {
	if d.alone || d.back == "" {
		return nil
	}
	m.say.say("           the power is back, the firmware starts from %s first", d.back)
	return m.rack.PowerOn(ctx, d.back)
}

// agentKilled is what process 1 says of it.
var agentKilled = regexp.MustCompile(`the agent stopped \(killed by [^\r\n]*`)

// killAgent has the kernel kill its greediest process, which is the agent: Alt-SysRq-F. Process 1 cannot be killed.
func (r *run) killAgent(ctx context.Context, m *machine, prefix string, from int64) error {
	vm := m.rack.VM()
	if vm == nil {
		return errors.New("machine is off")
	}
	if err := vm.Resume(ctx); err != nil {
		return err
	}
	m.say.say("           the kernel is told to kill the agent")
	if err := vm.SendKeys(ctx, "alt", "sysrq", "f"); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, saysSoTime)
	defer cancel()
	said, _, err := qemu.WaitSerial(waiting, m.serialPath(), agentKilled, from)
	if err != nil {
		r.add(judge.Fail(prefix+"the agent alone is dead", "%v", err))
		return ctx.Err()
	}
	r.add(judge.Of(prefix+"the agent alone is dead", m.rack.Powered(), "the console says: %s", said[0]))
	return nil
}
