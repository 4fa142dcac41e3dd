package site

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/u-root/u-root/pkg/cpio"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/bmc"
	"firstlight/bmc/bmctest"
	"firstlight/bmc/redfish"
	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/gatewaytest"
	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
	"firstlight/site/internal/proxydhcp"
	"firstlight/site/internal/tftp/tftptest"
)

const (
	patience = 10 * time.Second
	siteNode = ident.NodeID("site-agent-1")
	role     = commonv1.AgentRole_AGENT_ROLE_SITE
)

var (
	machineMAC = net.HardwareAddr{0x52, 0x54, 0, 0x77, 0, 1}
	firmware   = bytes.Repeat([]byte("snponly"), 1000)
	kernel     = bytes.Repeat([]byte("kernel"), 1000)
)

// rig is one site agent on loopback, its gateway, and a machine's network card.
type rig struct {
	t       *testing.T
	gateway *gatewaytest.Gateway
	cfg     Config
	tokens  int
	twin    *bmctest.Twin
	nic     *net.UDPConn
	running *running
	stop    func()
	expires time.Time
}

func newRig(t *testing.T) *rig {
	t.Helper()
	dir := t.TempDir()
	for path, content := range map[string][]byte{
		"firmware/snponly.efi": firmware, "ramdisk/vmlinuz": kernel, "ramdisk/ramdisk.cpio.zst": []byte("ramdisk."),
	} {
		path = filepath.Join(dir, path)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, content, 0o644))
	}
	must(t, os.Mkdir(filepath.Join(dir, "blobs"), 0o755))
	nic, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	t.Cleanup(func() { nic.Close() })
	g := gatewaytest.NewGateway(t)
	g.SetSecret("secret://bmc/m1", []byte("hunter2"))
	r := &rig{t: t, gateway: g, twin: &bmctest.Twin{}, nic: nic, expires: time.Now().Add(time.Hour)}
	g.SetJoin(func(j *agentv1.JoinRequest) (ident.NodeID, error) {
		if token, err := g.OpenEvidence(j); err != nil || string(token) != "one-time" || j.Attestor != "join-token" || j.Role != role {
			return "", errors.New("not this site's token")
		}
		return siteNode, nil
	})
	r.cfg = Config{
		Interface: "lo", Address: netip.MustParseAddr("127.0.0.1"), HTTPListen: "127.0.0.1:0", HTTPAdvertise: "127.0.0.1:1",
		FirmwareDir: filepath.Join(dir, "firmware"), RAMDiskDir: filepath.Join(dir, "ramdisk"), BlobDir: filepath.Join(dir, "blobs"),
		KernelArgs: []string{"console=ttyS0"}, StateDir: filepath.Join(dir, "state"),
		Link: g.Link(), JoinSigningKey: g.JoinSigningKey(), JoinEncryptionKey: g.JoinEncryptionKey(),
		JoinToken:   func() ([]byte, error) { r.tokens++; return []byte("one-time"), nil },
		TrustDomain: gatewaytest.TrustDomain, SiteID: gatewaytest.Site, NodeID: siteNode,
		OpenBMC: func(_ context.Context, c redfish.Config) (bmc.Controller, error) {
			if string(c.Password) != "hunter2" {
				return nil, bmc.ErrCredentials
			}
			return connection{r.twin}, nil
		},
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	return r
}

// connection is one of several to the same twin: closing it leaves the twin open.
type connection struct{ *bmctest.Twin }

func (connection) Close(context.Context) error { return nil }

// start runs the agent until stop or the test's end.
func (r *rig) start() {
	r.t.Helper()
	a, err := New(r.cfg)
	must(r.t, err)
	a.ports = ports{offers: r.nic.LocalAddr().(*net.UDPAddr).AddrPort(), tftpTimeout: 50 * time.Millisecond}
	ctx, cancel := context.WithCancel(context.Background())
	r.running = &running{a: a}
	if err := r.running.open(ctx); err != nil {
		cancel()
		r.running.end()
		r.t.Skipf("no loopback interface to bind to: %v", err)
	}
	a.cfg.HTTPAdvertise = r.running.http.Addr().String()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.running.run(ctx); err != nil && ctx.Err() == nil {
			r.t.Errorf("run: got %v, want it to last", err)
		}
		r.running.end()
	})
	r.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	r.t.Cleanup(r.stop)
	r.gateway.WaitConnected(siteNode, role)
}

func (r *rig) run(kind string, payload proto.Message) *agentv1.CommandUpdate {
	r.t.Helper()
	return r.gateway.Run(siteNode, role, kind, payload)
}

func (r *rig) succeed(kind string, payload proto.Message) []byte {
	r.t.Helper()
	u := r.run(kind, payload)
	if u.State != commonv1.CommandState_COMMAND_STATE_SUCCEEDED {
		r.t.Fatalf("%s: got %s %q, want it to succeed", kind, u.State, u.Message)
	}
	return u.Result
}

func (r *rig) lease(id string) *sitev1.PrepareRAMDisk {
	return &sitev1.PrepareRAMDisk{
		LeaseId: id, NodeId: "node-1", WorkflowId: "wf-1", Macs: []string{"52-54-00-77-00-01"}, MachineName: "rack1-u7",
		Expires: timestamppb.New(r.expires), Anchors: r.gateway.Anchors(),
	}
}

// discover sends a boot request and does not wait.
func (r *rig) discover(ipxe bool) dhcpv4.TransactionID {
	r.t.Helper()
	if ipxe {
		return r.ask(dhcpv4.WithGeneric(dhcpv4.OptionUserClassInformation, []byte("iPXE")))
	}
	return r.ask()
}

// ask sends OVMF's boot request, changed by mods.
func (r *rig) ask(mods ...dhcpv4.Modifier) dhcpv4.TransactionID {
	r.t.Helper()
	p, err := dhcpv4.New(append([]dhcpv4.Modifier{
		dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover), dhcpv4.WithHwAddr(machineMAC),
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient:Arch:00007:UNDI:003001")),
		dhcpv4.WithOption(dhcpv4.OptClientArch(iana.Arch(proxydhcp.ArchX64))),
		dhcpv4.WithGeneric(dhcpv4.OptionClientMachineIdentifier, append([]byte{0, 0x78, 0x56, 0x34, 0x12, 0x34, 0x12, 0x78, 0x56}, 0x9a, 0xbc, 1, 2, 3, 4, 5, 6)),
	}, mods...)...)
	must(r.t, err)
	to := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: r.running.dhcp.LocalAddr().(*net.UDPAddr).Port}
	_, err = r.nic.WriteTo(p.ToBytes(), to)
	must(r.t, err)
	return p.TransactionID
}

// offer waits for the answer to exactly this request: an answer to an earlier one fails the test.
func (r *rig) offer(xid dhcpv4.TransactionID) string {
	r.t.Helper()
	r.nic.SetReadDeadline(time.Now().Add(patience))
	b := make([]byte, 1500)
	n, err := r.nic.Read(b)
	must(r.t, err)
	p, err := dhcpv4.FromBytes(b[:n])
	must(r.t, err)
	if p.TransactionID != xid {
		r.t.Fatalf("got an answer to %s, want silence there and one to %s", p.TransactionID, xid)
	}
	return p.BootFileName
}

func (r *rig) get(url string) (int, []byte) {
	r.t.Helper()
	resp, err := http.Get(url)
	must(r.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(r.t, err)
	return resp.StatusCode, b
}

func (r *rig) tftp(name string) ([]byte, error) {
	r.t.Helper()
	return tftptest.Fetch(fmt.Sprintf("127.0.0.1:%d", r.running.tftp.Port()), name)
}

// event waits for one of the machine's and returns its fields.
func (r *rig) event(kind string) map[string]string {
	r.t.Helper()
	e := r.gateway.WaitEvent(kind)
	if e.NodeId != "node-1" || e.WorkflowId != "wf-1" || e.Message == "" {
		r.t.Errorf("%s: got %v, want node, workflow and a sentence", kind, e)
	}
	return e.Fields
}

func TestAgentBootsOneMachineOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.succeed("boot.policy", r.policy(1, nil))
	r.discover(false) // no lease yet: silence, which offer checks
	if e := r.gateway.WaitEvent("boot.refused"); e.Fields["mac"] != machineMAC.String() {
		t.Errorf("got %v", e)
	}
	r.succeed("boot.prepareRamdisk", r.lease("lease-1"))

	file := r.offer(r.discover(false))
	if !strings.HasPrefix(file, "t/") || !strings.HasSuffix(file, "/snponly.efi") {
		t.Fatalf("got file %q, want t/<token>/snponly.efi", file)
	}
	if f := r.event("boot.dhcp.offered"); f["mac"] != machineMAC.String() || f["arch"] != "7" || f["stage"] != "firmware" || f["file"] != "snponly.efi" {
		t.Errorf("got %v", f)
	}
	if got, err := r.tftp(file); err != nil || !bytes.Equal(got, firmware) {
		t.Errorf("tftp: got %d bytes, %v, want the firmware", len(got), err)
	}
	if f := r.event("boot.tftp.served"); f["file"] != "snponly.efi" || f["bytes"] != "7000" {
		t.Errorf("got %v", f)
	}

	script := r.offer(r.discover(true))
	status, body := r.get(script)
	if status != 200 || !strings.HasPrefix(string(body), "#!ipxe\n") {
		t.Fatalf("script: got %d %q", status, body)
	}
	if f := r.event("boot.script.served"); f["lease"] != "lease-1" || f["mac"] != machineMAC.String() {
		t.Errorf("got %v", f)
	}
	r.fetchAll(body)
	served := map[string]bool{}
	r.gateway.Wait("files served", func() bool {
		for _, e := range r.gateway.Events() {
			if e.Kind == "boot.file.served" && e.NodeId == "node-1" {
				served[e.Fields["name"]] = true
			}
		}
		return len(served) == 4
	})

	report := strings.TrimSuffix(script, "script.ipxe") + "report"
	resp, err := http.Post(report, "text/plain", strings.NewReader("join refused: clock"))
	must(t, err)
	resp.Body.Close()
	if f := r.event("boot.report"); f["text"] != "join refused: clock" || resp.StatusCode != http.StatusNoContent {
		t.Errorf("got %v, status %d", f, resp.StatusCode)
	}

	r.succeed("boot.cleanUp", &sitev1.CleanUpBoot{LeaseId: "lease-1", Reason: sitev1.CleanUpBoot_REASON_CONSUMED})
	r.refused(script)
	r.stop()
	r.gateway.WaitDisconnected(siteNode, role) // else the next command may go to the session that is ending
	r.start()
	r.refused(script)
	if r.tokens != 1 {
		t.Errorf("got %d join tokens used, want 1: the identity is kept", r.tokens)
	}
	if u := r.run("boot.prepareRamdisk", r.lease("lease-1")); u.State != commonv1.CommandState_COMMAND_STATE_FAILED || !strings.Contains(u.Message, "used up") {
		t.Errorf("consumed lease again: got %s %q, want FAILED with the reason", u.State, u.Message)
	}
}

// fetchAll loads what a script names and checks the assertion.
func (r *rig) fetchAll(script []byte) {
	r.t.Helper()
	a := r.assertion(script)
	if a.NodeId != "node-1" || a.LeaseId != "lease-1" || a.SystemUuid != "12345678-1234-5678-9abc-010203040506" || len(a.Macs) != 1 || a.Macs[0] != machineMAC.String() {
		r.t.Errorf("got assertion %v", a)
	}
}

// assertion loads what a script names and returns its assertion, verified.
func (r *rig) assertion(script []byte) *sitev1.DiscoveryAssertion {
	r.t.Helper()
	urls := slices.DeleteFunc(strings.Fields(string(script)), func(w string) bool {
		return !strings.HasPrefix(w, "http://") || strings.Contains(w, "$")
	})
	if len(urls) != 4 {
		r.t.Fatalf("got %q, want four images", urls)
	}
	var last []byte
	for i, u := range urls {
		status, b := r.get(u)
		if status != 200 || i == 0 && !bytes.Equal(b, kernel) {
			r.t.Fatalf("%s: got %d, %d bytes", u, status, len(b))
		}
		last = b
	}
	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(bytes.NewReader(last)))
	must(r.t, err)
	content := make([]byte, records[2].FileSize)
	_, err = records[2].ReadAt(content, 0)
	must(r.t, err)
	var signed sitev1.SignedDiscoveryAssertion
	must(r.t, proto.Unmarshal(content, &signed))
	var a sitev1.DiscoveryAssertion
	must(r.t, proto.Unmarshal(signed.Body, &a))
	roots, err := envelope.ParseRoots(r.gateway.Anchors().NodeCas)
	must(r.t, err)
	roots.AnyPurpose = true
	leaf, err := roots.Verify(a.IssuedAt.AsTime(), signed.Signature, envelope.DiscoveryAssertion, signed.Body)
	must(r.t, err)
	if got, err := ident.RoleOf(leaf); err != nil || got != role {
		r.t.Errorf("assertion signed by role %s, %v, want site", got, err)
	}
	return &a
}

// refused checks that a used-up lease boots nothing, and that iPXE is told so.
func (r *rig) refused(script string) {
	r.t.Helper()
	r.discover(false)
	r.offer(r.discover(true))
	// After a restart the test's HTTP port is another one.
	script = "http://" + r.running.http.Addr().String() + script[strings.Index(script, "/b/"):]
	if status, b := r.get(script); status != http.StatusGone || !strings.Contains(string(b), "lease-1 was used up") {
		r.t.Errorf("script of a consumed lease: got %d %q, want 410 with the reason", status, b)
	}
	if status, _ := r.get(strings.TrimSuffix(script, "script.ipxe") + "boot.cpio"); status != http.StatusGone {
		r.t.Errorf("assertion of a consumed lease: got %d, want 410", status)
	}
	if f := r.event("boot.script.refused"); !strings.Contains(f["reason"], "used up") || f["lease"] != "lease-1" {
		r.t.Errorf("got %v", f)
	}
}

func TestMissingFirmwareIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	must(t, os.Remove(filepath.Join(r.cfg.FirmwareDir, "snponly.efi")))
	r.start()
	r.succeed("boot.prepareRamdisk", r.lease("lease-1"))
	if _, err := r.tftp(r.offer(r.discover(false))); err == nil {
		t.Error("tftp: got no error, want ERROR 1")
	}
	if f := r.event("boot.tftp.failed"); f["file"] != "snponly.efi" || !strings.Contains(f["reason"], "snponly.efi is missing") {
		t.Errorf("got %v", f)
	}
}

func TestAgentDrivesControllers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	target := &sitev1.BMCTarget{Url: "https://10.78.0.1", Username: "admin", PasswordRef: "secret://bmc/m1", CertificateSha256: make([]byte, 32)}
	r.succeed("bmc.bootOverride", &sitev1.BMCBootOverride{Target: target, Device: "pxe", Once: true, Uefi: true})
	var got sitev1.BMCPowerResult
	must(t, proto.Unmarshal(r.succeed("bmc.power", &sitev1.BMCPower{Target: target, Action: sitev1.BMCPower_ACTION_CYCLE}), &got))
	if got.State != "on" || !slices.Equal(r.twin.Boots(), []bmc.BootDevice{bmc.BootPXE}) {
		t.Errorf("got state %q, boots %v, want on after one network boot", got.State, r.twin.Boots())
	}
	var sums agentv1.InventoryRefreshResult
	must(t, proto.Unmarshal(r.succeed("inventory.refresh", &agentv1.InventoryRefresh{}), &sums))
	if len(sums.Sha256["system"]) != 32 || len(sums.Sha256["nics"]) != 32 {
		t.Errorf("got %v, want sections system and nics", sums.Sha256)
	}
}

func TestPrepareRefusesWhatCannotBoot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	for name, edit := range map[string]func(*sitev1.PrepareRAMDisk){
		"no lease id":      func(p *sitev1.PrepareRAMDisk) { p.LeaseId = "" },
		"no MAC":           func(p *sitev1.PrepareRAMDisk) { p.Macs = nil },
		"infiniband":       func(p *sitev1.PrepareRAMDisk) { p.Macs = []string{"02:00:5e:10:00:00:00:01"} },
		"name as script":   func(p *sitev1.PrepareRAMDisk) { p.MachineName = "x || shell" },
		"argument":         func(p *sitev1.PrepareRAMDisk) { p.KernelArgs = []string{"a${net0/mac}"} },
		"long line":        func(p *sitev1.PrepareRAMDisk) { p.KernelArgs = slices.Repeat([]string{strings.Repeat("x", 400)}, 5) },
		"no end":           func(p *sitev1.PrepareRAMDisk) { p.Expires = nil },
		"another site":     func(p *sitev1.PrepareRAMDisk) { p.Anchors.SiteId = "site-b" },
		"no trust":         func(p *sitev1.PrepareRAMDisk) { p.Anchors = nil },
		"no pins in trust": func(p *sitev1.PrepareRAMDisk) { p.Anchors.ServingCaSpkiSha256 = nil },
	} {
		p := r.lease("lease-x")
		edit(p)
		if u := r.run("boot.prepareRamdisk", p); u.RejectReason != commonv1.CommandRejectReason_COMMAND_REJECT_REASON_INVALID_PAYLOAD {
			t.Errorf("%s: got %s %s %q, want INVALID_PAYLOAD", name, u.State, u.RejectReason, u.Message)
		}
	}
	if u := r.run("boot.cleanUp", &sitev1.CleanUpBoot{LeaseId: "lease-x"}); u.RejectReason != commonv1.CommandRejectReason_COMMAND_REJECT_REASON_INVALID_PAYLOAD {
		t.Errorf("clean up without a reason: got %s", u.State)
	}
	must(t, os.WriteFile(filepath.Join(r.cfg.RAMDiskDir, "ramdisk.cpio.zst"), []byte("odd"), 0o644))
	if u := r.run("boot.prepareRamdisk", r.lease("lease-x")); u.State != commonv1.CommandState_COMMAND_STATE_FAILED || !strings.Contains(u.Message, "multiple of 4") {
		t.Errorf("odd RAM disk: got %s %q, want FAILED with the reason", u.State, u.Message)
	}
}

func TestNewRefusesBadConfiguration(t *testing.T) {
	t.Parallel()
	good := newRig(t).cfg
	for name, edit := range map[string]func(*Config){
		"interface":      func(c *Config) { c.Interface = "" },
		"address":        func(c *Config) { c.Address = netip.IPv6Loopback() },
		"http listen":    func(c *Config) { c.HTTPListen = "x" },
		"http advertise": func(c *Config) { c.HTTPAdvertise = "host:80" },
		"argument":       func(c *Config) { c.KernelArgs = []string{"#x"} },
		"join":           func(c *Config) { c.JoinToken = nil },
		"name":           func(c *Config) { c.NodeID = "A" },
	} {
		cfg := good
		edit(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, want an error that names it", name, err)
		}
	}
	if _, err := New(good); err != nil {
		t.Errorf("good: got %v", err)
	}
}

func TestRunNamesWhatIsMissingBeforeItJoins(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.cfg.RAMDiskDir = filepath.Join(r.cfg.StateDir, "none")
	a, err := New(r.cfg)
	must(t, err)
	a.ports = ports{offers: r.nic.LocalAddr().(*net.UDPAddr).AddrPort()}
	if err := a.Run(t.Context()); err == nil || r.tokens != 0 {
		t.Errorf("got %v after %d tokens, want an error before any", err, r.tokens)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
