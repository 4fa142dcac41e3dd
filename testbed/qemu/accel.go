package qemu

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// probeLimit bounds the probe guest. Under software emulation it ends in 0.2 s.
const probeLimit = 4 * time.Second

// kvmLimit bounds the probe guest under KVM, which is faster than emulation
// where it works. There are hosts where it creeps through the small guest now
// and then, and a firmware's first seconds then end in an internal error.
const kvmLimit = time.Second

// The probe guest prints probeText on the serial port and ends QEMU with
// probeExit: isa-debug-exit turns the value v into the exit status 2v+1.
const (
	probeText  = "FIRSTLIGHT-PROBE"
	probeValue = 0x20
	probeExit  = 2*probeValue + 1
)

var probed struct {
	sync.Mutex
	accel string
}

// Accel is "kvm" if a guest really ran under KVM here, else "tcg". A device
// node proves nothing: there are hosts where /dev/kvm opens and guests hang or
// abort. The first call runs the probe, for at most a second; the answer
// holds for the life of the process. If ctx ends first the answer is "tcg" and
// is not kept.
func Accel(ctx context.Context) string {
	probed.Lock()
	defer probed.Unlock()
	if probed.accel != "" {
		return probed.accel
	}
	accel := "tcg"
	if probe(ctx, "kvm") {
		accel = "kvm"
	}
	if ctx.Err() == nil {
		probed.accel = accel
	}
	return accel
}

// probe reports whether a small guest runs from firmware to its own code.
func probe(ctx context.Context, accel string) bool {
	if accel == "kvm" {
		if _, err := os.Stat("/dev/kvm"); err != nil {
			return false
		}
	}
	dir, err := os.MkdirTemp("", "firstlight-probe-")
	if err != nil {
		return false
	}
	defer os.RemoveAll(dir)
	disk, serial := filepath.Join(dir, "disk"), filepath.Join(dir, "serial")
	if os.WriteFile(disk, probeDisk(), 0o600) != nil {
		return false
	}
	limit := probeLimit
	if accel == "kvm" {
		limit = kvmLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.Command(binary,
		"-nodefaults", "-no-user-config", "-display", "none",
		"-machine", "q35", "-accel", accel, "-cpu", "max", "-m", "64",
		"-serial", "file:"+serial, "-device", "isa-debug-exit,iobase=0xf4,iosize=1",
		"-drive", "if=none,id=d,format=raw,readonly=on,file="+escape(disk),
		"-device", "virtio-blk-pci,drive=d,bootindex=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if cmd.Start() != nil {
		return false
	}
	ended := make(chan struct{})
	go func() {
		cmd.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		// A process stuck in the kernel's KVM does not die at once, or at all:
		// it is killed and not waited for.
		cmd.Process.Kill()
		return false
	}
	text, err := os.ReadFile(serial)
	return err == nil && bytes.Contains(text, []byte(probeText)) && cmd.ProcessState.ExitCode() == probeExit
}

// probeDisk is a boot sector in a 1 MiB disk.
func probeDisk() []byte {
	const load = 0x7c00 // where the firmware puts the sector
	code := []byte{
		0xfa,       // cli
		0x31, 0xc0, // xor ax, ax
		0x8e, 0xd8, // mov ds, ax
		0xfc,             // cld
		0xbe, 0x00, 0x00, // mov si, text (set below)
		0xba, 0xf8, 0x03, // mov dx, 0x3f8
		0xac,       // next: lodsb
		0x84, 0xc0, // test al, al
		0x74, 0x03, // jz done
		0xee,       // out dx, al
		0xeb, 0xf8, // jmp next
		0xb0, probeValue, // done: mov al, probeValue
		0xba, 0xf4, 0x00, // mov dx, 0xf4
		0xee, // out dx, al
		0xf4, // hlt
	}
	text := load + len(code)
	code[7], code[8] = byte(text), byte(text>>8)
	disk := make([]byte, 1<<20)
	copy(disk[copy(disk, code):], probeText+"\x00")
	disk[510], disk[511] = 0x55, 0xaa
	return disk
}
