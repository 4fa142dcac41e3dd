//go:build linux

package kexec

import (
	"io/fs"
	"os"

	ukexec "github.com/u-root/u-root/pkg/boot/kexec"

	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/partfs"
)

// Linux mounts partitions and loads kernels on the running machine.
type Linux struct{}

// Open mounts a partition read-only.
func (Linux) Open(d disk.Disk, p disk.Partition) (fs.FS, func() error, error) {
	m, err := partfs.Mount(d, p, true)
	if err != nil {
		return nil, nil, err
	}
	return os.DirFS(m.Dir), m.Unmount, nil
}

// Load loads by kexec_file_load(2), so that the kernel's own rules about signatures hold.
func (Linux) Load(kernel, initrd *os.File, commandLine string) error {
	return ukexec.FileLoad(kernel, initrd, commandLine)
}

// Jump enters the loaded kernel; it returns only when there is none.
func Jump() error { return ukexec.Reboot() }
