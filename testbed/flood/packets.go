// Package flood sends a site a hundred thousand packets that nobody needs, while one honest client boots again and again, and
// measures from outside what that costs the program.
//
// It is for testbed/scenario. It knows DHCP, TFTP and HTTP as a stranger on the segment does; the seed of its packets is logged.
package flood

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
)

// Ports of network boot.
const (
	portDHCP = 67
	portPXE  = 4011
	portTFTP = 69
	// portHTTP stands for the site's HTTP server, wherever it listens.
	portHTTP = 80
)

// packet is one thing to send.
type packet struct {
	what string
	port int
	data []byte
}

// kind is a sort of packet and how many of a hundred are of it.
type kind struct {
	what   string
	share  int
	port   int
	packet func(*mix) []byte
}

func kinds() []kind {
	return []kind{
		{"the machine's discover", 10, portDHCP, func(m *mix) []byte { return m.dhcp(m.mac, dhcpv4.MessageTypeDiscover, m.r.IntN(2) == 0) }},
		{"strangers' discovers", 25, portDHCP, func(m *mix) []byte { return m.dhcp(m.stranger(), dhcpv4.MessageTypeDiscover, m.r.IntN(2) == 0) }},
		{"discovers of no PXE client", 5, portDHCP, func(m *mix) []byte { return m.plain() }},
		{"damaged discovers", 20, portDHCP, func(m *mix) []byte { return m.damage(m.dhcp(m.mac, dhcpv4.MessageTypeDiscover, false)) }},
		{"the machine's request", 5, portPXE, func(m *mix) []byte { return m.dhcp(m.mac, dhcpv4.MessageTypeRequest, false) }},
		{"damaged requests", 10, portPXE, func(m *mix) []byte { return m.damage(m.dhcp(m.stranger(), dhcpv4.MessageTypeRequest, false)) }},
		{"read requests that nobody goes on with", 5, portTFTP, func(m *mix) []byte { return request(1, m.program, "octet", "blksize", "1468") }},
		{"read requests for nothing", 5, portTFTP, func(m *mix) []byte { return request(1, fmt.Sprintf("t/%x/../etc/shadow", m.r.Uint64()), "octet") }},
		{"write requests", 3, portTFTP, func(m *mix) []byte { return request(2, m.program, "octet") }},
		{"damaged TFTP", 7, portTFTP, func(m *mix) []byte { return m.damage(request(1, m.program, "netascii", "tsize", "0")) }},
		{"HTTP junk", 5, portHTTP, func(m *mix) []byte { return m.http() }},
	}
}

// mix makes packets in an order that its seed fixes.
type mix struct {
	r     *rand.Rand
	kinds []kind
	mac   net.HardwareAddr
	// program is the name of a boot program that the site has.
	program string
}

func newMix(seed uint64, mac net.HardwareAddr, program string) *mix {
	return &mix{r: rand.New(rand.NewPCG(seed, seed)), kinds: kinds(), mac: mac, program: program}
}

func (m *mix) next() packet {
	n := m.r.IntN(100)
	for _, k := range m.kinds {
		if n -= k.share; n < 0 {
			return packet{k.what, k.port, k.packet(m)}
		}
	}
	panic("shares do not add up to a hundred")
}

// stranger is an address that no machine has: locally administered.
func (m *mix) stranger() net.HardwareAddr {
	a := make(net.HardwareAddr, 6)
	binary.BigEndian.PutUint32(a[2:], m.r.Uint32())
	a[0], a[1] = 0x02, 0xf1
	return a
}

// dhcp is what a PXE client sends: the firmware, or iPXE.
func (m *mix) dhcp(mac net.HardwareAddr, t dhcpv4.MessageType, ipxe bool) []byte {
	return pxe(mac, t, ipxe, m.transaction()).ToBytes()
}

func (m *mix) transaction() (x dhcpv4.TransactionID) {
	binary.BigEndian.PutUint32(x[:], m.r.Uint32())
	return x
}

// plain is what an operating system sends.
func (m *mix) plain() []byte {
	d := pxe(m.stranger(), dhcpv4.MessageTypeDiscover, false, m.transaction())
	d.Options.Del(dhcpv4.OptionClassIdentifier)
	d.Options.Del(dhcpv4.OptionClientSystemArchitectureType)
	return d.ToBytes()
}

// pxe is a boot client's message. An x86-64 UEFI machine asks (RFC 4578, section 2.1: architecture 7).
func pxe(mac net.HardwareAddr, t dhcpv4.MessageType, ipxe bool, x dhcpv4.TransactionID) *dhcpv4.DHCPv4 {
	d := &dhcpv4.DHCPv4{OpCode: dhcpv4.OpcodeBootRequest, HWType: iana.HWTypeEthernet, TransactionID: x, ClientHWAddr: mac,
		ClientIPAddr: net.IPv4zero, YourIPAddr: net.IPv4zero, ServerIPAddr: net.IPv4zero, GatewayIPAddr: net.IPv4zero, Options: dhcpv4.Options{}}
	d.SetBroadcast()
	d.UpdateOption(dhcpv4.OptMessageType(t))
	d.UpdateOption(dhcpv4.OptClassIdentifier("PXEClient:Arch:00007:UNDI:003016"))
	d.UpdateOption(dhcpv4.OptClientArch(iana.EFI_X86_64))
	d.UpdateOption(dhcpv4.OptParameterRequestList(dhcpv4.OptionBootfileName, dhcpv4.OptionTFTPServerName))
	if ipxe {
		d.UpdateOption(dhcpv4.OptUserClass("iPXE"))
	}
	return d
}

// damage cuts a packet short, overwrites some of it, or appends to it.
func (m *mix) damage(b []byte) []byte {
	switch m.r.IntN(3) {
	case 0:
		return b[:m.r.IntN(len(b))]
	case 1:
		for range 1 + m.r.IntN(32) {
			b[m.r.IntN(len(b))] = byte(m.r.Uint32())
		}
		return b
	}
	return append(b, make([]byte, m.r.IntN(1200))...)
}

// request is a TFTP request (RFC 1350; options of RFC 2347).
func request(op uint16, words ...string) []byte {
	b := binary.BigEndian.AppendUint16(nil, op)
	for _, w := range words {
		b = append(append(b, w...), 0)
	}
	return b
}

// http is a request that leads nowhere, or bytes that are none.
func (m *mix) http() []byte {
	switch m.r.IntN(4) {
	case 0:
		return fmt.Appendf(nil, "GET /b/%x/script.ipxe HTTP/1.1\r\nHost: site\r\nConnection: close\r\n\r\n", m.r.Uint64())
	case 1:
		return fmt.Appendf(nil, "POST /b/%x/report HTTP/1.1\r\nHost: site\r\nContent-Length: 1000000000\r\n\r\nx", m.r.Uint64())
	case 2:
		return []byte("GET /f/../../../etc/shadow HTTP/1.0\r\n\r\n")
	}
	b := make([]byte, 1+m.r.IntN(4000))
	for i := range b {
		b[i] = byte(m.r.Uint32())
	}
	return b
}
