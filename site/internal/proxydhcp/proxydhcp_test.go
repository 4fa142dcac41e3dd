package proxydhcp

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

var update = flag.Bool("update", false, "write the golden files")

var (
	server = netip.MustParseAddr("10.77.0.2")
	mac    = net.HardwareAddr{0x52, 0x54, 0, 0x77, 0, 1}
	// guid is option 97 as OVMF sends it for the UUID below.
	guid     = unhex("00 78563412 3412 7856 9abc def012345678")
	guidText = "12345678-1234-5678-9abc-def012345678"
)

func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

// book answers every client with what the table of architectures says, and iPXE with a script.
type book struct {
	script  string
	offered []Client
}

func (b *book) Find(c Client) (string, bool) {
	if c.IPXE {
		return b.script, true
	}
	name, http, ok := Firmware(c.Arch)
	if http {
		return "http://10.77.0.2:8080/b/token/" + name, ok
	}
	return "t/token/" + name, ok
}

func (b *book) Offered(c Client, _ string, _ Port) { b.offered = append(b.offered, c) }

func newBook() *book { return &book{script: "http://10.77.0.2:8080/b/token/script.ipxe"} }

// opt is one option as it stands in the packet.
type opt struct {
	code byte
	b    []byte
}

// packet builds a request byte by byte, so that the codec under test does not write its own questions.
func packet(opts ...opt) []byte {
	b := make([]byte, 236)
	b[0], b[1], b[2] = 1, 1, 6
	copy(b[4:], []byte{0xde, 0xad, 0xbe, 0xef})
	b[10] = 0x80
	copy(b[28:], mac)
	b = append(b, 99, 130, 83, 99)
	for _, o := range opts {
		b = append(append(b, o.code, byte(len(o.b))), o.b...)
	}
	return append(b, 255)
}

// discover is OVMF's question, changed by more options; a later option of the same code replaces the earlier one, and one with
// nil bytes takes it away.
func discover(more ...opt) []byte {
	opts := []opt{{53, []byte{1}}, {60, []byte("PXEClient:Arch:00007:UNDI:003001")}, {93, []byte{0, 7}}, {94, []byte{1, 3, 16}}, {97, guid}}
next:
	for _, m := range more {
		for i := range opts {
			if opts[i].code == m.code {
				opts[i] = m
				continue next
			}
		}
		opts = append(opts, m)
	}
	var kept []opt
	for _, o := range opts {
		if o.b != nil {
			kept = append(kept, o)
		}
	}
	return packet(kept...)
}

func answer(t *testing.T, b []byte, port Port) (*dhcpv4.DHCPv4, Client, string) {
	t.Helper()
	reply, c, file, err := Answer(b, port, server, newBook())
	if err != nil {
		t.Fatalf("got error %v, want an answer", err)
	}
	if reply == nil {
		return nil, c, ""
	}
	// What counts is what is on the wire.
	back, err := dhcpv4.FromBytes(reply.ToBytes())
	if err != nil {
		t.Fatal(err)
	}
	return back, c, file
}

func TestDHCP01_ArchitecturesAndTheirFiles(t *testing.T) {
	for _, c := range []struct {
		arch []byte
		file string
	}{
		{[]byte{0, 7}, "snponly.efi"}, {[]byte{0, 9}, "snponly.efi"}, {[]byte{0, 0}, "undionly.kpxe"},
		{[]byte{0, 6}, "snponly-ia32.efi"}, {[]byte{0, 10}, "snponly-arm32.efi"}, {[]byte{0, 11}, "snponly-arm64.efi"},
	} {
		reply, _, _ := answer(t, discover(opt{93, c.arch}), PortDHCP)
		if reply == nil || reply.BootFileName != "t/token/"+c.file {
			t.Errorf("architecture %x: got %v, want file %s", c.arch, reply, c.file)
		}
	}
}

func TestDHCP02_ListedUnknownAndMalformedArchitectures(t *testing.T) {
	if _, c, _ := answer(t, discover(opt{93, []byte{0, 16, 0, 7}}), PortDHCP); c.Arch != ArchX64 {
		t.Errorf("list 16, 7: got %d, want 7", c.Arch)
	}
	for _, raw := range [][]byte{{0}, {0xff, 0xff}, {}, {0, 7, 0}, nil} {
		reply, _, _, err := Answer(discover(opt{93, raw}), PortDHCP, server, newBook())
		if reply != nil || err == nil || !strings.Contains(err.Error(), mac.String()) || !strings.Contains(err.Error(), hex.EncodeToString(raw)) {
			t.Errorf("option 93 %x: got %v, %v, want silence and an error with MAC and bytes", raw, reply, err)
		}
	}
}

func TestDHCP03_HTTPBootOffers(t *testing.T) {
	for _, c := range []struct {
		arch []byte
		file string
	}{
		{[]byte{0, 0x10}, "snponly.efi"}, {[]byte{0, 0x0f}, "snponly-ia32.efi"}, {[]byte{0, 0x12}, "snponly-arm32.efi"},
		{[]byte{0, 0x13}, "snponly-arm64.efi"}, {[]byte{0, 7, 0, 0x10}, "snponly.efi"},
	} {
		ask := discover(opt{60, fmt.Appendf(nil, "HTTPClient:Arch:%05d:UNDI:003001", c.arch[len(c.arch)-1])}, opt{93, c.arch})
		reply, got, _ := answer(t, ask, PortDHCP)
		if reply == nil {
			t.Errorf("architecture %x: got silence", c.arch)
			continue
		}
		if reply.ClassIdentifier() != "HTTPClient" || reply.BootFileName != "http://10.77.0.2:8080/b/token/"+c.file || !got.HTTP {
			t.Errorf("architecture %x: got class %q, file %q", c.arch, reply.ClassIdentifier(), reply.BootFileName)
		}
		if reply.Options.Has(dhcpv4.OptionVendorSpecificInformation) || reply.Options.Has(dhcpv4.OptionTFTPServerName) || reply.ServerHostName != "" {
			t.Errorf("architecture %x: got option 43 or a TFTP server beside the address", c.arch)
		}
	}
	for name, b := range map[string][]byte{
		"architecture of PXE":       discover(opt{60, []byte("HTTPClient:Arch:00016:UNDI:003001")}),
		"architecture 20":           discover(opt{60, []byte("HTTPClient:Arch:00016:UNDI:003001")}, opt{93, []byte{0, 20}}),
		"PXE client that says HTTP": discover(opt{93, []byte{0, 16}}),
	} {
		if reply, _, _, err := Answer(b, PortDHCP, server, newBook()); reply != nil || err == nil {
			t.Errorf("%s: got %v, %v, want silence and an error", name, reply, err)
		}
	}
	request := discover(opt{53, []byte{3}}, opt{60, []byte("HTTPClient:Arch:00016:UNDI:003001")}, opt{93, []byte{0, 16}})
	if reply, _, _, err := Answer(request, PortPXE, server, newBook()); reply != nil || err != nil {
		t.Errorf("port 4011: got %v, %v, want silence: it is PXE's", reply, err)
	}
}

func TestDHCP04_OfferCarriesOption43(t *testing.T) {
	reply, _, _ := answer(t, discover(), PortDHCP)
	for _, c := range []struct {
		what      string
		got, want []byte
	}{
		{"message type", reply.Options.Get(dhcpv4.OptionDHCPMessageType), []byte{2}},
		{"vendor class", reply.Options.Get(dhcpv4.OptionClassIdentifier), []byte("PXEClient")},
		{"option 43", reply.Options.Get(dhcpv4.OptionVendorSpecificInformation), unhex("06 01 08 ff")},
		{"server id", reply.Options.Get(dhcpv4.OptionServerIdentifier), server.AsSlice()},
		{"next server", reply.ServerIPAddr.To4(), server.AsSlice()},
		{"address", reply.YourIPAddr.To4(), []byte{0, 0, 0, 0}},
	} {
		if !bytes.Equal(c.got, c.want) {
			t.Errorf("%s: got %x, want %x", c.what, c.got, c.want)
		}
	}
	golden(t, "offer", discover(), PortDHCP)
	golden(t, "ipxe-offer", discover(opt{77, []byte("iPXE")}), PortDHCP)
	golden(t, "ack-4011", discover(opt{53, []byte{3}}, opt{54, server.AsSlice()}), PortPXE)
}

func golden(t *testing.T, name string, req []byte, port Port) {
	t.Helper()
	reply, _, _, err := Answer(req, port, server, newBook())
	if err != nil || reply == nil {
		t.Fatalf("%s: got %v, %v, want an answer", name, reply, err)
	}
	got := hex.Dump(reply.ToBytes())
	path := filepath.Join("testdata", name+".hex")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", path, got, want)
	}
}

func TestDHCP06_MachineIdentifier(t *testing.T) {
	zero, ones := make([]byte, 17), append([]byte{0}, bytes.Repeat([]byte{0xff}, 16)...)
	for _, c := range []struct {
		name, uuid string
		sent, back []byte
	}{
		{"absent", "", nil, nil}, {"typed", guidText, guid, guid}, {"without its type", "", guid[1:], guid[1:]},
		{"all zero", "", zero, zero}, {"all ones", "", ones, ones}, {"no length", "", []byte{}, nil},
	} {
		reply, got, _ := answer(t, discover(opt{97, c.sent}), PortDHCP)
		if reply == nil {
			t.Errorf("%s: got no answer", c.name)
			continue
		}
		if back := reply.Options.Get(optClientUUID); !bytes.Equal(back, c.back) || reply.Options.Has(optClientUUID) != (c.back != nil) {
			t.Errorf("%s: echoed %x, want %x", c.name, back, c.back)
		}
		if got.UUID != c.uuid {
			t.Errorf("%s: got identity %q, want %q", c.name, got.UUID, c.uuid)
		}
	}
}

func TestDHCP07_RelayedRequestsGoBackToTheRelay(t *testing.T) {
	b := discover()
	b[3] = 1 // hops
	copy(b[24:], []byte{10, 10, 10, 1})
	from := netip.MustParseAddrPort("10.42.0.1:387")
	reply, _, _ := answer(t, b, PortDHCP)
	if to := destination(reply, PortDHCP, from, netip.MustParseAddrPort("255.255.255.255:68")); to.String() != "10.10.10.1:67" {
		t.Errorf("got destination %s, want 10.10.10.1:67", to)
	}
	if reply.Flags != 0x8000 || reply.TransactionID != [4]byte{0xde, 0xad, 0xbe, 0xef} || reply.ClientHWAddr.String() != mac.String() ||
		!reply.GatewayIPAddr.Equal(net.IPv4(10, 10, 10, 1)) {
		t.Errorf("got %v, want flags, xid, chaddr and giaddr as they were", reply)
	}
	copy(b[24:], []byte{0, 0, 0, 0})
	reply, _, _ = answer(t, b, PortDHCP)
	if to := destination(reply, PortDHCP, from, netip.MustParseAddrPort("255.255.255.255:68")); to.String() != "255.255.255.255:68" {
		t.Errorf("without a relay: got destination %s, want everybody", to)
	}
}

func TestDHCP08_RelayInformationEchoedLast(t *testing.T) {
	for _, info := range [][]byte{append(bytes.Repeat([]byte{0, 0xff}, 19), 1, 2), bytes.Repeat([]byte{7}, 255)} {
		for _, port := range []Port{PortDHCP, PortPXE} {
			req := discover(opt{82, info})
			if port == PortPXE {
				req = discover(opt{53, []byte{3}}, opt{82, info})
			}
			reply, _, _, err := Answer(req, port, server, newBook())
			if err != nil || reply == nil {
				t.Fatalf("got %v, %v, want an answer", reply, err)
			}
			wire := bytes.TrimRight(reply.ToBytes(), "\x00")
			want := append(append([]byte{82, byte(len(info))}, info...), 255)
			if !bytes.HasSuffix(wire, want) {
				t.Errorf("port %d: got %x, want %x at the end", port, wire[240:], want)
			}
		}
	}
}

func TestDHCP10_UserClass(t *testing.T) {
	for _, c := range []struct {
		class string
		ipxe  bool
	}{
		{"69505845", true}, {"0469505845", true}, {"046950584503666f6f", true}, {"086e6f746950584532", false}, {"00", false}, {"056950", false},
	} {
		if _, got, _ := answer(t, discover(opt{77, unhex(c.class)}), PortDHCP); got.IPXE != c.ipxe {
			t.Errorf("user class %s: got iPXE %v, want %v", c.class, got.IPXE, c.ipxe)
		}
		if _, got, _ := answer(t, discover(opt{77, unhex(c.class)}, opt{175, []byte{1}}), PortDHCP); !got.IPXE {
			t.Errorf("user class %s with option 175: got iPXE false, want true", c.class)
		}
	}
}

func TestDHCP12_FileIsACString(t *testing.T) {
	reply, _, _, err := Answer(discover(opt{93, []byte{0, 0}}, opt{55, []byte{66, 67}}), PortDHCP, server, newBook())
	if err != nil {
		t.Fatal(err)
	}
	field := reply.ToBytes()[108:236]
	want := make([]byte, 128)
	copy(want, "t/token/undionly.kpxe")
	if !bytes.Equal(field, want) || reply.Options.Has(dhcpv4.OptionBootfileName) {
		t.Errorf("got file %q, option 67 %v, want the name filled with zeros and no option", field, reply.Options.Has(dhcpv4.OptionBootfileName))
	}
	long := newBook()
	long.script = "http://10.77.0.2:8080/b/" + strings.Repeat("x", 120)
	reply, _, _, err = Answer(discover(opt{77, []byte("iPXE")}), PortDHCP, server, long)
	if err != nil || string(reply.Options.Get(dhcpv4.OptionBootfileName)) != long.script+"\x00" || reply.BootFileName != "" {
		t.Errorf("long script address: got %v, %v, want it in option 67 with a NUL", reply, err)
	}
}

func TestDHCP14_OtherClientsAreLeftAlone(t *testing.T) {
	for name, b := range map[string][]byte{
		"no class":              discover(opt{60, nil}),
		"Windows":               discover(opt{60, []byte("MSFT 5.0")}),
		"phone":                 discover(opt{60, []byte("android-dhcp-14")}),
		"access point":          discover(opt{60, []byte("Cisco AP c1130")}),
		"our RAM disk":          discover(opt{60, []byte("PXE UROOT")}),
		"class one byte short":  discover(opt{60, []byte("PXEClien")}),
		"INFORM":                discover(opt{53, []byte{8}}),
		"REQUEST, other server": discover(opt{53, []byte{3}}, opt{54, []byte{10, 77, 0, 1}}),
		"REQUEST, this server":  discover(opt{53, []byte{3}}, opt{54, server.AsSlice()}),
		"RELEASE":               discover(opt{53, []byte{7}}, opt{54, []byte{10, 77, 0, 1}}),
		"DECLINE":               discover(opt{53, []byte{4}}, opt{54, []byte{10, 77, 0, 1}}),
		"unknown type":          discover(opt{53, []byte{99}}),
	} {
		if reply, _, _, err := Answer(b, PortDHCP, server, newBook()); reply != nil || err != nil {
			t.Errorf("%s: got %v, %v, want silence", name, reply, err)
		}
	}
	if reply, _, _, err := Answer(discover(opt{53, []byte{3}}, opt{54, []byte{10, 77, 0, 1}}), PortPXE, server, newBook()); reply != nil || err != nil {
		t.Errorf("port 4011, other server: got %v, %v, want silence", reply, err)
	}
}

// hostile are the packets of DHCP-13 that are dropped.
func hostile() map[string][]byte {
	edit := func(at int, v byte) []byte { b := discover(); b[at] = v; return b }
	all := map[string][]byte{
		"code last":        append(discover()[:len(discover())-1], 43),
		"length past end":  append(discover()[:len(discover())-1], 43, 200, 1),
		"no end":           discover()[:len(discover())-1],
		"hlen 0":           edit(2, 0),
		"hlen 16":          edit(2, 16),
		"hlen 255":         edit(2, 255),
		"reply op":         edit(0, 2),
		"type absent":      discover(opt{53, nil}),
		"type of length 0": discover(opt{53, []byte{}}),
		"bad cookie":       edit(236, 0),
		"all ff":           bytes.Repeat([]byte{0xff}, 1500),
		"all 00":           make([]byte, 1500),
		"too long":         append(discover(), make([]byte, 1500)...),
	}
	for _, n := range []int{0, 1, 239, 240} {
		all[fmt.Sprintf("cut at %d", n)] = discover()[:n]
	}
	return all
}

func TestDHCP13_MalformedPackets(t *testing.T) {
	for name, b := range hostile() {
		if reply, _, _, err := Answer(b, PortDHCP, server, newBook()); reply != nil || err == nil {
			t.Errorf("%s: got %v, %v, want an error and no answer", name, reply, err)
		}
	}
	// Odd, but readable: answered, and the inner nonsense means nothing.
	for name, b := range map[string][]byte{
		"type not first":   packet(opt{60, []byte("PXEClient")}, opt{93, []byte{0, 7}}, opt{53, []byte{1}}),
		"43 inner length":  discover(opt{43, []byte{6, 200, 8}}),
		"77 inner length":  discover(opt{77, []byte{200, 'i'}}),
		"82 inner length":  discover(opt{82, []byte{1, 200, 8}}),
		"77 of length 255": discover(opt{77, bytes.Repeat([]byte{0xff}, 255)}),
	} {
		if reply, c, _ := answer(t, b, PortDHCP); reply == nil || c.IPXE {
			t.Errorf("%s: got %v, iPXE %v, want an answer for firmware", name, reply, c.IPXE)
		}
	}
}

// captured are requests of real firmware, iPXE and the RAM disk, taken from scenarios' captures.
func captured(tb testing.TB) map[string][]byte {
	tb.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", "wire", "*.bin"))
	if err != nil || len(paths) == 0 {
		tb.Fatalf("no captured requests: %v", err)
	}
	all := map[string][]byte{}
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			tb.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(p), ".bin")] = b
	}
	return all
}

func TestRequestsOfRealFirmware(t *testing.T) {
	for name, want := range map[string]string{
		"ovmf-discover": "t/token/snponly.efi", "ovmf-discover-third": "t/token/snponly.efi", "ipxe-uefi-discover": newBook().script,
		"ipxe-bios-rom-discover": newBook().script, "ovmf-request": "", "ipxe-uefi-request": "", "ramdisk-discover": "",
	} {
		reply, c, file := answer(t, captured(t)[name], PortDHCP)
		if file != want || (reply == nil) != (want == "") || c.MAC.String() != mac.String() && want != "" {
			t.Errorf("%s: got %v with file %q for %s, want %q", name, reply, file, c.MAC, want)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(discover(), false)
	f.Add(discover(opt{77, []byte("iPXE")}), false)
	f.Add(discover(opt{53, []byte{3}}, opt{82, []byte{1, 1, 1}}), true)
	f.Add(discover(opt{60, []byte("HTTPClient")}, opt{93, []byte{0, 16}}), false)
	for _, b := range captured(f) {
		f.Add(b, false)
		f.Add(b, true)
	}
	for _, b := range hostile() {
		f.Add(b, false)
	}
	f.Fuzz(func(t *testing.T, b []byte, pxe bool) {
		port := PortDHCP
		if pxe {
			port = PortPXE
		}
		reply, _, file, err := Answer(b, port, server, newBook())
		if reply == nil {
			return
		}
		if err != nil {
			t.Fatalf("got an answer beside error %v", err)
		}
		back, err := dhcpv4.FromBytes(reply.ToBytes())
		if err != nil {
			t.Fatalf("answer does not parse: %v", err)
		}
		if !back.YourIPAddr.IsUnspecified() || back.BootFileName != file || back.MessageType() == dhcpv4.MessageTypeNak {
			t.Fatalf("got address %s, file %q, type %s", back.YourIPAddr, back.BootFileName, back.MessageType())
		}
	})
}

func FuzzOptions(f *testing.F) {
	f.Add(unhex("046950584503666f6f"), []byte{0, 7}, guid)
	f.Add([]byte("iPXE"), []byte{0, 16, 0, 7}, guid[1:])
	f.Add([]byte{0}, []byte{0}, []byte{})
	f.Fuzz(func(t *testing.T, class, arch, id []byte) {
		total := 0
		for _, c := range ParseUserClass(class) {
			if c == "" {
				t.Fatal("got an empty class")
			}
			total += len(c) + 1
		}
		if total != 0 && total != len(class) && string(class) != "iPXE" {
			t.Fatalf("classes take %d bytes of %d", total, len(class))
		}
		if a, ok := ParseArch(arch, len(class)%2 == 0); ok && !bytes.Contains(arch, []byte{byte(a >> 8), byte(a)}) {
			t.Fatalf("got architecture %d, not in %x", a, arch)
		}
		if u := ParseUUID(id); u != "" && len(u) != 36 {
			t.Fatalf("got UUID %q", u)
		}
	})
}
