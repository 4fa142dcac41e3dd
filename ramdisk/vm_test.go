package ramdisk

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/binary"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/u-root/u-root/pkg/cpio"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/gatewaytest"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
	"firstlight/imagebuild/manifest"
)

// vmTimeout bounds each wait for the machine under software emulation on a busy host.
const vmTimeout = 10 * time.Minute

// TestVM runs the real agent as process 1 of a virtual machine: drivers, a clock in the year 2000, DHCP, join, a wipe and a deploy
// through the kernel, the configuration partition's file system, kexec, and the node agent of the deployed system.
func TestVM(t *testing.T) {
	if os.Getenv("FIRSTLIGHT_VM_TEST") == "" {
		t.Skip("takes minutes under software emulation: set FIRSTLIGHT_VM_TEST=1 to run it (after make build)")
	}
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Skipf("no QEMU here: %v", err)
	}
	v := &vm{t: t, g: gatewaytest.NewGateway(t), dir: t.TempDir()}
	v.build()
	v.fillDisk(256 << 20)
	v.start(qemu)

	v.wait("the RAM disk's session", func() bool { return v.g.Server().Connected(node, ramdiskRole) })
	v.wantSaid("firstlight: clock found 2000-01-01T")
	if msg := v.command(ramdiskRole, "disk.wipe", &agentv1.DiskWipe{Disks: []*agentv1.DiskSelector{{Serial: "NOT-HERE"}}}, commonv1.CommandState_COMMAND_STATE_FAILED); !containsAll(msg, vmSerial, "VM-NVME", "VM-SATA", "VM-SCSI", "at PCI 0000:00:1f.2 ata") {
		t.Errorf("got %q, want every disk named by serial and place", msg)
	}
	if !v.patternLeft() {
		t.Fatal("a wipe of another disk changed this one")
	}
	v.command(ramdiskRole, "disk.wipe", &agentv1.DiskWipe{Disks: []*agentv1.DiskSelector{{Serial: "VM-NVME", NamespaceId: 1}, {Serial: "VM-SATA"}, {Serial: "VM-SCSI"}}}, commonv1.CommandState_COMMAND_STATE_SUCCEEDED)
	sel := &agentv1.DiskSelector{Serial: vmSerial, SizeBytes: 256 << 20}
	if !v.patternLeft() {
		t.Fatal("a wipe of other disks changed this one")
	}
	v.command(ramdiskRole, "disk.wipe", &agentv1.DiskWipe{Disks: []*agentv1.DiskSelector{sel}}, commonv1.CommandState_COMMAND_STATE_SUCCEEDED)
	if v.patternLeft() {
		t.Fatal("the old pattern is left in the disk's file")
	}
	v.command(ramdiskRole, "diag.nvml", &agentv1.DiagNVML{}, commonv1.CommandState_COMMAND_STATE_SUCCEEDED)
	v.command(ramdiskRole, "deploy.image", v.deployCommand(sel), commonv1.CommandState_COMMAND_STATE_SUCCEEDED)
	v.command(ramdiskRole, "boot.kexec", &agentv1.BootKexec{Disk: sel}, commonv1.CommandState_COMMAND_STATE_SUCCEEDED)
	v.wait("the node's session", func() bool { return v.g.Server().Connected(node, commonv1.AgentRole_AGENT_ROLE_NODE) })
	v.wait("the deployed system's line", func() bool { return strings.Contains(v.serial(), "FIRSTLIGHT-OS nonce=VM-TEST disk-serial="+vmSerial) })
	v.command(commonv1.AgentRole_AGENT_ROLE_NODE, "inventory.refresh", &agentv1.InventoryRefresh{}, commonv1.CommandState_COMMAND_STATE_SUCCEEDED)
}

const vmSerial = "FL-VM-0001"

type vm struct {
	t        *testing.T
	g        *gatewaytest.Gateway
	dir      string
	site     *httptest.Server
	manifest []byte
}

func (v *vm) path(name string) string { return filepath.Join(v.dir, name) }

func (v *vm) run(name string, args ...string) {
	v.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		v.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// build makes RAM disk, image and overlays with the built programs.
func (v *vm) build() {
	v.t.Helper()
	build, agent, kernel := v.buildRAMDisk()
	v.run(build, "os", "--agent", agent, "--kernel-dir", kernel, "--nonce", "VM-TEST", "--out", v.path("os.raw"))
	v.run(build, "pack", "--raw", v.path("os.raw"), "--name", "vm-test", "--out", v.path("packed"))
	body, err := os.ReadFile(v.path("packed/manifest.json"))
	if err != nil {
		v.t.Fatal(err)
	}
	if v.manifest, err = manifest.Sign(body, v.g.Images()); err != nil {
		v.t.Fatal(err)
	}
	v.site = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/manifest" {
			w.Write(v.manifest)
			return
		}
		http.StripPrefix("/blob/", http.FileServer(http.Dir(v.path("packed/blobs")))).ServeHTTP(w, r)
	}))
	v.t.Cleanup(v.site.Close)
	v.overlay()
}

// buildRAMDisk makes the RAM disk, of the programs in ../bin or in FIRSTLIGHT_BIN, and returns where those are.
func (v *vm) buildRAMDisk() (build, agent, kernel string) {
	v.t.Helper()
	bin := os.Getenv("FIRSTLIGHT_BIN")
	if bin == "" {
		bin = "../bin"
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		v.t.Fatal(err)
	}
	build, agent, kernel = bin+"/imagebuild", bin+"/machine-agent", bin+"/inputs/kernel"
	for _, f := range []string{build, agent, kernel} {
		if _, err := os.Stat(f); err != nil {
			v.t.Skipf("not built: %v", err)
		}
	}
	v.run(build, "ramdisk", "--agent", agent, "--kernel-dir", kernel, "--out", v.path("ramdisk"))
	return build, agent, kernel
}

// guest is how the guest reaches an address of the host's loopback through QEMU's user network.
func guest(url string) string { return strings.Replace(url, "127.0.0.1", "10.0.2.2", 1) }

func (v *vm) marshal(m proto.Message) []byte {
	v.t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		v.t.Fatal(err)
	}
	return b
}

func (v *vm) overlay() {
	v.t.Helper()
	anchors := v.g.Anchors()
	anchors.GatewayUrl = guest(anchors.GatewayUrl)
	body := v.marshal(&sitev1.DiscoveryAssertion{AssertionId: "as-1", TrustDomain: anchors.TrustDomain, SiteId: anchors.SiteId, NodeId: string(node),
		IssuedAt: timestamppb.Now(), NotAfter: timestamppb.New(time.Now().Add(time.Hour)), ReportUrl: guest(v.site.URL) + "/report"})
	site := v.g.Identity("site-1", commonv1.AgentRole_AGENT_ROLE_SITE)
	sig, err := envelope.Signer{Key: site.Key, Chain: site.Chain}.Sign(envelope.DiscoveryAssertion, body)
	if err != nil {
		v.t.Fatal(err)
	}
	v.initrd(cpio.Directory("etc", 0o755), cpio.Directory("etc/firstlight", 0o755),
		cpio.StaticFile("etc/firstlight/trust.binpb", string(v.marshal(anchors)), 0o600),
		cpio.StaticFile("etc/firstlight/assertion.binpb", string(v.marshal(&sitev1.SignedDiscoveryAssertion{Body: body, Signature: sig})), 0o600))
}

// initrd is the RAM disk with further files after it.
func (v *vm) initrd(records ...cpio.Record) {
	v.t.Helper()
	var archive bytes.Buffer
	w := cpio.Newc.Writer(&archive)
	for _, r := range records {
		if err := w.WriteRecord(r); err != nil {
			v.t.Fatal(err)
		}
	}
	if err := cpio.WriteTrailer(w); err != nil {
		v.t.Fatal(err)
	}
	base, err := os.ReadFile(v.path("ramdisk/ramdisk.cpio.zst"))
	if err != nil {
		v.t.Fatal(err)
	}
	base = append(base, make([]byte, (512-len(base)%512)%512)...)
	if err := os.WriteFile(v.path("initrd"), append(base, archive.Bytes()...), 0o600); err != nil {
		v.t.Fatal(err)
	}
}

// fillDisk makes a disk whose every sector starts with its number.
func (v *vm) fillDisk(size int64) {
	v.t.Helper()
	f, err := os.Create(v.path("disk.raw"))
	if err != nil {
		v.t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	for off := int64(0); off < size; off += int64(len(block)) {
		for s := 0; s < len(block); s += 512 {
			copy(block[s:], "PATTERN")
			binary.BigEndian.PutUint64(block[s+8:], uint64(off)+uint64(s))
		}
		if _, err := f.Write(block); err != nil {
			v.t.Fatal(err)
		}
	}
}

// extra is a further small disk for another kind of controller.
func (v *vm) extra(name string) string {
	v.t.Helper()
	if err := os.WriteFile(v.path(name), bytes.Repeat([]byte("PATTERN "), 1<<20), 0o600); err != nil {
		v.t.Fatal(err)
	}
	return v.path(name)
}

func containsAll(s string, words ...string) bool {
	for _, w := range words {
		if !strings.Contains(s, w) {
			return false
		}
	}
	return true
}

func (v *vm) patternLeft() bool {
	v.t.Helper()
	f, err := os.Open(v.path("disk.raw"))
	if err != nil {
		v.t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	for {
		n, err := f.Read(buf)
		if bytes.Contains(buf[:n], []byte("PATTERN")) {
			return true
		}
		if err == io.EOF {
			return false
		}
		if err != nil {
			v.t.Fatal(err)
		}
	}
}

// start starts the machine of TestVM: one disk that gets the image, and one small disk at each further kind of controller.
func (v *vm) start(qemu string) {
	v.t.Helper()
	v.launch(qemu,
		"-drive", "if=none,id=d0,format=raw,file="+v.path("disk.raw"), "-device", "virtio-blk-pci,drive=d0,serial="+vmSerial,
		"-drive", "if=none,id=d1,format=raw,file="+v.extra("nvme"), "-device", "nvme,drive=d1,serial=VM-NVME",
		"-drive", "if=none,id=d2,format=raw,file="+v.extra("sata"), "-device", "ide-hd,drive=d2,bus=ide.0,serial=VM-SATA",
		"-drive", "if=none,id=d3,format=raw,file="+v.extra("scsi"), "-device", "virtio-scsi-pci", "-device", "scsi-hd,drive=d3,serial=VM-SCSI",
		"-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0,romfile=")
}

// launch starts a machine with these devices from the RAM disk, until the test ends.
func (v *vm) launch(qemu string, devices ...string) {
	v.t.Helper()
	log, err := os.Create(v.path("serial.log"))
	if err != nil {
		v.t.Fatal(err)
	}
	defer log.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, qemu, append([]string{"-nodefaults", "-no-user-config", "-display", "none", "-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", "384",
		"-machine", "q35,graphics=off", "-no-reboot", "-serial", "stdio", "-rtc", "base=2000-01-01T00:00:00",
		"-kernel", v.path("ramdisk/vmlinuz"), "-initrd", v.path("initrd"), "-append", "console=ttyS0 quiet"}, devices...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() {
		cancel()
		cmd.Wait()
		v.t.Logf("serial line:\n%s", v.serial())
	})
}

func (v *vm) serial() string { b, _ := os.ReadFile(v.path("serial.log")); return string(b) }

func (v *vm) wantSaid(text string) {
	v.t.Helper()
	if !strings.Contains(v.serial(), text) {
		v.t.Errorf("the console does not say %q", text)
	}
}

func (v *vm) wait(what string, ok func() bool) {
	v.t.Helper()
	deadline := time.After(vmTimeout)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			v.t.Fatalf("waited in vain for %s", what)
		case <-tick.C:
		}
	}
}

// command runs one command to its end, wants it in a state and returns its message.
func (v *vm) command(role commonv1.AgentRole, kind string, payload proto.Message, want commonv1.CommandState) string {
	v.t.Helper()
	start := time.Now()
	id := v.g.Send(node, role, v.g.Command(node, role, kind, payload))
	var last *agentv1.CommandUpdate
	v.wait(kind, func() bool {
		us := v.g.Updates(id)
		if len(us) > 0 {
			last = us[len(us)-1]
		}
		return last.GetState() >= commonv1.CommandState_COMMAND_STATE_SUCCEEDED
	})
	v.t.Logf("%s: %v in %s: %s", kind, last.State, time.Since(start).Round(time.Second), last.Message)
	if last.State != want {
		v.t.Fatalf("%s: got %v: %s, want %v", kind, last.State, last.Message, want)
	}
	return last.Message
}

func (v *vm) deployCommand(sel *agentv1.DiskSelector) *agentv1.DeployImage {
	v.t.Helper()
	a := v.g.Anchors()
	signing, err := x509.MarshalPKIXPublicKey(v.g.JoinSigningKey())
	if err != nil {
		v.t.Fatal(err)
	}
	sealing, err := x509.MarshalPKIXPublicKey(v.g.JoinEncryptionKey())
	if err != nil {
		v.t.Fatal(err)
	}
	v.g.SetSecret("secret://provisioned/wf-test", []byte("the secret of this deploy"))
	sum := manifest.DigestOf(v.manifest)
	return &agentv1.DeployImage{Disk: sel, ManifestUrl: guest(v.site.URL) + "/manifest", ManifestSha256: sum[:], ChunkBaseUrl: guest(v.site.URL) + "/blob",
		Seed: &agentv1.NodeSeed{GatewayUrl: guest(a.GatewayUrl), GatewayServerName: a.GatewayServerName, NodeId: string(node), ServingCaSpkiSha256: a.ServingCaSpkiSha256,
			JoinSigningKey: signing, JoinEncryptionKey: sealing, TrustDomain: a.TrustDomain, SiteId: a.SiteId,
			JoinSecretRef: "secret://provisioned/wf-test", WorkflowId: "wf-test"}}
}
