// Package qemu runs one virtual machine per VM value: a QEMU process with
// firmware, real disk files, a tap and a serial log, driven over QMP.
//
// It is for the testbed: scenarios, the BMC simulator's host and tests of the
// testbed. It is not a general front end for QEMU, and nothing in production
// imports it. It needs qemu-system-x86 and, for firmware "uefi", ovmf. A
// process that this package started dies with the process that started it.
package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Files inside Config.Dir. They stay over power cycles.
const (
	SerialLog = "serial.log" // everything the guest printed on ttyS0, appended
	varsFile  = "VARS.fd"    // UEFI variables
	stderrLog = "qemu.log"   // QEMU's own messages, appended
)

// Bounds of starting and stopping a process.
const (
	startLimit = 20 * time.Second
	quitLimit  = 5 * time.Second
)

// Disk is a real raw file that the guest sees as a disk. Writes reach the file;
// a discard punches a hole.
type Disk struct {
	Path   string
	Serial string // as the guest reads it; at most 20 bytes
	Driver string // "virtio-blk", "nvme", "scsi" or "ahci"
	// ReadOnly shows the guest a write-protected disk ("ahci" has none).
	ReadOnly bool
}

// Config describes one power-on of one machine.
type Config struct {
	Name  string // for messages and for the process list
	Dir   string // an existing folder of this machine alone
	NetNS string // network namespace of the tap; "" = our own
	// Firmware is "uefi" (OVMF, whose own PXE runs: the card has no ROM) or
	// "bios" (SeaBIOS, with the card's iPXE ROM).
	Firmware  string
	MemoryMiB int    // 0 = 1024
	Tap, MAC  string // the one network card, virtio; Tap "" = no card
	UUID      string // SMBIOS type 1 system UUID
	// Manufacturer, Product and Serial are SMBIOS type 1; "" leaves Firstlight,
	// Testbed and the name.
	Manufacturer, Product, Serial string
	Disks                         []Disk
	// RTCBase is what the machine's clock shows at power on, UTC, in the form
	// 2000-01-01T00:00:00; "" = the host's time.
	RTCBase string
	// BootFirst is "pxe" (network, then the disks in their order) or "disk".
	BootFirst string
	Accel     string // "tcg", "kvm" or "" = what Accel finds
	// ExtraArgs are appended to QEMU's command line as they are.
	ExtraArgs []string
}

// VM is a running QEMU process. Its methods may be called from several
// goroutines.
type VM struct {
	cfg  Config
	cmd  *exec.Cmd
	qmp  *qmp
	done chan struct{}

	stopOnce sync.Once
	// exit is how the process ended; valid once done is closed.
	exit error
}

// Start begins a power-on. It returns when QEMU answers on QMP and the guest
// runs; the guest's firmware has then only begun. ctx bounds the start, not the
// machine's life: end it with Stop.
func Start(ctx context.Context, cfg Config) (*VM, error) {
	if cfg.Accel == "" {
		cfg.Accel = Accel(ctx)
	}
	args, err := arguments(cfg)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.Name, err)
	}
	if cfg.Firmware == "uefi" {
		if err := copyOnce(ovmfVars, filepath.Join(cfg.Dir, varsFile)); err != nil {
			return nil, fmt.Errorf("start %s: UEFI variables: %w", cfg.Name, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	vm, err := launch(cfg, args)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.Name, err)
	}
	if err := vm.qmp.handshake(ctx); err != nil {
		vm.kill()
		return nil, fmt.Errorf("start %s: %w%s", cfg.Name, err, vm.said())
	}
	return vm, nil
}

// launch starts the process with one end of a socket pair as its QMP monitor:
// no path, nothing to clean up, and it ends with either side.
func launch(cfg Config, args []string) (*VM, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	log, err := os.OpenFile(filepath.Join(cfg.Dir, stderrLog), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		ours.Close()
		return nil, err
	}
	defer log.Close()
	name := binary
	if cfg.NetNS != "" {
		name, args = "ip", append([]string{"netns", "exec", cfg.NetNS, binary}, args...)
	}
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{theirs} // becomes file 3
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		ours.Close()
		return nil, err
	}
	vm := &VM{cfg: cfg, cmd: cmd, qmp: newQMP(ours), done: make(chan struct{})}
	go func() {
		vm.exit = cmd.Wait()
		vm.qmp.wait()
		close(vm.done)
	}()
	return vm, nil
}

// said is the end of what QEMU itself printed, for errors.
func (vm *VM) said() string {
	const most = 600
	b, err := os.ReadFile(filepath.Join(vm.cfg.Dir, stderrLog))
	if err != nil || len(b) == 0 {
		return ""
	}
	if len(b) > most {
		b = b[len(b)-most:]
	}
	return ": qemu: " + strings.Join(strings.Fields(string(b)), " ")
}

// Pid is QEMU's process id.
func (vm *VM) Pid() int { return vm.cmd.Process.Pid }

// Config is what the VM was started with.
func (vm *VM) Config() Config { return vm.cfg }

// Done is closed when the process has ended: the guest powered off, Stop, or a
// crash.
func (vm *VM) Done() <-chan struct{} { return vm.done }

// Events lists the QMP events so far, oldest first; it stays readable after the
// end.
func (vm *VM) Events() []Event { return vm.qmp.eventsCopy() }

// Pause stops the guest's processors. When it returns nothing runs in the guest
// and what the guest wrote is in the disk files.
func (vm *VM) Pause(ctx context.Context) error {
	_, err := vm.execute(ctx, "stop", nil)
	return err
}

// Resume lets a paused guest go on.
func (vm *VM) Resume(ctx context.Context) error {
	_, err := vm.execute(ctx, "cont", nil)
	return err
}

// SlowWrites bounds what the guest writes to disk i of Config.Disks, in bytes per second; 0 takes the bound away. Discards are
// not bounded.
func (vm *VM) SlowWrites(ctx context.Context, i int, rate int64) error {
	_, err := vm.execute(ctx, "block_set_io_throttle", map[string]any{"device": diskID(i),
		"bps": 0, "bps_rd": 0, "bps_wr": rate, "iops": 0, "iops_rd": 0, "iops_wr": 0})
	return err
}

// Reset presses the reset button: same process, same boot order.
func (vm *VM) Reset(ctx context.Context) error {
	_, err := vm.execute(ctx, "system_reset", nil)
	return err
}

// Stop cuts the power: it asks QEMU to quit and, after five seconds or when ctx
// ends, kills it. It returns when the process is gone. Stopping a machine that
// is off does nothing.
func (vm *VM) Stop(ctx context.Context) error {
	vm.stopOnce.Do(func() {
		ctx, cancel := context.WithTimeout(ctx, quitLimit)
		defer cancel()
		if _, err := vm.qmp.execute(ctx, "quit", nil); err == nil {
			select {
			case <-vm.done:
			case <-ctx.Done():
			}
		}
		vm.kill()
	})
	<-vm.done
	return nil
}

// kill ends the process the hard way and waits for it.
func (vm *VM) kill() {
	vm.cmd.Process.Kill()
	<-vm.done
}

func (vm *VM) execute(ctx context.Context, command string, args any) ([]byte, error) {
	b, err := vm.qmp.execute(ctx, command, args)
	if err != nil {
		return nil, fmt.Errorf("%s: qmp %s: %w", vm.cfg.Name, command, err)
	}
	return b, nil
}

// copyOnce copies from to to unless to exists.
func copyOnce(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := io.Copy(dst, src); err != nil {
		return errors.Join(err, dst.Close(), os.Remove(to))
	}
	return dst.Close()
}
