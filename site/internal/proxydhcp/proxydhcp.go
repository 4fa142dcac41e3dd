// Package proxydhcp tells network-booting firmware which file to load, beside the segment's own DHCP server.
//
// It is for the site agent. It answers clients that announce themselves as PXE or UEFI HTTP boot clients and nobody else, gives no
// address, takes part in no lease and never says NAK (PXE 2.1, section 2.2.2). Which machine gets what is its Boots' decision. Answer is pure;
// Server is the loop around it.
package proxydhcp

import (
	"net"
	"net/netip"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
)

const (
	// MaxPacket bounds a request in bytes; longer ones are cut and then do not parse.
	MaxPacket = 1500
	// MaxFile is the longest boot file's name, or address, in bytes: an option's value less a NUL.
	MaxFile = 254
	// maxHeaderFile is the longest name that fits the header's file field with its NUL (RFC 2131, section 2).
	maxHeaderFile = 127
)

// Options that the library has no name for.
var (
	optClientArch = dhcpv4.OptionClientSystemArchitectureType // 93, RFC 4578 section 2.1
	optClientUUID = dhcpv4.OptionClientMachineIdentifier      // 97, RFC 4578 section 2.3
	optEtherboot  = dhcpv4.GenericOptionCode(175)             // iPXE's own encapsulated options
)

// discoveryControl is option 43 with PXE_DISCOVERY_CONTROL (tag 6) = 8, "use the boot file of this offer", and its end mark
// (PXE 2.1, section 2.2). EDK2 takes an offer without it for a BINL server's.
var discoveryControl = []byte{6, 1, 8, 0xff}

// Client is what a boot request says of its sender. Claims, not facts.
type Client struct {
	MAC net.HardwareAddr
	// XID is the request's transaction; firmware that asks again keeps it.
	XID [4]byte
	// IPXE is true when iPXE asks, false for the firmware itself.
	IPXE bool
	// HTTP is true for firmware that boots by HTTP (UEFI 2.10, section 24.7): its file is an absolute address.
	HTTP bool
	// Arch is the first architecture of option 93 that Firmware knows; meaningful when KnownArch is true.
	Arch      Arch
	KnownArch bool
	// RawArch is option 93 as it came.
	RawArch []byte
	// UUID is option 97 in the kernel's spelling; empty when it says nothing.
	UUID string
}

// Boots decides what a client boots. It is called from the server's one goroutine for a port; two ports are two goroutines.
type Boots interface {
	// Find returns the boot file for the client, at most MaxFile bytes; false is silence.
	Find(Client) (file string, ok bool)
	// Offered is called after an answer with this file was sent from the port.
	Offered(c Client, file string, p Port)
}

// Port says on which of the two service ports a request came.
type Port int

// The ports: PortDHCP is 67, where clients discover; PortPXE is 4011, where some ask again.
const (
	PortDHCP Port = iota
	PortPXE
)

// Answer returns the reply to a request, or nil: for a client that is none of ours, and for one that Boots does not know. The
// file that it carries is returned beside it. An error says what is malformed; it is never sent to anybody.
func Answer(b []byte, port Port, server netip.Addr, boots Boots) (reply *dhcpv4.DHCPv4, c Client, file string, err error) {
	req, err := parse(b)
	if err != nil {
		return nil, c, "", err
	}
	class, ok := addressed(req, port, server)
	if !ok {
		return nil, c, "", nil
	}
	if c, err = client(req, class); err != nil {
		return nil, c, "", err
	}
	file, ok = boots.Find(c)
	if !ok || file == "" || len(file) > MaxFile {
		return nil, c, "", nil
	}
	return build(req, port, server, class, file), c, file, nil
}

// addressed says whether a request is one that this port answers, and its vendor class.
func addressed(req *dhcpv4.DHCPv4, port Port, server netip.Addr) (class string, ok bool) {
	said := string(req.Options.Get(dhcpv4.OptionClassIdentifier))
	switch {
	case strings.HasPrefix(said, pxeClient):
		class = pxeClient
	case strings.HasPrefix(said, httpClient) && port == PortDHCP:
		class = httpClient
	default:
		return "", false
	}
	if port == PortDHCP {
		return class, req.MessageType() == dhcpv4.MessageTypeDiscover
	}
	if id := req.ServerIdentifier(); id != nil && !id.Equal(server.AsSlice()) {
		return "", false
	}
	return class, req.MessageType() == dhcpv4.MessageTypeRequest
}

// Vendor classes (option 60); what firmware sends begins with one of them.
const (
	pxeClient  = "PXEClient"
	httpClient = "HTTPClient"
)

func build(req *dhcpv4.DHCPv4, port Port, server netip.Addr, class, file string) *dhcpv4.DHCPv4 {
	ip := net.IP(server.AsSlice())
	reply := &dhcpv4.DHCPv4{
		OpCode: dhcpv4.OpcodeBootReply, HWType: iana.HWTypeEthernet, TransactionID: req.TransactionID, Flags: req.Flags,
		ClientIPAddr: net.IPv4zero, YourIPAddr: net.IPv4zero, ServerIPAddr: ip, GatewayIPAddr: req.GatewayIPAddr,
		ClientHWAddr: req.ClientHWAddr, Options: dhcpv4.Options{},
	}
	kind := dhcpv4.MessageTypeOffer
	if port == PortPXE {
		kind = dhcpv4.MessageTypeAck
		reply.ClientIPAddr = req.ClientIPAddr
	}
	reply.UpdateOption(dhcpv4.OptMessageType(kind))
	reply.UpdateOption(dhcpv4.OptServerIdentifier(ip))
	reply.UpdateOption(dhcpv4.OptClassIdentifier(class))
	if class == pxeClient {
		reply.ServerHostName = server.String()
		reply.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionVendorSpecificInformation, discoveryControl))
	}
	if len(file) <= maxHeaderFile {
		reply.BootFileName = file
	} else {
		// RFC 2132, section 9.5 names no end mark, and readers expect one.
		reply.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionBootfileName, append([]byte(file), 0)))
	}
	// Echoed byte for byte; one of no length is no option (DHCP-06).
	if id := req.Options.Get(optClientUUID); len(id) > 0 {
		reply.UpdateOption(dhcpv4.OptGeneric(optClientUUID, id))
	}
	// The codec puts it last (RFC 3046, section 2.2).
	if info := req.Options.Get(dhcpv4.OptionRelayAgentInformation); len(info) > 0 {
		reply.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionRelayAgentInformation, info))
	}
	return reply
}
