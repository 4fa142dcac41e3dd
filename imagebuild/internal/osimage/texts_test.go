package osimage

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestGoldens holds every text that the image is made of against the file that a person reviewed.
func TestGoldens(t *testing.T) {
	t.Parallel()
	const root = "11111111-2222-4333-8444-555555555503"
	for name, got := range map[string]string{
		"firstlight.conf": loaderEntry("6.1.0-0-test", root),
		"loader.conf":     loaderConf,
		"cmdline":         commandLine(root) + "\n",
		"init":            string(script("init")),
		"lib.sh":          string(script("lib.sh")),
		"inittab":         string(script("inittab")),
		"rcS":             string(script("rcS")),
		"network":         string(script("network")),
		"agent":           string(script("agent")),
		"udhcpc.script":   string(script("udhcpc.script")),
		"grub.cfg":        string(script("grub.cfg")),
	} {
		golden := filepath.Join("testdata", name+".golden")
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
	}
}

// TestLoaderEntryIsPlain: whoever enters the system by kexec reads the entry line by line, key and value.
func TestLoaderEntryIsPlain(t *testing.T) {
	t.Parallel()
	got := map[string]string{}
	for line := range strings.Lines(loaderEntry("6.1", "u")) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			t.Errorf("line %q: got no value", line)
		}
		got[key] = strings.TrimSpace(value)
	}
	for key, want := range map[string]string{
		"title": "Firstlight demo system", "version": "6.1", "linux": "/vmlinuz", "initrd": "/initrd.img",
		"options": "console=ttyS0 root=PARTUUID=u rw quiet panic=10",
	} {
		if got[key] != want {
			t.Errorf("%s: got %q, want %q", key, got[key], want)
		}
	}
}

// shell runs a command line with the demo system's functions, in busybox's shell, with the kernel's file systems in dir.
func shell(t *testing.T, dir, command string) string {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("reason: no busybox on this machine (package busybox-static; make setup installs it)")
	}
	lib := filepath.Join(dir, "lib.sh")
	if err := os.WriteFile(lib, script("lib.sh"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), busybox, "sh", "-c", ". "+lib+"; "+command)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "SYS=" + dir + "/sys", "DEV=" + dir + "/dev", "PROC=" + dir + "/proc"}
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) > 0 {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	return strings.TrimSpace(string(out))
}

// files writes files, with directories, below a fresh directory.
func files(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestGUIDBytes(t *testing.T) {
	t.Parallel()
	got := shell(t, t.TempDir(), "guid_bytes 00112233-4455-6677-8899-AABBCCDDEEFF")
	if want := "33221100554477668899aabbccddeeff"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestFindRoot(t *testing.T) {
	t.Parallel()
	// The second entry of a table with 512-byte blocks, and of one with 4096-byte blocks.
	guid := "\x33\x22\x11\x00\x55\x44\x77\x66\x88\x99\xaa\xbb\xcc\xdd\xee\xff"
	disk := func(block int) string {
		b := bytes.Repeat([]byte{0}, 2*block+1024)
		copy(b[2*block+128+16:], guid)
		return string(b)
	}
	content := map[string]string{
		"dev/vda": disk(512), "sys/block/vda/queue/logical_block_size": "512\n",
		"sys/block/vda/vda1/partition": "1\n", "sys/block/vda/vda2/partition": "2\n",
		"dev/nvme0n1": disk(4096), "sys/block/nvme0n1/queue/logical_block_size": "4096\n", "sys/block/nvme0n1/nvme0n1p2/partition": "2\n",
		"dev/sda": "", "sys/block/sda/queue/logical_block_size": "512\n", "sys/block/sda/sda1/partition": "1\n",
	}
	find := "find_root 00112233-4455-6677-8899-aabbccddeeff"
	if got, want := shell(t, files(t, content), find), "nvme0n1p2\nvda2"; got != want {
		t.Errorf("both disks: got %q, want %q", got, want)
	}
	delete(content, "sys/block/nvme0n1/nvme0n1p2/partition")
	if got, want := shell(t, files(t, content), find), "vda2"; got != want {
		t.Errorf("one disk: got %q, want %q", got, want)
	}
	if got := shell(t, files(t, content), "find_root 00112233-4455-6677-8899-aabbccddee00"); got != "" {
		t.Errorf("other GUID: got %q, want nothing", got)
	}
}

func TestRootDiskAndSerial(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, serialFile, serial, want string }{
		{"virtio", "serial", "DISK-1", "DISK-1"},
		{"nvme", "device/serial", "NV-1   \n", "NV-1"},
		{"scsi", "device/vpd_pg80", "\x00\x80\x00\x04SC-1", "SC-1"},
		{"none", "other", "x", ""},
	} {
		dir := files(t, map[string]string{
			"sys/devices/disk/part/partition":     "3\n",
			"sys/devices/disk/" + c.serialFile:    c.serial,
			"proc/self/mountinfo":                 "1 0 0:2 / / rw - rootfs rootfs rw\n2 1 254:3 / / rw - ext4 /dev/vda3 rw\n3 2 0:9 / /run rw - tmpfs x rw\n",
			"sys/dev/block/placeholder/directory": "",
		})
		if err := os.Symlink("../../devices/disk/part", filepath.Join(dir, "sys/dev/block/254:3")); err != nil {
			t.Fatal(err)
		}
		if got, want := shell(t, dir, "root_disk"), filepath.Join(dir, "sys/devices/disk"); got != want {
			t.Errorf("%s: disk: got %q, want %q", c.name, got, want)
		}
		if got := shell(t, dir, `serial "$(root_disk)"`); strings.TrimSpace(got) != c.want {
			t.Errorf("%s: serial: got %q, want %q", c.name, got, c.want)
		}
	}
}

// TestScriptsParse has the shell itself read every script.
func TestScriptsParse(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"init", "lib.sh", "rcS", "network", "agent", "udhcpc.script"} {
		dir := files(t, map[string]string{"script": string(script(name))})
		if out := shell(t, dir, "busybox sh -n "+filepath.Join(dir, "script")+" && echo fine"); out != "fine" {
			t.Errorf("%s: got %q, want no complaint", name, out)
		}
	}
}
