package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"firstlight/testbed/judge"
	"firstlight/testbed/netlab"
	"firstlight/testbed/qemu"
)

// crashApplianceScenario kills the control plane at every write of its journal, on both edges of each: the writes of one boot are
// covered by as many lives of the appliance.
func crashApplianceScenario() Scenario {
	s := &crashes{}
	return Scenario{Name: "crash-appliance", What: "kill -9 before and after every write of the executor's journal, and in the middle of the wipe's and the deploy's writes: the machine becomes active, after one wipe",
		Firmware: []string{UEFI}, timeout: crashLimit, drive: s.drive, judge: s.judge}
}

// crashLimit bounds the run: the appliance starts some forty times.
const crashLimit = 40 * time.Minute

// crashes is an appliance that dies, and whoever starts it again.
type crashes struct {
	log string
	// wiped are the target disk's counters in the last sample between the wipe and the deploy.
	wiped qemu.BlockStat
	// shots are the deaths that the counters chose; aim is for the next one.
	shots []shot
	aim   aim

	mu     sync.Mutex // guards what follows
	cmd    *exec.Cmd
	quit   bool
	deaths []time.Time
	// calm: the next life does not die by its journal; long: this one does not.
	calm, long bool
	err        error
	done       chan struct{}
}

func (s *crashes) drive(ctx context.Context, r *run) error {
	if _, err := os.Stat(filepath.Join(r.Bin, "crash-appliance")); err != nil {
		return fmt.Errorf("%w (make build makes it)", err)
	}
	if err := r.stopServe(); err != nil {
		return err
	}
	s.log, s.done = filepath.Join(r.dir, "crashes.log"), make(chan struct{})
	go s.supervise(context.WithoutCancel(ctx), r)
	err := errors.Join(s.order(ctx, r), s.follow(ctx, r))
	s.end()
	if err = errors.Join(err, s.err); err != nil {
		return err
	}
	// The judge's questions are answered by an appliance that lives.
	if err := r.startServe(ctx); err != nil {
		return err
	}
	return s.settle(ctx, r)
}

// settle waits until an active machine has found the appliance that lives. A session that does not come is the judge's business.
func (s *crashes) settle(ctx context.Context, r *run) error {
	waiting, cancel := context.WithTimeout(ctx, sessionTime)
	defer cancel()
	for {
		rec, err := r.show(ctx, r.machine)
		if err != nil || rec.State != "active" || rec.Connected != nil && rec.Connected.Role == "node" {
			return err
		}
		select {
		case <-waiting.Done():
			return ctx.Err()
		case <-time.After(pollEvery):
		}
	}
}

// deathAt are the writes of a life at which the appliance dies, one life after the other. The first write of a life notes how
// long it now waits, the second one is what happens next; each dies on both edges, and only then the workflow moves on.
var deathAt = []struct {
	edge string
	at   int
}{{"before", 1}, {"after", 1}, {"before", 2}, {"after", 2}}

// supervise starts the appliance again whenever it died.
func (s *crashes) supervise(ctx context.Context, r *run) {
	defer close(s.done)
	for life := 0; ; life++ {
		death := deathAt[life%len(deathAt)]
		s.mu.Lock()
		if s.long = s.calm; s.long {
			death.at = 0
		}
		s.mu.Unlock()
		cmd := r.lab.Command(ctx, netlab.Site, filepath.Join(r.Bin, "crash-appliance"),
			"--config", filepath.Join(r.dir, "serve.toml"), "--at", strconv.Itoa(death.at), "--edge", death.edge, "--log", s.log)
		if err := s.live(r, cmd); err != nil {
			s.err = err
			return
		}
		if s.quit {
			return
		}
		s.deaths = append(s.deaths, time.Now())
	}
}

// live is one life, to its end.
func (s *crashes) live(r *run, cmd *exec.Cmd) error {
	log, err := os.OpenFile(filepath.Join(r.dir, "serve.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr.Setpgid = true
	s.mu.Lock()
	if s.quit {
		s.mu.Unlock()
		return nil
	}
	if err := cmd.Start(); err != nil {
		s.mu.Unlock()
		return fmt.Errorf("start appliance: %w", err)
	}
	s.cmd = cmd
	s.mu.Unlock()
	err = cmd.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if s.quit || ok && status.Signaled() && status.Signal() == syscall.SIGKILL {
		return nil
	}
	return fmt.Errorf("appliance ended by itself: %w: %s", err, r.lastServeLine())
}

// end stops the appliance for good.
func (s *crashes) end() {
	s.mu.Lock()
	s.quit = true
	if s.cmd != nil {
		s.cmd.Process.Signal(syscall.SIGTERM)
	}
	s.mu.Unlock()
	select {
	case <-s.done:
		return
	case <-time.After(stopLimit):
	}
	s.mu.Lock()
	if s.cmd != nil {
		s.cmd.Process.Kill()
	}
	s.mu.Unlock()
	<-s.done
}

// order asks until there is a workflow: the appliance may die over the question, and over the answer.
func (s *crashes) order(ctx context.Context, r *run) error {
	for {
		_, asked := r.firstlight(ctx, "provision", r.name, "--image", imageName)
		rec, err := r.show(ctx, r.machine)
		if err == nil && rec.Workflow != nil {
			return nil
		}
		if err := s.pause(ctx, r, asked); err != nil {
			return err
		}
	}
}

// pause waits a little; why is what to say when there is no time left.
func (s *crashes) pause(ctx context.Context, r *run, why error) error {
	select {
	case <-ctx.Done():
		return errors.Join(r.late(ctx), why)
	case <-s.done:
		return s.err
	case <-time.After(pollEvery):
		return nil
	}
}

// follow reads the record whenever there is somebody to ask.
func (s *crashes) follow(ctx context.Context, r *run) error {
	for {
		stats, statErr := r.counters(ctx)
		rec, err := r.show(ctx, r.machine)
		if statErr == nil {
			if err := s.shoot(ctx, r, stats[r.box.target], err == nil); err != nil {
				return err
			}
		}
		if err == nil {
			r.out.record(rec)
			if statErr == nil && rec.Over("wipe") && !rec.Reached("deploy") {
				s.wiped = stats[r.box.target]
			}
			switch rec.State {
			case "active", "failed", "cancelled":
				return nil
			}
		}
		if err := s.pause(ctx, r, err); err != nil {
			return err
		}
	}
}

func (s *crashes) judge(ctx context.Context, r *run) error {
	b, err := os.ReadFile(s.log)
	if err != nil {
		return err
	}
	before, after := bytes.Count(b, []byte("before ")), bytes.Count(b, []byte("after "))
	all := bytes.Count(b, []byte(" workflows/"))
	r.add(judge.Of("appliance was killed at every write", before+after == all && all == len(s.deaths)-len(s.shots) && after >= len(judge.Stages) && before >= len(judge.Stages),
		"%d deaths: %d before a write of the executor's journal, %d after one", len(s.deaths), before, after))
	for _, name := range []string{"wipe", "deploy"} {
		r.add(judge.Of("appliance was killed in the middle of "+name, s.within(r.record.Step(name)) > 0, "%d deaths while it ran", s.within(r.record.Step(name))))
	}
	r.add(s.judgeShots(r)...)
	r.add(oneWipe(r, s.wiped)...)
	if r.record.State != "active" {
		return nil
	}
	r.add(judge.Active(r.record)...)
	return s.judgeSystem(ctx, r)
}

// judgeSystem reads the serial line. The machine may have been switched on more than once, since a power order that a crash cut
// off is given again; but not after its deploy.
func (s *crashes) judgeSystem(ctx context.Context, r *run) error {
	waiting, cancel := context.WithTimeout(ctx, serialLimit)
	defer cancel()
	words, _, err := qemu.WaitSerial(waiting, r.serialPath(), judge.OSLine, 0)
	if err != nil {
		r.add(judge.Fail("serial: deployed system", "%v", err))
		return ctx.Err()
	}
	os, err := judge.ParseOS(words)
	if err != nil {
		return err
	}
	r.add(judge.Of("serial: deployed system", os.Nonce == r.image.Nonce && os.DiskSerial == r.disk().serial, "nonce %s (image has %s), root on disk %s (ours is %s)",
		os.Nonce, r.image.Nonce, os.DiskSerial, r.disk().serial))
	deployed := r.record.Step("deploy")
	if deployed == nil || deployed.End == nil {
		return errors.New("record has no end of step deploy")
	}
	r.add(judge.Of("entered by kexec", r.resets(*deployed.End) == 0, "%d RESET events since the deploy, %d power-ons in all", r.resets(*deployed.End), r.rack.PowerOns()))
	return nil
}

// within counts the deaths while a step ran.
func (s *crashes) within(step *judge.Step) int {
	n := 0
	for _, t := range s.deaths {
		if step != nil && step.Start != nil && step.End != nil && t.After(*step.Start) && t.Before(*step.End) {
			n++
		}
	}
	return n
}

// oneWipe says from the record and the disk's counters that the disk was wiped once. A wipe writes every byte once and reads it
// once; what a second one would add is far above what discards and tables take.
func oneWipe(r *run, s qemu.BlockStat) []judge.Check {
	commands := 0
	for _, c := range r.record.Workflow.Steps {
		for _, c := range c.Commands {
			if c.Kind == "disk.wipe" {
				commands++
			}
		}
	}
	size := r.disk().size
	return []judge.Check{
		judge.Of("record: one wipe", commands == 1, "%d disk.wipe commands", commands),
		judge.Of("counters: one wipe", s.ReadBytes >= size && s.ReadBytes < size*3/2 && s.WriteBytes < size*3/2,
			"%d bytes written, %d discarded and %d read between wipe and deploy; the disk has %d", s.WriteBytes, s.UnmapBytes, s.ReadBytes, size),
	}
}
