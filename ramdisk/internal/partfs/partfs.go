//go:build linux

// Package partfs mounts one partition of one disk, and makes sure that what is mounted is that partition of that disk.
//
// It is for ramdisk's deploy (configuration partition) and kexec (EFI system partition). Names in /dev are used to reach a device
// and never believed: device numbers and the disk's sequence number are compared before and after mounting.
package partfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/identity"
)

// Root is where partitions are mounted.
const Root = "/run/firstlight/mnt"

// Mounted is a mounted partition.
type Mounted struct {
	// Dir is its root.
	Dir string
}

// Mount mounts partition p of disk d as vfat.
func Mount(d disk.Disk, p disk.Partition, readOnly bool) (*Mounted, error) {
	if err := present(d, p); err != nil {
		return nil, fmt.Errorf("mount partition %d of %s: %w", p.Number, d, err)
	}
	if err := os.MkdirAll(Root, 0o700); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(Root, "part-")
	if err != nil {
		return nil, err
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if readOnly {
		flags |= unix.MS_RDONLY
	}
	m := &Mounted{dir}
	if err := unix.Mount("/dev/"+p.Name, dir, "vfat", flags, "umask=0077"); err != nil {
		os.Remove(dir)
		return nil, fmt.Errorf("mount partition %d of %s as vfat: %w", p.Number, d, err)
	}
	var st unix.Stat_t
	err = unix.Stat(dir, &st)
	if n := (disk.Number{Major: unix.Major(uint64(st.Dev)), Minor: unix.Minor(uint64(st.Dev))}); err == nil && n != p.Dev {
		err = fmt.Errorf("%w: mounted device %s, wanted %s", disk.ErrDiffers, n, p.Dev)
	}
	if err == nil {
		err = present(d, p)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mount partition %d of %s: %w", p.Number, d, err), m.Unmount())
	}
	return m, nil
}

// present says whether the kernel still shows p as a partition of the very device d.
func present(d disk.Disk, p disk.Partition) error {
	disks, err := disk.Linux{}.Scan()
	if err != nil {
		return err
	}
	for _, now := range disks {
		if now.Name != d.Name || now.Sequence != d.Sequence || now.Serial != d.Serial || now.Size != d.Size {
			continue
		}
		for _, q := range now.Partitions {
			if q == p {
				return nil
			}
		}
		return fmt.Errorf("%w: the kernel does not show that partition", disk.ErrDiffers)
	}
	return fmt.Errorf("%w: it is gone", disk.ErrDiffers)
}

// Unmount unmounts and removes the folder.
func (m *Mounted) Unmount() error {
	if err := unix.Unmount(m.Dir, 0); err != nil {
		return fmt.Errorf("unmount %s: %w", m.Dir, err)
	}
	return os.Remove(m.Dir)
}

// Config is deploy's ConfigWriter on the running machine.
type Config struct{}

// WriteConfig writes the file, unmounts, mounts again read-only and compares.
func (Config) WriteConfig(_ context.Context, d disk.Disk, p disk.Partition, name string, content []byte) error {
	if name == "" || name != filepath.Base(name) {
		return fmt.Errorf("write configuration: %q is not a file name", name)
	}
	m, err := Mount(d, p, false)
	if err != nil {
		return err
	}
	err = identity.WriteFile(filepath.Join(m.Dir, name), content)
	if err = errors.Join(err, m.Unmount()); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	if m, err = Mount(d, p, true); err != nil {
		return fmt.Errorf("read configuration back: %w", err)
	}
	back, err := os.ReadFile(filepath.Join(m.Dir, name))
	if err = errors.Join(err, m.Unmount()); err != nil {
		return fmt.Errorf("read configuration back: %w", err)
	}
	if !bytes.Equal(back, content) {
		return errors.New("read configuration back: it is not what was written")
	}
	return nil
}
