package judge

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

// Ports of the protocols that the judge reads; RFC 2131, RFC 1350, PXE 2.1.
const (
	portDHCPServer = 67
	portDHCPClient = 68
	portTFTP       = 69
	portPXE        = 4011
)

// Bounds of what is kept of one capture; a machine's provisioning has a small part of it.
const (
	maxEvents = 1 << 16
	maxFlows  = 1 << 14
)

// Trace is what a capture of the segment shows, in the order of time.
type Trace struct {
	DHCP []DHCP
	TFTP []*TFTP
	HTTP []*HTTP
	TLS  []*TLS
	// Frames is how many frames the capture holds.
	Frames int
}

// ReadTrace reads a capture file. One that is still being written, or was cut in the middle of a frame, is read as far as it goes.
func ReadTrace(path string, gatewayPort, httpPort uint16) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read capture: %w", err)
	}
	defer f.Close()
	return parseTrace(f, gatewayPort, httpPort)
}

func parseTrace(r io.Reader, gatewayPort, httpPort uint16) (*Trace, error) {
	t := &Trace{}
	p, err := pcapgo.NewReader(r)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return t, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read capture: %w", err)
	}
	if p.LinkType() != layers.LinkTypeEthernet {
		return nil, fmt.Errorf("read capture: link type %s, want Ethernet", p.LinkType())
	}
	d := newDissector(t, gatewayPort, httpPort)
	for {
		frame, info, err := p.ReadPacketData()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return t, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read capture: frame %d: %w", t.Frames+1, err)
		}
		t.Frames++
		d.frame(info.Timestamp, frame)
	}
}

// flow is one direction of a conversation.
type flow struct{ src, dst netip.AddrPort }

func (f flow) back() flow { return flow{f.dst, f.src} }

// packet is one UDP datagram or TCP segment.
type packet struct {
	time    time.Time
	srcMAC  net.HardwareAddr
	flow    flow
	payload []byte
}

// dissector sorts frames into the trace.
type dissector struct {
	t                     *Trace
	gatewayPort, httpPort uint16
	// tftp is by the client's address and port; tls and http by the client's flow.
	tftp map[netip.AddrPort]*TFTP
	tls  map[flow]*TLS
	http map[flow]*HTTP

	eth     layers.Ethernet
	ip4     layers.IPv4
	udp     layers.UDP
	tcp     layers.TCP
	parser  *gopacket.DecodingLayerParser
	decoded []gopacket.LayerType
}

func newDissector(t *Trace, gatewayPort, httpPort uint16) *dissector {
	d := &dissector{t: t, gatewayPort: gatewayPort, httpPort: httpPort,
		tftp: map[netip.AddrPort]*TFTP{}, tls: map[flow]*TLS{}, http: map[flow]*HTTP{}}
	d.parser = gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &d.eth, &d.ip4, &d.udp, &d.tcp)
	d.parser.IgnoreUnsupported = true
	return d
}

// frame sorts one Ethernet frame; what is not IPv4 with UDP or TCP, or is malformed, is passed over.
func (d *dissector) frame(at time.Time, frame []byte) {
	if err := d.parser.DecodeLayers(frame, &d.decoded); err != nil || len(d.decoded) < 3 {
		return
	}
	src, ok1 := netip.AddrFromSlice(d.ip4.SrcIP.To4())
	dst, ok2 := netip.AddrFromSlice(d.ip4.DstIP.To4())
	if !ok1 || !ok2 {
		return
	}
	p := packet{time: at, srcMAC: append(net.HardwareAddr(nil), d.eth.SrcMAC...)}
	switch d.decoded[2] {
	case layers.LayerTypeUDP:
		p.flow = flow{netip.AddrPortFrom(src, uint16(d.udp.SrcPort)), netip.AddrPortFrom(dst, uint16(d.udp.DstPort))}
		p.payload = d.udp.Payload
		d.datagram(p)
	case layers.LayerTypeTCP:
		p.flow = flow{netip.AddrPortFrom(src, uint16(d.tcp.SrcPort)), netip.AddrPortFrom(dst, uint16(d.tcp.DstPort))}
		p.payload = d.tcp.Payload
		d.segment(p)
	}
}

func (d *dissector) datagram(p packet) {
	src, dst := p.flow.src.Port(), p.flow.dst.Port()
	switch {
	case src == portDHCPServer || src == portDHCPClient || src == portPXE || dst == portDHCPServer || dst == portDHCPClient || dst == portPXE:
		d.dhcp(p)
	case dst == portTFTP:
		d.tftpRequest(p)
	default:
		d.tftpData(p)
	}
}

func (d *dissector) segment(p packet) {
	if len(p.payload) == 0 {
		return
	}
	src, dst := p.flow.src.Port(), p.flow.dst.Port()
	switch {
	case src == d.httpPort || dst == d.httpPort:
		d.httpSegment(p)
	case src == d.gatewayPort || dst == d.gatewayPort:
		d.tlsSegment(p)
	}
}
