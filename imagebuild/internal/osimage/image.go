// Package osimage builds the small demo system that a machine can be given: a GPT disk image with an EFI system partition
// (systemd-boot, a kernel, its initial RAM disk), an empty configuration partition, an ext4 root with busybox and the node agent, and
// GRUB for machines with BIOS firmware, which starts what the EFI system partition's loader entry says.
//
// It is for imagebuild only. Nothing is mounted and no device is touched: partition table and FAT come from go-diskfs, the root
// file system from mke2fs -d. The image differs from build to build in no file and no identifier when its inputs are the same; the
// bytes of the ext4 metadata may differ, which is why the signed manifest lists the digests of the inputs as well.
package osimage

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"

	"firstlight/imagebuild/internal/kmod"
	"firstlight/imagebuild/internal/parttable"
	"firstlight/imagebuild/manifest"
)

// MaxNonce bounds the nonce, in characters.
const MaxNonce = 64

// Config is what an image is made from.
type Config struct {
	Kernel *kmod.Kernel
	// Agent, Busybox and Bootloader are static programs and systemd-boot's EFI binary.
	Agent, Busybox, Bootloader []byte
	// BIOS is GRUB, from MakeBIOS.
	BIOS *BIOS
	// Nonce is what the running system prints on its console, so that an observer knows it for this image. No secret.
	Nonce string
	// Mke2fs is the path of the program.
	Mke2fs string
	// Work is an empty directory for files in between.
	Work string
	// Step is told what begins; nil tells nobody.
	Step func(what string)
}

// Result is what came out.
type Result struct {
	Layout
	Inputs []manifest.Input
}

// ValidNonce says whether s can be a nonce: 1 to MaxNonce letters, digits, '.', '_' or '-'.
func ValidNonce(s string) bool {
	for _, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return s != "" && len(s) <= MaxNonce
}

// Build writes the image into the file img, which is empty.
func Build(ctx context.Context, c Config, img *os.File) (*Result, error) {
	step := c.Step
	if step == nil {
		step = func(string) {}
	}
	if !ValidNonce(c.Nonce) {
		return nil, fmt.Errorf("nonce %q: want 1 to %d letters, digits, '.', '_' or '-'", c.Nonce, MaxNonce)
	}
	step("choose kernel modules")
	p, err := collect(c)
	if err != nil {
		return nil, err
	}
	layout, err := plan(p.seed(c.Nonce), contentSize(p.root))
	if err != nil {
		return nil, err
	}
	if err := img.Truncate(layout.Size); err != nil {
		return nil, fmt.Errorf("size the image: %w", err)
	}
	step("write partition table")
	if err := parttable.Write(img, layout.Size, layout.DiskGUID, layout.Partitions); err != nil {
		return nil, err
	}
	step("write boot code for BIOS machines")
	if err := writeBIOS(img, layout.BIOS(), c.BIOS); err != nil {
		return nil, err
	}
	step("write EFI system partition")
	entry := loaderEntry(c.Kernel.Release, layout.Root().UUID)
	if err := checkEntry(entry); err != nil {
		return nil, err
	}
	var initrd bytes.Buffer
	if err := p.initrd.Compress(&initrd); err != nil {
		return nil, err
	}
	if err := writeESP(img, layout.Partitions[0], []espFile{
		{efiFile, c.Bootloader},
		{loaderFile, []byte(loaderConf)},
		{entryFile, []byte(entry)},
		{kernelFile, p.kernel},
		{initrdFile, initrd.Bytes()},
	}); err != nil {
		return nil, err
	}
	if err := writeConfig(img, layout.Partitions[1]); err != nil {
		return nil, err
	}
	step("write root file system")
	fs, err := makeRoot(ctx, c.Mke2fs, c.Work, p.root, layout)
	if err != nil {
		return nil, err
	}
	if err := copyInto(img, layout.Root().Start, fs, layout.Root().Size); err != nil {
		return nil, fmt.Errorf("root file system: %w", err)
	}
	if err := img.Sync(); err != nil {
		return nil, fmt.Errorf("sync the image: %w", err)
	}
	return &Result{Layout: layout, Inputs: p.inputs}, checkTable(img, layout)
}

// checkTable reads the partition table back.
func checkTable(img *os.File, l Layout) error {
	got, err := parttable.Read(img, l.Size)
	if err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	if !slices.Equal(got, l.Partitions) {
		return fmt.Errorf("read back: partition table: got %+v, want %+v", got, l.Partitions)
	}
	return nil
}
