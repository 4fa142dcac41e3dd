package osimage

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/fat32"
	"github.com/u-root/u-root/pkg/cpio"

	"firstlight/imagebuild/internal/kmod"
	"firstlight/imagebuild/internal/kmodtest"
	"firstlight/imagebuild/internal/parttable"
	"firstlight/imagebuild/manifest"
)

func config(t *testing.T, nonce string) Config {
	t.Helper()
	k, err := kmod.Open(kmodtest.Full())
	if err != nil {
		t.Fatal(err)
	}
	return Config{Kernel: k, Agent: []byte("agent"), Busybox: []byte("busybox"), Bootloader: []byte("loader"), BIOS: fakeBIOS(), Nonce: nonce, Work: t.TempDir()}
}

// build makes a whole image from a small kernel package.
func build(t *testing.T, c Config) (*os.File, *Result) {
	t.Helper()
	var err error
	for _, name := range []string{"mke2fs", "/usr/sbin/mke2fs"} {
		if c.Mke2fs, err = exec.LookPath(name); err == nil {
			break
		}
	}
	if err != nil {
		t.Skip("reason: no mke2fs on this machine (package e2fsprogs; make setup installs it)")
	}
	img, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { img.Close() })
	r, err := Build(t.Context(), c, img)
	if err != nil {
		t.Fatal(err)
	}
	return img, r
}

func TestBuild(t *testing.T) {
	t.Parallel()
	img, r := build(t, config(t, "nonce-1"))
	if st, err := img.Stat(); err != nil || st.Size() != r.Size {
		t.Errorf("size: got %d (error %v), want %d", st.Size(), err, r.Size)
	}
	got, err := parttable.Read(img, r.Size)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, r.Partitions) {
		t.Errorf("partitions: got %+v, want %+v", got, r.Partitions)
	}
	if p := got[1]; p.Role != manifest.RoleConfig || p.Label != "firstlight-config" || p.Size < 4<<20 {
		t.Errorf("configuration partition: got %+v", p)
	}
	esp, err := fat32.Read(file.New(img, true), got[0].Size, got[0].Start, manifest.SectorSize)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"/EFI/BOOT/BOOTX64.EFI":           "loader",
		"/vmlinuz":                        "kernel image",
		"/loader/loader.conf":             loaderConf,
		"/loader/entries/firstlight.conf": loaderEntry(kmodtest.Release, got[2].UUID),
	} {
		f, err := esp.OpenFile(name, os.O_RDONLY)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		b := make([]byte, len(want)+1)
		if n, err := f.Read(b); err != io.EOF || string(b[:n]) != want {
			t.Errorf("%s: got %q (error %v), want %q", name, b[:n], err, want)
		}
	}
	if esp.Label() != fatLabelESP {
		t.Errorf("label of the EFI system partition: got %q, want %q", esp.Label(), fatLabelESP)
	}
}

// TestBuildConfigPartition has the label at the place where every reader of FAT looks for it.
func TestBuildConfigPartition(t *testing.T) {
	t.Parallel()
	img, r := build(t, config(t, "nonce-1"))
	b := make([]byte, 512)
	if _, err := img.ReadAt(b, r.Partitions[1].Start); err != nil {
		t.Fatal(err)
	}
	if got, want := string(b[43:54]), "FLCONFIG   "; got != want {
		t.Errorf("volume label: got %q, want %q", got, want)
	}
	if got, want := string(b[54:62]), "FAT16   "; got != want {
		t.Errorf("file system type: got %q, want %q", got, want)
	}
}

// TestBuildRoot has e2fsprogs itself check the root file system and read files from it.
func TestBuildRoot(t *testing.T) {
	t.Parallel()
	img, r := build(t, config(t, "nonce-1"))
	root := filepath.Join(t.TempDir(), "root")
	f, err := os.Create(root)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(f, io.NewSectionReader(img, r.Root().Start, r.Root().Size)); err != nil {
		t.Fatal(err)
	}
	tool := func(name string, args ...string) string {
		t.Helper()
		if p, err := exec.LookPath(name); err == nil {
			name = p
		} else {
			name = "/usr/sbin/" + name
		}
		out, err := exec.CommandContext(t.Context(), name, args...).Output()
		if err != nil {
			t.Errorf("%s %v: %v: %s", name, args, err, out)
		}
		return string(out)
	}
	tool("e2fsck", "-fn", root)
	for name, want := range map[string]string{
		"/etc/firstlight-nonce":   "nonce-1\n",
		"/etc/inittab":            string(script("inittab")),
		"/etc/init.d/rcS":         string(script("rcS")),
		"/usr/sbin/machine-agent": "agent",
		"/bin/busybox":            "busybox",
	} {
		if got := tool("debugfs", "-R", "cat "+name, root); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	head := tool("debugfs", "-R", "show_super_stats -h", root)
	for _, want := range []string{r.RootFSUUID, "metadata_csum", "firstlight-root"} {
		if !strings.Contains(head, want) {
			t.Errorf("super block: got no %s in\n%s", want, head)
		}
	}
	if strings.Contains(head, "resize_inode") {
		t.Error("super block: got resize_inode, want none")
	}
}

func TestInputsAndIdentifiers(t *testing.T) {
	t.Parallel()
	a, err := collect(config(t, "n"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, in := range a.inputs {
		names = append(names, in.Name)
	}
	for _, want := range []string{"busybox", "machine-agent", "systemd-boot", "grub/boot.img", "grub/core.img", "kernel/boot/vmlinuz-" + kmodtest.Release, "kernel/modules/kernel/fs/ext4/ext4.ko", "demo/rcS"} {
		if !slices.Contains(names, want) {
			t.Errorf("inputs: got %v, want %s among them", names, want)
		}
	}
	other := config(t, "n")
	other.Agent = []byte("other agent")
	b, err := collect(other)
	if err != nil {
		t.Fatal(err)
	}
	one, _ := plan(a.seed("n"), 1)
	for what, seed := range map[string][32]byte{"other nonce": a.seed("m"), "other agent": b.seed("n")} {
		if two, _ := plan(seed, 1); two.Root().UUID == one.Root().UUID || two.DiskGUID == one.DiskGUID || two.RootFSUUID == one.RootFSUUID {
			t.Errorf("%s: got the same identifiers, want other ones", what)
		}
	}
	if again, _ := plan(a.seed("n"), 1); !slices.Equal(again.Partitions, one.Partitions) {
		t.Error("same inputs: got other identifiers, want the same")
	}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	guids := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	for _, content := range []int64{0, 20 * mib, 60 * mib} {
		l, err := plan([32]byte{1}, content)
		if err != nil {
			t.Fatal(err)
		}
		end := int64(0)
		if p := l.BIOS(); p.Start < 34*512 || p.Start+p.Size != l.Partitions[0].Start || p.Start%4096 != 0 || !guids.MatchString(p.UUID) {
			t.Errorf("content %d: partition %+v: want it between the partition table and the first MiB", content, p)
		}
		for _, p := range l.Partitions[:3] {
			if p.Start < end || p.Start%mib != 0 || !guids.MatchString(p.UUID) {
				t.Errorf("content %d: partition %+v: want it on a MiB, behind %d, with a version 8 GUID", content, p, end)
			}
			end = p.Start + p.Size
		}
		if l.Size-end < 34*512 {
			t.Errorf("content %d: got %d bytes behind the last partition, want room for the backup table", content, l.Size-end)
		}
		if l.Root().Size < content+rootFree {
			t.Errorf("content %d: root of %d bytes, want %d left", content, l.Root().Size, rootFree)
		}
	}
	if _, err := plan([32]byte{}, 100*mib); err == nil || !strings.Contains(err.Error(), "at most 160 MiB") {
		t.Errorf("content of 100 MiB: got error %v, want one that says the limit", err)
	}
}

func TestInitrdTree(t *testing.T) {
	t.Parallel()
	p, err := collect(config(t, "n"))
	if err != nil {
		t.Fatal(err)
	}
	names := p.initrd.Names()
	for _, want := range []string{"init", "bin/sh", "sbin/modprobe", "sbin/switch_root", "dev/console", "root", "lib/modules/" + kmodtest.Release + "/modules.dep"} {
		if !slices.Contains(names, want) {
			t.Errorf("initial RAM disk: got %v, want %s among them", names, want)
		}
	}
	archive, err := p.initrd.Archive()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cpio.ReadAllRecords(cpio.Newc.Reader(strings.NewReader(string(archive)))); err != nil {
		t.Errorf("initial RAM disk as cpio: %v", err)
	}
}

// TestAppletsOfScripts: every program that a script calls is linked where it is called.
func TestAppletsOfScripts(t *testing.T) {
	t.Parallel()
	word := regexp.MustCompile(`(?:^\s*|[|&;(!]\s*)([a-z_][a-z0-9_]*)\b`)
	keyword := regexp.MustCompile(`\b(?:exec|while|if|elif|then|else|do|xargs -r)\s+`)
	text := regexp.MustCompile(`"[^"()]*"|\$\{[^}]*\}`)
	shellWords := strings.Fields(`say stop drivers find_root root_disk serial for while if then else elif fi do done case esac
		echo set export exec return break continue read deconfig bound renew guid_bytes partuuid_bytes number`)
	for tree, c := range map[string]struct {
		scripts []string
		applets []string
	}{
		"initial RAM disk": {[]string{"init"}, initrdApplets},
		"root":             {[]string{"rcS", "network", "agent", "udhcpc.script"}, rootApplets},
		"one of both":      {[]string{"lib.sh"}, slices.Concat(initrdApplets, rootApplets)},
	} {
		have := map[string]bool{}
		for _, a := range c.applets {
			have[filepath.Base(a)] = true
		}
		for _, name := range c.scripts {
			for line := range strings.Lines(string(script(name))) {
				if strings.HasPrefix(strings.TrimSpace(line), "#") {
					continue
				}
				for _, m := range word.FindAllStringSubmatch(keyword.ReplaceAllString(text.ReplaceAllString(line, "T"), ";"), -1) {
					if len(m[1]) > 1 && !strings.Contains(line, m[1]+"=") && !have[m[1]] && !slices.Contains(shellWords, m[1]) {
						t.Errorf("%s: script %s calls %q in %q, which is not linked", tree, name, m[1], strings.TrimSpace(line))
					}
				}
			}
		}
	}
}

func TestBuildRefusesNonce(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "a b", "a\nb", strings.Repeat("x", MaxNonce+1), `$(reboot)`, "a/b"} {
		if _, err := Build(t.Context(), config(t, bad), nil); err == nil || !strings.Contains(err.Error(), "nonce") {
			t.Errorf("nonce %q: got error %v, want one about the nonce", bad, err)
		}
	}
}

// TestESPKeepsRoom: a kernel that would fill the EFI system partition is refused before anything is written.
func TestESPKeepsRoom(t *testing.T) {
	t.Parallel()
	err := writeESP(nil, manifest.Partition{Size: espSize}, []espFile{{"vmlinuz", make([]byte, 40*mib)}})
	if err == nil || !strings.Contains(err.Error(), "at most 32 MiB") {
		t.Errorf("got error %v, want one that says the limit", err)
	}
}
