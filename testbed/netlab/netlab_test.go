package netlab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket/pcapgo"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"
)

// newLab makes a lab or skips where the host does not allow it.
func newLab(t *testing.T, name string, machines int) *Lab {
	t.Helper()
	if testing.Short() {
		t.Skip("reason: -short; the network lab makes network namespaces")
	}
	if os.Geteuid() != 0 {
		t.Skip("reason: not root; network namespaces need it")
	}
	l, err := New(t.Context(), Config{Name: name, Dir: t.TempDir(), Machines: machines})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func TestLabCarriesTrafficBetweenItsHosts(t *testing.T) {
	t.Parallel()
	l := newLab(t, "hosts", 0)
	for _, c := range []struct{ server, address, client string }{
		{Site, SiteAddress + ":8080", Peer},
		{BMC, BMCAddress + ":443", Site},
		{Site, SiteBMCAddress + ":8443", BMC},
	} {
		ln, err := l.Listen(c.server, "tcp", c.address)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer ln.Close()
			if conn, err := ln.Accept(); err == nil {
				io.WriteString(conn, "hello from "+c.server)
				conn.Close()
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		conn, err := l.DialContext(c.client)(ctx, "tcp", c.address)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(conn)
		conn.Close()
		if want := "hello from " + c.server; string(got) != want || err != nil {
			t.Errorf("%s to %s: got %q, %v; want %q", c.client, c.address, got, err, want)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := l.DialContext(Peer)(ctx, "tcp", "appliance:80"); err == nil {
		t.Error("dial by name: got no error, want a refusal")
	}
}

func TestThrottleIsSetAndTakenAway(t *testing.T) {
	t.Parallel()
	l := newLab(t, "slow", 1)
	for _, c := range []struct {
		bits int64
		want string
	}{{128_000, "tbf"}, {4_000_000, "rate 4Mbit"}, {0, ""}} {
		if err := l.Throttle(t.Context(), 0, c.bits); err != nil {
			t.Fatal(err)
		}
		got, err := run(t.Context(), "tc", "-n", l.NS(Segment), "qdisc", "show", "dev", l.Tap(0))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(got, "tbf") != (c.bits > 0) || !strings.Contains(got, c.want) {
			t.Errorf("throttled to %d bits per second: got %q, want %q", c.bits, got, c.want)
		}
	}
	if err := l.Throttle(t.Context(), 7, 1000); err == nil {
		t.Error("throttle of a machine that is not there: got no error")
	}
}

func TestLabDHCPGivesAnAddressAndNoBootOption(t *testing.T) {
	t.Parallel()
	l := newLab(t, "dhcp", 1)
	attach(t, l, 0)
	path := filepath.Join(t.TempDir(), "tap0.pcap")
	stop, err := l.Capture(t.Context(), 0, path)
	if err != nil {
		t.Fatal(err)
	}
	pc, err := l.ListenPacket(Peer, "udp4", ":68")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	mac, _ := net.ParseMAC(l.MAC(0))
	discover, err := dhcpv4.NewDiscovery(mac, dhcpv4.WithBroadcast(true),
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient:Arch:00007:UNDI:003001")))
	if err != nil {
		t.Fatal(err)
	}
	// The first frames may be lost: the bridge forwards to the tap a moment
	// after it was attached.
	buf := make([]byte, 1500)
	var offer *dhcpv4.DHCPv4
	captured := false
	for end := time.Now().Add(time.Minute); (offer == nil || !captured) && time.Now().Before(end); {
		if _, err := pc.WriteTo(discover.ToBytes(), &net.UDPAddr{IP: net.IPv4(10, 77, 0, 255), Port: 67}); err != nil {
			t.Fatal(err)
		}
		pc.SetReadDeadline(time.Now().Add(time.Second))
		if n, _, err := pc.ReadFrom(buf); err == nil {
			if offer, err = dhcpv4.FromBytes(buf[:n]); err != nil {
				t.Fatal(err)
			}
		}
		captured = soonCaptured(t, path)
	}
	if offer == nil {
		log, _ := os.ReadFile(filepath.Join(l.cfg.Dir, "dnsmasq.log"))
		t.Fatalf("no offer; the server's log:\n%s", log)
	}
	if got := offer.YourIPAddr.String(); !strings.HasPrefix(got, "10.77.0.1") || len(got) != len(RangeFirst) {
		t.Errorf("offered address: got %s, want one from %s to %s", got, RangeFirst, RangeLast)
	}
	if offer.BootFileName != "" || offer.Options.Has(dhcpv4.OptionBootfileName) || offer.Options.Has(dhcpv4.OptionTFTPServerName) {
		t.Errorf("offer has a boot option: %s", offer.Summary())
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if !captured || !capturedDiscover(t, path) {
		t.Error("the capture of the tap has no DHCP DISCOVER, which is a broadcast on the segment")
	}
}

// soonCaptured waits up to a second for the DISCOVER in the file: the server may
// have answered before the bridge forwards to the tap.
func soonCaptured(t *testing.T, path string) bool {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for range 20 {
		if capturedDiscover(t, path) {
			return true
		}
		<-tick.C
	}
	return false
}

// attach opens a tap as QEMU does; without it the tap has no carrier and the
// bridge sends nothing there.
func attach(t *testing.T, l *Lab, i int) {
	t.Helper()
	err := l.inside(Segment, func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		req, err := unix.NewIfreq(l.Tap(i))
		if err != nil {
			return err
		}
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	})
	if err != nil {
		t.Fatalf("attach to %s: %v", l.Tap(i), err)
	}
}

// capturedDiscover reports whether a pcap holds a DHCP message to port 67.
func capturedDiscover(t *testing.T, path string) bool {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if errors.Is(err, io.EOF) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	for {
		frame, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return false // so far: the file may still grow
		}
		if err != nil {
			t.Fatal(err)
		}
		const udpPayload = 14 + 20 + 8
		if len(frame) < udpPayload || frame[12] != 8 || frame[13] != 0 || frame[36] != 0 || frame[37] != 67 {
			continue
		}
		if m, err := dhcpv4.FromBytes(frame[udpPayload:]); err == nil && m.MessageType() == dhcpv4.MessageTypeDiscover {
			return true
		}
	}
}

func TestNewSweepsOnlyWhatDeadProcessesLeft(t *testing.T) {
	if testing.Short() || os.Geteuid() != 0 {
		t.Skip("reason: -short or not root; the test makes network namespaces")
	}
	// Process ids end at 4194304.
	dead := fmt.Sprintf("fltb-4194999-%d-deadbeef-old-peer", os.Getpid())
	foreign := fmt.Sprintf("fltbx-%d-not-ours", os.Getpid())
	for _, ns := range []string{dead, foreign} {
		if _, err := run(t.Context(), "ip", "netns", "add", ns); err != nil {
			t.Fatal(err)
		}
	}
	defer run(context.Background(), "ip", "netns", "del", foreign)
	live := newLab(t, "live", 0)
	newLab(t, "second", 0)
	for ns, want := range map[string]bool{dead: false, foreign: true, live.NS(Peer): true} {
		_, err := os.Stat(filepath.Join(netnsDir, ns))
		if got := err == nil; got != want {
			t.Errorf("namespace %s exists: got %v, want %v", ns, got, want)
		}
	}
	if err := remove(t.Context(), foreign); err == nil {
		t.Error("remove of a foreign namespace: got no error, want a refusal")
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t, "gone", 2)
	cmd := l.Command(context.Background(), Peer, "cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	cmd.Wait()
	for _, role := range roles {
		if _, err := os.Stat(filepath.Join(netnsDir, l.NS(role))); err == nil {
			t.Errorf("namespace of %s is still there", role)
		}
	}
	if _, err := l.Listen(Site, "tcp", SiteAddress+":80"); err == nil {
		t.Error("listen after close: got no error")
	}
}

func TestOwnerDead(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	stat := func(pid, content string) {
		if err := os.MkdirAll(filepath.Join(proc, pid), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "stat"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	stat("10", "10 (a ) b) S 1 10 10 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 777 99 99\n")
	stat("11", "11 (short) S 1\n")
	for name, want := range map[string]bool{
		"fltb-10-777-0123abcd-x-site":    false, // runs
		"fltb-10-776-0123abcd-x-site":    true,  // the pid was given out again
		"fltb-12-777-0123abcd-x-segment": true,  // gone
		"fltb-11-777-0123abcd-x-site":    false, // cannot tell
		"fltb-12-777-0123abcd-x-router":  false, // no role of ours
		"fltb-12-777-0123abcd-x-site-2":  false,
		"lab-12-777-0123abcd-x-site":     false,
		"":                               false,
	} {
		if got := ownerDead(proc, name); got != want {
			t.Errorf("ownerDead(%q): got %v, want %v", name, got, want)
		}
	}
}

func TestNewRefusesBadConfig(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("reason: not root; New refuses before it looks at the rest")
	}
	for _, c := range []Config{
		{Name: ""}, {Name: "a-b"}, {Name: strings.Repeat("a", maxName+1)}, {Name: "../x"},
		{Name: "a", Machines: -1}, {Name: "a", Machines: MaxMachines + 1},
	} {
		if l, err := New(t.Context(), c); err == nil {
			l.Close()
			t.Errorf("New(%+v): got no error", c)
		}
	}
}
