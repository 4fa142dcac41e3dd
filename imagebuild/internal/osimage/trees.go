package osimage

import (
	"firstlight/imagebuild/internal/initramfs"
	"firstlight/imagebuild/internal/kmod"
)

// initrdModules is what it takes to reach the root file system; rootModules is everything that the running system may need.
var (
	initrdModules = []string{"virtio_pci", "virtio_blk", "virtio_scsi", "nvme", "ahci", "sd_mod", "crc32c_generic", "ext4"}
	rootModules   = append([]string{"virtio_net", "virtio_rng", "e1000e", "igb", "ixgbe", "vfat", "nls_cp437", "nls_ascii", "nls_utf8"},
		initrdModules...)
)

// Applets of busybox that the scripts use, and a few for whoever looks at the system.
var (
	initrdApplets = []string{
		"bin/cat", "bin/dd", "bin/grep", "bin/hexdump", "bin/ls", "bin/mount", "bin/sed", "bin/sh", "bin/sleep", "bin/sort",
		"bin/tr", "bin/xargs", "sbin/modprobe", "sbin/reboot", "sbin/switch_root",
	}
	rootApplets = []string{
		"bin/awk", "bin/cat", "bin/dmesg", "bin/grep", "bin/hostname", "bin/ip", "bin/ls", "bin/mkdir", "bin/mount", "bin/ps",
		"bin/readlink", "bin/sed", "bin/sh", "bin/sleep", "bin/sort", "bin/sync", "bin/tail", "bin/tr", "bin/umount", "bin/xargs",
		"sbin/init", "sbin/modprobe", "sbin/poweroff", "sbin/reboot", "sbin/udhcpc",
	}
)

// builder collects the first error of many additions.
type builder struct {
	initramfs.Tree
	err error
}

func (b *builder) add(err error) {
	if b.err == nil {
		b.err = err
	}
}

func (b *builder) busybox(binary []byte, applets []string) {
	b.add(b.File("bin/busybox", binary, 0o755))
	for _, a := range applets {
		b.add(b.Symlink(a, "/bin/busybox"))
	}
}

func (b *builder) dirs(perm uint32, names ...string) {
	for _, n := range names {
		b.add(b.Dir(n, perm))
	}
}

// initrdTree is the initial RAM disk of the installed system.
func initrdTree(busybox []byte, modules *kmod.Set) (*initramfs.Tree, error) {
	var b builder
	b.busybox(busybox, initrdApplets)
	b.add(b.File("init", script("init"), 0o755))
	b.add(b.File("lib/firstlight.sh", script("lib.sh"), 0o644))
	b.add(b.Modules(modules))
	b.dirs(0o755, "dev", "proc", "sys", "root")
	b.add(b.CharDevice("dev/console", 0o600, 5, 1))
	return &b.Tree, b.err
}

// rootTree is the root file system.
func rootTree(busybox, agent []byte, nonce string, modules *kmod.Set) (*initramfs.Tree, error) {
	var b builder
	b.busybox(busybox, rootApplets)
	for name, perm := range map[string]uint32{"rcS": 0o755, "network": 0o755, "agent": 0o755} {
		b.add(b.File("etc/init.d/"+name, script(name), perm))
	}
	b.add(b.File("etc/inittab", script("inittab"), 0o644))
	b.add(b.File("etc/udhcpc.script", script("udhcpc.script"), 0o755))
	b.add(b.File("lib/firstlight.sh", script("lib.sh"), 0o644))
	for name, text := range map[string]string{
		"etc/firstlight-nonce": nonce + "\n",
		"etc/hostname":         "firstlight-node\n",
		"etc/hosts":            "127.0.0.1 localhost firstlight-node\n::1 localhost\n",
		"etc/passwd":           "root:*:0:0:root:/root:/bin/sh\n",
		"etc/group":            "root:x:0:\n",
		"etc/os-release":       "ID=firstlight-demo\nNAME=\"Firstlight demo system\"\n",
	} {
		b.add(b.File(name, []byte(text), 0o644))
	}
	b.add(b.Symlink("etc/resolv.conf", "/run/resolv.conf"))
	b.add(b.File("usr/sbin/machine-agent", agent, 0o755))
	b.add(b.Modules(modules))
	b.dirs(0o755, "dev", "proc", "run", "sys", "tmp", "var", "var/lib")
	b.dirs(0o700, "root", "var/lib/firstlight")
	return &b.Tree, b.err
}
