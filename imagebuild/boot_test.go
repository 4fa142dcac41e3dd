package imagebuild_test

import (
	"bufio"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"firstlight/imagebuild"
)

var qemu = flag.Bool("qemu", false, "boot the demo system under QEMU, with UEFI and with BIOS firmware (about two minutes of one core)")

// bootLimit is many times what the boot takes under software emulation on a quiet machine.
const bootLimit = 4 * time.Minute

// TestDemoSystemBoots starts the image from its disk, as a power cycle does: firmware, systemd-boot or GRUB, kernel, initial RAM
// disk, root. The line on the console names the nonce and the serial number of the disk that holds the root.
func TestDemoSystemBoots(t *testing.T) {
	t.Parallel()
	if !*qemu {
		t.Skip("reason: boots a virtual machine; run it with go test ./imagebuild -qemu -timeout 40m")
	}
	const kernelDir, code, vars = "../bin/inputs/kernel", "/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"
	for _, need := range []string{kernelDir + "/boot", code, vars, imagebuild.DefaultBusybox, imagebuild.DefaultBootloader, imagebuild.DefaultGRUB} {
		if _, err := os.Stat(need); err != nil {
			t.Skipf("reason: %v (make setup installs it)", err)
		}
	}
	program, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Skip("reason: no qemu-system-x86_64 on this machine (make setup installs it)")
	}
	dir := t.TempDir()
	// The agent's place is taken by busybox: the system has to start whatever the agent does.
	raw, flash := filepath.Join(dir, "os.raw"), filepath.Join(dir, "vars.fd")
	if _, err := imagebuild.OS(t.Context(), imagebuild.OSConfig{Agent: imagebuild.DefaultBusybox, KernelDir: kernelDir, Nonce: "boot-test", Out: raw}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(flash, read(t, vars), 0o600); err != nil {
		t.Fatal(err)
	}
	uefi := []string{"-drive", "if=pflash,unit=0,format=raw,readonly=on,file=" + code, "-drive", "if=pflash,unit=1,format=raw,file=" + flash}
	for _, c := range []struct {
		name, machine string
		firmware      []string // none is QEMU's BIOS, SeaBIOS
		disk          []string
	}{
		{"uefi virtio", "q35", uefi, []string{"-device", "virtio-blk-pci,drive=d0,serial=DISK-1,bootindex=1"}},
		{"uefi nvme", "q35", uefi, []string{"-device", "nvme,drive=d0,serial=DISK-1,bootindex=1"}},
		{"uefi scsi", "q35", uefi, []string{"-device", "virtio-scsi-pci", "-device", "scsi-hd,drive=d0,serial=DISK-1,bootindex=1"}},
		{"uefi sata", "q35", uefi, []string{"-device", "ide-hd,drive=d0,serial=DISK-1,bus=ide.0,bootindex=1"}},
		{"bios virtio", "pc", nil, []string{"-device", "virtio-blk-pci,drive=d0,serial=DISK-1"}},
		{"bios virtio q35", "q35", nil, []string{"-device", "virtio-blk-pci,drive=d0,serial=DISK-1,bootindex=1"}},
		{"bios nvme", "q35", nil, []string{"-device", "nvme,drive=d0,serial=DISK-1,bootindex=1"}},
		{"bios scsi", "pc", nil, []string{"-device", "virtio-scsi-pci", "-device", "scsi-hd,drive=d0,serial=DISK-1,bootindex=1"}},
		{"bios sata", "q35", nil, []string{"-device", "ide-hd,drive=d0,serial=DISK-1,bus=ide.0,bootindex=1"}},
	} {
		args := slices.Concat([]string{"-nodefaults", "-no-user-config", "-display", "none", "-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", "512",
			"-machine", c.machine + ",graphics=off", "-serial", "stdio", "-drive", "if=none,id=d0,format=raw,file=" + raw}, c.firmware, c.disk)
		line := waitFor(t, program, args, regexp.MustCompile(`FIRSTLIGHT-OS .*`))
		want := regexp.MustCompile(`^FIRSTLIGHT-OS nonce=boot-test disk-serial=DISK-1 boot-id=[0-9a-f-]{36} uptime=[0-9.]+\s*$`)
		if !want.MatchString(line) {
			t.Errorf("%s: got line %q, want one like %s", c.name, line, want)
		}
	}
}

// waitFor runs a virtual machine until its console shows the line, and ends it.
func waitFor(t *testing.T, program string, args []string, line *regexp.Regexp) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bootLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	console, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cancel()
	var last []string
	for s := bufio.NewScanner(console); s.Scan(); {
		if m := line.FindString(s.Text()); m != "" {
			return m
		}
		last = append(last, s.Text())
	}
	t.Errorf("console ended or took longer than %v without %s: %q", bootLimit, line, last[max(0, len(last)-10):])
	return ""
}
