package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/u-root/u-root/pkg/cpio"
	"google.golang.org/protobuf/proto"

	"firstlight/testbed/fixtures"
	"firstlight/testbed/judge"
	"firstlight/testbed/netlab"
	"firstlight/testbed/qemu"
)

// Bounds of a run.
const (
	sessionLimit = 6 * time.Minute
	answerLimit  = time.Minute
	wipeLimit    = 6 * time.Minute
	stopLimit    = 20 * time.Second
)

// diskSize is the machine's disk, in bytes: read whole after each trial.
const diskSize = 128 << 20

// Names inside the overlay.
const (
	anchorsFile   = "etc/firstlight/trust.binpb"
	assertionFile = "etc/firstlight/assertion.binpb"
)

// Config is what a run needs.
type Config struct {
	// Dir is an existing folder for the disk, the overlay and the logs.
	Dir string
	// Lab is the network; the machine is on its first tap, the gateway in the peer's place.
	Lab *netlab.Lab
	// RAMDisk holds the real agent.
	RAMDisk fixtures.RAMDisk
	// Port is the gateway's.
	Port int
	// Check takes each check when it is known; it may not be nil.
	Check func(...judge.Check)
	// Say tells people what happens.
	Say func(format string, args ...any)
	Log *slog.Logger
}

// run is one machine before the gateway.
type run struct {
	Config
	attack  *attack
	pattern fixtures.Pattern
	vm      *qemu.VM
}

// Run boots the machine before the hostile gateway and puts it through every trial. An error is of the testbed, not of the agent.
func Run(ctx context.Context, cfg Config) (err error) {
	r := &run{Config: cfg, pattern: fixtures.Pattern{Serial: "FLHOSTILE5"}}
	if err := r.pattern.WriteDisk(r.path("disk.raw"), diskSize); err != nil {
		return err
	}
	g, err := NewGateway(fmt.Sprintf("%s:%d", netlab.PeerAddress, cfg.Port), cfg.Log)
	if err != nil {
		return err
	}
	ln, err := cfg.Lab.Listen(netlab.Peer, "tcp", g.address)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(ln) }()
	defer func() {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
		defer cancel()
		g.Stop(limited)
		err = errors.Join(err, <-served)
	}()
	r.attack = &attack{g: g, serial: r.pattern.Serial}
	if err := r.overlay(); err != nil {
		return err
	}
	if err := r.boot(ctx); err != nil {
		return err
	}
	defer func() {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
		defer cancel()
		err = errors.Join(err, r.vm.Stop(limited))
	}()
	return r.trials(ctx)
}

func (r *run) path(name string) string { return filepath.Join(r.Dir, name) }

// overlay joins the RAM disk with what a site would serve beside it for this boot.
func (r *run) overlay() error {
	anchors, err := r.attack.g.anchors()
	if err != nil {
		return fmt.Errorf("make overlay: %w", err)
	}
	assertion, err := r.attack.g.assertion()
	if err != nil {
		return fmt.Errorf("make overlay: %w", err)
	}
	base, err := os.ReadFile(filepath.Join(r.RAMDisk.Dir, "ramdisk.cpio.zst"))
	if err != nil {
		return fmt.Errorf("make overlay: %w", err)
	}
	out := bytes.NewBuffer(append(base, make([]byte, (512-len(base)%512)%512)...))
	var archive bytes.Buffer
	w := cpio.Newc.Writer(&archive)
	records := []cpio.Record{cpio.Directory("etc", 0o755), cpio.Directory("etc/firstlight", 0o755)}
	for name, m := range map[string]proto.Message{anchorsFile: anchors, assertionFile: assertion} {
		b, err := marshal(m)
		if err != nil {
			return fmt.Errorf("make overlay: %w", err)
		}
		records = append(records, cpio.StaticFile(name, string(b), 0o600))
	}
	if err := errors.Join(cpio.WriteRecords(w, records), cpio.WriteTrailer(w)); err != nil {
		return fmt.Errorf("make overlay: %w", err)
	}
	out.Write(archive.Bytes())
	return os.WriteFile(r.path("initrd"), out.Bytes(), 0o600)
}

// boot starts the machine straight from the kernel and waits for its session.
func (r *run) boot(ctx context.Context) (err error) {
	r.vm, err = qemu.Start(ctx, qemu.Config{Name: "victim", Dir: r.Dir, NetNS: r.Lab.NS(netlab.Segment), Firmware: "bios", MemoryMiB: 512,
		Tap: r.Lab.Tap(0), MAC: r.Lab.MAC(0), BootFirst: "disk", Disks: []qemu.Disk{{Path: r.path("disk.raw"), Serial: r.pattern.Serial, Driver: "virtio-blk"}},
		ExtraArgs: []string{"-kernel", filepath.Join(r.RAMDisk.Dir, "vmlinuz"), "-initrd", r.path("initrd"), "-append", "console=ttyS0 quiet"}})
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, sessionLimit)
	defer cancel()
	for !r.attack.g.Connected() {
		r.attack.g.mu.Lock()
		changed := r.attack.g.changed
		r.attack.g.mu.Unlock()
		select {
		case <-changed:
		case <-r.vm.Done():
			return errors.New("machine ended before its session")
		case <-limited.Done():
			return errors.Join(fmt.Errorf("machine has no session after %s", sessionLimit), r.vm.Stop(context.WithoutCancel(ctx)))
		}
	}
	r.Say("the machine's session with the hostile gateway")
	return nil
}

func (r *run) trials(ctx context.Context) error {
	for _, t := range trials() {
		limited, cancel := context.WithTimeout(ctx, answerLimit)
		got, err := t.do(limited, r.attack)
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			r.Check(judge.Fail(t.name, "%v", err))
			continue
		}
		ok, words := t.judge(got)
		clean, disk := r.untouched(ctx)
		r.Check(judge.Of(t.name, ok && clean, "%s; %s", words, disk))
	}
	g := r.attack.g
	g.mu.Lock()
	updates, forged := len(g.updates), g.forged
	g.mu.Unlock()
	r.Check(judge.Of("every update is the machine's own", updates > 0 && forged == 0, "%d updates signed by the machine's key, %d not", updates, forged))
	return r.deliverWithheld(ctx)
}

// untouched says whether nothing was ever written, by the counters and by every byte.
func (r *run) untouched(ctx context.Context) (bool, string) {
	stats, err := r.vm.BlockStats(ctx)
	if err != nil || len(stats) != 1 {
		return false, fmt.Sprintf("counters of %d disks: %v", len(stats), err)
	}
	s, bytes := stats[0], judge.Untouched(r.path("disk.raw"), r.pattern)
	return s.WriteOps == 0 && s.WriteBytes == 0 && s.UnmapOps == 0 && bytes.OK,
		fmt.Sprintf("%d writes and %d discards since power on, %s", s.WriteOps, s.UnmapOps, bytes.Detail)
}

// deliverWithheld shows that the trials were about something: the one good command does wipe the disk.
func (r *run) deliverWithheld(ctx context.Context) error {
	if r.attack.withheld == nil {
		return errors.New("no command was withheld")
	}
	limited, cancel := context.WithTimeout(ctx, wipeLimit)
	defer cancel()
	b, err := decode(r.attack.withheld)
	if err != nil {
		return err
	}
	got, err := r.attack.deliver(limited, b.CommandId, r.attack.withheld)
	if err != nil {
		r.Check(judge.Fail("the withheld command, delivered untouched, runs", "%v", err))
		return ctx.Err()
	}
	gone := judge.NoTrace(r.path("disk.raw"), r.pattern)
	r.Check(judge.Of("the withheld command, delivered untouched, runs", word(got.update.State) == "succeeded" && gone.OK,
		"%s %s; %s", word(got.update.State), got.update.Message, gone.Detail))
	return nil
}
