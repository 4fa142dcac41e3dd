// Package pid1 is what the first process of the RAM disk must do: mount the kernel's file systems, keep the agent running as its
// child, reap whatever dies, and restart the machine when the agent cannot be kept alive.
//
// The agent runs in a child so that no panic in it, whatever goroutine it is in, takes the kernel down, and so that reaping never
// takes a status away from whoever waits for it. The package is for ramdisk alone and knows nothing of what the agent does.
package pid1

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/u-root/u-root/pkg/libinit"
	"golang.org/x/sys/unix"
)

// Bounds of keeping the agent alive.
const (
	// MaxRestarts is how often the agent is started again in one boot.
	MaxRestarts = 5
	// RestartDelay is the pause before a restart; it doubles each time.
	RestartDelay = 2 * time.Second
	// RebootDelay is how long the last words stay on the screen.
	RebootDelay = 60 * time.Second
)

// Process starts and waits, as the kernel does. One goroutine uses it.
type Process interface {
	// Start starts the agent.
	Start() (pid int, err error)
	// Wait waits for any child, the agent or an orphan, and says how it ended.
	Wait() (pid int, how string, err error)
}

// Supervise keeps the agent running until ctx ends or MaxRestarts is passed, and returns why it stopped.
func Supervise(ctx context.Context, p Process, say func(format string, args ...any)) error {
	delay := RestartDelay
	for try := 0; ; try++ {
		how, err := runOnce(p)
		if err != nil {
			how = err.Error()
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if try >= MaxRestarts {
			return fmt.Errorf("agent stopped %d times, last: %s", try+1, how)
		}
		say("the agent stopped (%s); starting it again in %s (%d of %d)", how, delay, try+1, MaxRestarts)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(delay):
		}
		delay *= 2
	}
}

func runOnce(p Process) (string, error) {
	agent, err := p.Start()
	if err != nil {
		return "", fmt.Errorf("start agent: %w", err)
	}
	for {
		pid, how, err := p.Wait()
		if err != nil {
			return "", fmt.Errorf("wait for agent: %w", err)
		}
		if pid == agent {
			return how, nil
		}
	}
}

// Self starts this program again with Args as the agent, on the same standard streams.
type Self struct{ Args []string }

// Start starts the child.
func (s Self) Start() (int, error) {
	p, err := os.StartProcess("/proc/self/exe", s.Args, &os.ProcAttr{Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return 0, err
	}
	return p.Pid, nil
}

// Wait reaps one child.
func (Self) Wait() (int, string, error) {
	for {
		var st unix.WaitStatus
		pid, err := unix.Wait4(-1, &st, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, "", err
		case st.Signaled():
			return pid, "killed by " + st.Signal().String(), nil
		case st.Exited():
			return pid, fmt.Sprintf("exit status %d", st.ExitStatus()), nil
		}
	}
}

// mounts are the file systems that the agent needs, in order. Those marked optional may be missing.
var mounts = []struct {
	libinit.Mount
	optional bool
}{
	{libinit.Mount{Source: "proc", Target: "/proc", FSType: "proc", Flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC}, false},
	{libinit.Mount{Source: "sysfs", Target: "/sys", FSType: "sysfs", Flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC}, false},
	{libinit.Mount{Source: "devtmpfs", Target: "/dev", FSType: "devtmpfs", Flags: unix.MS_NOSUID}, false},
	{libinit.Mount{Source: "tmpfs", Target: "/run", FSType: "tmpfs", Flags: unix.MS_NOSUID | unix.MS_NODEV, Opts: "mode=0755"}, false},
	{libinit.Mount{Source: "tmpfs", Target: "/tmp", FSType: "tmpfs", Flags: unix.MS_NOSUID | unix.MS_NODEV, Opts: "mode=1777"}, true},
	{libinit.Mount{Source: "devpts", Target: "/dev/pts", FSType: "devpts", Opts: "mode=0620,ptmxmode=0666"}, true},
}

// Mount mounts them and returns what did not work; the agent is started all the same, to say it.
func Mount() []error {
	var out []error
	for _, m := range mounts {
		if err := (libinit.Dir{Name: m.Target, Mode: 0o755}).Create(); err != nil {
			out = append(out, err)
			continue
		}
		if err := m.Mount.Create(); err != nil && !errors.Is(err, unix.EBUSY) && !m.optional {
			out = append(out, fmt.Errorf("mount %s: %w", m.Target, err))
		}
	}
	return out
}

// Restart flushes file systems and restarts the machine; it returns only when the kernel refuses.
func Restart() error { unix.Sync(); return unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) }

// PowerOff flushes file systems and turns the machine off; it returns only when the kernel refuses.
func PowerOff() error { unix.Sync(); return unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF) }
