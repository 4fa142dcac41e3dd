package doctor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// procRoot is where the kernel tells of processes.
const procRoot = "/proc"

// port is one that the appliance listens at. At is host:port; device binds it to an interface.
type port struct {
	what, network, at, device string
}

// ports are those of a configuration.
func (c Config) ports() []port {
	f := c.File
	out := []port{{"agents", "tcp", f.Gateway.Listen, ""}}
	if b := f.Boot; b.Enabled {
		out = append(out, port{"DHCP", "udp", "0.0.0.0:67", b.Interface}, port{"PXE", "udp", "0.0.0.0:4011", b.Interface},
			port{"TFTP", "udp", "0.0.0.0:69", b.Interface}, port{"boot files", "tcp", b.HTTPListen, ""})
	}
	if f.Web.Listen != "" {
		out = append(out, port{"page", "tcp", f.Web.Listen, ""})
	}
	return out
}

// portChecks looks whether each port is free, or in the hands of the appliance that runs: holder is its process, 0 for none.
func (c Config) portChecks(ctx context.Context, holder int) []Check {
	var out []Check
	for _, p := range c.ports() {
		name := fmt.Sprintf("port: %s (%s %s)", p.what, p.network, p.at)
		owner := ownerOf(procRoot, p)
		switch {
		case strings.HasSuffix(p.at, ":0"):
			out = append(out, skipped(name, "any free port is taken"))
		case holder != 0 && owner.pid == holder:
			out = append(out, well(name, fmt.Sprintf("held by the appliance, process %d", holder)))
		case holder != 0 && owner.pid != 0:
			out = append(out, bad(Fail, name, owner.String(), "another program holds it beside the appliance that runs", "end "+owner.String()+", then restart the appliance"))
		case holder != 0:
			out = append(out, bad(Warn, name, fmt.Sprintf("process %d is the appliance", holder), "it does not hold this port; perhaps it runs with another configuration",
				"name the configuration that it runs with"))
		default:
			out = append(out, free(ctx, name, p, owner))
		}
	}
	return append(out, c.socketCheck(holder))
}

// free binds the port as the appliance would, and lets it go again.
func free(ctx context.Context, name string, p port, owner process) Check {
	lc := net.ListenConfig{Control: device(p.device)}
	var l interface{ Close() error }
	var err error
	if p.network == "udp" {
		l, err = lc.ListenPacket(ctx, "udp4", p.at)
	} else {
		l, err = lc.Listen(ctx, "tcp", p.at)
	}
	switch {
	case err == nil:
		l.Close()
		return well(name, "free")
	case errors.Is(err, unix.EADDRINUSE) && owner.pid != 0:
		return bad(Fail, name, owner.String(), "another program holds it", "end "+owner.String()+", or have it listen elsewhere")
	case errors.Is(err, unix.EADDRINUSE):
		return bad(Fail, name, "", "another program holds it", "ss -ulpn and ss -tlpn, as root, say which one")
	case errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM):
		return skipped(name, "this user may not bind it; run the doctor as the appliance runs")
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return bad(Fail, name, "", "no interface of this host has the address", "correct the address, or give it to an interface")
	}
	return bad(Fail, name, "", err.Error(), "correct the configuration")
}

// device binds a socket to an interface; an empty name to none.
func device(name string) func(string, string, syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		if name == "" {
			return nil
		}
		var serr error
		err := raw.Control(func(fd uintptr) { serr = unix.BindToDevice(int(fd), name) })
		return errors.Join(err, serr)
	}
}

// socketCheck looks at the API's unix socket: what is left of a killed process is replaced at the next start, what answers is not.
func (c Config) socketCheck(holder int) Check {
	name := "port: API (unix " + c.File.Socket + ")"
	conn, err := net.Dial("unix", c.File.Socket)
	if err == nil {
		conn.Close()
	}
	switch {
	case err == nil && holder != 0:
		return well(name, fmt.Sprintf("the appliance, process %d, answers", holder))
	case err == nil:
		return bad(Fail, name, "something answers", "no appliance runs on "+c.File.DataDir+", but the socket is another's", "give each appliance its own socket")
	case holder != 0:
		return bad(Fail, name, fmt.Sprintf("process %d is the appliance", holder), err.Error(), "look at the log of the appliance, and whether it runs with this configuration")
	}
	return well(name, "free")
}

// process is a program that runs; a zero one is none that we may see.
type process struct {
	pid  int
	name string
}

func (p process) String() string { return fmt.Sprintf("%s (process %d)", p.name, p.pid) }

// serving is the process that holds the lock of a data directory (proc_locks(5)), 0 for none.
func serving(dataDir, proc string) int {
	var st unix.Stat_t
	if unix.Stat(filepath.Join(dataDir, "lock"), &st) != nil {
		return 0
	}
	f, err := os.Open(filepath.Join(proc, "locks"))
	if err != nil {
		return 0
	}
	defer f.Close()
	inode := ":" + strconv.FormatUint(st.Ino, 10)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		w := strings.Fields(lines.Text())
		if len(w) >= 6 && w[1] == "FLOCK" && w[3] == "WRITE" && strings.HasSuffix(w[5], inode) {
			pid, _ := strconv.Atoi(w[4])
			return pid
		}
	}
	return 0
}

// ownerOf is the process with a socket bound to a port: to its address, or to all.
func ownerOf(proc string, p port) process {
	at, err := netip.ParseAddrPort(p.at)
	if err != nil {
		return process{}
	}
	inodes := map[string]bool{}
	for _, family := range []string{"", "6"} {
		listening(filepath.Join(proc, "net", p.network+family), at, p.network == "tcp", inodes)
	}
	if len(inodes) == 0 {
		return process{}
	}
	fds, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "fd", "*"))
	for _, fd := range fds {
		to, err := os.Readlink(fd)
		if err != nil || !inodes[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] {
			continue
		}
		dir := filepath.Dir(filepath.Dir(fd))
		pid, _ := strconv.Atoi(filepath.Base(dir))
		name, _ := os.ReadFile(filepath.Join(dir, "comm"))
		return process{pid, strings.TrimSpace(string(name))}
	}
	return process{}
}

// tcpListen is the state of a socket that listens (proc_net_tcp).
const tcpListen = "0A"

// listening adds the inodes of sockets that are bound to a port, at the address or at all of them.
func listening(table string, at netip.AddrPort, tcp bool, inodes map[string]bool) {
	f, err := os.Open(table)
	if err != nil {
		return
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		w := strings.Fields(lines.Text())
		if len(w) < 10 || tcp && w[3] != tcpListen {
			continue
		}
		host, hex, _ := strings.Cut(w[1], ":")
		n, err := strconv.ParseUint(hex, 16, 16)
		if err != nil || uint16(n) != at.Port() {
			continue
		}
		if all := strings.Trim(host, "0") == ""; all || at.Addr().IsUnspecified() || strings.HasSuffix(host, kernelHex(at.Addr())) {
			inodes[w[9]] = true
		}
	}
}

// kernelHex is an IPv4 address as /proc/net writes it: its 32 bits in host order, here little endian. An IPv6 address matches nothing.
func kernelHex(a netip.Addr) string {
	if !a.Is4() {
		return "never"
	}
	b := a.As4()
	return fmt.Sprintf("%02X%02X%02X%02X", b[3], b[2], b[1], b[0])
}
