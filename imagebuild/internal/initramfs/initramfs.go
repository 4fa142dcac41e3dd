// Package initramfs builds initial RAM disks that are the same, byte for byte, whenever their content is the same.
//
// A Tree holds what goes in; Archive writes it as a newc cpio archive, sorted, with every time 0, every owner root and inode
// numbers counted from 1. It is for imagebuild only and touches no file.
package initramfs

import (
	"bytes"
	"fmt"
	"io"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/u-root/u-root/pkg/cpio"

	"firstlight/imagebuild/internal/kmod"
)

// pad is the multiple to which an archive is filled with zeros, so that the kernel finds the next one behind it.
const pad = 512

// Tree is a file tree in memory. The zero value is an empty one. Directories above a file are made as needed, mode 0755.
type Tree struct{ records map[string]cpio.Record }

func (t *Tree) put(name string, r cpio.Record) error {
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	if clean == "" || strings.ContainsRune(name, 0) {
		return fmt.Errorf("add %q to the RAM disk: not a file name", name)
	}
	if t.records == nil {
		t.records = map[string]cpio.Record{}
	}
	if _, twice := t.records[clean]; twice {
		return fmt.Errorf("add %s to the RAM disk: it is there already", clean)
	}
	for d := path.Dir(clean); d != "."; d = path.Dir(d) {
		above, ok := t.records[d]
		if !ok {
			t.records[d] = cpio.Directory(d, 0o755)
		} else if above.Mode&cpio.S_IFMT != cpio.S_IFDIR {
			return fmt.Errorf("add %s to the RAM disk: %s is not a directory", clean, d)
		}
	}
	r.Name = clean
	t.records[clean] = r
	return nil
}

// Dir adds a directory, or sets the mode of one that is there because something lies in it.
func (t *Tree) Dir(name string, perm uint32) error {
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	if r, ok := t.records[clean]; ok && r.Mode&cpio.S_IFMT == cpio.S_IFDIR {
		delete(t.records, clean)
	}
	return t.put(name, cpio.Directory(name, uint64(perm)))
}

// File adds a regular file. The tree keeps content, it does not copy it.
func (t *Tree) File(name string, content []byte, perm uint32) error {
	r := cpio.StaticRecord(content, cpio.Info{Mode: cpio.S_IFREG | uint64(perm)})
	return t.put(name, r)
}

// Symlink adds a symbolic link to target.
func (t *Tree) Symlink(name, target string) error { return t.put(name, cpio.Symlink(name, target)) }

// CharDevice adds a character device node.
func (t *Tree) CharDevice(name string, perm, major, minor uint32) error {
	return t.put(name, cpio.CharDev(name, uint64(perm), uint64(major), uint64(minor)))
}

// Modules adds a set of kernel modules below lib/modules with the lists that u-root's kmodule and busybox's modprobe read.
func (t *Tree) Modules(s *kmod.Set) error {
	dir := "lib/modules/" + s.Release + "/"
	for _, m := range s.Modules {
		if err := t.File(dir+m.Path, m.Data, 0o644); err != nil {
			return err
		}
	}
	for name, content := range s.Lists() {
		if err := t.File(dir+name, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Names are the paths in the tree, sorted: a directory stands before what is in it.
func (t *Tree) Names() []string { return slices.Sorted(maps.Keys(t.records)) }

// Archive returns the tree as an uncompressed cpio archive.
func (t *Tree) Archive() ([]byte, error) {
	var b bytes.Buffer
	w := cpio.Newc.Writer(&b)
	for i, name := range t.Names() {
		r := t.records[name]
		r.Ino, r.NLink = uint64(i+1), 1
		r.UID, r.GID, r.MTime, r.Dev, r.Major, r.Minor = 0, 0, 0, 0, 0, 0
		if err := w.WriteRecord(r); err != nil {
			return nil, fmt.Errorf("write %s into the RAM disk: %w", name, err)
		}
	}
	if err := cpio.WriteTrailer(w); err != nil {
		return nil, fmt.Errorf("end the RAM disk: %w", err)
	}
	if n := b.Len() % pad; n != 0 {
		b.Write(make([]byte, pad-n))
	}
	return b.Bytes(), nil
}

// Compress writes the tree to w as a cpio archive in one zstd frame, as the kernel unpacks it (CONFIG_RD_ZSTD). One encoder
// without helpers writes it, so that the same tree gives the same bytes on every machine.
func (t *Tree) Compress(w io.Writer) error {
	archive, err := t.Archive()
	if err != nil {
		return err
	}
	enc, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedBetterCompression))
	if err != nil {
		return fmt.Errorf("compress the RAM disk: %w", err)
	}
	if _, err := enc.Write(archive); err != nil {
		enc.Close()
		return fmt.Errorf("compress the RAM disk: %w", err)
	}
	if err := enc.Close(); err != nil {
		return fmt.Errorf("compress the RAM disk: %w", err)
	}
	return nil
}

// Entry is one thing in a tree: a directory, a symbolic link (Target is set), or a regular file.
type Entry struct {
	Name   string
	IsDir  bool
	Perm   uint32
	Target string
	Data   []byte
}

// Entries yields what is in the tree, directories before their content. Device nodes are left out: devtmpfs makes them.
func (t *Tree) Entries() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		for _, name := range t.Names() {
			r := t.records[name]
			e := Entry{Name: name, Perm: uint32(r.Mode & 0o7777)}
			var content []byte
			if r.ReaderAt != nil {
				content = make([]byte, r.FileSize)
				r.ReadAt(content, 0) // from memory, all of it
			}
			switch r.Mode & cpio.S_IFMT {
			case cpio.S_IFDIR:
				e.IsDir = true
			case cpio.S_IFLNK:
				e.Target = string(content)
			case cpio.S_IFREG:
				e.Data = content
			default:
				continue
			}
			if !yield(e) {
				return
			}
		}
	}
}
