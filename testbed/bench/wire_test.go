package bench

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// A client takes what a server should send, and says so when it is something else: a figure is for whole files only.
func TestTransferTakesTheFileAndNothingElse(t *testing.T) {
	t.Parallel()
	to, data := netip.MustParseAddrPort("127.0.0.1:1069"), netip.MustParseAddrPort("127.0.0.1:40000")
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	want := []byte("0123456789")
	block := func(n uint16, b string) []byte { return append(binary.BigEndian.AppendUint16([]byte{0, 3}, n), b...) }
	oack := []byte("\x00\x06blksize\x008\x00tsize\x0010\x00")
	for _, c := range []struct {
		name    string
		packets [][]byte
		done    bool
		err     string
	}{
		{"whole file", [][]byte{oack, block(1, "01234567"), block(2, "89")}, true, ""},
		{"a block twice", [][]byte{oack, block(1, "01234567"), block(1, "01234567"), block(2, "89")}, true, ""},
		{"short file", [][]byte{oack, block(1, "01234")}, false, "ended after 5 of 10"},
		{"other content", [][]byte{oack, block(1, "01234X67")}, false, "block 1 is not the file's"},
		{"longer file", [][]byte{oack, block(1, "01234567"), block(2, "89abcdef")}, false, "block 2 is not the file's"},
		{"other block size", [][]byte{[]byte("\x00\x06blksize\x0080\x00")}, false, "does not grant blksize 8"},
		{"error", [][]byte{[]byte("\x00\x05\x00\x01no such file\x00")}, false, "no such file"},
		{"half a packet", [][]byte{{0, 3, 0}}, false, ""},
	} {
		tr := transfer{conn: conn, to: to, want: want, block: 8}
		var done bool
		var err error
		for _, p := range c.packets {
			if _, done, err = tr.take(p, data); err != nil {
				break
			}
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if err == nil && done != c.done || c.err == "" && err != nil || !strings.Contains(text, c.err) {
			t.Errorf("%s: got done %v, %v, want done %v, %q", c.name, done, err, c.done, c.err)
		}
	}
}

// An asker counts the offer that one of its machines waits for, once.
func TestAskerCountsEachOfferOnce(t *testing.T) {
	t.Parallel()
	listen := func() *net.UDPConn {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	in, out, server := listen(), listen(), listen()
	q, err := newAsker(in, out)
	if err != nil {
		t.Fatal(err)
	}
	q.to = server.LocalAddr().(*net.UDPAddr).AddrPort()
	if err := q.ask(7); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1500)
	n, err := server.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	req, err := dhcpv4.FromBytes(buf[:n])
	if err != nil || req.MessageType() != dhcpv4.MessageTypeDiscover || req.ClientHWAddr[5] != 7 || !strings.HasPrefix(req.ClassIdentifier(), "PXEClient") {
		t.Fatalf("got question %v, %v, want a PXE client's discover of machine 7", req, err)
	}
	offer, err := dhcpv4.NewReplyFromRequest(req, dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer))
	if err != nil {
		t.Fatal(err)
	}
	ack, err := dhcpv4.NewReplyFromRequest(req, dhcpv4.WithMessageType(dhcpv4.MessageTypeAck))
	if err != nil {
		t.Fatal(err)
	}
	stale := slices.Clone(offer.ToBytes())
	stale[atTransaction]++
	other := slices.Clone(offer.ToBytes())
	other[atMachine]++
	for _, b := range [][]byte{buf[:n], ack.ToBytes(), stale, other, []byte("junk"), offer.ToBytes()} {
		if _, err := out.WriteTo(b, in.LocalAddr()); err != nil {
			t.Fatal(err)
		}
	}
	if i, err := q.answer(); err != nil || i != 7 || q.asked[7] != 0 {
		t.Errorf("got machine %d, %v, want machine 7, waiting no more", i, err)
	}
	if !isOffer(bytes.Clone(offer.ToBytes())) || isOffer(ack.ToBytes()) {
		t.Error("an offer is none, or an acknowledgement is one")
	}
}
