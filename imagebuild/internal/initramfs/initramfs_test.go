package initramfs_test

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/u-root/u-root/pkg/cpio"

	"firstlight/imagebuild/internal/initramfs"
	"firstlight/imagebuild/internal/kmod"
	"firstlight/imagebuild/internal/kmodtest"
)

// fill adds the same things in one order or the other.
func fill(t *testing.T, backwards bool) *initramfs.Tree {
	t.Helper()
	var tree initramfs.Tree
	steps := []func() error{
		func() error { return tree.File("init", []byte("program"), 0o755) },
		func() error { return tree.File("etc/firstlight/a", []byte("a"), 0o600) },
		func() error { return tree.Symlink("/bin/sh", "/bin/busybox") },
		func() error { return tree.CharDevice("dev/console", 0o600, 5, 1) },
		func() error { return tree.Dir("etc", 0o700) },
	}
	if backwards {
		slices.Reverse(steps)
	}
	for _, s := range steps {
		if err := s(); err != nil {
			t.Fatal(err)
		}
	}
	return &tree
}

func compress(t *testing.T, tree *initramfs.Tree) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := tree.Compress(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestSameContentSameBytes(t *testing.T) {
	t.Parallel()
	a, b := compress(t, fill(t, false)), compress(t, fill(t, true))
	if !bytes.Equal(a, b) {
		t.Error("two builds from the same content: got different bytes, want equal ones")
	}
}

func TestArchive(t *testing.T) {
	t.Parallel()
	tree := fill(t, false)
	archive, err := tree.Archive()
	if err != nil {
		t.Fatal(err)
	}
	if len(archive)%512 != 0 {
		t.Errorf("length: got %d, want a multiple of 512", len(archive))
	}
	d, err := zstd.NewReader(bytes.NewReader(compress(t, tree)))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if plain, err := io.ReadAll(d); err != nil || !bytes.Equal(plain, archive) {
		t.Errorf("unpacked again: got %d bytes (error %v), want the archive's %d", len(plain), err, len(archive))
	}
	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(bytes.NewReader(archive)))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, r := range records {
		got = append(got, r.Name)
		if r.MTime != 0 || r.UID != 0 || r.GID != 0 || r.Ino != uint64(i+1) {
			t.Errorf("%s: got %+v, want time 0, root's, inode %d", r.Name, r.Info, i+1)
		}
	}
	want := []string{"bin", "bin/sh", "dev", "dev/console", "etc", "etc/firstlight", "etc/firstlight/a", "init"}
	if !slices.Equal(got, want) {
		t.Errorf("names: got %v, want %v", got, want)
	}
	if r := records[4]; r.Mode != cpio.S_IFDIR|0o700 {
		t.Errorf("mode of etc: got %o, want the one that was set, %o", r.Mode, cpio.S_IFDIR|0o700)
	}
	if r := records[3]; r.Mode&cpio.S_IFMT != cpio.S_IFCHR || r.Rmajor != 5 || r.Rminor != 1 {
		t.Errorf("dev/console: got %+v, want character device 5:1", r.Info)
	}
}

func TestModules(t *testing.T) {
	t.Parallel()
	k, err := kmod.Open(kmodtest.Full())
	if err != nil {
		t.Fatal(err)
	}
	s, err := k.Resolve("ext4")
	if err != nil {
		t.Fatal(err)
	}
	var tree initramfs.Tree
	if err := tree.Modules(s); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"kernel/fs/ext4/ext4.ko", "kernel/crypto/crc32c_generic.ko", "modules.dep", "modules.alias", "modules.builtin"} {
		if !slices.Contains(tree.Names(), "lib/modules/"+kmodtest.Release+"/"+n) {
			t.Errorf("%s: got none, want it in the tree", n)
		}
	}
}

func TestAddErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		want string
		add  func(*initramfs.Tree) error
	}{
		{"it is there already", func(t *initramfs.Tree) error { return t.File("init", nil, 0o644) }},
		{"init is not a directory", func(t *initramfs.Tree) error { return t.File("init/x", nil, 0o644) }},
		{"not a file name", func(t *initramfs.Tree) error { return t.File("/../", nil, 0o644) }},
		{"not a file name", func(t *initramfs.Tree) error { return t.File("a\x00b", nil, 0o644) }},
		{"it is there already", func(t *initramfs.Tree) error { return t.Dir("init", 0o755) }},
	} {
		if err := c.add(fill(t, false)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got error %v, want one with %q", err, c.want)
		}
	}
}

func TestEntries(t *testing.T) {
	t.Parallel()
	var got []string
	for e := range fill(t, false).Entries() {
		got = append(got, e.Name+":"+e.Target+":"+string(e.Data))
	}
	want := []string{"bin::", "bin/sh:/bin/busybox:", "dev::", "etc::", "etc/firstlight::", "etc/firstlight/a::a", "init::program"}
	if !slices.Equal(got, want) {
		t.Errorf("entries without device nodes: got %v, want %v", got, want)
	}
}
