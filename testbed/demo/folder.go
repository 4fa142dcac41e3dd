package demo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	// maxSocketPath is what fits in sockaddr_un (unix(7)) with its terminating zero.
	maxSocketPath = 107
	// keptLog bounds what stays of the appliance's log, in bytes: its end.
	keptLog = 4 << 20
)

// folder is bin/demo. Whoever holds its lock owns what is in run: the kernel gives the lock back however a process ends, so a run
// folder that is there when the lock was free is a dead demo's.
type folder struct {
	dir  string
	lock *os.File
	// leftover: there was such a one.
	leftover bool
}

// openFolder takes dir for this process and empties its run folder.
func openFolder(dir string) (*folder, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	f := &folder{dir: dir}
	if socket := filepath.Join(f.run(), "socket"); len(socket) > maxSocketPath {
		return nil, fmt.Errorf("the path %s has %d bytes, a socket's may have %d: move the checkout to a shorter path", socket, len(socket), maxSocketPath)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if f.lock, err = os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: another demo of this checkout runs; Ctrl-C in its terminal ends it: %w", dir, err), f.lock.Close())
	}
	if _, err := os.Lstat(f.run()); err == nil {
		f.leftover = true
	}
	if err := errors.Join(os.RemoveAll(f.run()), os.Mkdir(f.run(), 0o700)); err != nil {
		return nil, errors.Join(err, f.lock.Close())
	}
	return f, nil
}

func (f *folder) run() string  { return filepath.Join(f.dir, "run") }
func (f *folder) past() string { return filepath.Join(f.dir, "last.json") }
func (f *folder) log() string  { return filepath.Join(f.dir, "serve.log") }

// keepLog keeps the end of a log; nothing when there is none.
func (f *folder) keepLog(path string) error {
	in, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	if size, err := in.Seek(0, io.SeekEnd); err != nil {
		return err
	} else if _, err := in.Seek(max(0, size-keptLog), io.SeekStart); err != nil {
		return err
	}
	var text bytes.Buffer
	if _, err := io.Copy(&text, io.LimitReader(in, keptLog)); err != nil {
		return err
	}
	return os.WriteFile(f.log(), text.Bytes(), 0o600)
}

// close removes the run folder and gives the lock back.
func (f *folder) close() error { return errors.Join(os.RemoveAll(f.run()), f.unlock()) }

// unlock gives the lock back at once: closing alone waits for programs that are being started and hold a copy until they run.
func (f *folder) unlock() error {
	return errors.Join(unix.Flock(int(f.lock.Fd()), unix.LOCK_UN), f.lock.Close())
}
