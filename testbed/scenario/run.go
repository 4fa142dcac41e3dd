package scenario

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"firstlight/testbed/fixtures"
	"firstlight/testbed/judge"
	"firstlight/testbed/netlab"
	"firstlight/testbed/peer"
	"firstlight/testbed/qemu"
	"firstlight/testbed/rack"
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

	// Made by prepare and start.
	dir       string
	ramdisk   fixtures.RAMDisk
	image     fixtures.Image
	programs  map[string]int64
	pattern   fixtures.Pattern
	uuid      string
	lab       *netlab.Lab
	box       *rack.Machine
	bmc       *controller
	serve     serveConfig
	appliance *appliance
	peer      peer.Host
	closers   []closer

	// Seen on the way.
	record     *judge.Record
	recordJSON []byte
	checks     []judge.Check
	errs       []string
	writes     writeLog
	// stats at the pauses, by the stage before.
	stats map[string]qemu.BlockStat
	held  bool
}

type closer struct {
	what string
	f    func() error
}

// onClose has f called when the run ends, last one first.
func (r *run) onClose(what string, f func() error) { r.closers = append(r.closers, closer{what, f}) }

// do is the whole run; whatever happens, everything that it made is gone afterwards, but for logs worth keeping.
func (r *run) do(ctx context.Context) *Report {
	err := r.attempt(ctx)
	rep := r.report(ctx, err)
	for i := len(r.closers) - 1; i >= 0; i-- {
		if cerr := r.closers[i].f(); cerr != nil {
			rep.Errors = append(rep.Errors, fmt.Sprintf("clean up %s: %v", r.closers[i].what, cerr))
		}
	}
	r.keep(rep)
	rep.WallS = float64(time.Since(r.started).Milliseconds()) / 1000
	return rep
}

func (r *run) attempt(ctx context.Context) error {
	if err := r.prepare(ctx); err != nil {
		return err
	}
	if err := r.start(ctx); err != nil {
		return err
	}
	if err := r.provision(ctx); err != nil {
		return err
	}
	return r.conclude(ctx)
}

// conclude judges how the machine ended.
func (r *run) conclude(ctx context.Context) error {
	switch {
	case r.spoil != nil:
		return r.judgeBreak(ctx)
	case r.held:
		return nil
	case r.record.State != "active":
		return nil // the report tells the record's own cause
	}
	if err := r.judgeActive(ctx); err != nil {
		return err
	}
	return r.powerCycle(ctx)
}

// prepare makes what needs no network: the run's folder, the RAM disk, the image, the disk.
func (r *run) prepare(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces and taps need root: run it as root")
	}
	for _, name := range []string{"firstlight", "imagebuild", "machine-agent"} {
		if _, err := os.Stat(filepath.Join(r.Bin, name)); err != nil {
			return fmt.Errorf("%s is missing beside this program: make build makes it", name)
		}
	}
	var err error
	if r.dir, err = os.MkdirTemp("", "firstlight-run-"); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(r.dir, "machine"), 0o700); err != nil {
		return err
	}
	if err := r.openLog(); err != nil {
		return err
	}
	r.out.say("run folder %s", r.dir)
	build, err := os.Create(filepath.Join(r.dir, "imagebuild.log"))
	if err != nil {
		return err
	}
	defer build.Close()
	cache := &fixtures.Cache{Bin: r.Bin, Progress: build}
	r.out.say("RAM disk and image (built once, then from %s)", filepath.Join(r.Bin, "cache"))
	if r.ramdisk, err = cache.RAMDisk(ctx); err != nil {
		return err
	}
	var variant fixtures.Variant
	var without []string
	if r.spoil != nil {
		variant, without = r.spoil.image, r.spoil.without
	}
	if r.image, err = cache.Image(ctx, variant); err != nil {
		return err
	}
	if r.programs, err = fixtures.Firmware(filepath.Join(r.dir, "firmware"), without...); err != nil {
		return err
	}
	r.uuid = newUUID()
	r.pattern = fixtures.Pattern{Serial: "FLT" + randomHex(4) + "5"}
	r.stats = map[string]qemu.BlockStat{}
	return r.pattern.WriteDisk(r.diskPath(), diskSize)
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

func (r *run) diskPath() string   { return filepath.Join(r.dir, "disk.raw") }
func (r *run) serialPath() string { return filepath.Join(r.dir, "machine", qemu.SerialLog) }
func (r *run) pcapPath() string   { return filepath.Join(r.dir, "segment.pcap") }

// start cables the rack and starts everything but the machine.
func (r *run) start(ctx context.Context) error {
	var err error
	dir := filepath.Join(r.dir, "net")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if r.lab, err = netlab.New(ctx, netlab.Config{Name: "run", Dir: dir, Machines: 1}); err != nil {
		return err
	}
	r.onClose("network", r.lab.Close)
	r.peer = peer.Host{Dial: r.lab.DialContext(netlab.Peer), Address: netlab.PeerAddress,
		ListenPacket: func(network, addr string) (net.PacketConn, error) {
			return r.lab.ListenPacket(netlab.Peer, network, addr)
		}}
	// The capture outlives ctx: an interrupted run still closes it in order.
	stop, err := r.lab.Capture(context.WithoutCancel(ctx), 0, r.pcapPath())
	if err != nil {
		return err
	}
	r.onClose("capture", stop)
	// Without IPv6 the firmware still has two network boots to give up before it starts from its disk; with it, a third one.
	noIPv6 := []string{"-fw_cfg", "name=opt/org.tianocore/IPv6Support,string=no"}
	r.box = rack.New(qemu.Config{Name: machineName, Dir: filepath.Join(r.dir, "machine"), NetNS: r.lab.NS(netlab.Segment), Firmware: r.Firmware,
		MemoryMiB: 1024, Tap: r.lab.Tap(0), MAC: r.lab.MAC(0), UUID: r.uuid, RTCBase: r.scenario.rtc, ExtraArgs: noIPv6,
		Disks: []qemu.Disk{{Path: r.diskPath(), Serial: r.pattern.Serial, Driver: "virtio-blk"}}})
	r.onClose("machine", r.powerOff)
	if r.bmc, err = r.startBMC(r.box, bmcPort); err != nil {
		return err
	}
	r.serve = r.newServeConfig()
	if r.spoil != nil && r.spoil.setup != nil {
		if err := r.spoil.setup(r); err != nil {
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

// enroll tells the appliance of the machine and the image, as an operator would.
func (r *run) enroll(ctx context.Context) error {
	serial := r.pattern.Serial
	if r.spoil != nil && r.spoil.serial != nil {
		serial = r.spoil.serial(serial)
	}
	if err := r.addMachine(ctx, machineName, r.lab.MAC(0), r.uuid, serial, r.bmc); err != nil {
		return err
	}
	if _, err := r.firstlight(ctx, "image", "add", imageName, r.image.Dir); err != nil {
		return err
	}
	if r.spoil != nil && r.spoil.enrolled != nil {
		return r.spoil.enrolled(ctx, r)
	}
	return nil
}

func (r *run) addMachine(ctx context.Context, name, mac, uuid, serial string, c *controller) error {
	password := filepath.Join(r.dir, name+".password")
	if err := os.WriteFile(password, []byte(c.password), 0o600); err != nil {
		return err
	}
	defer os.Remove(password)
	_, err := r.firstlight(ctx, "machine", "add", name, "--mac", mac, "--uuid", uuid, "--disk-serial", serial,
		"--bmc-url", "https://"+c.address, "--bmc-user", c.user, "--bmc-password-file", password,
		"--bmc-cert-sha256", c.certificateHex())
	return err
}

// report says how the run ended. attempt's error, if any, is its first cause.
func (r *run) report(ctx context.Context, err error) *Report {
	rep := &Report{Scenario: r.scenario.Name, Firmware: r.Firmware, Break: r.Break, Outcome: OutcomeFailed, Machine: machineName,
		Stages: stages(r.record, time.Now()), Checks: r.checks, Errors: r.errs}
	if r.record != nil {
		if cause := r.record.Cause(); cause != "" {
			rep.Errors = append(rep.Errors, cause)
			rep.Errors = append(rep.Errors, r.lastWords()...)
		}
		if r.record.State == "active" && err == nil {
			rep.Outcome = OutcomeActive
		}
	}
	if err != nil {
		rep.Errors = append(rep.Errors, err.Error())
		rep.Outcome = r.outcome(ctx)
	}
	if r.held && err == nil {
		rep.Outcome = outcomeHeld + r.HoldAfter
	}
	if len(rep.Checks) == 0 {
		rep.Checks = []judge.Check{judge.Fail("run", "it ended before there was anything to judge")}
	}
	rep.met = r.spoil != nil && err == nil
	for _, c := range rep.Checks {
		if !c.OK {
			rep.Errors = append(rep.Errors, "check: "+c.Name+": "+c.Detail)
		}
	}
	if rep.Errors == nil {
		rep.Errors = []string{}
	}
	return rep
}

func (r *run) outcome(ctx context.Context) string {
	switch ctx.Err() {
	case context.DeadlineExceeded:
		return OutcomeTimeout
	case context.Canceled:
		return OutcomeInterrupted
	}
	return OutcomeFailed
}

// lastWords is what the machine said last on its serial line.
func (r *run) lastWords() []string {
	serial, err := judge.ReadSerial(r.serialPath())
	if err != nil {
		return nil
	}
	var out []string
	for _, line := range judge.LastWords(serial, 2) {
		out = append(out, "serial line: "+line)
	}
	return out
}

// keep leaves the run's folder where it helps, and nothing otherwise. Keys, credentials and the disk stay only when asked for.
func (r *run) keep(rep *Report) {
	if r.dir == "" {
		return
	}
	if !r.Keep && (rep.Satisfied() || rep.BrokeAsSaid() || rep.Outcome == OutcomeInterrupted) {
		if err := os.RemoveAll(r.dir); err != nil {
			rep.Errors = append(rep.Errors, err.Error())
		}
		return
	}
	rep.Logs = r.dir
	for name, b := range map[string][]byte{"record.json": r.recordJSON, "report.json": r.encode(rep)} {
		if err := os.WriteFile(filepath.Join(r.dir, name), b, 0o600); err != nil {
			rep.Errors = append(rep.Errors, err.Error())
		}
	}
	if r.Keep {
		return
	}
	for _, name := range []string{"disk.raw", "data", "socket"} {
		if err := os.RemoveAll(filepath.Join(r.dir, name)); err != nil {
			rep.Errors = append(rep.Errors, err.Error())
		}
	}
}

func (r *run) encode(rep *Report) []byte {
	b, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return []byte(err.Error())
	}
	return append(b, '\n')
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
