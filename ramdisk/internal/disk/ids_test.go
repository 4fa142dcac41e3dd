package disk

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestFirstID(t *testing.T) {
	for in, want := range map[string]string{
		"naa.5000C500A1B2C3D4": "naa.5000c500a1b2c3d4", "eui.0000000000000000": "", "00000000-0000-0000-0000-000000000000": "",
		"nvme.1b36-6e7630-51454d55-00000001": "", "t10.ATA     QEMU HARDDISK   QM00001": "", "0x5000c500a1b2c3d4": "naa.5000c500a1b2c3d4",
		"00 02 c9 03 00 11 22 33": "eui.0002c90300112233", "": "", "eui.": "",
	} {
		if got := firstID(in); got != want {
			t.Errorf("firstID(%q): got %q, want %q", in, got, want)
		}
	}
	if !sameWWN("5000c500a1b2c3d4", "naa.5000c500a1b2c3d4") || sameWWN("", "") || sameWWN("naa.0", "naa.0") {
		t.Error("sameWWN: an id equals itself without its prefix, and nothing equals nothing")
	}
}

// FuzzWorldWideNames: what a drive or an operator gives as a world-wide name has one normal form, and equals itself.
func FuzzWorldWideNames(f *testing.F) {
	for _, s := range []string{"naa.5000C500A1B2C3D4", "0x5000c500a1b2c3d4", "eui.0000000000000000", "00 02 c9 03 00 11 22 33", "t10.ATA     QEMU HARDDISK   QM00001",
		"uuid.6ba7b810-9dad-11d1-80b4-00c04fd430c8", "nvme.1b36-6e7630-51454d55-00000001", "5000c500a1b2c3d4\n", "naa.", "\xff\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n := normalWWN(s)
		if n == "" {
			return
		}
		if normalWWN(n) != n || !sameWWN(n, s) || !sameWWN(n, n) {
			t.Errorf("%q became %q, which becomes %q", s, n, normalWWN(n))
		}
	})
}

func FuzzVPD80(f *testing.F) {
	f.Add([]byte("\x00\x80\x00\x08  SERIAL"))
	f.Add([]byte("\x00\x80\xff\xff"))
	f.Add([]byte("\x00\x80\x00\x14S1                  "))
	f.Add([]byte("\x00\x83\x00\x02S1"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if s := parseVPD80(b); strings.TrimSpace(s) != s || len(s) > len(b) {
			t.Errorf("serial %q is padded or longer than the page", s)
		}
	})
}

// FuzzSysfsSerial feeds what a device may say of itself through the scan.
func FuzzSysfsSerial(f *testing.F) {
	f.Add([]byte("NV1   \n"), []byte("eui.0000000000000000"), []byte("1"))
	f.Add([]byte("\x00\xff\x1b[31m"), []byte("naa.5"), []byte("-1"))
	f.Add([]byte("  S1 \n"), []byte("nvme.1b36-6e7630-51454d55-00000001\n"), []byte("1048576\n"))
	f.Add([]byte("00000000"), []byte("00000000-0000-0000-0000-000000000000"), []byte("18446744073709551615"))
	f.Fuzz(func(t *testing.T, serial, wwid, size []byte) {
		sys := fstest.MapFS{
			"block/nvme0n1/device/serial": {Data: serial}, "block/nvme0n1/wwid": {Data: wwid},
			"block/nvme0n1/size": {Data: size}, "block/nvme0n1/dev": {Data: []byte("259:0")}}
		d := Read(sys, "block/nvme0n1", nil)
		for _, r := range d.Serial + d.WWN {
			if r < 0x20 || r > 0x7e {
				t.Fatalf("serial %q or WWN %q is not plain text", d.Serial, d.WWN)
			}
		}
		if d.Size < 0 || (d.Excluded == "" && d.Size == 0) {
			t.Fatalf("a disk of %d bytes is a candidate", d.Size)
		}
	})
}

func FuzzMountinfo(f *testing.F) {
	f.Add("25 1 8:1 / /mnt rw - ext4 /dev/sda1 rw\n")
	f.Add("x\n1 2 a:b c d\n")
	f.Add("1 1 0:2 / / rw - rootfs rootfs rw,size=172904k\n21 1 0:20 / /proc rw,relatime - proc proc rw\n31 1 254:3 / /run/firstlight/mnt/part-1 rw,nosuid - vfat /dev/vda2 rw\n")
	f.Fuzz(func(t *testing.T, s string) { parseMountinfo(strings.NewReader(s), Usage{}) })
}
