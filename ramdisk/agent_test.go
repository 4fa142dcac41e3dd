package ramdisk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/gatewaytest"
	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
	"firstlight/gateway-client/session"
	"firstlight/ramdisk/internal/diag"
	"firstlight/ramdisk/internal/disk/disktest"
	"firstlight/ramdisk/internal/inventory"
	"firstlight/ramdisk/internal/netup"
)

const (
	mac  = "52:54:00:aa:00:01"
	node = ident.NodeID("m-1")
)

var ramdiskRole = commonv1.AgentRole_AGENT_ROLE_RAMDISK

// bench is one machine before a gateway: everything under the agent is a twin.
type bench struct {
	t       *testing.T
	g       *gatewaytest.Gateway
	dir     string
	disk    *disktest.Disk
	machine *disktest.Machine
	p       platform
	role    Role
	blobs   *blobs
	state   string // folder in dir

	mu      sync.Mutex
	lines   []string
	clock   time.Duration // how far the machine's clock is from the world's
	reports []string
	ended   string
	// cancelRun ends the running agent's context; stop waits for its end too.
	cancelRun context.CancelFunc
	stop      func()
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, g: gatewaytest.NewGateway(t), dir: t.TempDir(), disk: disktest.New("FL-1", 8<<20), role: RAMDisk, state: "state"}
	b.machine = &disktest.Machine{Disks: []*disktest.Disk{b.disk}}
	sys := fstest.MapFS{"class/net/eth0/type": {Data: []byte("1\n")}, "class/net/eth0/address": {Data: []byte(mac + "\n")}, "class/net/eth0/device/vendor": {},
		"class/dmi/id/product_uuid": {Data: []byte("4c4c4544-0031-3510-8054-b4c04f564431\n")}}
	proc := fstest.MapFS{"sys/kernel/random/boot_id": {Data: []byte("11111111-2222-3333-4444-555555555555\n")}, "cmdline": {Data: []byte("quiet\n")}}
	b.p = platform{sys: sys, proc: proc, disks: b.machine, programs: noPrograms{}, tempDir: b.dir,
		now: func() time.Time { b.mu.Lock(); defer b.mu.Unlock(); return time.Now().Add(b.clock) },
		setClock: func(to time.Time) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.clock = time.Until(to)
			return nil
		},
		uptime:      func() time.Duration { return 0 },
		loadModules: func() ([]string, []error) { return []string{"virtio_blk"}, nil },
		network:     func(context.Context, []inventory.NIC, string, netup.Say) error { return nil },
		report: func(_ context.Context, url, text string) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.reports = append(b.reports, url+" "+text)
			return nil
		},
		restart: b.end("restarted"), powerOff: b.end("off"), jump: b.end("jumped")}
	return b
}

type noPrograms struct{}

func (noPrograms) Run(context.Context, string, ...string) ([]byte, error) {
	return nil, errors.New("no program may run here")
}

var _ diag.Programs = noPrograms{}

func (b *bench) end(how string) func() error {
	return func() error { b.mu.Lock(); b.ended = how; b.mu.Unlock(); return nil }
}

func (b *bench) say(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, fmt.Sprintf(format, args...))
}

func (b *bench) said(text string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Contains(strings.Join(b.lines, "\n"), text)
}

// overlay writes the two files of the network boot; edit changes the assertion before it is signed.
func (b *bench) overlay(edit func(*sitev1.DiscoveryAssertion)) {
	anchors := b.g.Anchors()
	body := &sitev1.DiscoveryAssertion{AssertionId: "as-1", TrustDomain: anchors.TrustDomain, SiteId: anchors.SiteId, NodeId: string(node), Macs: []string{mac},
		IssuedAt: timestamppb.Now(), NotAfter: timestamppb.New(time.Now().Add(time.Hour)), ReportUrl: "http://site/report"}
	if edit != nil {
		edit(body)
	}
	raw, err := proto.Marshal(body)
	if err != nil {
		b.t.Fatal(err)
	}
	site := b.g.Identity("site-1", commonv1.AgentRole_AGENT_ROLE_SITE)
	sig, err := envelope.Signer{Key: site.Key, Chain: site.Chain}.Sign(envelope.DiscoveryAssertion, raw)
	if err != nil {
		b.t.Fatal(err)
	}
	for name, m := range map[string]proto.Message{"trust.binpb": anchors, "assertion.binpb": &sitev1.SignedDiscoveryAssertion{Body: raw, Signature: sig}} {
		file, err := proto.Marshal(m)
		if err != nil {
			b.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(b.dir, name), file, 0o600); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *bench) config() Config {
	return Config{Role: b.role, Version: "test", StateDir: filepath.Join(b.dir, b.state), OverlayDir: b.dir, ConfigFile: filepath.Join(b.dir, "config.toml"), Say: b.say}
}

// start runs the agent until the test ends.
func (b *bench) start() {
	b.t.Helper()
	a, err := newAgent(b.config(), b.p)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		a.Run(ctx)
	}()
	b.cancelRun, b.stop = cancel, func() { cancel(); <-stopped }
	b.t.Cleanup(b.stop)
}

func TestSEC04_JoinsFromAnyClock(t *testing.T) {
	for name, off := range map[string]time.Duration{"1980": -46 * 365 * 24 * time.Hour, "2011": -15 * 365 * 24 * time.Hour, "-8 h": -8 * time.Hour, "+8 h": 8 * time.Hour,
		"+10 years": 10 * 365 * 24 * time.Hour, "right": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.clock = off
			found := time.Now().Add(off).UTC().Format("2006-01-02T15")
			b.overlay(nil)
			b.start()
			hello := b.g.WaitConnected(node, ramdiskRole)
			if got := hello.Hardware.ClockFound.AsTime(); time.Now().Add(off).Sub(got).Abs() > time.Minute {
				t.Errorf("clock found: got %s, want about %s", got, time.Now().Add(off))
			}
			if !b.said("clock found "+found[:10]) || !b.said("from the site's assertion") {
				t.Errorf("the console names no clock: %q", b.lines)
			}
			if now := b.p.now(); time.Since(now).Abs() > time.Minute {
				t.Errorf("the clock was left at %s", now)
			}
		})
	}
}

func TestRAMDiskJoinsAndReportsItsInventory(t *testing.T) {
	b := newBench(t)
	b.overlay(nil)
	b.start()
	b.g.WaitConnected(node, ramdiskRole)
	joins := b.g.Joins()
	if len(joins) != 1 || joins[0].Attestor != "discovery" || joins[0].Role != ramdiskRole || joins[0].Hardware.Macs[0] != mac {
		t.Fatalf("joins: got %v", joins)
	}
	u := b.g.Run(node, ramdiskRole, "inventory.refresh", &agentv1.InventoryRefresh{})
	if u.State != commonv1.CommandState_COMMAND_STATE_SUCCEEDED {
		t.Fatalf("inventory.refresh: got %v: %s", u.State, u.Message)
	}
	var disks agentv1.DisksSection
	b.g.Wait("the disks section", func() bool { return b.g.Inventory(node)["disks"] != nil })
	if err := proto.Unmarshal(b.g.Inventory(node)["disks"], &disks); err != nil {
		t.Fatal(err)
	}
	if len(disks.Disks) != 1 || disks.Disks[0].Serial != "FL-1" || !disks.Disks[0].Candidate {
		t.Errorf("disks: got %v", &disks)
	}
}

// What the agent says at the machine arrives at the gateway, too: also what it said before it had a session.
func TestWhatTheAgentSaysReachesTheGateway(t *testing.T) {
	b := newBench(t)
	b.overlay(nil)
	b.start()
	b.g.Wait("the agent's lines", func() bool {
		var text strings.Builder
		for _, batch := range b.g.Logs() {
			for _, l := range batch.Lines {
				text.WriteString(l.Text + "\n")
			}
		}
		return strings.Contains(text.String(), "machine agent") && strings.Contains(text.String(), "session: connected to the gateway")
	})
}

// TestUnknownMachineIsDiscovered: the site does not know the machine, so that its assertion names none; the gateway does the naming.
func TestUnknownMachineIsDiscovered(t *testing.T) {
	b := newBench(t)
	const found = ident.NodeID("found-525400aa0001")
	b.g.SetJoin(func(r *agentv1.JoinRequest) (ident.NodeID, error) {
		if r.NodeId != "" {
			return "", status.Error(codes.PermissionDenied, "it claims a name")
		}
		return found, nil
	})
	b.overlay(func(d *sitev1.DiscoveryAssertion) { d.NodeId, d.WorkflowId = "", "" })
	b.start()
	b.g.WaitConnected(found, ramdiskRole)
	if u := b.g.Run(found, ramdiskRole, "inventory.refresh", &agentv1.InventoryRefresh{}); u.State != succeeded {
		t.Errorf("inventory: got %v: %s", u.State, u.Message)
	}
	if b.disk.Changed() != 0 {
		t.Errorf("%d bytes were changed, want none", b.disk.Changed())
	}
}

func TestWIPE09_WipeCommandNamesDisksBySerial(t *testing.T) {
	b := newBench(t)
	b.overlay(nil)
	b.start()
	wrong := b.g.Run(node, ramdiskRole, "disk.wipe", &agentv1.DiskWipe{Disks: []*agentv1.DiskSelector{{Serial: "NOT-HERE"}}})
	if wrong.State != commonv1.CommandState_COMMAND_STATE_FAILED || !strings.Contains(wrong.Message, "FL-1") || b.disk.Changed() != 0 {
		t.Errorf("wrong serial: got %v: %q, %d bytes changed; want failed, what is there named, nothing changed", wrong.State, wrong.Message, b.disk.Changed())
	}
	unnamed := b.g.Run(node, ramdiskRole, "disk.wipe", &agentv1.DiskWipe{Disks: []*agentv1.DiskSelector{{SizeBytes: 8 << 20}}})
	if unnamed.RejectReason != commonv1.CommandRejectReason_COMMAND_REJECT_REASON_INVALID_PAYLOAD || b.disk.Changed() != 0 {
		t.Errorf("no name: got %v %v", unnamed.State, unnamed.RejectReason)
	}
	ok := b.g.Run(node, ramdiskRole, "disk.wipe", &agentv1.DiskWipe{Disks: []*agentv1.DiskSelector{{Serial: "FL-1", SizeBytes: 8 << 20}}})
	var r agentv1.DiskWipeResult
	if err := proto.Unmarshal(ok.Result, &r); err != nil {
		t.Fatal(err)
	}
	if ok.State != commonv1.CommandState_COMMAND_STATE_SUCCEEDED || ok.Attested == nil || len(r.Disks) != 1 || r.Disks[0].Outcome != "clean" || r.Disks[0].BytesVerified != 8<<20 {
		t.Errorf("got %v, %v", ok.State, &r)
	}
	if !bytes.Equal(b.disk.Data(), make([]byte, 8<<20)) {
		t.Error("old data is left")
	}
}

func TestWIPE07_FailedWipeCarriesItsResult(t *testing.T) {
	b := newBench(t)
	b.disk.Spoil(disktest.Faults{NoZeroOut: true, WriteErrorFrom: 5 << 20})
	b.overlay(nil)
	b.start()
	u := b.g.Run(node, ramdiskRole, "disk.wipe", &agentv1.DiskWipe{Disks: []*agentv1.DiskSelector{{Serial: "FL-1"}}})
	var r agentv1.DiskWipeResult
	if err := proto.Unmarshal(u.Result, &r); err != nil {
		t.Fatal(err)
	}
	if u.State != commonv1.CommandState_COMMAND_STATE_FAILED || len(r.Disks) != 1 || r.Disks[0].Outcome != "failed" || !strings.Contains(r.Disks[0].Message, "FL-1") {
		t.Errorf("got %v: %s, %v", u.State, u.Message, &r)
	}
}

func TestDiagnosticsWithoutGPUAreSkippedNotPassed(t *testing.T) {
	b := newBench(t)
	b.overlay(nil)
	b.start()
	for kind, payload := range map[string]proto.Message{"diag.nvml": &agentv1.DiagNVML{}, "diag.dcgm": &agentv1.DiagDCGM{Level: 1}} {
		u := b.g.Run(node, ramdiskRole, kind, payload)
		var r agentv1.DiagResult
		if err := proto.Unmarshal(u.Result, &r); err != nil {
			t.Fatal(err)
		}
		if r.Outcome != agentv1.DiagResult_OUTCOME_SKIPPED || r.Reason != "no GPU" || u.Attested == nil {
			t.Errorf("%s: got %v, want skipped: no GPU", kind, &r)
		}
	}
}

// panicking is a disk system that breaks.
type panicking struct{ *disktest.Machine }

func TestPanicIsACommandsFailure(t *testing.T) {
	b := newBench(t)
	b.machine.BeforeOpen = func(string) { panic("boom") }
	b.p.disks = panicking{b.machine}
	b.overlay(nil)
	b.start()
	u := b.g.Run(node, ramdiskRole, "disk.wipe", &agentv1.DiskWipe{Disks: []*agentv1.DiskSelector{{Serial: "FL-1"}}})
	if u.State != commonv1.CommandState_COMMAND_STATE_FAILED || !strings.Contains(u.Message, "boom") {
		t.Errorf("got %v: %s, want failed", u.State, u.Message)
	}
	if u := b.g.Run(node, ramdiskRole, "inventory.refresh", &agentv1.InventoryRefresh{}); u.State != commonv1.CommandState_COMMAND_STATE_SUCCEEDED {
		t.Errorf("afterwards: got %v: %s, want a living agent", u.State, u.Message)
	}
}

func TestRefusedJoinIsToldToTheSite(t *testing.T) {
	b := newBench(t)
	b.g.SetJoin(func(*agentv1.JoinRequest) (ident.NodeID, error) {
		return "", status.Error(codes.PermissionDenied, "assertion is for machine m-2")
	})
	b.overlay(nil)
	b.start()
	b.g.Wait("the join", func() bool { return len(b.g.Joins()) > 0 })
	waitFor(t, "a report", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.reports) == 1 })
	if want := "http://site/report machine with MAC " + mac + ": join: the gateway refused this machine: assertion is for machine m-2"; b.reports[0] != want {
		t.Errorf("got %q, want %q", b.reports[0], want)
	}
}

func TestGatewayOfAnotherCAIsSaidAndTold(t *testing.T) {
	b := newBench(t)
	b.overlay(nil)
	file := filepath.Join(b.dir, "trust.binpb")
	anchors := b.g.Anchors()
	anchors.ServingCaSpkiSha256 = [][]byte{bytes.Repeat([]byte{1}, 32)}
	raw, err := proto.Marshal(anchors)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	b.start()
	waitFor(t, "a report", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.reports) == 1 })
	if len(b.g.Joins()) != 0 || !strings.Contains(b.reports[0], "not the pinned one") {
		t.Errorf("got %q, want the pin named and no join", b.reports[0])
	}
}

func TestMissingOverlayIsSaid(t *testing.T) {
	b := newBench(t)
	b.start()
	waitFor(t, "the reason", func() bool { return b.said("site's trust anchors") })
	if len(b.g.Joins()) != 0 {
		t.Error("joined without anchors")
	}
}

func TestTamperedAssertionNeverJoins(t *testing.T) {
	b := newBench(t)
	b.overlay(func(d *sitev1.DiscoveryAssertion) { d.SiteId = "elsewhere" })
	b.start()
	waitFor(t, "a report", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.reports) == 1 })
	if len(b.g.Joins()) != 0 || b.said("clock found") {
		t.Error("an assertion of another site was believed")
	}
}

func TestJumpComesAfterTheGatewayHasTheResult(t *testing.T) {
	b := newBench(t)
	a, err := newAgent(b.config(), b.p)
	if err != nil {
		t.Fatal(err)
	}
	h := a.ramdiskHandlers(&session.Identity{Trust: &commonv1.TrustBundle{}})["boot.kexec"]
	if !h.SelfTerminating || h.After == nil || h.Destructive {
		t.Errorf("boot.kexec: got %+v", h)
	}
	if err := h.After(); err != nil || b.ended != "jumped" {
		t.Errorf("got %v, %q, want a jump", err, b.ended)
	}
	a.p.jump = func() error { return errors.New("no kernel is loaded") }
	if err := a.jump(); err != nil || b.ended != "restarted" {
		t.Errorf("got %v, %q, want a restart when the jump is refused", err, b.ended)
	}
}

// waitFor waits on a state with a bound.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("waited in vain for %s", what)
		case <-tick.C:
		}
	}
}
