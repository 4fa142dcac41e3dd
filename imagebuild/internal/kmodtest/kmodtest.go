// Package kmodtest makes kernel packages for tests: small but real ELF objects with a .modinfo section, in the layout of an
// unpacked Debian package. It is for tests of imagebuild only.
package kmodtest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"path"
	"strings"
	"testing/fstest"
)

// Release is the kernel release of every package made here.
const Release = "6.1.0-0-test"

// Module returns an ELF relocatable object whose .modinfo section holds the given "key=value" fields.
func Module(fields ...string) []byte {
	info := strings.Join(fields, "\x00") + "\x00"
	names := "\x00.shstrtab\x00.modinfo\x00"
	const header, entry = 64, 64
	at := uint64(header)
	section := func(name string, typ elf.SectionType, size int) elf.Section64 {
		s := elf.Section64{Name: uint32(strings.Index(names, name)), Type: uint32(typ), Off: at, Size: uint64(size), Addralign: 1}
		at += uint64(size)
		return s
	}
	sections := []elf.Section64{{}, section(".shstrtab", elf.SHT_STRTAB, len(names)), section(".modinfo", elf.SHT_PROGBITS, len(info))}
	h := elf.Header64{Type: uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT), Shoff: at,
		Ehsize: header, Shentsize: entry, Shnum: uint16(len(sections)), Shstrndx: 1}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	var b bytes.Buffer
	binary.Write(&b, binary.LittleEndian, h)
	b.WriteString(names + info)
	binary.Write(&b, binary.LittleEndian, sections)
	return b.Bytes()
}

// Program returns a static ELF program for x86-64 (or, with an interpreter, a dynamic one) that does nothing.
func Program(interpreter string) []byte {
	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT), Phoff: 64,
		Ehsize: 64, Phentsize: 56, Phnum: 1}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	p := elf.Prog64{Type: uint32(elf.PT_NOTE)}
	if interpreter != "" {
		p = elf.Prog64{Type: uint32(elf.PT_INTERP), Off: 120, Filesz: uint64(len(interpreter) + 1)}
	}
	var b bytes.Buffer
	binary.Write(&b, binary.LittleEndian, h)
	binary.Write(&b, binary.LittleEndian, p)
	b.WriteString(interpreter + "\x00")
	return b.Bytes()
}

// Kernel returns a kernel package with the given modules by path below lib/modules/<release>, and with what is built in.
func Kernel(modules map[string][]byte, builtin ...string) fstest.MapFS {
	fs := fstest.MapFS{"boot/vmlinuz-" + Release: {Data: []byte("kernel image")}}
	dir := "lib/modules/" + Release
	for name, b := range modules {
		fs[path.Join(dir, name)] = &fstest.MapFile{Data: b}
	}
	fs[path.Join(dir, "modules.builtin")] = &fstest.MapFile{Data: []byte(strings.Join(builtin, "\n") + "\n")}
	return fs
}

// Full returns a kernel package with every module that imagebuild asks for, so that artefacts can be made without a real kernel.
func Full() fstest.MapFS {
	m := map[string][]byte{
		"kernel/drivers/virtio/virtio.ko":     Module("alias=virtio:*"),
		"kernel/drivers/virtio/virtio_pci.ko": Module("depends=virtio", "alias=pci:v00001AF4d*sv*sd*bc*sc*i*"),
		"kernel/crypto/crc32c_generic.ko":     Module("alias=crypto-crc32c", "alias=crc32c"),
		"kernel/fs/ext4/ext4.ko":              Module("softdep=pre: crypto-crc32c", "alias=fs-ext4"),
	}
	for _, n := range []string{"virtio_net", "virtio_blk", "virtio_scsi", "virtio-rng", "nvme", "ahci", "sd_mod", "e1000e", "igb", "ixgbe",
		"crct10dif_generic", "crc64_rocksoft_generic", "vfat", "nls_cp437", "nls_ascii", "nls_utf8"} {
		m["kernel/drivers/test/"+n+".ko"] = Module("license=GPL")
	}
	return Kernel(m, "kernel/fs/efivarfs/efivarfs.ko")
}
