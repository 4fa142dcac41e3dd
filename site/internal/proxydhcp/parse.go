package proxydhcp

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
)

// Arch is a client system architecture of option 93 (RFC 4578 section 2.1 with its erratum; IANA "Processor Architecture Types").
type Arch uint16

// The architectures that get a first stage. Firmware in the field announces x86-64 UEFI as 7 or as 9. The second group announces
// itself when it boots by HTTP.
const (
	ArchBIOS   Arch = 0
	ArchIA32   Arch = 6
	ArchX64    Arch = 7
	ArchX64EBC Arch = 9
	ArchARM32  Arch = 10
	ArchARM64  Arch = 11

	ArchIA32HTTP  Arch = 15
	ArchX64HTTP   Arch = 16
	ArchARM32HTTP Arch = 18
	ArchARM64HTTP Arch = 19
)

// first are the first-stage files. Debian's package has the first two; the others are there where the operator put them.
const (
	fileBIOS  = "undionly.kpxe"
	fileX64   = "snponly.efi"
	fileIA32  = "snponly-ia32.efi"
	fileARM32 = "snponly-arm32.efi"
	fileARM64 = "snponly-arm64.efi"
)

// Firmware returns the first-stage file for an architecture; ok is false for one that gets none. http says that it boots by HTTP.
func Firmware(a Arch) (name string, http, ok bool) {
	switch a {
	case ArchBIOS:
		return fileBIOS, false, true
	case ArchX64, ArchX64EBC:
		return fileX64, false, true
	case ArchIA32:
		return fileIA32, false, true
	case ArchARM32:
		return fileARM32, false, true
	case ArchARM64:
		return fileARM64, false, true
	case ArchX64HTTP:
		return fileX64, true, true
	case ArchIA32HTTP:
		return fileIA32, true, true
	case ArchARM32HTTP:
		return fileARM32, true, true
	case ArchARM64HTTP:
		return fileARM64, true, true
	}
	return "", false, false
}

// Shipped says whether Debian's package has the first-stage file. It is offered by PXE even where it is missing, so that the failed
// transfer names it; another only makes sense where the operator put one.
func Shipped(name string) bool { return name == fileBIOS || name == fileX64 }

// Pins are the names by which an operator says what a machine is, whatever it announces, with the first-stage file of each.
var Pins = map[string]string{"bios": fileBIOS, "x64": fileX64, "ia32": fileIA32, "arm32": fileARM32, "arm64": fileARM64}

// IsFirmware says whether name is one of the first-stage files.
func IsFirmware(name string) bool {
	for _, f := range Pins {
		if f == name {
			return true
		}
	}
	return false
}

// ParseArch returns the first architecture of option 93 that Firmware knows and that boots by HTTP, or does not, as asked. An odd
// or zero length is none.
func ParseArch(b []byte, http bool) (Arch, bool) {
	if len(b)%2 != 0 {
		return 0, false
	}
	for ; len(b) > 0; b = b[2:] {
		a := Arch(binary.BigEndian.Uint16(b))
		if _, h, ok := Firmware(a); ok && h == http {
			return a, true
		}
	}
	return 0, false
}

// ParseUserClass reads option 77: a list of length-prefixed texts (RFC 3004, section 4), or the bare text "iPXE" as iPXE sends
// it. Anything malformed is no class at all.
func ParseUserClass(b []byte) []string {
	if string(b) == ipxeClass {
		return []string{ipxeClass}
	}
	var all []string
	for len(b) > 0 {
		n := int(b[0])
		if n == 0 || n > len(b)-1 {
			return nil
		}
		all = append(all, string(b[1:1+n]))
		b = b[1+n:]
	}
	return all
}

const ipxeClass = "iPXE"

// ParseUUID reads option 97: type 0 and 16 bytes, of which the first three fields are little-endian (RFC 4578 section 2.3, UEFI
// specification, "EFI_GUID"). It returns the spelling of the kernel's product_uuid. Other lengths and types, all 00 (not present)
// and all FF (not settable) say nothing and give "".
func ParseUUID(b []byte) string {
	if len(b) != 17 || b[0] != 0 {
		return ""
	}
	g := slices.Clone(b[1:])
	if same(g, 0) || same(g, 0xff) {
		return ""
	}
	slices.Reverse(g[0:4])
	slices.Reverse(g[4:6])
	slices.Reverse(g[6:8])
	return fmt.Sprintf("%x-%x-%x-%x-%x", g[0:4], g[4:6], g[6:8], g[8:10], g[10:16])
}

func same(b []byte, v byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool { return c != v })
}

var errMalformed = errors.New("malformed boot request")

// parse reads a packet and checks what the codec leaves open.
func parse(b []byte) (*dhcpv4.DHCPv4, error) {
	if len(b) > MaxPacket {
		return nil, fmt.Errorf("%w: %d bytes", errMalformed, len(b))
	}
	req, err := dhcpv4.FromBytes(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	switch {
	case req.OpCode != dhcpv4.OpcodeBootRequest:
		return nil, fmt.Errorf("%w: op %d", errMalformed, b[0])
	case req.HWType != iana.HWTypeEthernet || b[2] != 6:
		return nil, fmt.Errorf("%w: hardware type %d, address length %d", errMalformed, b[1], b[2])
	case len(req.Options.Get(dhcpv4.OptionDHCPMessageType)) != 1:
		return nil, fmt.Errorf("%w: no message type", errMalformed)
	}
	return req, nil
}

func client(req *dhcpv4.DHCPv4, class string) (Client, error) {
	c := Client{MAC: req.ClientHWAddr, XID: req.TransactionID, HTTP: class == httpClient, UUID: ParseUUID(req.Options.Get(optClientUUID))}
	c.IPXE = req.Options.Has(optEtherboot) || slices.Contains(ParseUserClass(req.Options.Get(dhcpv4.OptionUserClassInformation)), ipxeClass)
	c.RawArch = req.Options.Get(optClientArch)
	c.Arch, c.KnownArch = ParseArch(c.RawArch, c.HTTP)
	if !c.IPXE && !c.KnownArch {
		return c, fmt.Errorf("boot request of %s: architecture %s has no first stage here", c.MAC, hex.EncodeToString(c.RawArch[:min(len(c.RawArch), 16)]))
	}
	return c, nil
}
