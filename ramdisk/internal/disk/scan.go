package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

// sectorSize is the unit of sysfs sizes and starts, whatever the device's block size is.
const sectorSize = 512

// maxDisks bounds a scan; a machine with more block devices than this is reported, not half scanned.
const maxDisks = 4096

// Usage says what holds a block device: a mount, swap. Keys are partitions or whole disks.
type Usage map[Number]string

// Scan lists every whole block device in sys (the content of /sys), sorted by name. Devices that are no server disks are listed
// with the reason; one that cannot be read never ends the scan.
func Scan(sys fs.FS, used Usage) ([]Disk, error) {
	entries, err := fs.ReadDir(sys, "block")
	if err != nil {
		return nil, fmt.Errorf("scan disks: %w", err)
	}
	if len(entries) > maxDisks {
		return nil, fmt.Errorf("scan disks: %d block devices, at most %d are understood", len(entries), maxDisks)
	}
	var out []Disk
	for _, e := range entries {
		out = append(out, Read(sys, path.Join("block", e.Name()), used))
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out, nil
}

// Candidates returns those of disks that may be wiped or written.
func Candidates(disks []Disk) []Disk {
	var out []Disk
	for _, d := range disks {
		if d.Excluded == "" {
			out = append(out, d)
		}
	}
	return out
}

// Read reads one device directory of sys, such as "block/sda" or "dev/block/8:0".
func Read(sys fs.FS, dir string, used Usage) Disk {
	a := attrs{sys, dir}
	d := Disk{Name: a.kernelName()}
	d.Dev, _ = parseNumber(a.text("dev"))
	d.Sequence, _ = strconv.ParseUint(a.text("diskseq"), 10, 64)
	sectors, sizeErr := a.number("size")
	d.Size = sectors * sectorSize
	logical, _ := a.number("queue/logical_block_size")
	physical, _ := a.number("queue/physical_block_size")
	d.LogicalBlock, d.PhysicalBlock = int(logical), int(physical)
	d.Rotational = a.text("queue/rotational") == "1"
	d.Discards = a.text("queue/discard_max_bytes") != "" && a.text("queue/discard_max_bytes") != "0"
	d.Transport = a.transport()
	d.Address = a.address()
	a.identify(&d)
	d.Partitions = a.partitions()
	d.Excluded = a.excluded(d, sizeErr, used)
	return d
}

type attrs struct {
	sys fs.FS
	dir string
}

// maxAttr bounds an attribute; sysfs gives at most a page.
const maxAttr = 4096

func (a attrs) raw(name string) ([]byte, error) {
	b, err := fs.ReadFile(a.sys, path.Join(a.dir, name))
	if len(b) > maxAttr {
		b = b[:maxAttr]
	}
	return b, err
}

func (a attrs) text(name string) string {
	b, err := a.raw(name)
	if err != nil {
		return ""
	}
	return clean(b)
}

func (a attrs) number(name string) (int64, error) {
	b, err := a.raw(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil || n < 0 || n > (1<<62)/sectorSize {
		return 0, fmt.Errorf("attribute %s is %q", name, clean(b))
	}
	return n, nil
}

// kernelName is the last element of the device's own directory, also when dir is dev/block/8:0.
func (a attrs) kernelName() string {
	if target, err := fs.ReadLink(a.sys, a.dir); err == nil {
		return path.Base(target)
	}
	return path.Base(a.dir)
}

// where is the device's path in sysfs, as far as links tell: it shows the bus.
func (a attrs) where() string {
	out := ""
	for _, l := range []string{a.dir, path.Join(a.dir, "device"), path.Join(a.dir, "device/subsystem")} {
		if target, err := fs.ReadLink(a.sys, l); err == nil {
			out += "/" + target + "/"
		}
	}
	return out
}

var (
	reATA = regexp.MustCompile(`/ata[0-9]+/`)
	reUSB = regexp.MustCompile(`/usb[0-9]*/|/[0-9]+-[0-9.]+:[0-9.]+/`)
)

func (a attrs) transport() string {
	w, name := a.where(), a.kernelName()
	switch {
	case reUSB.MatchString(w):
		return "usb"
	case strings.HasPrefix(name, "nvme"):
		return "nvme"
	case strings.HasPrefix(name, "vd"):
		return "virtio"
	case strings.HasPrefix(name, "mmcblk"):
		return "mmc"
	case reATA.MatchString(w) || a.text("device/vendor") == "ATA":
		return "ata"
	case strings.HasPrefix(name, "sd"):
		return "scsi"
	}
	return ""
}

var (
	rePCI  = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	rePort = regexp.MustCompile(`^(ata[0-9]+|[0-9]+-[0-9.]+|[0-9]+:[0-9]+:[0-9]+:[0-9]+)$`)
)

// address is the PCI function nearest to the disk and the ports behind it, from the device's path; for NVMe, whose namespaces may
// lie in a folder of no bus, what its controller says.
func (a attrs) address() string {
	target, err := fs.ReadLink(a.sys, a.dir)
	if err != nil {
		target = a.dir
	}
	var out []string
	for _, part := range strings.Split(target, "/") {
		switch {
		case rePCI.MatchString(part):
			out = []string{"PCI " + part}
		case rePort.MatchString(part):
			out = append(out, part)
		}
	}
	if len(out) == 0 {
		if c := a.text("device/address"); rePCI.MatchString(c) {
			out = []string{"PCI " + c}
		}
	}
	return strings.Join(out, " ")
}

func (a attrs) identify(d *Disk) {
	d.Model = a.text("device/model")
	switch {
	case strings.HasPrefix(d.Name, "nvme"):
		d.Serial = a.text("device/serial")
		n, _ := a.number("nsid")
		d.Namespace = uint32(n)
		d.WWN = firstID(a.text("nguid"), a.text("wwid"), a.text("eui"))
	case strings.HasPrefix(d.Name, "vd"):
		d.Serial = a.text("serial")
	default:
		if b, err := a.raw("device/vpd_pg80"); err == nil {
			d.Serial = parseVPD80(b)
		}
		d.WWN = firstID(a.text("device/wwid"), a.text("wwid"))
	}
	if absent(d.Serial) {
		d.Serial = ""
	}
}

func (a attrs) partitions() []Partition {
	entries, err := fs.ReadDir(a.sys, a.dir)
	if err != nil {
		return nil
	}
	var out []Partition
	for _, e := range entries {
		p := attrs{a.sys, path.Join(a.dir, e.Name())}
		n, err := p.number("partition")
		if err != nil || n == 0 {
			continue
		}
		start, _ := p.number("start")
		size, _ := p.number("size")
		dev, _ := parseNumber(p.text("dev"))
		out = append(out, Partition{Name: e.Name(), Dev: dev, Number: int(n), Start: start * sectorSize, Size: size * sectorSize})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Number < out[j].Number })
	return out
}

func (a attrs) held() string {
	for _, dir := range append([]string{""}, names(a.partitions())...) {
		entries, err := fs.ReadDir(a.sys, path.Join(a.dir, dir, "holders"))
		if err == nil && len(entries) > 0 {
			return entries[0].Name()
		}
	}
	return ""
}

func names(ps []Partition) []string {
	var out []string
	for _, p := range ps {
		out = append(out, p.Name)
	}
	return out
}

var reDisk = regexp.MustCompile(`^(nvme[0-9]+n[0-9]+|sd[a-z]+|vd[a-z]+)$`)

// Kind says whether the device is a disk by its driver, be it one that may be written or not: no memory, no loop, no composed device.
func (d Disk) Kind() bool { return reDisk.MatchString(d.Name) || reCard.MatchString(d.Name) }

var reCard = regexp.MustCompile(`^mmcblk[0-9]+$`)

// kinds says what a device is by the name that its driver gives; first match wins. Anything unknown is no disk either.
var kinds = []struct{ prefix, reason string }{
	{"loop", "a loop device: a file that looks like a disk"},
	{"zram", "compressed memory"},
	{"ram", "memory"},
	{"dm-", "composed by the device mapper: its parts are the disks"},
	{"md", "a software RAID: its members are the disks"},
	{"fd", "a floppy drive"},
	{"sr", "an optical drive"},
	{"nbd", "a network block device"},
	{"rbd", "a network block device"},
	{"mmcblk", "an SD card or eMMC: not a server disk"},
	{"mtdblock", "firmware flash"},
	{"nvme", "a hidden path or part of an NVMe device, not a namespace"},
}

// virtualMedia are models of a BMC's virtual media. Hypervisors' own disks ("Virtual disk") are not among them.
var virtualMedia = []string{"virtual hdisk", "virtual floppy", "virtual cd", "virtual media", "virtual usb", "vkvm"}

func (a attrs) excluded(d Disk, sizeErr error, used Usage) string {
	if !reDisk.MatchString(d.Name) {
		for _, k := range kinds {
			if strings.HasPrefix(d.Name, k.prefix) {
				return k.reason
			}
		}
		return "not a kind of device that is known to be a disk"
	}
	for _, v := range virtualMedia {
		if strings.HasPrefix(strings.ToLower(d.Model), v) {
			return "virtual media of the management controller"
		}
	}
	scsiType := a.text("device/type")
	switch {
	case d.Transport == "usb":
		return "attached by USB: a stick or virtual media, never a server disk"
	case a.text("removable") == "1":
		return "removable"
	case a.text("hidden") == "1":
		return "a hidden path of a multipath device"
	case strings.HasPrefix(d.Name, "sd") && scsiType != "" && scsiType != "0":
		return "SCSI device type " + scsiType + ", not a disk"
	case sizeErr != nil && !errors.Is(sizeErr, fs.ErrNotExist):
		return "unreadable: " + sizeErr.Error()
	case d.Size <= 0:
		return "its size is 0: no medium, or it needs a format"
	case a.text("ro") == "1":
		return "read-only"
	}
	if why := inUse(d, used); why != "" {
		return why
	}
	if h := a.held(); h != "" {
		return "in use by " + h
	}
	if d.Serial == "" && d.WWN == "" {
		return "it tells no serial number and no WWN, so no command can name it"
	}
	return ""
}

func inUse(d Disk, used Usage) string {
	if why, ok := used[d.Dev]; ok {
		return "in use: " + why
	}
	for _, p := range d.Partitions {
		if why, ok := used[p.Dev]; ok {
			return fmt.Sprintf("in use: partition %d, %s", p.Number, why)
		}
	}
	return ""
}
