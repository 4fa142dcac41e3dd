package rack_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
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

	"firstlight/bmc"
	"firstlight/bmc/redfish"
	"firstlight/testbed/bmcsim"
	"firstlight/testbed/netlab"
	"firstlight/testbed/qemu"
	"firstlight/testbed/rack"
)

// TestRackFromTheControllerToTheWire goes the way that the product goes, with
// everything real: a Redfish client sets the boot override and the power, the
// controller starts a UEFI machine on the segment, the firmware's DISCOVER and
// the OFFER are on the wire; after a power cycle the machine starts from its
// disk. It takes about a minute on two cores without KVM.
func TestRackFromTheControllerToTheWire(t *testing.T) {
	needQEMU(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	dir := t.TempDir()
	lab, err := netlab.New(ctx, netlab.Config{Name: "rack", Dir: dir, Machines: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	pcap := filepath.Join(dir, "tap0.pcap")
	stop, err := lab.Capture(ctx, 0, pcap)
	if err != nil {
		t.Fatal(err)
	}
	disks := []qemu.Disk{
		{Path: filepath.Join(dir, "disk0.raw"), Serial: "FL-TEST-0001", Driver: "virtio-blk"},
		{Path: filepath.Join(dir, "disk1.raw"), Serial: "FL-TEST-0002", Driver: "scsi", ReadOnly: true},
	}
	for _, d := range disks {
		if err := os.WriteFile(d.Path, bytes.Repeat([]byte("pattern."), 8<<20/8), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m := rack.New(qemu.Config{
		Name: "m0", Dir: dir, NetNS: lab.NS(netlab.Segment), Firmware: "uefi", MemoryMiB: 384,
		Tap: lab.Tap(0), MAC: lab.MAC(0), UUID: "11111111-2222-3333-4444-555555555555",
		Disks: disks,
	})
	defer m.PowerOff(ctx)
	controller := openController(t, ctx, lab, m)

	if _, err := bmc.SetBootOverride(ctx, controller, bmc.Override{Device: bmc.BootPXE, Once: true, Mode: bmc.ModeUEFI}); err != nil {
		t.Fatal(err)
	}
	if _, err := bmc.SetPower(ctx, controller, bmc.ActionCycle); err != nil {
		t.Fatal(err)
	}
	vm := m.VM()
	if vm == nil {
		t.Fatal("the controller says on, and there is no machine")
	}
	serial := filepath.Join(dir, qemu.SerialLog)
	pxe := regexp.MustCompile(`Start PXE over IPv4`)
	_, offset, err := qemu.WaitSerial(ctx, serial, pxe, 0)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, ctx, "a DISCOVER of the firmware and its OFFER in the capture", func() bool {
		messages := captured(t, pcap)
		return slices.ContainsFunc(messages, func(m *dhcpv4.DHCPv4) bool {
			return m.MessageType() == dhcpv4.MessageTypeDiscover && m.ClientHWAddr.String() == lab.MAC(0) &&
				strings.HasPrefix(m.ClassIdentifier(), "PXEClient:Arch:00007:")
		}) && slices.ContainsFunc(messages, func(m *dhcpv4.DHCPv4) bool {
			return m.MessageType() == dhcpv4.MessageTypeOffer && m.ClientHWAddr.String() == lab.MAC(0) &&
				strings.HasPrefix(m.YourIPAddr.String(), "10.77.0.1")
		})
	})
	if err := vm.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	stats, err := vm.BlockStats(ctx)
	if err != nil || len(stats) != 2 || stats[1].Serial != "FL-TEST-0002" || stats[0].WriteBytes != 0 {
		t.Errorf("block counters: got %+v, %v; want two disks that nobody wrote", stats, err)
	}
	if err := vm.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	if err := vm.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	if _, offset, err = qemu.WaitSerial(ctx, serial, pxe, offset); err != nil {
		t.Fatalf("after a reset: %v", err)
	}

	if _, err := bmc.SetPower(ctx, controller, bmc.ActionCycle); err != nil {
		t.Fatal(err)
	}
	// The disk is empty: OVMF tries it first and then falls back to the network.
	first, _, err := qemu.WaitSerial(ctx, serial, regexp.MustCompile(`BdsDxe: loading Boot[0-9A-F]{4} "([^"]*)"|BdsDxe: failed to load Boot[0-9A-F]{4} "([^"]*)"|Start PXE`), offset)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(first[0], "PXE") {
		t.Errorf("after the override was spent the machine starts with %q, want its disk", first[0])
	}
	if _, err := bmc.SetPower(ctx, controller, bmc.ActionOff); err != nil {
		t.Fatal(err)
	}
	if m.Powered() || m.PowerOns() != 2 {
		t.Errorf("got powered %v after %d power-ons, want off after 2", m.Powered(), m.PowerOns())
	}
	names := []string{}
	for _, e := range m.Events() {
		if slices.Contains([]string{"STOP", "RESUME", "RESET", "SHUTDOWN"}, e.Name) {
			names = append(names, e.Name)
		}
	}
	if want := []string{"STOP", "RESUME", "RESET", "SHUTDOWN", "SHUTDOWN"}; !slices.Equal(names, want) {
		t.Errorf("events: got %v, want %v", names, want)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if err := lab.Close(); err != nil {
		t.Error(err)
	}
}

// openController puts a simulated controller for m on the BMC network and
// connects to it from the site's side through a relay: the driver dials by
// itself and knows no namespaces.
func openController(t *testing.T, ctx context.Context, lab *netlab.Lab, m *rack.Machine) bmc.Controller {
	t.Helper()
	sim, err := bmcsim.New(bmcsim.Config{Username: "operator", Password: "testbed", Host: m, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Close)
	inside, err := lab.Listen(netlab.BMC, "tcp", netlab.BMCAddress+":443")
	if err != nil {
		t.Fatal(err)
	}
	go sim.Serve(inside)
	outside, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { outside.Close() })
	go relay(ctx, outside, func(ctx context.Context) (net.Conn, error) {
		return lab.DialContext(netlab.Site)(ctx, "tcp", netlab.BMCAddress+":443")
	})
	c, err := redfish.Open(ctx, redfish.Config{
		URL: "https://" + outside.Addr().String(), Username: "operator", Password: "testbed",
		CertificateSHA256: sim.CertificateSHA256(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if st := sim.Stats(); st.Sessions != 0 {
			t.Errorf("sessions left at the controller: got %d, want 0", st.Sessions)
		}
	})
	return c
}

// relay joins each connection to ln with one from dial, until ln is closed.
func relay(ctx context.Context, ln net.Listener, dial func(context.Context) (net.Conn, error)) {
	for {
		a, err := ln.Accept()
		if err != nil {
			return
		}
		b, err := dial(ctx)
		if err != nil {
			a.Close()
			continue
		}
		for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
			go func() {
				defer pair[0].Close()
				io.Copy(pair[0], pair[1])
			}()
		}
	}
}

func needQEMU(t *testing.T) {
	t.Helper()
	if os.Getenv("FIRSTLIGHT_QEMU") == "" {
		t.Skip("reason: FIRSTLIGHT_QEMU is not set; a real machine takes a minute")
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
