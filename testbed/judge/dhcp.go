package judge

import (
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// DHCP is one DHCP message on the wire.
type DHCP struct {
	Time time.Time
	// Src is who sent it: 0.0.0.0 for a machine without an address.
	Src netip.AddrPort
	// Type is the message's type, such as "DISCOVER"; Client the hardware address that it is about.
	Type   string
	Client net.HardwareAddr
	// Class is option 60, of the machine in its requests and of the server in its answers.
	Class string
	// IPXE says that the sender's user class is iPXE.
	IPXE bool
	// File is the boot file: the header field, else option 67.
	File string
	// YourIP is the address that the message gives; invalid or 0.0.0.0 when it gives none.
	YourIP netip.Addr
}

// ServerSaid says whether the message is an answer to a machine.
func (m DHCP) ServerSaid() bool { return m.Type == "OFFER" || m.Type == "ACK" || m.Type == "NAK" }

func (d *dissector) dhcp(p packet) {
	m, err := dhcpv4.FromBytes(p.payload)
	if err != nil || len(d.t.DHCP) >= maxEvents {
		return
	}
	out := DHCP{Time: p.time, Src: p.flow.src, Type: m.MessageType().String(), Client: append(net.HardwareAddr(nil), m.ClientHWAddr...),
		Class: m.ClassIdentifier(), File: strings.TrimRight(m.BootFileName, "\x00")}
	if out.File == "" {
		out.File = strings.TrimRight(string(m.Options.Get(dhcpv4.OptionBootfileName)), "\x00")
	}
	for _, c := range m.UserClass() {
		out.IPXE = out.IPXE || c == "iPXE"
	}
	out.YourIP, _ = netip.AddrFromSlice(m.YourIPAddr.To4())
	d.t.DHCP = append(d.t.DHCP, out)
}
