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

// The architectures that get a first stage. Firmware in the field announces x86-64 UEFI as 7 or as 9.
const (
	ArchBIOS   Arch = 0
	ArchIA32   Arch = 6
	ArchX64    Arch = 7
	ArchX64EBC Arch = 9
	ArchARM32  Arch = 10
	ArchARM64  Arch = 11
)

// Firmware returns the first-stage file for an architecture; ok is false for one that gets none. shipped says that Debian's
// package has the file: without it an offer only makes sense where the operator put one.
func Firmware(a Arch) (name string, shipped, ok bool) {
	switch a {
	case ArchBIOS:
		return "undionly.kpxe", true, true
	case ArchX64, ArchX64EBC:
		return "snponly.efi", true, true
	case ArchIA32:
		return "snponly-ia32.efi", false, true
	case ArchARM32:
		return "snponly-arm32.efi", false, true
	case ArchARM64:
		return "snponly-arm64.efi", false, true
	}
	return "", false, false
}

// ParseArch returns the first architecture of option 93 that Firmware knows. An odd or zero length is none.
func ParseArch(b []byte) (Arch, bool) {
	if len(b)%2 != 0 {
		return 0, false
	}
	for ; len(b) > 0; b = b[2:] {
		a := Arch(binary.BigEndian.Uint16(b))
		if _, _, ok := Firmware(a); ok {
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

func client(req *dhcpv4.DHCPv4) (Client, error) {
	c := Client{MAC: req.ClientHWAddr, UUID: ParseUUID(req.Options.Get(optClientUUID))}
	c.IPXE = req.Options.Has(optEtherboot) || slices.Contains(ParseUserClass(req.Options.Get(dhcpv4.OptionUserClassInformation)), ipxeClass)
	c.RawArch = req.Options.Get(optClientArch)
	c.Arch, c.KnownArch = ParseArch(c.RawArch)
	if !c.IPXE && !c.KnownArch {
		return c, fmt.Errorf("boot request of %s: architecture %s has no first stage here", c.MAC, hex.EncodeToString(c.RawArch[:min(len(c.RawArch), 16)]))
	}
	return c, nil
}
