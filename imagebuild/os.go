package imagebuild

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"firstlight/imagebuild/internal/osimage"
	"firstlight/imagebuild/manifest"
)

// Where Debian's packages put what the demo system is made from.
const (
	DefaultBusybox    = "/bin/busybox"
	DefaultBootloader = "/usr/lib/systemd/boot/efi/systemd-bootx64.efi"
	DefaultGRUB       = "/usr/lib/grub/i386-pc"
)

// InputsSuffix is appended to a raw image's name to name the list of its inputs.
const InputsSuffix = ".inputs.json"

// OSConfig is what the demo system's image is made from.
type OSConfig struct {
	// Agent is the path of the static machine agent; it becomes the node agent.
	Agent string
	// KernelDir is an unpacked Debian linux-image package.
	KernelDir string
	// Busybox, Bootloader (systemd-boot's EFI binary) and GRUB (the directory of its modules for BIOS) are paths; empty means Debian's.
	Busybox, Bootloader, GRUB string
	// Nonce is printed by the running system on its console; 1 to 64 letters, digits, '.', '_' or '-'.
	Nonce string
	// Out is the raw image; Out+InputsSuffix is the list of its inputs.
	Out      string
	Progress Progress
}

// OSResult is what OS wrote.
type OSResult struct {
	Image         string               `json:"image"`
	RawSize       int64                `json:"raw_size"`
	KernelRelease string               `json:"kernel_release"`
	Nonce         string               `json:"nonce"`
	RootPARTUUID  string               `json:"root_partuuid"`
	Partitions    []manifest.Partition `json:"partitions"`
	Inputs        []manifest.Input     `json:"inputs"`
}

// OS writes the demo system's raw image.
func OS(ctx context.Context, c OSConfig) (*OSResult, error) {
	if !osimage.ValidNonce(c.Nonce) {
		return nil, fmt.Errorf("nonce %q: want 1 to %d letters, digits, '.', '_' or '-'", c.Nonce, osimage.MaxNonce)
	}
	if c.Busybox == "" {
		c.Busybox = DefaultBusybox
	}
	if c.Bootloader == "" {
		c.Bootloader = DefaultBootloader
	}
	if c.GRUB == "" {
		c.GRUB = DefaultGRUB
	}
	in := osimage.Config{Nonce: c.Nonce, Step: func(what string) { c.Progress.say(what, 0, 0) }}
	var err error
	if in.Agent, err = readProgram("machine agent", c.Agent, agentHint); err != nil {
		return nil, err
	}
	if in.Busybox, err = readProgram("busybox", c.Busybox, "install the package busybox-static (make setup does)"); err != nil {
		return nil, err
	}
	if in.Bootloader, err = readFile("boot loader", c.Bootloader, "install the package systemd-boot-efi (make setup does)"); err != nil {
		return nil, err
	}
	if in.Mke2fs, err = findProgram("mke2fs", "e2fsprogs"); err != nil {
		return nil, err
	}
	if in.Kernel, err = openKernel(c.KernelDir); err != nil {
		return nil, err
	}
	if in.BIOS, err = makeBIOS(ctx, c.GRUB); err != nil {
		return nil, err
	}
	r, err := buildOS(ctx, in, c.Out)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", filepath.Base(c.Out), err)
	}
	if err := writeInputs(c.Out+InputsSuffix, in.Kernel.Release, r.Inputs); err != nil {
		return nil, fmt.Errorf("write the image's inputs: %w", err)
	}
	return &OSResult{Image: c.Out, RawSize: r.Size, KernelRelease: in.Kernel.Release, Nonce: c.Nonce, RootPARTUUID: r.Root().UUID,
		Partitions: r.Partitions, Inputs: r.Inputs}, nil
}

// buildOS builds under a temporary name beside out and renames.
func buildOS(ctx context.Context, in osimage.Config, out string) (*osimage.Result, error) {
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp(filepath.Dir(out), ".build-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	in.Work = filepath.Join(work, "work")
	if err := os.Mkdir(in.Work, 0o700); err != nil {
		return nil, err
	}
	img, err := os.OpenFile(filepath.Join(work, "image"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	defer img.Close()
	r, err := osimage.Build(ctx, in, img)
	if err != nil {
		return nil, err
	}
	if err := img.Close(); err != nil {
		return nil, err
	}
	return r, os.Rename(img.Name(), out)
}

// makeBIOS makes GRUB for BIOS machines from the modules in dir.
func makeBIOS(ctx context.Context, dir string) (*osimage.BIOS, error) {
	if _, err := os.Stat(filepath.Join(dir, "boot.img")); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("boot loader for BIOS machines: %s has no boot.img; install the package grub-pc-bin (make setup does)", dir)
	}
	mkimage, err := findProgram("grub-mkimage", "grub-common")
	if err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp("", "imagebuild-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	return osimage.MakeBIOS(ctx, mkimage, dir, work)
}

// findProgram also looks where Debian keeps programs out of a user's PATH. pkg is the package that has it.
func findProgram(name, pkg string) (string, error) {
	for _, n := range []string{name, "/usr/sbin/" + name, "/sbin/" + name} {
		if p, err := exec.LookPath(n); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s is missing; install the package %s (make setup does)", name, pkg)
}
