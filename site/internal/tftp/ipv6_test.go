package tftp

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"firstlight/site/internal/netif/netiftest"
)

func TestTFTP07_IPv6ClientsKeepTheirZone(t *testing.T) {
	if !netiftest.InNamespace(t, "ip addr add fe80::1/64 dev lo nodad\nip addr add fd00::1/64 dev lo nodad") {
		return
	}
	at, rec, _ := start(t, 1500, 0)
	for _, host := range []string{"fe80::1%lo", "fd00::1", "::1", "127.0.0.1", "::ffff:127.0.0.1"} {
		asked := netip.AddrPortFrom(netip.MustParseAddr(host), at.Port())
		bind := asked.Addr().Unmap()
		conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(bind, 0)))
		if err != nil {
			t.Fatal(err)
		}
		c := &raw{t: t, c: conn}
		c.ask(netip.AddrPortFrom(bind, at.Port()), opRead, "none.efi", "octet")
		if op, _ := c.answer(); op != opError || c.peer.Addr() != bind {
			t.Errorf("%s: got op %d from %s, want an error from the address that was asked", host, op, c.peer)
		}
		if l := rec.next(t); !strings.Contains(l, "none.efi") {
			t.Errorf("%s: got %q", host, l)
		}
		c.ask(netip.AddrPortFrom(bind, at.Port()), opRead, "snponly.efi", "octet", "blksize", "1468")
		if op, rest := c.answer(); op != opOACK || bind.Is6() && oack(rest)["blksize"] != "1448" || c.peer.Addr() != bind {
			t.Errorf("%s: got op %d %v from %s, want an OACK from the address that was asked", host, op, oack(rest), c.peer)
		}
		c.send([]byte{0, opError, 0, 3, 'e', 'n', 'o', 'u', 'g', 'h', 0})
		if l := rec.next(t); !strings.Contains(l, `error 3 "enough"`) {
			t.Errorf("%s: got %q", host, l)
		}
		conn.Close()
	}
	if got := rec.clients(); !got[netip.MustParseAddr("fe80::1%lo")] || !got[netip.MustParseAddr("127.0.0.1")] {
		t.Errorf("got clients %v, want the link-local one with its zone", got)
	}
}
