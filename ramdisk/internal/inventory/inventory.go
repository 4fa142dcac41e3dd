// Package inventory reads what the machine is: system, processors, memory, network cards, and the claims that go with Join.
//
// It is for ramdisk, in both roles. It reads /sys and /proc as fs.FS and runs nothing. Disks are package disk's. What the firmware
// says of itself is free text: it is shown as it is and treated as absent where it is a placeholder (Placeholder).
package inventory

import (
	"bufio"
	"bytes"
	"io/fs"
	"net"
	"path"
	"sort"
	"strconv"
	"strings"
)

// System is the machine as its firmware describes it (SMBIOS, through /sys/class/dmi).
type System struct {
	Manufacturer, Product, Serial, UUID string
	FirmwareVendor, FirmwareVersion     string
	// FirmwareMode is "uefi" or "bios".
	FirmwareMode  string
	KernelRelease string
}

// CPU is the sum of the machine's processors.
type CPU struct {
	Model                   string
	Sockets, Cores, Threads int
}

// NIC is one physical Ethernet card.
type NIC struct {
	Name, MAC, Driver string
	Link              bool
	// SpeedMbps is 0 when unknown.
	SpeedMbps int
}

// Claims is what a machine says of itself when it joins: nothing here is proven. Placeholders are empty.
type Claims struct {
	UUID, Serial, Manufacturer, Product string
	// MACs are lower case, sorted.
	MACs []string
}

// maxAttr bounds what is read of an attribute.
const maxAttr = 4096

func read(f fs.FS, name string) string {
	b, err := fs.ReadFile(f, name)
	if err != nil {
		return ""
	}
	return Clean(b[:min(len(b), maxAttr)])
}

// Clean makes one line of printable ASCII of a firmware string.
func Clean(b []byte) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < 0x20 || r > 0x7e {
			return ' '
		}
		return r
	}, string(b)))
}

// ReadSystem reads the system from sys (/sys) and proc (/proc).
func ReadSystem(sys, proc fs.FS) System {
	dmi := func(name string) string { return read(sys, "class/dmi/id/"+name) }
	s := System{Manufacturer: dmi("sys_vendor"), Product: dmi("product_name"), Serial: dmi("product_serial"), UUID: strings.ToLower(dmi("product_uuid")),
		FirmwareVendor: dmi("bios_vendor"), FirmwareVersion: dmi("bios_version"), FirmwareMode: "bios", KernelRelease: read(proc, "sys/kernel/osrelease")}
	if _, err := fs.Stat(sys, "firmware/efi"); err == nil {
		s.FirmwareMode = "uefi"
	}
	return s
}

// ReadClaims reads what Join sends.
func ReadClaims(sys, proc fs.FS) Claims {
	s := ReadSystem(sys, proc)
	c := Claims{UUID: s.UUID, Serial: s.Serial, Manufacturer: s.Manufacturer, Product: s.Product}
	if !validUUID(c.UUID) || Placeholder(c.UUID) {
		c.UUID = ""
	}
	board, chassis := read(sys, "class/dmi/id/board_serial"), read(sys, "class/dmi/id/chassis_serial")
	if Placeholder(c.Serial) || (c.Serial == board && c.Serial == chassis) {
		c.Serial = ""
	}
	for _, n := range ReadNICs(sys) {
		c.MACs = append(c.MACs, n.MAC)
	}
	sort.Strings(c.MACs)
	return c
}

func validUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i, c := range s {
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if c != '-' {
				return false
			}
		} else if !strings.ContainsRune("0123456789abcdef", c) {
			return false
		}
	}
	return true
}

// ReadCPU sums up /proc/cpuinfo.
func ReadCPU(proc fs.FS) CPU {
	b, err := fs.ReadFile(proc, "cpuinfo")
	if err != nil {
		return CPU{}
	}
	var c CPU
	sockets, cores := map[string]bool{}, map[string]bool{}
	socket := ""
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		key, value, ok := strings.Cut(s.Text(), ":")
		if !ok {
			continue
		}
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "processor":
			c.Threads++
			socket = ""
		case "model name":
			c.Model = Clean([]byte(value))
		case "physical id":
			socket = value
			sockets[value] = true
		case "core id":
			cores[socket+"/"+value] = true
		}
	}
	c.Sockets, c.Cores = max(len(sockets), min(1, c.Threads)), len(cores)
	if c.Cores == 0 {
		c.Cores = c.Threads
	}
	return c
}

// ReadMemory returns the bytes of memory that the kernel manages; 0 when unknown.
func ReadMemory(proc fs.FS) int64 {
	b, err := fs.ReadFile(proc, "meminfo")
	if err != nil {
		return 0
	}
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		f := strings.Fields(s.Text())
		if len(f) == 3 && f[0] == "MemTotal:" && f[2] == "kB" {
			n, err := strconv.ParseInt(f[1], 10, 50)
			if err != nil || n < 0 {
				return 0
			}
			return n << 10
		}
	}
	return 0
}

// maxNICs bounds the list.
const maxNICs = 256

// ReadNICs lists the physical Ethernet cards in sys, sorted by name.
func ReadNICs(sys fs.FS) []NIC {
	entries, err := fs.ReadDir(sys, "class/net")
	if err != nil {
		return nil
	}
	var out []NIC
	for _, e := range entries {
		dir := path.Join("class/net", e.Name())
		if _, err := fs.Stat(sys, path.Join(dir, "device")); err != nil || read(sys, path.Join(dir, "type")) != "1" {
			continue
		}
		mac, err := net.ParseMAC(read(sys, path.Join(dir, "address")))
		if err != nil || len(mac) != 6 || mac[0]&1 != 0 || bytes.Equal(mac, make([]byte, 6)) {
			continue
		}
		n := NIC{Name: e.Name(), MAC: mac.String(), Link: read(sys, path.Join(dir, "carrier")) == "1"}
		if target, err := fs.ReadLink(sys, path.Join(dir, "device/driver")); err == nil {
			n.Driver = path.Base(target)
		}
		if v, err := strconv.Atoi(read(sys, path.Join(dir, "speed"))); err == nil && v > 0 {
			n.SpeedMbps = v
		}
		if out = append(out, n); len(out) == maxNICs {
			break
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

// BootID returns the kernel's random id of this boot.
func BootID(proc fs.FS) string { return read(proc, "sys/kernel/random/boot_id") }

// GPUs counts NVIDIA display and 3D controllers on PCI (vendor 10de, class 03xx); their audio functions and switches do not count.
func GPUs(sys fs.FS) int {
	entries, err := fs.ReadDir(sys, "bus/pci/devices")
	if err != nil {
		return 0
	}
	n := 0
	for _, e := range entries {
		dir := path.Join("bus/pci/devices", e.Name())
		class := read(sys, path.Join(dir, "class"))
		if read(sys, path.Join(dir, "vendor")) == "0x10de" && (strings.HasPrefix(class, "0x0300") || strings.HasPrefix(class, "0x0302")) {
			n++
		}
	}
	return n
}
