// Package disk finds the machine's disks, chooses one by what it is (never by its name), and hands out an exclusive handle that
// proves to be that disk right before its first write.
//
// It is for ramdisk's wipe, deploy, kexec and inventory. It is not for partitions, file systems or policy: whoever asks says
// which disk. What the kernel knows comes in as an fs.FS of /sys; devices come in behind System, whose twin is in disktest.
package disk

import (
	"fmt"
	"strings"
)

// Number is a block device number.
type Number struct{ Major, Minor uint32 }

func (n Number) String() string { return fmt.Sprintf("%d:%d", n.Major, n.Minor) }

// Disk is one whole block device as the kernel described it at one moment.
type Disk struct {
	// Name is the kernel's name, such as "sda". For people only: it changes from boot to boot.
	Name string
	// Address is where a technician finds the disk: its PCI function and, behind a controller with several ports, the port, such as
	// "PCI 0000:00:1f.2 ata1 0:0:0:0". Empty where sysfs does not tell. It is no identity: cables are moved.
	Address string
	Dev     Number
	// Sequence is the kernel's diskseq: never the same for two devices in one boot. 0 where the kernel has none.
	Sequence uint64
	// Serial and WWN are empty when the device gives none; an id of zeroes counts as none.
	Serial, WWN string
	Model       string
	// Size is in bytes.
	Size          int64
	LogicalBlock  int
	PhysicalBlock int
	Rotational    bool
	Transport     string
	Namespace     uint32
	Discards      bool
	Partitions    []Partition
	// Excluded says why this may never be wiped or written; empty for a candidate.
	Excluded string
}

// Partition is a partition as the kernel knows it; offsets and sizes in bytes.
type Partition struct {
	Name        string
	Dev         Number
	Number      int
	Start, Size int64
}

// String names the disk for people: what it is first, what it is called today last.
func (d Disk) String() string {
	var b strings.Builder
	switch {
	case d.Serial != "":
		fmt.Fprintf(&b, "serial %s", d.Serial)
	case d.WWN != "":
		fmt.Fprintf(&b, "WWN %s", d.WWN)
	default:
		b.WriteString("a disk without serial number")
	}
	if d.Namespace > 1 {
		fmt.Fprintf(&b, " namespace %d", d.Namespace)
	}
	detail := []string{}
	if d.Model != "" {
		detail = append(detail, d.Model)
	}
	detail = append(detail, Bytes(d.Size))
	if d.Transport != "" {
		detail = append(detail, d.Transport)
	}
	if d.Address != "" {
		detail = append(detail, "at "+d.Address)
	}
	if d.Name != "" {
		detail = append(detail, "now called "+clean([]byte(d.Name)))
	}
	fmt.Fprintf(&b, " (%s)", strings.Join(detail, ", "))
	return b.String()
}

// same says how b differs from a in anything that makes a disk this disk; empty when it does not.
func same(a, b Disk) string {
	var diff []string
	add := func(what, x, y string) {
		if x != y {
			diff = append(diff, fmt.Sprintf("%s was %q, is %q", what, x, y))
		}
	}
	add("serial", a.Serial, b.Serial)
	add("WWN", a.WWN, b.WWN)
	add("model", a.Model, b.Model)
	add("size", fmt.Sprint(a.Size), fmt.Sprint(b.Size))
	add("namespace", fmt.Sprint(a.Namespace), fmt.Sprint(b.Namespace))
	add("device instance", fmt.Sprint(a.Sequence), fmt.Sprint(b.Sequence))
	return strings.Join(diff, "; ")
}

// Bytes writes a size for people, with the exact number wherever a rounded one would hide a difference.
func Bytes(n int64) string {
	const unit = 1024
	names := []string{"KiB", "MiB", "GiB", "TiB", "PiB"}
	if n < unit {
		return fmt.Sprintf("%d bytes", n)
	}
	v, i := float64(n)/unit, 0
	for v >= unit && i < len(names)-1 {
		v, i = v/unit, i+1
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") + " " + names[i]
}
