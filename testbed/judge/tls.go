package judge

import (
	"net/netip"
	"time"

	"golang.org/x/crypto/cryptobyte"
)

// RFC 8446: record and handshake types, extensions, versions.
const (
	tlsHandshake     = 22
	tlsClientHello   = 1
	tlsServerHello   = 2
	tlsServerName    = 0
	tlsSupportedVers = 43
	// TLS13 is the version number of TLS 1.3.
	TLS13 = 0x0304
)

// TLS is one handshake that a client began.
type TLS struct {
	Time   time.Time
	Client netip.AddrPort
	Server netip.AddrPort
	// Name is the server name that the client asked for.
	Name string
	// Offered holds the versions of the ClientHello; Chosen is the ServerHello's, 0 until one was seen.
	Offered []uint16
	Chosen  uint16
}

// tlsSegment takes the first segment of each direction.
func (d *dissector) tlsSegment(p packet) {
	kind, hello, ok := parseHello(p.payload)
	if !ok {
		return
	}
	switch {
	case kind == tlsClientHello && p.flow.dst.Port() == d.gatewayPort && d.tls[p.flow] == nil && len(d.t.TLS) < maxFlows:
		t := &TLS{Time: p.time, Client: p.flow.src, Server: p.flow.dst, Name: hello.name, Offered: hello.versions}
		d.tls[p.flow] = t
		d.t.TLS = append(d.t.TLS, t)
	case kind == tlsServerHello && p.flow.src.Port() == d.gatewayPort:
		if t := d.tls[p.flow.back()]; t != nil && t.Chosen == 0 && len(hello.versions) == 1 {
			t.Chosen = hello.versions[0]
		}
	}
}

type hello struct {
	name     string
	versions []uint16
}

// parseHello reads a ClientHello or ServerHello from the start of a TLS stream. A hello that is cut off by the segment's end is
// read as far as it goes.
func parseHello(b []byte) (kind uint8, h hello, ok bool) {
	s := cryptobyte.String(b)
	var record uint8
	if !s.ReadUint8(&record) || record != tlsHandshake || !s.Skip(4) || !s.ReadUint8(&kind) || !s.Skip(3) {
		return 0, hello{}, false
	}
	var legacy uint16
	var session cryptobyte.String
	if !s.ReadUint16(&legacy) || !s.Skip(32) || !s.ReadUint8LengthPrefixed(&session) {
		return 0, hello{}, false
	}
	switch kind {
	case tlsClientHello:
		var suites, compression cryptobyte.String
		if !s.ReadUint16LengthPrefixed(&suites) || !s.ReadUint8LengthPrefixed(&compression) {
			return 0, hello{}, false
		}
	case tlsServerHello:
		if !s.Skip(3) {
			return 0, hello{}, false
		}
	default:
		return 0, hello{}, false
	}
	var length uint16
	if !s.ReadUint16(&length) {
		return kind, hello{versions: []uint16{legacy}}, true
	}
	for !s.Empty() {
		var ext uint16
		var body cryptobyte.String
		if !s.ReadUint16(&ext) || !s.ReadUint16LengthPrefixed(&body) {
			break
		}
		h.extension(kind, ext, body)
	}
	if len(h.versions) == 0 {
		h.versions = []uint16{legacy}
	}
	return kind, h, true
}

func (h *hello) extension(kind uint8, ext uint16, body cryptobyte.String) {
	switch {
	case ext == tlsServerName && kind == tlsClientHello:
		var list, name cryptobyte.String
		var nameType uint8
		if body.ReadUint16LengthPrefixed(&list) && list.ReadUint8(&nameType) && list.ReadUint16LengthPrefixed(&name) {
			h.name = string(name)
		}
	case ext == tlsSupportedVers && kind == tlsClientHello:
		var list cryptobyte.String
		if !body.ReadUint8LengthPrefixed(&list) {
			return
		}
		var v uint16
		for list.ReadUint16(&v) {
			h.versions = append(h.versions, v)
		}
	case ext == tlsSupportedVers && kind == tlsServerHello:
		var v uint16
		if body.ReadUint16(&v) {
			h.versions = append(h.versions, v)
		}
	}
}
