package doctor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"firstlight/appliance/internal/store"
)

const (
	// maxCommandLine is what is left of the kernel's 2048 bytes (x86, COMMAND_LINE_SIZE) when the boot's own arguments are on it.
	maxCommandLine = 1536
	// fullStore is how much of its quota the store may take before people should look, in percent.
	fullStore = 75
)

// image is a file that machines boot by, and how it begins.
type image struct {
	name string
	at   int64
	// magic is the format's own mark: a boot sector's code, PE (MZ), Linux's boot protocol (HdrS at 0x202), zstd.
	magic []byte
}

func (c Config) fileChecks() []Check {
	const ram, args = "files: RAM disk", "files: kernel arguments"
	b := c.File.Boot
	if !b.Enabled {
		return []Check{skipped("files: boot programs", noBoot), skipped(ram, noBoot), skipped(args, noBoot)}
	}
	out := []Check{c.firmwareCheck()}
	out = append(out, images(ram, b.RAMDiskDir, "build the RAM disk with imagebuild ramdisk, or name its folder in boot.ramdisk_dir",
		image{"vmlinuz", 0x202, []byte("HdrS")}, image{"ramdisk.cpio.zst", 0, []byte{0x28, 0xb5, 0x2f, 0xfd}}))
	line := strings.Join(b.KernelArgs, " ")
	switch what := fmt.Sprintf("%d arguments, %d bytes: %s", len(b.KernelArgs), len(line), line); {
	case len(line) > maxCommandLine:
		out = append(out, bad(Fail, args, fmt.Sprintf("%d bytes", len(line)), fmt.Sprintf("more than %d do not fit: the kernel cuts the rest off", maxCommandLine), "shorten boot.kernel_args"))
	case len(b.KernelArgs) == 0:
		out = append(out, well(args, "none beside those of a boot"))
	default:
		out = append(out, well(args, what))
	}
	return out
}

// firmwareCheck looks for the boot programs. A site may have machines of one kind only, so one is enough; none is not.
func (c Config) firmwareCheck() Check {
	const name = "files: boot programs"
	const next = "install Debian's package ipxe and name /usr/lib/ipxe in boot.firmware_dir"
	dir := c.File.Boot.FirmwareDir
	uefi := images(name, dir, next, image{"snponly.efi", 0, []byte("MZ")})
	bios := images(name, dir, next, image{"undionly.kpxe", 0, nil})
	switch {
	case uefi.State == OK && bios.State == OK:
		return well(name, fmt.Sprintf("%s, %s", uefi.What, bios.What))
	case uefi.State == OK:
		return bad(Warn, name, uefi.What, bios.Why+": BIOS machines cannot boot", next)
	case bios.State == OK:
		return bad(Warn, name, bios.What, uefi.Why+": UEFI machines cannot boot", next)
	}
	return bad(Fail, name, "", uefi.Why+"; "+bios.Why, next)
}

// images checks that files are there, are not empty, and are what their names say.
func images(name, dir, next string, want ...image) Check {
	var have []string
	for _, w := range want {
		path := filepath.Join(dir, w.name)
		n, err := begins(path, w)
		if err != nil {
			return bad(Fail, name, strings.Join(have, ", "), err.Error(), next)
		}
		have = append(have, fmt.Sprintf("%s (%d KiB)", path, n>>10))
	}
	return well(name, strings.Join(have, ", "))
}

func begins(path string, w image) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() || info.Size() == 0 {
		return 0, fmt.Errorf("%s is empty or no file", path)
	}
	got := make([]byte, len(w.magic))
	if n, _ := f.ReadAt(got, w.at); !bytes.Equal(got[:n], w.magic) {
		return 0, fmt.Errorf("%s is not what its name says: it does not begin as such a file does", path)
	}
	return info.Size(), nil
}

// storeCheck asks the running store, or looks at its file.
func (c Config) storeCheck() Check {
	const name = "store: size"
	var s store.Space
	if c.Space != nil {
		s = c.Space()
	} else {
		info, err := os.Stat(filepath.Join(c.File.DataDir, "etcd", "member", "snap", "db"))
		if err != nil {
			return skipped(name, "there is no store yet: "+err.Error())
		}
		s = store.Space{File: info.Size(), Quota: store.Quota}
	}
	what := fmt.Sprintf("%.1f MiB of at most %.0f MiB", float64(s.File)/(1<<20), float64(s.Quota)/(1<<20))
	const next = "see which machines and events fill it, then defragment it, or ask for help before it is full"
	switch {
	case s.Quota == 0:
		return skipped(name, "the store is closed")
	case s.Alarm != "":
		return bad(Fail, name, what, "the store raised the alarm "+s.Alarm+": it takes no writes", next)
	case s.File*100 >= s.Quota*fullStore:
		return bad(Warn, name, what, fmt.Sprintf("more than %d %% of its quota", fullStore), next)
	}
	return well(name, what)
}
