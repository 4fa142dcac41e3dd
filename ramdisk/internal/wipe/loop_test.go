package wipe

import (
	"path/filepath"
	"testing"

	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/disk/looptest"
)

// loop is a disk.System of one loop device, which is never a candidate by itself: the test vouches for it with a serial of its own.
type loop struct {
	disk.Linux
	name      string
	noZeroOut bool
}

func loopSystem(t *testing.T, size int64) *loop {
	return &loop{name: filepath.Base(looptest.Attach(t, size))}
}

func (l *loop) Scan() ([]disk.Disk, error) {
	all, err := l.Linux.Scan()
	for _, d := range all {
		if d.Name == l.name {
			d.Serial, d.Excluded = "LOOP-1", ""
			return []disk.Disk{d}, err
		}
	}
	return nil, err
}

func (l *loop) Open(d disk.Disk) (disk.Device, error) {
	dev, err := l.Linux.Open(d)
	if err != nil {
		return nil, err
	}
	if l.noZeroOut {
		return named{dev}, nil
	}
	return struct {
		named
		disk.Zeroer
	}{named{dev}, dev.(disk.Zeroer)}, nil
}

type named struct{ disk.Device }

func (n named) Identify() (disk.Disk, error) {
	d, err := n.Device.Identify()
	d.Serial = "LOOP-1"
	return d, err
}
