package kmod_test

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"firstlight/imagebuild/internal/kmod"
	"firstlight/imagebuild/internal/kmodtest"
)

func open(t *testing.T, fsys fstest.MapFS) *kmod.Kernel {
	t.Helper()
	k, err := kmod.Open(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func rack() fstest.MapFS {
	return kmodtest.Kernel(map[string][]byte{
		"kernel/a/top.ko":                 kmodtest.Module("depends=mid-one,mid_two,inside", "alias=pci:v1", "alias=has space"),
		"kernel/a/mid-one.ko":             kmodtest.Module("depends=base"),
		"kernel/a/mid_two.ko":             kmodtest.Module("depends=base", "softdep=pre: crypto-crc32c gone post: late"),
		"kernel/a/base.ko":                kmodtest.Module("license=GPL"),
		"kernel/a/late.ko":                kmodtest.Module(),
		"kernel/a/broken.ko":              kmodtest.Module("depends=nowhere"),
		"kernel/a/ring1.ko":               kmodtest.Module("depends=ring2"),
		"kernel/a/ring2.ko":               kmodtest.Module("depends=ring1"),
		"kernel/a/softring1.ko":           kmodtest.Module("softdep=pre: softring2"),
		"kernel/a/softring2.ko":           kmodtest.Module("softdep=pre: softring1"),
		"kernel/crypto/crc32c_generic.ko": kmodtest.Module("alias=crypto-crc32c", "alias=crc32c"),
		"kernel/crypto/crc32c_aaa.ko":     kmodtest.Module("alias=crypto-crc32c"),
		"kernel/a/noelf.ko":               []byte("no module"),
	}, "kernel/b/inside.ko")
}

func TestResolve(t *testing.T) {
	t.Parallel()
	k := open(t, rack())
	if k.Release != kmodtest.Release {
		t.Errorf("release: got %q, want %q", k.Release, kmodtest.Release)
	}
	s, err := k.Resolve("top", "inside", "mid-one")
	if err != nil {
		t.Fatal(err)
	}
	// Dependencies first; the soft one is the generic implementation; what should follow stands behind.
	want := []string{"base", "mid_one", "crc32c_generic", "mid_two", "late", "top"}
	if got := s.Names(); !slices.Equal(got, want) {
		t.Errorf("load order: got %v, want %v", got, want)
	}
	wantDep := `kernel/a/base.ko:
kernel/a/mid-one.ko: kernel/a/base.ko
kernel/crypto/crc32c_generic.ko:
kernel/a/mid_two.ko: kernel/a/base.ko kernel/crypto/crc32c_generic.ko
kernel/a/late.ko:
kernel/a/top.ko: kernel/a/mid_two.ko kernel/crypto/crc32c_generic.ko kernel/a/mid-one.ko kernel/a/base.ko
`
	if got := string(s.Dep()); got != wantDep {
		t.Errorf("modules.dep: got\n%swant\n%s", got, wantDep)
	}
	wantAlias := "alias crypto-crc32c crc32c_generic\nalias crc32c crc32c_generic\nalias pci:v1 top\n"
	if got := string(s.Alias()); got != wantAlias {
		t.Errorf("modules.alias: got\n%swant\n%s", got, wantAlias)
	}
	if got, want := string(s.BuiltinList()), "kernel/b/inside.ko\n"; got != want {
		t.Errorf("modules.builtin: got %q, want %q", got, want)
	}
}

func TestResolveSoftCircleIsDropped(t *testing.T) {
	t.Parallel()
	s, err := open(t, rack()).Resolve("softring1")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.Names(), []string{"softring2", "softring1"}; !slices.Equal(got, want) {
		t.Errorf("load order: got %v, want %v", got, want)
	}
}

func TestResolveErrors(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"absent": "has no module absent, neither as a file nor built in",
		"broken": "module broken needs nowhere, which kernel " + kmodtest.Release + " does not have",
		"ring1":  "module ring1 needs itself",
		"noelf":  "module noelf: read ELF",
	} {
		_, err := open(t, rack()).Resolve(name)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("resolve %s: got error %v, want one with %q", name, err, want)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	t.Parallel()
	two := rack()
	two["boot/vmlinuz-7"] = &fstest.MapFile{}
	packed := fstest.MapFS{"boot/vmlinuz-1": {}, "lib/modules/1/a.ko.xz": {}}
	for _, c := range []struct {
		name, want string
		fsys       fstest.MapFS
	}{
		{"empty", "no boot/vmlinuz-*", fstest.MapFS{}},
		{"two kernels", "more than one kernel", two},
		{"no modules", "no modules for kernel 1", fstest.MapFS{"boot/vmlinuz-1": {}}},
		{"compressed", "its 1 modules are compressed files", packed},
	} {
		if _, err := kmod.Open(c.fsys); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want one with %q", c.name, err, c.want)
		}
	}
}

func TestOpenMergedUsr(t *testing.T) {
	t.Parallel()
	k := open(t, fstest.MapFS{"boot/vmlinuz-1": {}, "usr/lib/modules/1/kernel/x.ko": {Data: kmodtest.Module()}})
	if !k.Has("x") {
		t.Error("module x below usr/lib/modules: got none, want it")
	}
}

// TestDebianKernel holds the real package against the kernel's own rules, where one is unpacked.
func TestDebianKernel(t *testing.T) {
	t.Parallel()
	const dir = "../../../bin/inputs/kernel"
	if _, err := os.Stat(dir + "/boot"); err != nil {
		t.Skip("reason: no Debian kernel package in bin/inputs/kernel (make setup unpacks one)")
	}
	k, err := kmod.Open(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	s, err := k.Resolve("virtio_net", "nvme", "ahci", "ext4", "vfat", "rtc_cmos")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, m := range s.Modules {
		for _, d := range m.Needs {
			if !seen[d] {
				t.Errorf("module %s stands before %s, which it needs", m.Name, d)
			}
		}
		seen[m.Name] = true
	}
	for _, n := range []string{"virtio_ring", "t10_pi", "libahci", "crc32c_generic", "jbd2", "fat"} {
		if !seen[n] {
			t.Errorf("module %s: got left out, want it chosen", n)
		}
	}
	if seen["rtc_cmos"] || !k.Builtin("rtc-cmos") {
		t.Error("rtc_cmos is built into Debian's kernel: got a file, want none")
	}
}

func FuzzParseInfo(f *testing.F) {
	f.Add([]byte("depends=a,b\x00softdep=pre: x post: y\x00alias=pci:*\x00"))
	f.Add([]byte("softdep=x pre:\x00depends=,,\x00=\x00"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		in := kmod.ParseInfo(b)
		for _, n := range slices.Concat(in.Depends, in.SoftPre, in.SoftPost) {
			if strings.ContainsAny(n, "\x00-") {
				t.Errorf("name %q is not a module's name", n)
			}
		}
	})
}

func FuzzReadInfo(f *testing.F) {
	f.Add(kmodtest.Module("depends=a"))
	f.Add(kmodtest.Program("/lib/ld.so"))
	f.Fuzz(func(t *testing.T, b []byte) { kmod.ReadInfo(bytes.NewReader(b)) })
}
