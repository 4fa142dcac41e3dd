package disk_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/disk/disktest"
)

func TestTwinConforms(t *testing.T) {
	d := disktest.New("FL-1", 1<<20)
	m := &disktest.Machine{Disks: []*disktest.Disk{d}}
	disktest.Run(t, func(t *testing.T) disk.Device {
		dev, err := m.Open(d.Info)
		if err != nil {
			t.Fatal(err)
		}
		return dev
	})
}

// sysfs builds the content of /sys for a list of devices.
type sysfs fstest.MapFS

func (s sysfs) put(path, value string) { s[path] = &fstest.MapFile{Data: []byte(value)} }

// add puts a device at its place on a bus, with the links that the kernel makes.
func (s sysfs) add(name, bus string, major, minor int, sectors string, attrs map[string]string) {
	dir := "devices/" + bus + "/block/" + name
	s["block/"+name] = &fstest.MapFile{Data: []byte("../" + dir), Mode: fs.ModeSymlink}
	number := fmt.Sprintf("%d:%d", major, minor)
	s["dev/block/"+number] = &fstest.MapFile{Data: []byte("../../" + dir), Mode: fs.ModeSymlink}
	s.put(dir+"/dev", number+"\n")
	s.put(dir+"/size", sectors)
	s.put(dir+"/removable", "0\n")
	s.put(dir+"/ro", "0\n")
	s.put(dir+"/queue/logical_block_size", "512\n")
	s.put(dir+"/queue/physical_block_size", "4096\n")
	for k, v := range attrs {
		s.put(dir+"/"+k, v)
	}
}

func vpd80(serial string) string {
	b := []byte{0, 0x80}
	b = binary.BigEndian.AppendUint16(b, uint16(len(serial)))
	return string(b) + serial
}

const (
	nvmeBus = "pci0000:00/0000:00:03.0/nvme/nvme0"
	usbBus  = "pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/host6/target6:0:0/6:0:0:0"
	ataBus  = "pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0"
	sasBus  = "pci0000:00/0000:00:05.0/host0/target0:0:0/0:0:0:0"
)

func TestINV03_OnlyServerDisksAreCandidates(t *testing.T) {
	s := sysfs{}
	s.add("fd0", "platform/floppy.0", 2, 0, "8\n", nil)
	s.add("sr0", ataBus, 11, 0, "2097151\n", map[string]string{"device/type": "5\n"})
	s.add("loop0", "virtual", 7, 0, "1024\n", nil)
	s.add("ram0", "virtual", 1, 0, "1024\n", nil)
	s.add("zram0", "virtual", 254, 0, "1024\n", nil)
	s.add("dm-0", "virtual", 253, 0, "1024\n", nil)
	s.add("md0", "virtual", 9, 0, "1024\n", nil)
	s.add("sda", usbBus, 8, 0, "0\n", map[string]string{"removable": "1\n", "device/model": "Virtual HDisk0  \n", "device/vpd_pg80": vpd80("VH0")})
	s.add("sdb", usbBus, 8, 16, "30000000\n", map[string]string{"device/model": "Ultra Fit\n", "device/vpd_pg80": vpd80("STICK1")})
	s.add("sdc", sasBus, 8, 32, "not a number\n", map[string]string{"device/vpd_pg80": vpd80("BROKEN")})
	s.add("nvme0n1", nvmeBus, 259, 0, "1048576\n", map[string]string{"device/serial": "NV1   \n", "device/model": "QEMU NVMe\n", "nsid": "1\n", "eui": "00 00 00 00 00 00 00 00\n"})
	s.add("mmcblk0boot0", "mmc", 179, 8, "8192\n", nil)
	delete(s, "devices/"+nvmeBus+"/block/nvme0n1/queue/physical_block_size") // an attribute that is not there ends nothing

	disks, err := disk.Scan(fstest.MapFS(s), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(disks) != 12 {
		t.Fatalf("listed %d devices, want all 12", len(disks))
	}
	for _, d := range disks {
		if (d.Excluded == "") != (d.Name == "nvme0n1") {
			t.Errorf("%s: excluded because %q", d.Name, d.Excluded)
		}
	}
	got := disk.Candidates(disks)
	if len(got) != 1 || got[0].Serial != "NV1" || got[0].WWN != "" || got[0].Size != 512<<20 || got[0].Transport != "nvme" {
		t.Errorf("candidates: got %+v, want nvme0n1 alone, without a WWN of zeroes", got)
	}
}

func TestINV03_BootMediumIsNeverATargetEvenByName(t *testing.T) {
	s := sysfs{}
	s.add("sdb", usbBus, 8, 16, "30000000\n", map[string]string{"device/vpd_pg80": vpd80("STICK1")})
	s.add("sda", sasBus, 8, 0, "30000000\n", map[string]string{"device/vpd_pg80": vpd80("SAS1"), "device/type": "0\n", "sda1/partition": "1\n", "sda1/dev": "8:1\n", "sda1/start": "2048\n", "sda1/size": "100\n"})
	disks, err := disk.Scan(fstest.MapFS(s), disk.Usage{disk.Number{Major: 8, Minor: 1}: "mounted at /run/medium"})
	if err != nil {
		t.Fatal(err)
	}
	for _, serial := range []string{"STICK1", "SAS1"} {
		_, err := disk.Select(disks, disk.Selector{Serial: serial})
		if !errors.Is(err, disk.ErrExcluded) {
			t.Errorf("select %s: got %v, want ErrExcluded", serial, err)
		}
	}
	if _, err := disk.Select(disks, disk.Selector{Serial: "SAS1"}); err == nil || !strings.Contains(err.Error(), "mounted at /run/medium") {
		t.Errorf("got %v, want the mount named", err)
	}
}

func TestINV04_NamesSwapAndIdsDecide(t *testing.T) {
	boot := func(first, second string) []disk.Disk {
		s := sysfs{}
		for i, serial := range []string{first, second} {
			s.add(fmt.Sprintf("nvme%dn1", i), fmt.Sprintf("pci0000:00/nvme/nvme%d", i), 259, i, "1048576\n",
				map[string]string{"device/serial": serial, "nsid": "1\n", "wwid": "eui.0000000000000000\n"})
		}
		disks, err := disk.Scan(fstest.MapFS(s), nil)
		if err != nil {
			t.Fatal(err)
		}
		return disks
	}
	sel := disk.Selector{Serial: "NV-B", Namespace: 1}
	one, err := disk.Select(boot("NV-A", "NV-B"), sel)
	if err != nil || one.Name != "nvme1n1" || one.WWN != "" {
		t.Fatalf("boot 1: got %+v, %v", one, err)
	}
	two, err := disk.Select(boot("NV-B", "NV-A"), sel)
	if err != nil || two.Name != "nvme0n1" || two.Serial != "NV-B" {
		t.Fatalf("boot 2: got %+v, %v, want the same namespace under its new name", two, err)
	}
}

func TestINV04_AmbiguousMatchStops(t *testing.T) {
	s := sysfs{}
	for n := 1; n <= 2; n++ {
		s.add(fmt.Sprintf("nvme0n%d", n), nvmeBus, 259, n, "1048576\n", map[string]string{"device/serial": "NV1", "nsid": fmt.Sprint(n)})
	}
	disks, err := disk.Scan(fstest.MapFS(s), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = disk.Select(disks, disk.Selector{Serial: "NV1"})
	if !errors.Is(err, disk.ErrAmbiguous) || !strings.Contains(err.Error(), "namespace 2") {
		t.Errorf("one serial, two namespaces: got %v, want ErrAmbiguous with both listed", err)
	}
	if d, err := disk.Select(disks, disk.Selector{Serial: "NV1", Namespace: 2}); err != nil || d.Name != "nvme0n2" {
		t.Errorf("serial and namespace: got %v, %v", d, err)
	}
	for _, sel := range []disk.Selector{{}, {Size: 512 << 20}, {Serial: "000"}, {Model: "X"}} {
		if _, err := disk.Select(disks, sel); !errors.Is(err, disk.ErrUnnamed) {
			t.Errorf("select %+v: got %v, want ErrUnnamed", sel, err)
		}
	}
}

func TestWIPE09_WrongSerialListsWhatIsThere(t *testing.T) {
	disks := []disk.Disk{{Name: "sda", Serial: "FL-1", Size: 1 << 30}, {Name: "sdb", Serial: "USB-1", Excluded: "attached by USB"}}
	_, err := disk.Select(disks, disk.Selector{Serial: "NOPE"})
	if !errors.Is(err, disk.ErrNotFound) || !strings.Contains(err.Error(), "FL-1") || !strings.Contains(err.Error(), "USB-1") {
		t.Errorf("got %v, want ErrNotFound naming both disks by serial", err)
	}
}

// TestWIPE09_NothingIsWrittenToAnotherDisk exchanges the disk at every moment between plan and first write.
func TestWIPE09_NothingIsWrittenToAnotherDisk(t *testing.T) {
	exchanges := map[string]func(*disk.Disk){
		"other serial":           func(d *disk.Disk) { d.Serial = "OTHER" },
		"one sector less":        func(d *disk.Disk) { d.Size -= 512 },
		"other model":            func(d *disk.Disk) { d.Model = "OTHER" },
		"other WWN":              func(d *disk.Disk) { d.WWN = "naa.5000000000000001" },
		"other namespace":        func(d *disk.Disk) { d.Namespace = 2 },
		"same slot, same labels": func(d *disk.Disk) { d.Sequence++ },
	}
	for name, edit := range exchanges {
		t.Run("before open: "+name, func(t *testing.T) {
			d := disktest.New("FL-1", 1<<20)
			m := &disktest.Machine{Disks: []*disktest.Disk{d}, BeforeOpen: func(string) { d.Exchange(edit) }}
			if _, err := disk.Claim(m, disk.Selector{Serial: "FL-1"}); !errors.Is(err, disk.ErrDiffers) {
				t.Errorf("claim: got %v, want ErrDiffers", err)
			}
			if d.Changed() != 0 || d.Open() != 0 {
				t.Errorf("changed %d bytes, %d handles open, want 0 and 0", d.Changed(), d.Open())
			}
		})
		t.Run("before the first write: "+name, func(t *testing.T) {
			d := disktest.New("FL-1", 1<<20)
			c, err := disk.Claim(&disktest.Machine{Disks: []*disktest.Disk{d}}, disk.Selector{Serial: "FL-1"})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			d.Exchange(edit)
			writes := map[string]error{"zeroout": c.ZeroOut(0, 4096), "discard": c.Discard(0, 4096)}
			_, writes["write"] = c.WriteAt(disk.Buffer(4096), 0)
			for w, err := range writes {
				if !errors.Is(err, disk.ErrDiffers) {
					t.Errorf("%s: got %v, want ErrDiffers", w, err)
				}
			}
			if d.Changed() != 0 || c.Wrote() {
				t.Errorf("changed %d bytes, want 0", d.Changed())
			}
		})
	}
}

func TestWIPE09_SelectorSizeAndModelMustFit(t *testing.T) {
	d := disktest.New("FL-1", 1<<20)
	m := &disktest.Machine{Disks: []*disktest.Disk{d}}
	for _, sel := range []disk.Selector{{Serial: "FL-1", Size: 1<<20 - 512}, {Serial: "FL-1", Model: "ELSE"}, {Serial: "FL-1", WWN: "naa.5000000000000001"}} {
		if _, err := disk.Claim(m, sel); !errors.Is(err, disk.ErrDiffers) {
			t.Errorf("claim %v: got %v, want ErrDiffers", sel, err)
		}
	}
	if d.Changed() != 0 {
		t.Errorf("changed %d bytes, want 0", d.Changed())
	}
}

func TestSameSerialOnTwoPathsIsAmbiguous(t *testing.T) {
	a, b := disktest.New("LUN-1", 1<<20).Named("sda"), disktest.New("LUN-1", 1<<20).Named("sdb")
	m := &disktest.Machine{Disks: []*disktest.Disk{a, b}}
	if _, err := disk.Claim(m, disk.Selector{Serial: "LUN-1", Size: 1 << 20}); !errors.Is(err, disk.ErrAmbiguous) {
		t.Errorf("got %v, want ErrAmbiguous", err)
	}
}
