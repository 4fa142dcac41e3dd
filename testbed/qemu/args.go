package qemu

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Debian's names and places.
const (
	binary   = "qemu-system-x86_64"
	ovmfCode = "/usr/share/OVMF/OVMF_CODE_4M.fd"
	ovmfVars = "/usr/share/OVMF/OVMF_VARS_4M.fd"
)

const (
	defaultMemoryMiB = 1024
	maxSerial        = 20 // bytes; the shortest limit of the drivers (virtio-blk, NVMe)
)

var rtcRule = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}$`)

// arguments is the command line for cfg, without the program's name. QMP is on
// file 3.
func arguments(cfg Config) ([]string, error) {
	if cfg.Dir == "" {
		return nil, errors.New("no folder given")
	}
	memory := cfg.MemoryMiB
	if memory == 0 {
		memory = defaultMemoryMiB
	}
	args := []string{
		"-name", escape(orElse(cfg.Name, "machine")),
		"-nodefaults", "-no-user-config", "-display", "none",
		"-machine", "q35,graphics=off",
		"-accel", cfg.Accel, "-cpu", "max", "-smp", "1", "-m", strconv.Itoa(memory),
		"-chardev", "socket,id=qmp,fd=3", "-mon", "chardev=qmp,mode=control",
		"-chardev", "file,id=serial,append=on,path=" + escape(filepath.Join(cfg.Dir, SerialLog)),
		"-serial", "chardev:serial",
		"-smbios", fmt.Sprintf("type=1,manufacturer=%s,product=%s,serial=%s",
			escape(orElse(cfg.Manufacturer, "Firstlight")), escape(orElse(cfg.Product, "Testbed")),
			escape(orElse(cfg.Serial, cfg.Name))),
	}
	if cfg.UUID != "" {
		args = append(args, "-uuid", cfg.UUID)
	}
	rtc := "utc"
	if cfg.RTCBase != "" {
		if !rtcRule.MatchString(cfg.RTCBase) {
			return nil, fmt.Errorf("clock base %q is not of the form 2000-01-01T00:00:00", cfg.RTCBase)
		}
		rtc = cfg.RTCBase
	}
	args = append(args, "-rtc", "base="+rtc)
	switch cfg.Firmware {
	case "uefi":
		args = append(args,
			"-drive", "if=pflash,unit=0,format=raw,readonly=on,file="+ovmfCode,
			"-drive", "if=pflash,unit=1,format=raw,file="+escape(filepath.Join(cfg.Dir, varsFile)),
			// PXE over IPv6 costs OVMF a minute where nobody answers.
			"-fw_cfg", "name=opt/org.tianocore/IPv6PXESupport,string=no")
	case "bios":
	default:
		return nil, fmt.Errorf("firmware %q is neither uefi nor bios", cfg.Firmware)
	}
	card, disk, err := bootIndexes(cfg)
	if err != nil {
		return nil, err
	}
	if cfg.Tap != "" {
		device := fmt.Sprintf("virtio-net-pci,netdev=net0,mac=%s,bootindex=%d", cfg.MAC, card)
		if cfg.Firmware == "uefi" {
			device += ",romfile="
		}
		args = append(args, "-netdev", "tap,id=net0,ifname="+cfg.Tap+",script=no,downscript=no", "-device", device)
	}
	for i, d := range cfg.Disks {
		more, err := diskArguments(i, d, disk+i)
		if err != nil {
			return nil, err
		}
		args = append(args, more...)
	}
	return append(args, cfg.ExtraArgs...), nil
}

// bootIndexes gives the card's index and the first disk's. Every disk has one:
// OVMF connects only devices with a boot index.
func bootIndexes(cfg Config) (card, disk int, err error) {
	switch cfg.BootFirst {
	case "pxe":
		return 1, 2, nil
	case "disk":
		return len(cfg.Disks) + 1, 1, nil
	}
	return 0, 0, fmt.Errorf("first boot device %q is neither pxe nor disk", cfg.BootFirst)
}

func diskArguments(i int, d Disk, bootIndex int) ([]string, error) {
	if d.Serial == "" || len(d.Serial) > maxSerial || strings.ContainsAny(d.Serial, ", \t\n") {
		return nil, fmt.Errorf("disk %d: serial %q is not 1 to %d bytes without space or comma", i, d.Serial, maxSerial)
	}
	id := diskID(i)
	drive := "if=none,id=" + id + ",format=raw,cache=writeback,discard=unmap,file=" + escape(d.Path)
	if d.ReadOnly {
		drive += ",readonly=on"
	}
	tail := fmt.Sprintf("drive=%s,serial=%s,bootindex=%d", id, d.Serial, bootIndex)
	args := []string{"-drive", drive}
	switch d.Driver {
	case "virtio-blk":
		return append(args, "-device", "virtio-blk-pci,"+tail), nil
	case "nvme":
		return append(args, "-device", "nvme,"+tail), nil
	case "scsi":
		return append(args, "-device", fmt.Sprintf("virtio-scsi-pci,id=scsi%d", i),
			"-device", fmt.Sprintf("scsi-hd,bus=scsi%d.0,%s", i, tail)), nil
	case "ahci":
		if d.ReadOnly {
			return nil, fmt.Errorf("disk %d: an AHCI disk cannot be read only", i)
		}
		return append(args, "-device", fmt.Sprintf("ide-hd,bus=ide.%d,%s", i, tail)), nil
	}
	return nil, fmt.Errorf("disk %d: driver %q is none of virtio-blk, nvme, scsi, ahci", i, d.Driver)
}

func diskID(i int) string { return fmt.Sprintf("disk%d", i) }

// escape doubles commas, which separate options on QEMU's command line.
func escape(s string) string { return strings.ReplaceAll(s, ",", ",,") }

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
