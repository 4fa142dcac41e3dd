package judge

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

var (
	machineMAC = net.HardwareAddr{0x52, 0x54, 0, 1, 2, 3}
	otherMAC   = net.HardwareAddr{0x52, 0x54, 0, 9, 9, 9}
	siteMAC    = net.HardwareAddr{2, 0, 0, 0, 0, 2}
	siteAddr   = netip.MustParseAddr("10.77.0.2")
	machine    = netip.MustParseAddr("10.77.0.100")
	start      = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
)

func testSegment() Segment {
	return Segment{Machine: machineMAC, Site: siteAddr, HTTP: netip.AddrPortFrom(siteAddr, 8080), Gateway: netip.AddrPortFrom(siteAddr, 8443),
		GatewayName: "gw.test", Program: "snponly.efi", ProgramSize: 1300}
}

// tape is a capture that a test writes frame by frame, one second apart.
type tape struct {
	t   *testing.T
	buf bytes.Buffer
	w   *pcapgo.Writer
	now time.Time
}

func newTape(t *testing.T) *tape {
	p := &tape{t: t, now: start}
	p.w = pcapgo.NewWriterNanos(&p.buf)
	if err := p.w.WriteFileHeader(65536, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *tape) frame(srcMAC net.HardwareAddr, src, dst netip.AddrPort, proto layers.IPProtocol, payload []byte) {
	p.t.Helper()
	ip := &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Protocol: proto, SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
	stack := []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: srcMAC, DstMAC: layers.EthernetBroadcast, EthernetType: layers.EthernetTypeIPv4}, ip}
	if proto == layers.IPProtocolUDP {
		stack = append(stack, &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: layers.UDPPort(dst.Port())})
	} else {
		stack = append(stack, &layers.TCP{SrcPort: layers.TCPPort(src.Port()), DstPort: layers.TCPPort(dst.Port()), ACK: true, Window: 1000})
	}
	out := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(out, gopacket.SerializeOptions{FixLengths: true}, append(stack, gopacket.Payload(payload))...); err != nil {
		p.t.Fatal(err)
	}
	p.now = p.now.Add(time.Second)
	if err := p.w.WritePacket(gopacket.CaptureInfo{Timestamp: p.now, Length: len(out.Bytes()), CaptureLength: len(out.Bytes())}, out.Bytes()); err != nil {
		p.t.Fatal(err)
	}
}

func (p *tape) trace() *Trace {
	p.t.Helper()
	tr, err := parseTrace(bytes.NewReader(p.buf.Bytes()), 8443, 8080)
	if err != nil {
		p.t.Fatal(err)
	}
	return tr
}

func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

func (p *tape) discover(mac net.HardwareAddr, class string, ipxe bool) {
	mods := []dhcpv4.Modifier{dhcpv4.WithHwAddr(mac), dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover), dhcpv4.WithOption(dhcpv4.OptClassIdentifier(class))}
	if ipxe {
		mods = append(mods, dhcpv4.WithUserClass("iPXE", false))
	}
	m, err := dhcpv4.New(mods...)
	if err != nil {
		p.t.Fatal(err)
	}
	p.frame(mac, at(netip.IPv4Unspecified(), 68), at(netip.MustParseAddr("255.255.255.255"), 67), layers.IPProtocolUDP, m.ToBytes())
}

func (p *tape) offer(from netip.Addr, mac net.HardwareAddr, file string, yours net.IP) {
	m, err := dhcpv4.New(dhcpv4.WithHwAddr(mac), dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer), dhcpv4.WithYourIP(yours))
	if err != nil {
		p.t.Fatal(err)
	}
	m.OpCode, m.BootFileName = dhcpv4.OpcodeBootReply, file
	if file != "" {
		m.UpdateOption(dhcpv4.OptClassIdentifier("PXEClient"))
	}
	p.frame(siteMAC, at(from, 67), at(netip.MustParseAddr("255.255.255.255"), 68), layers.IPProtocolUDP, m.ToBytes())
}

// transfer plays a size probe that is aborted and then a transfer of size bytes, as OVMF does (TFTP-01).
func (p *tape) transfer(file string, size int) {
	p.request(file, 2000)
	p.frame(siteMAC, at(siteAddr, 5000), at(machine, 2000), layers.IPProtocolUDP, []byte("\x00\x06tsize\x00"+fmt.Sprint(size)+"\x00blksize\x00512\x00"))
	p.frame(machineMAC, at(machine, 2000), at(siteAddr, 5000), layers.IPProtocolUDP, []byte("\x00\x05\x00\x08User aborted the transfer\x00"))
	p.request(file, 2001)
	p.frame(siteMAC, at(siteAddr, 5001), at(machine, 2001), layers.IPProtocolUDP, []byte("\x00\x06blksize\x00512\x00"))
	for block := 1; ; block++ {
		n := min(512, size-(block-1)*512)
		data := binary.BigEndian.AppendUint16([]byte{0, tftpData}, uint16(block))
		for range 2 { // each block comes twice: repetitions do not count
			p.frame(siteMAC, at(siteAddr, 5001), at(machine, 2001), layers.IPProtocolUDP, append(data[:4:4], make([]byte, n)...))
		}
		p.frame(machineMAC, at(machine, 2001), at(siteAddr, 5001), layers.IPProtocolUDP, binary.BigEndian.AppendUint16([]byte{0, tftpAck}, uint16(block)))
		if n < 512 {
			return
		}
	}
}

func (p *tape) request(file string, port uint16) {
	p.frame(machineMAC, at(machine, port), at(siteAddr, 69), layers.IPProtocolUDP, []byte("\x00\x01"+file+"\x00octet\x00blksize\x00512\x00"))
}

func (p *tape) get(path string, status int) {
	c, s := at(machine, 3000), at(siteAddr, 8080)
	p.frame(machineMAC, c, s, layers.IPProtocolTCP, []byte("GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"))
	p.frame(siteMAC, s, c, layers.IPProtocolTCP, fmt.Appendf(nil, "HTTP/1.1 %d Word\r\nContent-Length: 1\r\n\r\nx", status))
}

// handshake records the first flight of a real TLS 1.3 client and a minimal ServerHello.
func (p *tape) handshake(name string) {
	client, server := net.Pipe()
	go tls.Client(client, &tls.Config{ServerName: name, MinVersion: tls.VersionTLS13}).Handshake()
	buf := make([]byte, 8192)
	n, err := server.Read(buf)
	if err != nil {
		p.t.Fatal(err)
	}
	server.Close()
	c, s := at(machine, 3001), at(siteAddr, 8443)
	p.frame(machineMAC, c, s, layers.IPProtocolTCP, buf[:n])
	p.frame(siteMAC, s, c, layers.IPProtocolTCP, serverHello())
}

func serverHello() []byte {
	body := append([]byte{3, 3}, make([]byte, 32)...)
	body = append(body, 0, 0x13, 1, 0, 0, 6, 0, tlsSupportedVers, 0, 2, 3, 4)
	hand := append([]byte{tlsServerHello, 0, 0, byte(len(body))}, body...)
	return append([]byte{tlsHandshake, 3, 3, 0, byte(len(hand))}, hand...)
}

func (p *tape) wholeBoot() {
	p.discover(machineMAC, "PXEClient:Arch:00007:UNDI:003016", false)
	p.offer(netip.MustParseAddr("10.77.0.1"), machineMAC, "", net.IPv4(10, 77, 0, 100))
	p.offer(siteAddr, machineMAC, "t/abc/snponly.efi", nil)
	p.transfer("t/abc/snponly.efi", 1300)
	p.discover(machineMAC, "PXEClient:Arch:00007:UNDI:003016", true)
	p.offer(siteAddr, machineMAC, "http://10.77.0.2:8080/b/abc/script.ipxe", nil)
	p.get("/b/abc/script.ipxe", 200)
	p.handshake("gw.test")
}

func names(checks []Check) string {
	var bad []string
	for _, c := range checks {
		if !c.OK {
			bad = append(bad, c.Name+": "+c.Detail)
		}
	}
	return strings.Join(bad, "\n")
}

func TestBootSeesTheWholeChain(t *testing.T) {
	t.Parallel()
	p := newTape(t)
	p.wholeBoot()
	if bad := names(testSegment().Boot(p.trace())); bad != "" {
		t.Error(bad)
	}
}

func TestBootMissesWhatIsNotThere(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tape func(p *tape)
		want string
	}{
		"no offer":        {func(p *tape) { p.transfer("snponly.efi", 1300) }, "packets: proxy offer"},
		"gives addresses": {func(p *tape) { p.offer(siteAddr, machineMAC, "snponly.efi", net.IPv4(10, 77, 0, 9)) }, "packets: proxy offer"},
		"other machine":   {func(p *tape) { p.offer(siteAddr, otherMAC, "snponly.efi", nil) }, "packets: silent to others"},
		"short transfer":  {func(p *tape) { p.transfer("snponly.efi", 1100) }, "packets: TFTP transfer"},
		"refused script":  {func(p *tape) { p.get("/b/abc/script.ipxe", 410) }, "packets: HTTP script"},
		"another gateway": {func(p *tape) { p.handshake("other.test") }, "packets: TLS to the gateway"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newTape(t)
			c.tape(p)
			if bad := names(testSegment().Boot(p.trace())); !strings.Contains(bad, c.want) {
				t.Errorf("complaints:\n%s\nwant one about %q", bad, c.want)
			}
		})
	}
}

func TestTFTPErrorIsTheTransfersOwn(t *testing.T) {
	t.Parallel()
	p := newTape(t)
	p.request("t/abc/snponly.efi", 2000)
	p.frame(siteMAC, at(siteAddr, 5000), at(machine, 2000), layers.IPProtocolUDP, []byte("\x00\x05\x00\x01file not found\x00"))
	tr := p.trace()
	if len(tr.TFTP) != 1 || tr.TFTP[0].Error != "file not found" || tr.TFTP[0].Complete {
		t.Errorf("transfers: %+v, want one with the server's error", tr.TFTP)
	}
}

func TestSilence(t *testing.T) {
	t.Parallel()
	p := newTape(t)
	p.wholeBoot()
	cycle := p.now.Add(time.Millisecond)
	if got := testSegment().Silence(p.trace(), cycle); got[0].OK {
		t.Errorf("%+v: nobody asked, so silence proves nothing", got[0])
	}
	p.discover(machineMAC, "PXEClient:Arch:00007:UNDI:003016", false)
	p.offer(netip.MustParseAddr("10.77.0.1"), machineMAC, "", net.IPv4(10, 77, 0, 100))
	if bad := names(testSegment().Silence(p.trace(), cycle)); bad != "" {
		t.Error(bad)
	}
	p.offer(siteAddr, machineMAC, "t/abc/snponly.efi", nil)
	if got := testSegment().Silence(p.trace(), cycle); got[1].OK {
		t.Errorf("%+v: an answer counts as silence", got[1])
	}
}

func TestTraceReadsWhatIsThereOfACutCapture(t *testing.T) {
	t.Parallel()
	p := newTape(t)
	p.wholeBoot()
	whole := p.buf.Bytes()
	tr, err := parseTrace(bytes.NewReader(whole[:len(whole)-7]), 8443, 8080)
	if err != nil {
		t.Fatal(err)
	}
	if want := p.trace().Frames - 1; tr.Frames != want {
		t.Errorf("%d frames, want %d", tr.Frames, want)
	}
	if tr, err := parseTrace(bytes.NewReader(nil), 8443, 8080); err != nil || tr.Frames != 0 {
		t.Errorf("empty capture: %v, %v; want no frames and no error", tr, err)
	}
}

func FuzzDissect(f *testing.F) {
	f.Add(serverHello(), uint16(8443), true)
	f.Add([]byte("GET /b/x/script.ipxe HTTP/1.1\r\n\r\n"), uint16(8080), true)
	f.Add([]byte("\x00\x01f\x00octet\x00"), uint16(69), false)
	f.Add([]byte("\x00\x06blksize\x0099\x00"), uint16(2000), false)
	f.Add(bytes.Repeat([]byte{0xff}, 300), uint16(67), false)
	f.Fuzz(func(t *testing.T, payload []byte, port uint16, tcp bool) {
		d := newDissector(&Trace{}, 8443, 8080)
		for _, fl := range []flow{{at(machine, 2000), at(siteAddr, port)}, {at(siteAddr, port), at(machine, 2000)}} {
			for range 2 {
				if tcp {
					d.segment(packet{time: start, flow: fl, payload: payload})
				} else {
					d.datagram(packet{time: start, flow: fl, payload: payload})
				}
			}
		}
		testSegment().Boot(d.t)
		testSegment().Silence(d.t, start)
	})
}

func FuzzTrace(f *testing.F) {
	var buf bytes.Buffer
	w := pcapgo.NewWriterNanos(&buf)
	if err := w.WriteFileHeader(65536, layers.LinkTypeEthernet); err != nil {
		f.Fatal(err)
	}
	f.Add(buf.Bytes())
	f.Add([]byte("no capture"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if tr, err := parseTrace(bytes.NewReader(b), 8443, 8080); err == nil && tr == nil {
			t.Error("no trace and no error")
		}
	})
}
