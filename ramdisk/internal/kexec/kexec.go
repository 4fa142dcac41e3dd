package kexec

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/gpt"
	"firstlight/ramdisk/internal/twins"
)

// Bounds of what is copied into memory.
const (
	MaxKernel = 256 << 20
	MaxInitrd = 1 << 30
)

// ErrMissing: the entry names a file that is not on the partition.
var ErrMissing = errors.New("the boot entry's file is not on the disk")

// Loader loads a kernel for the jump. The files are regular, in memory, and open for reading only.
type Loader interface {
	Load(kernel, initrd *os.File, commandLine string) error
}

// Volumes opens partitions for reading.
type Volumes interface {
	// Open returns the content of a partition and a function that gives it back.
	Open(d disk.Disk, p disk.Partition) (fs.FS, func() error, error)
}

// Result is what was loaded.
type Result struct {
	Entry                      string
	KernelSHA256, InitrdSHA256 []byte
	CommandLine                string
}

// Load chooses the disk, finds its EFI system partition and loads the chosen entry's kernel. TempDir is in memory. It returns with
// the kernel loaded and nothing held; the jump is the caller's. A root partition that another disk has too is refused (DEP-06), and
// so is a ctx that ended: then there must be no jump.
func Load(ctx context.Context, sys disk.System, s disk.Selector, v Volumes, l Loader, tempDir string) (Result, error) {
	if err := stopped(ctx); err != nil {
		return Result{}, err
	}
	d, p, err := findESP(sys, s)
	if err != nil {
		return Result{}, fmt.Errorf("kexec: %w", err)
	}
	esp, done, err := v.Open(d, p)
	if err != nil {
		return Result{}, fmt.Errorf("kexec from %s: %w", d, err)
	}
	r, err := load(esp, l, tempDir, func(e Entry) error { return oneRoot(sys, d, e) })
	if err = errors.Join(err, done()); err != nil {
		return Result{}, fmt.Errorf("kexec from %s: %w", d, err)
	}
	if err := stopped(ctx); err != nil {
		return Result{}, err
	}
	return r, nil
}

func stopped(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return fmt.Errorf("kexec: stopped before the jump, nothing was written: %w", context.Cause(ctx))
}

// oneRoot makes sure that a root named by its partition's GUID can be no other disk's.
func oneRoot(sys disk.System, d disk.Disk, e Entry) error {
	id := ""
	for _, w := range strings.Fields(e.Options) {
		if v, ok := strings.CutPrefix(w, "root=PARTUUID="); ok {
			id = strings.ToLower(v)
		}
	}
	if id == "" {
		return nil
	}
	disks, err := sys.Scan()
	if err != nil {
		return err
	}
	found, err := twins.Find(sys, disks, d, twins.IDs{Partitions: []string{id}})
	if err != nil {
		return err
	}
	return found.Refuse()
}

// findESP reads the partition table of the claimed disk and returns the partition that is the EFI system partition.
func findESP(sys disk.System, s disk.Selector) (disk.Disk, disk.Partition, error) {
	c, err := disk.Claim(sys, s)
	if err != nil {
		return disk.Disk{}, disk.Partition{}, err
	}
	defer c.Close()
	t, err := gpt.Read(disk.Unaligned{R: c}, c.Disk.Size, c.Disk.LogicalBlock)
	if err != nil {
		return c.Disk, disk.Partition{}, fmt.Errorf("%s: %w", c.Disk, err)
	}
	for _, e := range t.Partitions() {
		if e.Type != gpt.TypeESP {
			continue
		}
		for _, p := range c.Disk.Partitions {
			if p.Number == e.Number && p.Start == e.Start && p.Size == e.Size {
				return c.Disk, p, nil
			}
		}
		return c.Disk, disk.Partition{}, fmt.Errorf("%s: the kernel does not show EFI system partition %d", c.Disk, e.Number)
	}
	return c.Disk, disk.Partition{}, fmt.Errorf("%s has no EFI system partition", c.Disk)
}

func load(esp fs.FS, l Loader, tempDir string, judge func(Entry) error) (Result, error) {
	e, err := Choose(esp)
	if err != nil {
		return Result{}, err
	}
	if err := judge(e); err != nil {
		return Result{}, fmt.Errorf("boot entry %q: %w", e.ID, err)
	}
	dir, err := os.MkdirTemp(tempDir, "kexec-")
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(dir)
	kernel, kernelSum, err := copyAll(esp, e, []string{e.Linux}, dir+"/kernel", MaxKernel)
	if err != nil {
		return Result{}, err
	}
	defer kernel.Close()
	r := Result{Entry: e.ID, KernelSHA256: kernelSum, CommandLine: e.Options}
	var initrd *os.File
	if len(e.Initrd) > 0 {
		if initrd, r.InitrdSHA256, err = copyAll(esp, e, e.Initrd, dir+"/initrd", MaxInitrd); err != nil {
			return Result{}, err
		}
		defer initrd.Close()
	}
	if err := l.Load(kernel, initrd, e.Options); err != nil {
		return Result{}, fmt.Errorf("load kernel of boot entry %q: %w", e.ID, err)
	}
	return r, nil
}

// copyAll copies files one after the other, padded to 4 bytes between them as the kernel wants initrds, and opens the copy for
// reading: what is loaded is what was digested.
func copyAll(esp fs.FS, e Entry, names []string, to string, limit int64) (*os.File, []byte, error) {
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, err
	}
	sum := sha256.New()
	total := int64(0)
	for i, name := range names {
		n, err := copyOne(esp, name, io.MultiWriter(out, sum), limit-total, i < len(names)-1)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("boot entry %q names /%s: %w", e.ID, name, ErrMissing)
		}
		if err != nil {
			out.Close()
			return nil, nil, err
		}
		total += n
	}
	if err := out.Close(); err != nil {
		return nil, nil, err
	}
	in, err := os.Open(to)
	return in, sum.Sum(nil), err
}

func copyOne(esp fs.FS, name string, to io.Writer, limit int64, padded bool) (int64, error) {
	f, err := esp.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	n, err := io.Copy(to, io.LimitReader(f, limit+1))
	if err != nil {
		return n, fmt.Errorf("read /%s: %w", name, err)
	}
	if n > limit || n == 0 {
		return n, fmt.Errorf("read /%s: %d bytes, want 1 to %d", name, n, limit)
	}
	if !padded {
		return n, nil
	}
	pad := (4 - n%4) % 4
	_, err = to.Write(make([]byte, pad))
	return n + pad, err
}
