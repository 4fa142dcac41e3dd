package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// What the data directory needs.
const (
	// leastFree is less than an image and the store's growth; lowFree is when to look for space.
	leastFree, lowFree = 1 << 30, 10 << 30
	// lowInodes is how many files of a thousand must be free.
	lowInodes = 20
	// slowSync is where etcd's writes begin to queue (its own advice is 10 ms for the slowest of a hundred), deadSync where agents
	// time out.
	slowSync, deadSync = 50 * time.Millisecond, time.Second
	// syncs is how often the disk is timed, syncBytes how much is written.
	syncs, syncBytes = 9, 4 << 10
)

// Disk is the file system below a directory.
type Disk interface {
	Space(dir string) (Space, error)
	// Sync writes a small file into dir, has it made durable, and removes it.
	Sync(dir string) (time.Duration, error)
}

// Space is what a file system has. Files is zero where it knows no limit.
type Space struct {
	Free, Size       uint64
	FreeFiles, Files uint64
}

type hostDisk struct{}

func (hostDisk) Space(dir string) (Space, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return Space{}, fmt.Errorf("statfs %s: %w", dir, err)
	}
	return Space{Free: s.Bavail * uint64(s.Bsize), Size: s.Blocks * uint64(s.Bsize), FreeFiles: s.Ffree, Files: s.Files}, nil
}

func (hostDisk) Sync(dir string) (d time.Duration, err error) {
	f, err := os.CreateTemp(dir, ".doctor-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	start := time.Now()
	if _, err = f.Write(make([]byte, syncBytes)); err != nil {
		return 0, err
	}
	err = f.Sync()
	return time.Since(start), err
}

func (c Config) diskChecks() []Check {
	const space, files, rights, speed = "disk: space", "disk: files", "disk: permissions", "disk: speed"
	dir := c.File.DataDir
	info, err := os.Stat(dir)
	missing := errors.Is(err, fs.ErrNotExist)
	for missing {
		// The file system is that of the nearest folder that there is.
		if dir = filepath.Dir(dir); dir == "/" {
			break
		}
		if _, err := os.Stat(dir); err == nil {
			break
		}
	}
	if err != nil && !missing {
		return []Check{bad(Fail, rights, "", err.Error(), "let the appliance's user read and write "+c.File.DataDir)}
	}
	out := c.spaceChecks(dir, space, files)
	if missing {
		return append(out, skipped(rights, c.File.DataDir+" is made at the first start"), skipped(speed, c.File.DataDir+" is made at the first start"))
	}
	out = append(out, permissions(rights, c.File.DataDir, info))
	return append(out, c.speedCheck(speed))
}

func (c Config) spaceChecks(dir, space, files string) []Check {
	s, err := c.Disk.Space(dir)
	if err != nil {
		return []Check{skipped(space, err.Error()), skipped(files, err.Error())}
	}
	what := fmt.Sprintf("%s of %s free below %s", size(s.Free), size(s.Size), dir)
	const next = "remove images that nobody needs, or give the data directory a larger disk"
	var out []Check
	switch {
	case s.Free < leastFree:
		out = append(out, bad(Fail, space, what, "less than "+size(leastFree)+": the store may refuse writes at any time", next))
	case s.Free < lowFree:
		out = append(out, bad(Warn, space, what, "less than "+size(lowFree)+": the next image may not fit", next))
	default:
		out = append(out, well(space, what))
	}
	switch what := fmt.Sprintf("%d of %d files free", s.FreeFiles, s.Files); {
	case s.Files == 0:
		out = append(out, well(files, "the file system knows no limit"))
	case s.FreeFiles*1000/s.Files < lowInodes:
		out = append(out, bad(Warn, files, what, "images are many files", "make room for files, or a file system with more inodes"))
	default:
		out = append(out, well(files, what))
	}
	return out
}

func permissions(name, dir string, info fs.FileInfo) Check {
	what := fmt.Sprintf("%s is %s", dir, info.Mode())
	switch {
	case !info.IsDir():
		return bad(Fail, name, what, "it is no directory", "name a directory as data_dir")
	case info.Mode().Perm()&0o077 != 0:
		return bad(Fail, name, what, "others may look into it, and the site's keys are there", "chmod 700 "+dir)
	case unix.Access(dir, unix.W_OK|unix.X_OK) != nil:
		return bad(Fail, name, what, "this user may not write to it", "run as the user that owns it, or give it to this one")
	}
	return well(name, what)
}

func (c Config) speedCheck(name string) Check {
	var all []time.Duration
	for range syncs {
		d, err := c.Disk.Sync(c.File.DataDir)
		if err != nil {
			return bad(Fail, name, "", "a file could not be made durable: "+err.Error(), "look at the disk and at the kernel's log")
		}
		all = append(all, d)
	}
	slices.Sort(all)
	median, slowest := all[len(all)/2], all[len(all)-1]
	what := fmt.Sprintf("a write is durable after %s (median of %d, the slowest took %s)", round(median), syncs, round(slowest))
	const next = "put the data directory on a faster disk of its own: every step of a workflow waits for it"
	switch {
	case median >= deadSync:
		return bad(Fail, name, what, "agents give up before that", next)
	case median >= slowSync:
		return bad(Warn, name, what, "the store waits for each write", next)
	}
	return well(name, what)
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

func size(n uint64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }
