package osimage

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"firstlight/imagebuild/manifest"
)

// Where GRUB's two stages keep what its installer fills in (GRUB 2.06, grub-core/boot/i386/pc/boot.S and diskboot.S).
const (
	bootCodeSize   = 440  // of the MBR; behind it are the disk's signature and the partition entries
	bootKernelLBA  = 0x5c // boot.img: block of the core image, 8 bytes
	bootDriveCheck = 0x66 // boot.img: a jump of 2 bytes; without it a BIOS that passes a wrong drive number is put right
	coreBlockList  = 500  // core.img: block, number of blocks and segment of the rest of it, 8 + 2 + 2 bytes
	coreSegment    = 0x820
)

// grubModules are those that it takes to reach the loader entry. linux comes from the memory disk, when grub.cfg asks for it;
// relocator to vbe are what it depends on.
var grubModules = []string{
	"biosdisk", "part_gpt", "fat", "memdisk", "tar", "normal", "configfile", "test", "true", "echo", "sleep", "reboot", "boot",
	"relocator", "verifiers", "video", "mmap", "vbe",
}

// grubStart is what GRUB does first: keep the first partition of the disk that it came from as root, and take its own files from
// the memory disk.
const (
	grubPrefix = "(,gpt1)/"
	grubStart  = "set prefix=(memdisk)\n"
)

// BIOS is GRUB, which starts the system where the firmware is no UEFI.
type BIOS struct {
	// Boot is boot.img, one sector, Core is core.img; both as GRUB makes them, not yet placed.
	Boot, Core []byte
}

// MakeBIOS has the program mkimage (grub-mkimage) make the core image from the modules in dir. work is a directory for files in
// between. The same modules give the same bytes.
func MakeBIOS(ctx context.Context, mkimage, dir, work string) (*BIOS, error) {
	boot, err := os.ReadFile(filepath.Join(dir, "boot.img"))
	if err != nil {
		return nil, fmt.Errorf("boot code for BIOS machines: %w", err)
	}
	module, err := os.ReadFile(filepath.Join(dir, "linux.mod"))
	if err != nil {
		return nil, fmt.Errorf("boot code for BIOS machines: %w", err)
	}
	disk, err := memoryDisk([]espFile{{"grub.cfg", script("grub.cfg")}, {"i386-pc/linux.mod", module}})
	if err != nil {
		return nil, fmt.Errorf("boot code for BIOS machines: %w", err)
	}
	start, memory, core := filepath.Join(work, "start.cfg"), filepath.Join(work, "memdisk.tar"), filepath.Join(work, "core.img")
	for name, b := range map[string][]byte{start: []byte(grubStart), memory: disk} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			return nil, fmt.Errorf("boot code for BIOS machines: %w", err)
		}
	}
	// -m also sets the prefix, to one on the memory disk: -p comes after it.
	args := append([]string{"-O", "i386-pc", "-d", dir, "-c", start, "-m", memory, "-p", grubPrefix, "-o", core}, grubModules...)
	cmd := exec.CommandContext(ctx, mkimage, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	if said, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("boot code for BIOS machines: %s: %w: %s", filepath.Base(mkimage), err, strings.TrimSpace(lastBytes(said, 500)))
	}
	b := &BIOS{Boot: boot}
	if b.Core, err = os.ReadFile(core); err != nil {
		return nil, fmt.Errorf("boot code for BIOS machines: %w", err)
	}
	return b, nil
}

// memoryDisk is a tar archive; every file has the image's time.
func memoryDisk(files []espFile) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.data)), ModTime: epoch, Format: tar.FormatUSTAR}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// place fills in where the core image lies, which is from the start of partition p on, and returns the MBR's boot code and the core image.
func (b *BIOS) place(p manifest.Partition) (code, core []byte, err error) {
	if len(b.Boot) != manifest.SectorSize || b.Boot[510] != 0x55 || b.Boot[511] != 0xaa {
		return nil, nil, errors.New("boot code for BIOS machines: boot.img is no boot sector")
	}
	if len(b.Core) <= manifest.SectorSize || int64(len(b.Core)) > p.Size {
		return nil, nil, fmt.Errorf("boot code for BIOS machines: core.img has %d bytes, want more than %d and at most %d, the size of its partition",
			len(b.Core), manifest.SectorSize, p.Size)
	}
	le := binary.LittleEndian
	first, rest := uint64(p.Start/manifest.SectorSize), uint16(roundUp(int64(len(b.Core)), manifest.SectorSize)/manifest.SectorSize-1)
	if n, segment := le.Uint16(b.Core[coreBlockList+8:]), le.Uint16(b.Core[coreBlockList+10:]); n != rest || segment != coreSegment {
		return nil, nil, fmt.Errorf("boot code for BIOS machines: core.img loads %d blocks at segment %#x, want %d at %#x: another version of GRUB",
			n, segment, rest, coreSegment)
	}
	code, core = bytes.Clone(b.Boot[:bootCodeSize]), bytes.Clone(b.Core)
	le.PutUint64(code[bootKernelLBA:], first)
	copy(code[bootDriveCheck:], []byte{0x90, 0x90}) // nop, nop
	le.PutUint64(core[coreBlockList:], first+1)
	return code, core, nil
}

// writeBIOS puts the boot code into the protective MBR, beside its partition entries, and the core image into its partition; it
// reads both back.
func writeBIOS(img *os.File, p manifest.Partition, b *BIOS) error {
	code, core, err := b.place(p)
	if err != nil {
		return err
	}
	for _, w := range []struct {
		at   int64
		data []byte
	}{{p.Start, core}, {0, code}} {
		if _, err := img.WriteAt(w.data, w.at); err != nil {
			return fmt.Errorf("boot code for BIOS machines: %w", err)
		}
		got := make([]byte, len(w.data))
		if _, err := img.ReadAt(got, w.at); err != nil || !bytes.Equal(got, w.data) {
			return fmt.Errorf("boot code for BIOS machines: read back at byte %d: got other bytes than were written (%w)", w.at, err)
		}
	}
	return nil
}

// checkEntry refuses a loader entry that GRUB, which runs it as commands, and a reader of lines would understand differently.
func checkEntry(entry string) error {
	for line := range strings.Lines(entry) {
		for _, c := range strings.TrimSuffix(line, "\n") {
			if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune(" ./=_:,+-", c) {
				return fmt.Errorf("loader entry: line %s: character %q means something to a shell", strconv.Quote(strings.TrimSpace(line)), c)
			}
		}
	}
	return nil
}
