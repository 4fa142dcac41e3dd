package scenario

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"firstlight/testbed/fixtures"
	"firstlight/testbed/judge"
	"firstlight/testbed/netlab"
	"firstlight/testbed/peer"
	"firstlight/testbed/qemu"
)

// imageName is what the demo image is called in the appliance.
const imageName = "demo"

// run is one run of a scenario: what it was told, what it made, what it saw.
type run struct {
	Options
	scenario Scenario
	spoil    *breakKind // nil: nothing is broken
	started  time.Time
	out      *progress
	log      *slog.Logger

	// machines is the rack. The embedded one is the first of them: most scenarios have no other.
	machines []*machine
	*machine

	// Made by prepare and start.
	dir       string
	ramdisk   fixtures.RAMDisk
	image     fixtures.Image
	programs  map[string]int64
	lab       *netlab.Lab
	serve     serveConfig
	appliance *appliance
	peer      peer.Host

	// mu guards what follows: several machines may be followed at a time.
	mu      sync.Mutex
	closers []closer
	checks  []judge.Check

	// ended is how the run ended, in a word; empty is the state of the first machine's record.
	ended string
	held  bool

	// told takes the lines by which the appliance tells whoever started it where its page is; nil leaves them in its log.
	told func(line string)
	// uncaptured leaves the machines' frames unrecorded: nobody is going to judge them.
	uncaptured bool
}

type closer struct {
	what string
	f    func() error
}

// onClose has f called when the run ends, last one first.
func (r *run) onClose(what string, f func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closers = append(r.closers, closer{what, f})
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
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checks = append(r.checks, checks...)
}

func named(prefix string, c judge.Check) judge.Check {
	c.Name = prefix + c.Name
	return c
}

// do is the whole run; whatever happens, everything that it made is gone afterwards, but for logs worth keeping.
func (r *run) do(ctx context.Context) *Report {
	err := r.attempt(ctx)
	rep := r.report(ctx, err)
	for _, cerr := range r.closeAll() {
		rep.Errors = append(rep.Errors, cerr.Error())
	}
	r.keep(rep)
	rep.WallS = float64(time.Since(r.started).Milliseconds()) / 1000
	return rep
}

// closeAll takes away what was made, the last thing first. Each has a bound of its own.
func (r *run) closeAll() []error {
	var errs []error
	for i := len(r.closers) - 1; i >= 0; i-- {
		if err := r.closers[i].f(); err != nil {
			errs = append(errs, fmt.Errorf("clean up %s: %w", r.closers[i].what, err))
		}
	}
	r.closers = nil
	return errs
}

func (r *run) attempt(ctx context.Context) error {
	if err := r.prepare(ctx); err != nil {
		return err
	}
	if err := r.start(ctx); err != nil {
		return err
	}
	drive := r.scenario.drive
	if drive == nil {
		drive = provisionOne
	}
	if err := drive(ctx, r); err != nil {
		return err
	}
	return r.conclude(ctx)
}

// conclude judges how the machines ended.
func (r *run) conclude(ctx context.Context) error {
	switch {
	case r.spoil != nil:
		return r.judgeBreak(ctx)
	case r.held:
		return nil
	case r.scenario.judge != nil:
		return r.scenario.judge(ctx, r)
	case r.record.State != "active":
		return nil // the report tells the record's own cause
	}
	return becameNode(ctx, r)
}

// becameNode judges the first machine as a node, and once more after a power cycle.
func becameNode(ctx context.Context, r *run) error {
	if err := r.judgeActive(ctx, r.machine); err != nil {
		return err
	}
	return r.powerCycle(ctx, r.machine)
}

// prepare makes what needs no network: the run's folder, the RAM disk, the image, the disks.
func (r *run) prepare(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces and taps need root: run it as root")
	}
	for _, name := range []string{"firstlight", "imagebuild", "machine-agent"} {
		if _, err := os.Stat(filepath.Join(r.Bin, name)); err != nil {
			return fmt.Errorf("%s is missing beside this program: make build makes it", name)
		}
	}
	if r.dir == "" {
		var err error
		if r.dir, err = os.MkdirTemp("", "firstlight-run-"); err != nil {
			return err
		}
	}
	if err := r.openLog(); err != nil {
		return err
	}
	r.out.say("run folder %s", r.dir)
	if err := r.build(ctx); err != nil {
		return err
	}
	for _, m := range r.machines {
		if err := m.fill(r.dir); err != nil {
			return err
		}
	}
	return nil
}

// build makes what the site serves.
func (r *run) build(ctx context.Context) error {
	log, err := os.Create(filepath.Join(r.dir, "imagebuild.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cache := &fixtures.Cache{Bin: r.Bin, Progress: log}
	r.out.say("RAM disk and image (built once, then from %s)", filepath.Join(r.Bin, "cache"))
	if r.ramdisk, err = cache.RAMDisk(ctx); err != nil {
		return err
	}
	variant, without := r.scenario.image, r.scenario.without
	if r.spoil != nil {
		variant, without = r.spoil.image, r.spoil.without
	}
	if r.image, err = cache.Image(ctx, variant); err != nil {
		return err
	}
	r.programs, err = fixtures.Firmware(filepath.Join(r.dir, "firmware"), without...)
	return err
}

func (r *run) openLog() error {
	f, err := os.Create(filepath.Join(r.dir, "testbed.log"))
	if err != nil {
		return err
	}
	r.log = slog.New(slog.NewTextHandler(f, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r.onClose("log", f.Close)
	return nil
}

// start cables the rack and starts everything but the machines.
func (r *run) start(ctx context.Context) error {
	var err error
	dir := filepath.Join(r.dir, "net")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if r.lab, err = netlab.New(ctx, netlab.Config{Name: "run", Dir: dir, Machines: len(r.machines)}); err != nil {
		return err
	}
	r.onClose("network", r.lab.Close)
	r.peer = peer.Host{Dial: r.lab.DialContext(netlab.Peer), Address: netlab.PeerAddress,
		ListenPacket: func(network, addr string) (net.PacketConn, error) {
			return r.lab.ListenPacket(netlab.Peer, network, addr)
		}}
	for _, m := range r.machines {
		if err := m.cable(ctx, r); err != nil {
			return err
		}
	}
	r.serve = r.newServeConfig()
	for _, setup := range []func(*run) error{r.scenario.setup, r.spoil.hooks().setup} {
		if setup == nil {
			continue
		}
		if err := setup(r); err != nil {
			return err
		}
	}
	r.out.say("appliance starts (accelerator: %s)", qemu.Accel(ctx))
	r.onClose("appliance", r.stopServe)
	if err := r.startServe(ctx); err != nil {
		return err
	}
	return r.enroll(ctx)
}

// enroll tells the appliance of the machines and the image, as an operator would.
func (r *run) enroll(ctx context.Context) error {
	for _, m := range r.machines {
		if m.box.unknown {
			continue
		}
		serial := m.disk().serial
		if m.box.says != nil {
			serial = m.box.says(r)
		}
		if spoil := r.spoil.hooks().serial; spoil != nil {
			serial = spoil(serial)
		}
		more := m.saysFirmware()
		if m.box.place != "" {
			more = append(more, "--place", m.box.place)
		}
		if err := r.addMachine(ctx, m.name, m.mac, m.uuid, serial, m.bmc, more...); err != nil {
			return err
		}
	}
	if _, err := r.firstlight(ctx, "image", "add", imageName, r.image.Dir); err != nil {
		return err
	}
	for _, enrolled := range []func(context.Context, *run) error{r.scenario.enrolled, r.spoil.hooks().enrolled} {
		if enrolled == nil {
			continue
		}
		if err := enrolled(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) addMachine(ctx context.Context, name, mac, uuid, serial string, c *controller, more ...string) error {
	password := filepath.Join(r.dir, name+".password")
	if err := os.WriteFile(password, []byte(c.password), 0o600); err != nil {
		return err
	}
	defer os.Remove(password)
	args := []string{"machine", "add", name, "--mac", mac, "--uuid", uuid, "--disk-serial", serial,
		"--bmc-url", "https://" + c.address, "--bmc-user", c.user, "--bmc-password-file", password,
		"--bmc-cert-sha256", c.certificateHex()}
	_, err := r.firstlight(ctx, append(args, more...)...)
	return err
}

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// newUUID is a random UUID (RFC 9562, version 4).
func newUUID() string {
	b := make([]byte, 16)
	rand.Read(b)
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	h := hex.EncodeToString(b)
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
