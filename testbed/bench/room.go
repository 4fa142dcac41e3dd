package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"firstlight/testbed/netlab"
)

// Where the servers stand: ours where the site is, the peers in the namespace of the segment's own DHCP server, which does not run.
// Both have the same cable to the same bridge; the clients are behind a third one.
const (
	oursAt, peersAt = netlab.Site, netlab.DHCP
	oursIP, peersIP = netlab.SiteAddress, netlab.DHCPAddress
)

// clients is how many addresses the clients have; a site bounds what one address may have open.
const clients = 64

// Bounds of starting and ending.
const (
	readyLimit = 90 * time.Second
	endLimit   = 20 * time.Second
	pollEvery  = 50 * time.Millisecond
)

// room is the network with what runs in it. Its files go with it.
type room struct {
	bin, dir string
	lab      *netlab.Lab
	say      func(format string, args ...any)
	procs    []*process
}

func newRoom(ctx context.Context, bin string, say func(string, ...any)) (*room, error) {
	dir, err := os.MkdirTemp("", "firstlight-bench-")
	if err != nil {
		return nil, err
	}
	r := &room{bin: bin, dir: dir, say: say}
	if r.lab, err = netlab.New(ctx, netlab.Config{Name: "bench", Dir: dir, NoDHCP: true}); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	args := []string{"-n", r.lab.NS(netlab.Peer), "-batch", "-"}
	var lines strings.Builder
	for i := range clients {
		fmt.Fprintf(&lines, "addr add %s/24 dev eth0\n", clientIP(i))
	}
	cmd := exec.CommandContext(ctx, "ip", args...)
	cmd.Stdin = strings.NewReader(lines.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("addresses of the clients: %w: %s", err, out), r.close())
	}
	return r, nil
}

// clientIP is the address of client i, from 0.
func clientIP(i int) string { return fmt.Sprintf("10.77.0.%d", 130+i%clients) }

// close ends everything, the last one first, and takes the files away.
func (r *room) close() error {
	var errs []error
	for i := len(r.procs) - 1; i >= 0; i-- {
		errs = append(errs, r.procs[i].stop())
	}
	return errors.Join(append(errs, r.lab.Close(), os.RemoveAll(r.dir))...)
}

// cut takes one side's cable out, or puts it back: what is broadcast then costs that side nothing.
func (r *room) cut(ctx context.Context, role string, out bool) error {
	state := "up"
	if out {
		state = "down"
	}
	// The bridge's end of a cable has the name of the role behind it.
	if b, err := exec.CommandContext(ctx, "ip", "-n", r.lab.NS(netlab.Segment), "link", "set", role, state).CombinedOutput(); err != nil {
		return fmt.Errorf("set cable of %s %s: %w: %s", role, state, err, b)
	}
	return nil
}

// peer is the path of a program that peers.sh unpacked from a package.
func (r *room) peer(pkg, program string) (string, error) {
	path := filepath.Join(r.bin, "peers", pkg, "usr", "sbin", program)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("find the peer %s: %w (make bench unpacks it)", program, err)
	}
	return path, nil
}

// process is a server that we started.
type process struct {
	name   string
	cmd    *exec.Cmd
	log    string
	exited chan struct{}
	err    error // valid once exited is closed
}

// start runs a program in a role's namespace, its words in a file.
func (r *room) start(ctx context.Context, role, name, program string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(r.dir, name+".log"), exited: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = r.lab.Command(context.WithoutCancel(ctx), role, program, args...)
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Dir = log, log, r.dir
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	r.procs = append(r.procs, p)
	return p, nil
}

// await polls until ready says so.
func (p *process) await(ctx context.Context, what string, ready func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for !ready() {
		select {
		case <-p.exited:
			return fmt.Errorf("%s ended at its start: %v: %s", p.name, p.err, p.lastWords())
		case <-ctx.Done():
			return fmt.Errorf("%s: wait for %s: %w: %s", p.name, what, ctx.Err(), p.lastWords())
		case <-tick.C:
		}
	}
	return nil
}

// said says whether the log has the text.
func (p *process) said(text string) func() bool {
	return func() bool {
		b, err := os.ReadFile(p.log)
		return err == nil && bytes.Contains(b, []byte(text))
	}
}

// maxWords bounds what is quoted of a log in bytes.
const maxWords = 400

func (p *process) lastWords() string {
	b, _ := os.ReadFile(p.log)
	return strings.TrimSpace(string(b[max(0, len(b)-maxWords):]))
}

// stop ends the process, hard when it does not end by itself. One that ended before is an error: it was to run until now.
func (p *process) stop() error {
	select {
	case <-p.exited:
		return fmt.Errorf("%s ended too soon: %v: %s", p.name, p.err, p.lastWords())
	default:
	}
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end %s: %w", p.name, err)
	}
	select {
	case <-p.exited:
		return nil
	case <-time.After(endLimit):
	}
	err := p.cmd.Process.Kill()
	<-p.exited
	return err
}

// dials says whether a port of the role's own takes connections.
func (r *room) dials(ctx context.Context, role, address string) func() bool {
	dial := r.lab.DialContext(role)
	return func() bool {
		c, err := dial(ctx, "tcp", address)
		if err != nil {
			return false
		}
		c.Close()
		return true
	}
}

// udp opens a socket of the clients.
func (r *room) udp(address string) (*net.UDPConn, error) {
	c, err := r.lab.ListenPacket(netlab.Peer, "udp4", address)
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}
