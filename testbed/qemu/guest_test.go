package qemu_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket/pcapgo"
	"github.com/insomniacslk/dhcp/dhcpv4"

	"firstlight/testbed/netlab"
	"firstlight/testbed/qemu"
)

// TestGuestBootsFromTheNetwork starts a real UEFI machine on a real segment and
// watches it from outside: its DHCP DISCOVER and the OFFER on the wire, the
// serial line, the monitor. It takes about half a minute on two cores without KVM.
func TestGuestBootsFromTheNetwork(t *testing.T) {
	needQEMU(t)
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	dir := t.TempDir()
	lab, err := netlab.New(ctx, netlab.Config{Name: "guest", Dir: dir, Machines: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	pcap := filepath.Join(dir, "tap0.pcap")
	stop, err := lab.Capture(ctx, 0, pcap)
	if err != nil {
		t.Fatal(err)
	}
	disk := filepath.Join(dir, "disk.raw")
	if err := os.WriteFile(disk, bytes.Repeat([]byte("pattern."), 8<<20/8), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg := qemu.Config{
		Name: "m0", Dir: dir, NetNS: lab.NS(netlab.Segment), Firmware: "uefi", MemoryMiB: 384,
		Tap: lab.Tap(0), MAC: lab.MAC(0), UUID: "11111111-2222-3333-4444-555555555555",
		Disks:     []qemu.Disk{{Path: disk, Serial: "FL-TEST-0001", Driver: "virtio-blk"}},
		BootFirst: "pxe",
	}
	vm, err := qemu.Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer vm.Stop(ctx)
	serial := filepath.Join(dir, qemu.SerialLog)
	_, offset, err := qemu.WaitSerial(ctx, serial, regexp.MustCompile(`Start PXE over IPv4`), 0)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, ctx, "a DISCOVER of the firmware and its OFFER in the capture", func() bool {
		messages := captured(t, pcap)
		return slices.ContainsFunc(messages, func(m *dhcpv4.DHCPv4) bool {
			return m.MessageType() == dhcpv4.MessageTypeDiscover && m.ClientHWAddr.String() == cfg.MAC &&
				strings.HasPrefix(m.ClassIdentifier(), "PXEClient:Arch:00007:")
		}) && slices.ContainsFunc(messages, func(m *dhcpv4.DHCPv4) bool {
			return m.MessageType() == dhcpv4.MessageTypeOffer && m.ClientHWAddr.String() == cfg.MAC &&
				strings.HasPrefix(m.YourIPAddr.String(), "10.77.0.1")
		})
	})
	if err := vm.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	stats, err := vm.BlockStats(ctx)
	if err != nil || len(stats) != 1 || stats[0].Serial != "FL-TEST-0001" || stats[0].WriteBytes != 0 {
		t.Errorf("block counters: got %+v, %v; want one disk that nobody wrote", stats, err)
	}
	if err := vm.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	if err := vm.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	if _, _, err := qemu.WaitSerial(ctx, serial, regexp.MustCompile(`Start PXE over IPv4`), offset); err != nil {
		t.Fatalf("after a reset: %v", err)
	}
	if err := vm.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, e := range vm.Events() {
		if slices.Contains([]string{"STOP", "RESUME", "RESET", "SHUTDOWN"}, e.Name) {
			names = append(names, e.Name)
		}
	}
	if want := []string{"STOP", "RESUME", "RESET", "SHUTDOWN"}; !slices.Equal(names, want) {
		t.Errorf("events: got %v, want %v", names, want)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if err := lab.Close(); err != nil {
		t.Error(err)
	}
}

func needQEMU(t *testing.T) {
	t.Helper()
	if os.Getenv("FIRSTLIGHT_QEMU") == "" {
		t.Skip("reason: FIRSTLIGHT_QEMU is not set; a real machine takes half a minute")
	}
	if os.Geteuid() != 0 {
		t.Skip("reason: not root; the network lab needs it")
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Skip("reason: qemu-system-x86_64 is not installed")
	}
}

func waitFor(t *testing.T, ctx context.Context, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			t.Fatalf("wait for %s: %v", what, ctx.Err())
		case <-tick.C:
		}
	}
}

// captured lists the DHCP broadcasts of a pcap that may still grow.
func captured(t *testing.T, path string) (out []*dhcpv4.DHCPv4) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		return nil
	}
	for {
		frame, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		const udpPayload = 14 + 20 + 8
		if len(frame) < udpPayload || frame[12] != 8 || frame[13] != 0 || !net.IP(frame[30:34]).Equal(net.IPv4bcast) {
			continue
		}
		if m, err := dhcpv4.FromBytes(frame[udpPayload:]); err == nil {
			out = append(out, m)
		}
	}
}
