//go:build linux

// Package looptest gives tests a real block device: a loop device over a temporary file, or a skip that says why not.
//
// It is for tests only, and touches no device that it did not attach.
package looptest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Attach returns the path of a loop device of size bytes with 512-byte blocks and direct I/O where the file system allows it.
// It is detached when the test ends.
func Attach(t *testing.T, size int64) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to attach a loop device")
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "disk.raw"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no loop devices here: %v", err)
	}
	defer control.Close()
	// Another process may take the free number between the two calls: a few tries.
	for range 10 {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, control.Fd(), unix.LOOP_CTL_GET_FREE, 0)
		if errno != 0 {
			t.Skipf("no free loop device: %v", errno)
		}
		path := fmt.Sprintf("/dev/loop%d", n)
		if _, err := os.Stat(path); err != nil {
			if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(7, uint32(n)))); err != nil {
				t.Skipf("no node for loop device %d: %v", n, err)
			}
		}
		loop, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Skipf("loop devices cannot be opened here: %v", err)
		}
		if err := unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_FD, int(file.Fd())); err != nil {
			loop.Close()
			continue
		}
		t.Cleanup(func() {
			if err := unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_CLR_FD, 0); err != nil {
				t.Errorf("detach %s: %v", path, err)
			}
			loop.Close()
		})
		return path
	}
	t.Skip("no loop device could be attached in 10 tries")
	return ""
}
