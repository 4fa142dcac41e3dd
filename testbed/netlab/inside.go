package netlab

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/vishvananda/netns"
)

// Command prepares a program that runs inside a role's namespace; the process
// started is the program itself, not a wrapper. It is killed when ctx ends and
// when this process dies.
func (l *Lab) Command(ctx context.Context, role, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", l.NS(role), name}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// Listen opens a listener inside a role's namespace. addr has a literal
// address; the listener works from any goroutine.
func (l *Lab) Listen(role, network, addr string) (net.Listener, error) {
	var ln net.Listener
	err := l.inside(role, func() (err error) {
		ln, err = net.Listen(network, addr)
		return err
	})
	return ln, err
}

// ListenPacket is Listen for datagrams.
func (l *Lab) ListenPacket(role, network, addr string) (net.PacketConn, error) {
	var pc net.PacketConn
	err := l.inside(role, func() (err error) {
		pc, err = net.ListenPacket(network, addr)
		return err
	})
	return pc, err
}

// DialContext gives a dial function, as http.Transport takes it, whose
// connections start inside a role's namespace. Addresses are literal: names are
// not resolved there.
func (l *Lab) DialContext(role string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return l.dialer(role, nil)
}

// DialContextFrom is DialContext for TCP from one address of the namespace, which must have it.
func (l *Lab) DialContextFrom(role, source string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return l.dialer(role, &net.TCPAddr{IP: net.ParseIP(source)})
}

func (l *Lab) dialer(role string, local net.Addr) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		if net.ParseIP(host) == nil {
			return nil, fmt.Errorf("dial %s from namespace %s: not a literal address", addr, role)
		}
		var conn net.Conn
		err = l.inside(role, func() (err error) {
			conn, err = (&net.Dialer{FallbackDelay: -1, LocalAddr: local}).DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}
}

// inside runs f on a thread that has entered a role's namespace. A socket
// belongs for life to the namespace in which it was made, so only its making
// has to happen here. f must not start goroutines that make sockets.
func (l *Lab) inside(role string, f func() error) error {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("namespace of this thread: %w", err)
	}
	defer home.Close()
	target, err := netns.GetFromName(l.NS(role))
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("namespace %s: %w", role, err)
	}
	defer target.Close()
	if err := netns.Set(target); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter namespace %s: %w", role, err)
	}
	ferr := f()
	// A thread that cannot come back stays locked: the runtime ends it with its
	// goroutine instead of giving it to others.
	if err := netns.Set(home); err != nil {
		return fmt.Errorf("leave namespace %s: %w", role, err)
	}
	runtime.UnlockOSThread()
	return ferr
}
