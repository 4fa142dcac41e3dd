//go:build linux

package disk

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// blkGetDiskSeq is BLKGETDISKSEQ of linux/fs.h: _IOR(0x12, 128, __u64). Since Linux 5.15.
const blkGetDiskSeq = 0x80081280

// Linux is the running machine's disks.
type Linux struct {
	// Sys is /sys, Dev the folder of device nodes; empty strings mean those of the running system.
	Sys, Dev string
	// Proc is /proc.
	Proc string
}

func (l Linux) defaults() Linux {
	if l.Sys == "" {
		l.Sys = "/sys"
	}
	if l.Dev == "" {
		l.Dev = "/dev"
	}
	if l.Proc == "" {
		l.Proc = "/proc"
	}
	return l
}

// Scan lists every block device.
func (l Linux) Scan() ([]Disk, error) {
	l = l.defaults()
	return Scan(os.DirFS(l.Sys), usage(os.DirFS(l.Proc)))
}

// Open opens the whole disk exclusively: it fails while a partition is mounted or anything else holds it, and names the holder.
func (l Linux) Open(d Disk) (Device, error) {
	l = l.defaults()
	return l.open(d.Name)
}

// OpenRead opens the whole disk for reading, past the page cache, whoever else holds it; it makes sure that the node is d's.
func (l Linux) OpenRead(d Disk) (Source, error) {
	l = l.defaults()
	path, err := l.node(d.Name)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	dev := &linuxDevice{fd: fd, sys: os.DirFS(l.Sys)}
	now, err := dev.Identify()
	if err == nil && same(d, now) != "" {
		err = fmt.Errorf("%w: %s", ErrDiffers, same(d, now))
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return dev, nil
}

func (l Linux) node(name string) (string, error) {
	if name == "" || name != filepath.Base(name) {
		return "", fmt.Errorf("device name %q is not a plain name", name)
	}
	return filepath.Join(l.Dev, strings.ReplaceAll(name, "!", "/")), nil
}

func (l Linux) open(name string) (Device, error) {
	path, err := l.node(name)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_EXCL|unix.O_DIRECT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.EBUSY) {
		d := Read(os.DirFS(l.Sys), "block/"+name, usage(os.DirFS(l.Proc)))
		holder := d.Excluded
		if holder == "" {
			holder = "something that the kernel does not name"
		}
		return nil, fmt.Errorf("%w: %s", err, holder)
	}
	if err != nil {
		return nil, err
	}
	dev := &linuxDevice{fd: fd, sys: os.DirFS(l.Sys)}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		unix.Close(fd)
		return nil, fmt.Errorf("%s is not a block device", path)
	}
	return dev, nil
}

type linuxDevice struct {
	fd  int
	sys fs.FS
}

// Identify goes from the open descriptor's device number to sysfs, and makes sure by size and disk sequence number that sysfs
// speaks of the very device behind the descriptor, before and after reading.
func (d *linuxDevice) Identify() (Disk, error) {
	var st unix.Stat_t
	if err := unix.Fstat(d.fd, &st); err != nil {
		return Disk{}, err
	}
	n := Number{unix.Major(st.Rdev), unix.Minor(st.Rdev)}
	size, err := ioctlUint64(d.fd, unix.BLKGETSIZE64)
	if err != nil {
		return Disk{}, fmt.Errorf("read size: %w", err)
	}
	before, seqErr := ioctlUint64(d.fd, blkGetDiskSeq)
	dir := "dev/block/" + n.String()
	if _, err := fs.Stat(d.sys, dir+"/dev"); err != nil {
		return Disk{}, fmt.Errorf("device %s is gone: %w", n, err)
	}
	out := Read(d.sys, dir, nil)
	out.Excluded = ""
	if out.Dev != n {
		return Disk{}, fmt.Errorf("device %s is gone: sysfs says %s", n, out.Dev)
	}
	if out.Size != int64(size) {
		return Disk{}, fmt.Errorf("size by handle %d, by sysfs %d", size, out.Size)
	}
	if seqErr == nil && out.Sequence != before {
		return Disk{}, fmt.Errorf("handle is device instance %d, %s is now instance %d", before, n, out.Sequence)
	}
	return out, nil
}

func (d *linuxDevice) ReadAt(p []byte, off int64) (int, error) {
	buf := p
	if !Aligned(p) {
		buf = Buffer(len(p))
	}
	done := 0
	for done < len(buf) {
		n, err := unix.Pread(d.fd, buf[done:], off+int64(done))
		if err == unix.EINTR {
			continue
		}
		if err == nil && n == 0 {
			err = io.EOF
		}
		if err != nil {
			return done, err
		}
		done += n
	}
	if !Aligned(p) {
		copy(p, buf)
	}
	return done, nil
}

func (d *linuxDevice) WriteAt(p []byte, off int64) (int, error) {
	if !Aligned(p) {
		buf := Buffer(len(p))
		copy(buf, p)
		p = buf
	}
	done := 0
	for done < len(p) {
		n, err := unix.Pwrite(d.fd, p[done:], off+int64(done))
		if err == unix.EINTR {
			continue
		}
		if err == nil && n == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// Flush empties the drive's write cache (fsync) and drops the kernel's page cache of the device (BLKFLSBUF).
func (d *linuxDevice) Flush() error {
	if err := unix.Fsync(d.fd); err != nil {
		return err
	}
	if err := unix.IoctlSetInt(d.fd, unix.BLKFLSBUF, 0); err != nil && !errors.Is(err, unix.EACCES) {
		return fmt.Errorf("drop page cache: %w", err)
	}
	return nil
}

func (d *linuxDevice) ZeroOut(off, n int64) error { return d.rangeIoctl(unix.BLKZEROOUT, off, n) }
func (d *linuxDevice) Discard(off, n int64) error { return d.rangeIoctl(unix.BLKDISCARD, off, n) }

func (d *linuxDevice) RereadPartitions() error {
	return unix.IoctlSetInt(d.fd, unix.BLKRRPART, 0)
}

func (d *linuxDevice) Close() error { return unix.Close(d.fd) }

func (d *linuxDevice) rangeIoctl(req uint, off, n int64) error {
	r := [2]uint64{uint64(off), uint64(n)}
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(d.fd), uintptr(req), uintptr(unsafe.Pointer(&r[0])))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
			continue
		case unix.EOPNOTSUPP, unix.ENOTTY, unix.EINVAL, unix.ENOSYS:
			return fmt.Errorf("%w: %w", ErrUnsupported, errno)
		}
		return errno
	}
}

func ioctlUint64(fd int, req uint) (uint64, error) {
	var v uint64
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(req), uintptr(unsafe.Pointer(&v))); errno != 0 {
		return 0, errno
	}
	return v, nil
}

// usage reads what is mounted and what is swap. What cannot be read is not used: opening exclusively has the last word.
func usage(proc fs.FS) Usage {
	used := Usage{}
	if f, err := proc.Open("self/mountinfo"); err == nil {
		defer f.Close()
		parseMountinfo(f, used)
	}
	return used
}

// parseMountinfo reads proc(5) mountinfo: the third field is the device number, the fifth the mount point.
func parseMountinfo(r io.Reader, used Usage) {
	s := bufio.NewScanner(r)
	for s.Scan() {
		f := strings.Fields(s.Text())
		if len(f) < 5 {
			continue
		}
		if n, err := parseNumber(f[2]); err == nil && n.Major != 0 {
			used[n] = "mounted at " + f[4]
		}
	}
}
