package osimage

import (
	"embed"
	"fmt"
	"io/fs"
	"strings"
)

//go:embed texts
var texts embed.FS

// script returns one of the demo system's own files, as it is.
func script(name string) []byte {
	b, err := fs.ReadFile(texts, "texts/"+name)
	if err != nil {
		panic(err) // embedded: it is there, or the program would not build
	}
	return b
}

// Names of files on the ESP.
const (
	kernelFile = "vmlinuz"
	initrdFile = "initrd.img"
	entryFile  = "loader/entries/firstlight.conf"
	loaderFile = "loader/loader.conf"
	efiFile    = "EFI/BOOT/BOOTX64.EFI" // the removable-media path (UEFI specification, 3.5.1.1)
)

// loaderConf is systemd-boot's own configuration: start the one entry at once, allow no other command line.
const loaderConf = "default firstlight.conf\ntimeout 0\neditor no\n"

// commandLine is the kernel command line of the installed system. It says which partition is the root and nothing about the
// machine; no secret is ever in it.
func commandLine(rootUUID string) string {
	return "console=ttyS0 root=PARTUUID=" + rootUUID + " rw quiet panic=10"
}

// loaderEntry is a Boot Loader Specification type 1 entry, the one place that says what is started. systemd-boot reads it, GRUB runs
// it (grub.cfg), and so does whoever enters the system by kexec read it.
func loaderEntry(release, rootUUID string) string {
	var b strings.Builder
	for _, l := range [][2]string{
		{"title", "Firstlight demo system"},
		{"version", release},
		{"linux", "/" + kernelFile},
		{"initrd", "/" + initrdFile},
		{"options", commandLine(rootUUID)},
	} {
		fmt.Fprintf(&b, "%-8s %s\n", l[0], l[1])
	}
	return b.String()
}
