package site

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
	"firstlight/site/internal/netif/netiftest"
)

// vmPatience bounds one way from power on to the script, under software emulation and load.
const vmPatience = 3 * time.Minute

// segment is a bridge with this site agent's address, a socket for a machine, and the network's own DHCP server behind a cable.
const segment = `
	ip link add br0 type bridge; ip link set br0 up; ip addr add 10.77.0.2/24 dev br0
	ip tuntap add tap0 mode tap; ip link set tap0 master br0; ip link set tap0 up
	ip link add v0 type veth peer name v1; ip link set v0 master br0; ip link set v0 up
	unshare -n sh -ec 'while ! ip link set v1 up 2>/dev/null; do sleep 0.1; done; ip addr add 10.77.0.1/24 dev v1
		dnsmasq --no-daemon --conf-file=/dev/null --port=0 --interface=v1 --bind-interfaces --dhcp-authoritative --leasefile-ro \
			--dhcp-range=10.77.0.100,10.77.0.199,1h & d=$!
		while kill -0 '$$'; do sleep 1; done; kill $d' >/dev/null 2>&1 &
	while [ "$(readlink /proc/$!/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
	ip link set v1 netns $!`

// TestVM goes from power on to the boot script with real firmware, past what the scenarios use.
func TestVM(t *testing.T) {
	if os.Getenv("FIRSTLIGHT_VM_TEST") == "" {
		t.Skip("starts virtual machines: set FIRSTLIGHT_VM_TEST=1 to run it")
	}
	for _, tool := range []string{"qemu-system-x86_64", "dnsmasq", "unshare"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s here: %v", tool, err)
		}
	}
	if !netiftest.InNamespace(t, segment) {
		return
	}
	t.Run("DHCP03_OVMFBootsByHTTP", func(t *testing.T) {
		dir := t.TempDir()
		vars := filepath.Join(dir, "vars.fd")
		b, err := os.ReadFile("/usr/share/OVMF/OVMF_VARS_4M.fd")
		if err != nil {
			t.Skipf("no OVMF here: %v", err)
		}
		must(t, os.WriteFile(vars, b, 0o600))
		seen := vmBoots(t, nil, "-m", "512", "-drive", "if=pflash,unit=0,format=raw,readonly=on,file=/usr/share/OVMF/OVMF_CODE_4M.fd",
			"-drive", "if=pflash,unit=1,format=raw,file="+vars, "-fw_cfg", "name=opt/org.tianocore/IPv4PXESupport,string=no",
			"-fw_cfg", "name=opt/org.tianocore/IPv6PXESupport,string=no")
		want(t, seen, "boot.dhcp.offered firmware snponly.efi", "boot.file.served firmware", "boot.dhcp.offered ipxe script.ipxe", "boot.script.served")
		if strings.Contains(seen, "boot.tftp") {
			t.Errorf("got %s, want nothing by TFTP", seen)
		}
	})
	t.Run("ROMThatIsIPXEIsReplaced", func(t *testing.T) {
		replace := &sitev1.BootPolicy{Generation: 1, ReplaceRomIpxe: true}
		want(t, vmBoots(t, replace, "-m", "256"), "boot.dhcp.offered firmware undionly.kpxe", "boot.tftp.served undionly.kpxe",
			"boot.dhcp.offered ipxe script.ipxe", "boot.script.served")
	})
	t.Run("ROMThatIsIPXEGoesToTheScript", func(t *testing.T) {
		seen := vmBoots(t, nil, "-m", "256")
		want(t, seen, "boot.dhcp.offered ipxe script.ipxe", "boot.script.served")
		if strings.Contains(seen, "boot.tftp") {
			t.Errorf("got %s, want nothing by TFTP", seen)
		}
	})
}

// want checks that the lines are among what was seen, in this order.
func want(t *testing.T, seen string, lines ...string) {
	t.Helper()
	rest := seen
	for _, l := range lines {
		_, after, ok := strings.Cut(rest, l)
		if !ok {
			t.Errorf("got\n%s\nwant %q there, in its place", seen, l)
			return
		}
		rest = after
	}
}

// vmBoots starts a machine on the segment and returns the site's events up to the script, one line each.
func vmBoots(t *testing.T, policy *sitev1.BootPolicy, args ...string) string {
	t.Helper()
	r := newRig(t)
	r.cfg.Interface, r.cfg.Address = "br0", netip.MustParseAddr("10.77.0.2")
	r.cfg.HTTPListen, r.cfg.HTTPAdvertise = "10.77.0.2:8080", "10.77.0.2:8080"
	r.cfg.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	for _, name := range []string{"snponly.efi", "undionly.kpxe"} {
		b, err := os.ReadFile(filepath.Join("/usr/lib/ipxe", name))
		if err != nil {
			t.Skipf("no iPXE here: %v", err)
		}
		must(t, os.WriteFile(filepath.Join(r.cfg.FirmwareDir, name), b, 0o644))
	}
	a, err := New(r.cfg)
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("run: got %v, want it to last", err)
		}
	}()
	r.gateway.WaitConnected(siteNode, role)
	r.succeed("boot.prepareRamdisk", r.lease("lease-1"))
	if policy != nil {
		r.succeed("boot.policy", policy)
	}
	args = append([]string{"-machine", "q35", "-accel", "tcg", "-display", "none", "-monitor", "none", "-serial", "file:" + filepath.Join(t.TempDir(), "serial"),
		"-netdev", "tap,id=n0,ifname=tap0,script=no,downscript=no"}, args...)
	card := "virtio-net-pci,netdev=n0,bootindex=1,mac=" + machineMAC.String()
	if strings.Contains(strings.Join(args, " "), "pflash") {
		card += ",romfile="
	}
	vm := exec.CommandContext(ctx, "qemu-system-x86_64", append(args, "-device", card)...)
	must(t, vm.Start())
	defer func() { vm.Process.Kill(); vm.Wait() }()
	return r.until("boot.script.served", vmPatience)
}

// until waits for an event and returns all up to it.
func (r *rig) until(kind string, d time.Duration) string {
	r.t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(d); ; <-tick.C {
		var lines []string
		found := false
		for _, e := range r.gateway.Events() {
			lines = append(lines, line(e))
			found = found || e.Kind == kind
		}
		if found || time.Now().After(deadline) {
			return strings.Join(lines, "\n")
		}
	}
}

func line(e *agentv1.Event) string {
	words := []string{e.Kind}
	for _, f := range []string{"stage", "name", "file"} {
		if v := e.Fields[f]; v != "" {
			words = append(words, v)
		}
	}
	return strings.Join(words, " ")
}
