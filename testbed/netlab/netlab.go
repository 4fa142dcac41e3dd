// Package netlab makes the network of a rack in a box: network namespaces for
// the boot segment, the site's plain DHCP server, the appliance, the BMC and a
// peer, joined by a bridge, with one tap per machine.
//
// It is for testbed scenarios and for tests of the testbed. It is not a network
// emulator (a machine's link can be made slow; no loss, delay or VLAN: the host
// kernel has none of it) and not for production. It needs root, iproute2 and dnsmasq. It touches only what it
// made: every name carries the process that owns it, and what a killed process
// left behind is swept at the next New.
package netlab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The roles of the namespaces of a lab.
const (
	// Segment has the bridge br0 and the taps; QEMU runs here.
	Segment = "segment"
	// DHCP has the site's plain DHCP server, at DHCPAddress.
	DHCP = "dhcp"
	// Site is for the appliance: eth0 SiteAddress on the segment, eth1
	// SiteBMCAddress towards the BMCs.
	Site = "site"
	// Peer is one more host on the segment, for faults and outside judges.
	Peer = "peer"
	// BMC has the management controllers, at BMCAddress.
	BMC = "bmc"
)

// Addresses of the lab. Every lab has the same ones: namespaces keep them apart.
const (
	DHCPAddress    = "10.77.0.1"
	SiteAddress    = "10.77.0.2"
	PeerAddress    = "10.77.0.3"
	RangeFirst     = "10.77.0.100"
	RangeLast      = "10.77.0.199"
	BMCAddress     = "10.78.0.1"
	SiteBMCAddress = "10.78.0.2"
)

// MaxMachines bounds the taps of one lab.
const MaxMachines = 64

// Bounds of starting and stopping.
const (
	setupLimit = 30 * time.Second
	stopLimit  = 10 * time.Second
)

// Config describes a lab.
type Config struct {
	// Name is a word that appears in the namespaces' names; letters, digits,
	// at most 16.
	Name string
	// Dir is an existing folder for the DHCP server's leases and log.
	Dir string
	// Machines is the number of taps, 0 to MaxMachines.
	Machines int
	// NoDHCP leaves the DHCP server out; its namespace exists all the same.
	NoDHCP bool
}

// Lab is a running network. Its methods may be called from several goroutines.
type Lab struct {
	cfg    Config
	prefix string

	// mu guards what follows.
	mu      sync.Mutex
	closed  bool
	dnsmasq *exec.Cmd
	stops   []func() error // captures, in the order of their start
}

// roles in the order of making.
var roles = []string{Segment, DHCP, Site, Peer, BMC}

// New makes the lab and starts the DHCP server. It first removes what earlier
// processes, now dead, left behind. When New fails nothing remains.
func New(ctx context.Context, cfg Config) (*Lab, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("make network lab: network namespaces need root")
	}
	if !validName(cfg.Name) {
		return nil, fmt.Errorf("make network lab: name %q is not 1 to %d letters and digits", cfg.Name, maxName)
	}
	if cfg.Machines < 0 || cfg.Machines > MaxMachines {
		return nil, fmt.Errorf("make network lab: %d machines, not 0 to %d", cfg.Machines, MaxMachines)
	}
	ctx, cancel := context.WithTimeout(ctx, setupLimit)
	defer cancel()
	if err := sweep(ctx); err != nil {
		return nil, fmt.Errorf("make network lab: sweep: %w", err)
	}
	prefix, err := ownPrefix(cfg.Name)
	if err != nil {
		return nil, fmt.Errorf("make network lab: %w", err)
	}
	l := &Lab{cfg: cfg, prefix: prefix}
	if err := l.build(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("make network lab: %w", err), l.Close())
	}
	return l, nil
}

// NS is the name of a role's namespace, for "ip netns exec".
func (l *Lab) NS(role string) string { return l.prefix + role }

// Tap is the name of machine i's tap inside the segment's namespace.
func (l *Lab) Tap(i int) string { return fmt.Sprintf("tap%d", i) }

// MAC is the address for machine i's network card: locally administered, the
// same in every run.
func (l *Lab) MAC(i int) string { return fmt.Sprintf("52:54:00:77:00:%02x", i+1) }

// build makes the namespaces and cables them.
func (l *Lab) build(ctx context.Context) error {
	for _, role := range roles {
		if _, err := run(ctx, "ip", "netns", "add", l.NS(role)); err != nil {
			return err
		}
	}
	segment := []string{
		"link set lo up",
		"link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
		"link set br0 up",
	}
	for _, role := range []string{DHCP, Site, Peer} {
		segment = append(segment,
			fmt.Sprintf("link add %s type veth peer name eth0 netns %s", role, l.NS(role)),
			fmt.Sprintf("link set %s master br0 up", role))
	}
	for i := range l.cfg.Machines {
		segment = append(segment,
			fmt.Sprintf("tuntap add dev %s mode tap", l.Tap(i)),
			fmt.Sprintf("link set %s master br0 up", l.Tap(i)))
	}
	host := func(addresses ...string) []string {
		lines := []string{"link set lo up", "link set eth0 up"}
		for _, a := range addresses {
			lines = append(lines, fmt.Sprintf("addr add %s dev eth0", a))
		}
		return lines
	}
	for _, step := range []struct {
		role  string
		lines []string
	}{
		{Segment, segment},
		{DHCP, host(DHCPAddress+"/24", "fd00:77::1/64 nodad")},
		{Peer, host(PeerAddress + "/24")},
		{BMC, append([]string{fmt.Sprintf("link add eth0 type veth peer name eth1 netns %s", l.NS(Site))},
			host(BMCAddress+"/24")...)},
		{Site, append(host(SiteAddress+"/24"),
			"link set eth1 up", "addr add "+SiteBMCAddress+"/24 dev eth1")},
	} {
		if err := l.ip(ctx, step.role, step.lines); err != nil {
			return err
		}
	}
	if l.cfg.NoDHCP {
		return nil
	}
	return l.startDHCP(ctx)
}

// Throttle bounds what machine i receives, in bits per second; 0 takes the bound away. What it sends is not bounded.
func (l *Lab) Throttle(ctx context.Context, i int, bits int64) error {
	args := []string{"-n", l.NS(Segment), "qdisc", "replace", "dev", l.Tap(i), "root", "tbf", "rate", fmt.Sprintf("%dbit", bits),
		"burst", strconv.FormatInt(min(max(bits/8, throttleFrame), throttleBurst), 10), "latency", "2s"}
	if bits == 0 {
		args = []string{"-n", l.NS(Segment), "qdisc", "del", "dev", l.Tap(i), "root"}
	}
	if _, err := run(ctx, "tc", args...); err != nil {
		return fmt.Errorf("throttle %s: %w", l.Tap(i), err)
	}
	return nil
}

// What passes a throttle at once, in bytes, is what it lets through in a second, within these: more than any frame on the wire, and
// little beside what is to be slow.
const (
	throttleFrame = 2 << 10
	throttleBurst = 16 << 10
)

// ip runs a batch of ip commands inside a role's namespace.
func (l *Lab) ip(ctx context.Context, role string, lines []string) error {
	cmd := exec.CommandContext(ctx, "ip", "-n", l.NS(role), "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip in namespace %s: %w: %s", role, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// startDHCP starts the site's plain DHCP server: addresses and router
// advertisements, no boot options. Without the advertisements iPXE waits 16 s
// for IPv6 on every boot.
func (l *Lab) startDHCP(ctx context.Context) error {
	pid := filepath.Join(l.cfg.Dir, "dnsmasq.pid")
	if err := os.Remove(pid); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("dhcp server: %w", err)
	}
	cmd := l.Command(context.WithoutCancel(ctx), DHCP, "dnsmasq",
		"--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root",
		"--interface=eth0", "--bind-interfaces",
		"--dhcp-range="+RangeFirst+","+RangeLast+",255.255.255.0,10m",
		"--dhcp-range=fd00:77::,ra-only,64", "--enable-ra",
		"--dhcp-authoritative", "--no-ping", "--no-hosts", "--no-resolv", "--log-dhcp",
		"--log-facility="+filepath.Join(l.cfg.Dir, "dnsmasq.log"),
		"--dhcp-leasefile="+filepath.Join(l.cfg.Dir, "dnsmasq.leases"),
		"--pid-file="+pid)
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("dhcp server: %w", err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	l.mu.Lock()
	l.dnsmasq = cmd
	l.stops = append(l.stops, func() error { return stop(cmd.Process, exited) })
	l.mu.Unlock()
	// dnsmasq writes its pid file when its sockets are open.
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if b, err := os.ReadFile(pid); err == nil && len(b) > 0 {
			return nil
		}
		select {
		case err := <-exited:
			exited <- err
			return fmt.Errorf("dhcp server ended at its start: %v: %s", err, strings.TrimSpace(said.String()))
		case <-ctx.Done():
			return fmt.Errorf("dhcp server: wait for its pid file: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// Leases is the DHCP server's lease file: one line per lease, "expiry MAC
// address name client-id".
func (l *Lab) Leases() string { return filepath.Join(l.cfg.Dir, "dnsmasq.leases") }

// Close stops the captures and the DHCP server, ends every process that still
// runs in the lab's namespaces and removes them. A second Close does nothing.
func (l *Lab) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	stops := l.stops
	l.stops = nil
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), setupLimit)
	defer cancel()
	var errs []error
	for i := len(stops) - 1; i >= 0; i-- {
		errs = append(errs, stops[i]())
	}
	for i := len(roles) - 1; i >= 0; i-- {
		errs = append(errs, remove(ctx, l.NS(roles[i])))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close network lab: %w", err)
	}
	return nil
}

// stop ends a process that we started and whose Wait reports to exited.
func stop(p *os.Process, exited chan error) error {
	select {
	case err := <-exited:
		exited <- err
		return nil
	default:
	}
	if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop process %d: %w", p.Pid, err)
	}
	select {
	case err := <-exited:
		exited <- err
		return nil
	case <-time.After(stopLimit):
	}
	if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill process %d: %w", p.Pid, err)
	}
	exited <- <-exited
	return nil
}

// run runs a command to its end; the error carries what it printed.
func run(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}
