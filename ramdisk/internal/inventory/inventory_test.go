package inventory

import (
	"reflect"
	"strings"
	"testing"
	"testing/fstest"
)

func TestINV01_PlaceholdersAreAbsent(t *testing.T) {
	for _, s := range []string{"123456789", "0123456789", "System Serial Number", "NOT SETTABLE", "Not Specified", "Enter Serial", "Default string",
		"None", "N/A", "0", "To Be Filled By O.E.M.", "to be filled by o.e.m", "  default STRING.. ", "None\x00\x01", "None\xff", "", "00000000", "...",
		"03000200-0400-0500-0006-000700080009", "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"} {
		if !Placeholder(s) {
			t.Errorf("%q was taken for a name", s)
		}
	}
	for _, s := range []string{"CZ3104XYZ", "J1234567", "0012", "none-of-these-1"} {
		if Placeholder(s) {
			t.Errorf("%q was taken for a placeholder", s)
		}
	}
}

// TestINV01_EveryPhraseOfTheListIsAbsentHoweverItIsWritten: case, padding, trailing dots, control bytes and bytes beyond ASCII.
func TestINV01_EveryPhraseOfTheListIsAbsentHoweverItIsWritten(t *testing.T) {
	if len(placeholders) < 30 || len(placeholderPrefixes) == 0 {
		t.Fatalf("got %d phrases and %d beginnings, want the list", len(placeholders), len(placeholderPrefixes))
	}
	for p := range placeholders {
		if p != strings.ToLower(p) || p != strings.Trim(p, " ._-*") {
			t.Errorf("%q is not as placeholders.txt wants it", p)
		}
		for _, s := range []string{p, strings.ToUpper(p), "  " + p + "  ", p + "..", p + "\x00\x01", "\xff" + p + "\xfe\n", "\t" + strings.ToUpper(p) + " .\r\n"} {
			if !Placeholder(s) {
				t.Errorf("%q was taken for a name", s)
			}
		}
		// A placeholder within a name is a name.
		if s := "CZ" + p + "7"; Placeholder(s) {
			t.Errorf("%q was taken for a placeholder", s)
		}
	}
}

// TestINV01_MachineWithoutUsableIdentityClaimsItsMACs: what is shown stays raw, what identifies is left out.
func TestINV01_MachineWithoutUsableIdentityClaimsItsMACs(t *testing.T) {
	sys := dmi("Default string\n", "Default string\n", "Default string\n", "03000200-0400-0500-0006-000700080009\n")
	sys["class/net/eth1/type"] = &fstest.MapFile{Data: []byte("1\n")}
	sys["class/net/eth1/address"] = &fstest.MapFile{Data: []byte("52:54:00:aa:00:00\n")}
	sys["class/net/eth1/device/vendor"] = &fstest.MapFile{}
	c := ReadClaims(sys, fstest.MapFS{})
	if c.Serial != "" || c.UUID != "" || !reflect.DeepEqual(c.MACs, []string{"52:54:00:aa:00:00", "52:54:00:aa:00:01"}) {
		t.Errorf("got %+v, want nothing but two MACs", c)
	}
	if s := ReadSystem(sys, fstest.MapFS{}); s.Serial != "Default string" || s.UUID != "03000200-0400-0500-0006-000700080009" {
		t.Errorf("system: got %+v, want it raw", s)
	}
}

// TestINV01_IdenticalSerials: one text in all three places is no serial number, in two of them it may be.
func TestINV01_IdenticalSerials(t *testing.T) {
	uuid := "4c4c4544-0031-3510-8054-b4c04f564431"
	for _, c := range []struct{ serial, board, chassis, want string }{
		{"X1", "X1", "X1", ""}, {"X1 ", "X1", " X1\n", ""}, {"X1", "X1", "C1", "X1"}, {"X1", "", "X1", "X1"}, {"", "", "", ""},
	} {
		if got := ReadClaims(dmi(c.serial, c.board, c.chassis, uuid), fstest.MapFS{}).Serial; got != c.want {
			t.Errorf("%+v: got serial %q, want %q", c, got, c.want)
		}
	}
}

func dmi(serial, board, chassis, uuid string) fstest.MapFS {
	return fstest.MapFS{
		"class/dmi/id/sys_vendor": {Data: []byte("QEMU\n")}, "class/dmi/id/product_name": {Data: []byte("Standard PC\n")},
		"class/dmi/id/product_serial": {Data: []byte(serial)}, "class/dmi/id/board_serial": {Data: []byte(board)},
		"class/dmi/id/chassis_serial": {Data: []byte(chassis)}, "class/dmi/id/product_uuid": {Data: []byte(uuid)},
		"class/net/eth0/type": {Data: []byte("1\n")}, "class/net/eth0/address": {Data: []byte("52:54:00:AA:00:01\n")}, "class/net/eth0/device/vendor": {},
		"class/net/eth0/carrier": {Data: []byte("1\n")}, "class/net/eth0/speed": {Data: []byte("-1\n")},
		"class/net/lo/type": {Data: []byte("772\n")}, "class/net/lo/address": {Data: []byte("00:00:00:00:00:00\n")},
		"class/net/br0/type": {Data: []byte("1\n")}, "class/net/br0/address": {Data: []byte("52:54:00:aa:00:09\n")},
		"firmware/efi/systab": {},
	}
}

func TestINV01_ClaimsLeavePlaceholdersOut(t *testing.T) {
	uuid := "4C4C4544-0031-3510-8054-B4C04F564431\n"
	got := ReadClaims(dmi("CZ3104\n", "B-1\n", "C-1\n", uuid), fstest.MapFS{})
	want := Claims{UUID: "4c4c4544-0031-3510-8054-b4c04f564431", Serial: "CZ3104", Manufacturer: "QEMU", Product: "Standard PC", MACs: []string{"52:54:00:aa:00:01"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, sys := range []fstest.MapFS{dmi("Default string", "", "", "03000200-0400-0500-0006-000700080009"), dmi("SAME", "SAME", "SAME", "not a uuid")} {
		if got := ReadClaims(sys, fstest.MapFS{}); got.Serial != "" || got.UUID != "" {
			t.Errorf("got serial %q, UUID %q, want neither", got.Serial, got.UUID)
		}
	}
	if s := ReadSystem(dmi("Default string", "", "", uuid), fstest.MapFS{}); s.Serial != "Default string" || s.FirmwareMode != "uefi" {
		t.Errorf("system: got %+v, want the raw serial shown and uefi", s)
	}
}

func TestCPUAndMemory(t *testing.T) {
	proc := fstest.MapFS{
		"cpuinfo": {Data: []byte("processor\t: 0\nmodel name\t: EPYC\nphysical id\t: 0\ncore id\t: 0\n\nprocessor\t: 1\nmodel name\t: EPYC\nphysical id\t: 0\ncore id\t: 0\n\nprocessor\t: 2\nphysical id\t: 1\ncore id\t: 0\n")},
		"meminfo": {Data: []byte("MemTotal:         393216 kB\nMemFree: 1 kB\n")},
	}
	if got, want := ReadCPU(proc), (CPU{Model: "EPYC", Sockets: 2, Cores: 2, Threads: 3}); got != want {
		t.Errorf("cpu: got %+v, want %+v", got, want)
	}
	if got := ReadMemory(proc); got != 384<<20 {
		t.Errorf("memory: got %d, want 384 MiB", got)
	}
}

func TestGPU04_OnlyGraphicsFunctionsCount(t *testing.T) {
	sys := fstest.MapFS{}
	for name, vc := range map[string][2]string{"0000:01:00.0": {"0x10de", "0x030200"}, "0000:02:00.0": {"0x10de", "0x030000"},
		"0000:01:00.1": {"0x10de", "0x040300"}, "0000:05:00.0": {"0x10de", "0x068000"}, "0000:06:00.0": {"0x1002", "0x030000"}} {
		sys["bus/pci/devices/"+name+"/vendor"] = &fstest.MapFile{Data: []byte(vc[0] + "\n")}
		sys["bus/pci/devices/"+name+"/class"] = &fstest.MapFile{Data: []byte(vc[1] + "\n")}
	}
	if got := GPUs(sys); got != 2 {
		t.Errorf("got %d GPUs, want 2", got)
	}
}

func FuzzClaims(f *testing.F) {
	f.Add("CZ1", "4c4c4544-0031-3510-8054-b4c04f564431", "52:54:00:00:00:01", "processor: 1\n")
	f.Fuzz(func(t *testing.T, serial, uuid, mac, cpu string) {
		sys := dmi(serial, "", "", uuid)
		sys["class/net/eth0/address"] = &fstest.MapFile{Data: []byte(mac)}
		proc := fstest.MapFS{"cpuinfo": {Data: []byte(cpu)}, "meminfo": {Data: []byte(cpu)}}
		c := ReadClaims(sys, proc)
		for _, r := range c.Serial + c.UUID {
			if r < 0x20 || r > 0x7e {
				t.Fatalf("claims %+v are not plain text", c)
			}
		}
		ReadCPU(proc)
		ReadMemory(proc)
	})
}
