package proxydhcp

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"firstlight/site/internal/netif"
	"firstlight/site/internal/netif/netiftest"
)

const patience = 5 * time.Second

var loopback = netip.MustParseAddr("127.0.0.1")

func listen(t *testing.T, host string) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(host)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func local(c *net.UDPConn) netip.AddrPort { return c.LocalAddr().(*net.UDPAddr).AddrPort() }

// start runs a server for one port on loopback; offers go to client.
func start(t *testing.T, port Port, client netip.AddrPort, boots Boots) (*Server, netip.AddrPort) {
	t.Helper()
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Skipf("no loopback interface: %v", err)
	}
	conn, err := netif.ListenUDP(t.Context(), "lo", netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Skipf("no loopback interface to bind to: %v", err)
	}
	at := local(conn)
	s := New(Config{Address: loopback, Index: lo.Index, Offers: client, Boots: boots, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Serve(ctx, conn, port); err != nil {
			t.Errorf("serve: got %v, want nil at the end", err)
		}
	})
	t.Cleanup(func() { stop(); wg.Wait() })
	return s, at
}

func send(t *testing.T, c *net.UDPConn, to netip.AddrPort, b []byte) {
	t.Helper()
	if _, err := c.WriteToUDPAddrPort(b, to); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, c *net.UDPConn) (*dhcpv4.DHCPv4, netip.AddrPort) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(patience))
	b := make([]byte, 1500)
	n, from, err := c.ReadFromUDPAddrPort(b)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	p, err := dhcpv4.FromBytes(b[:n])
	if err != nil {
		t.Fatal(err)
	}
	return p, from
}

func TestDHCP05_AnswerOn4011GoesBackToItsSender(t *testing.T) {
	elsewhere := listen(t, "127.0.0.1")
	_, at := start(t, PortPXE, local(elsewhere), newBook())
	ask := discover(opt{53, []byte{3}})
	copy(ask[12:], []byte{192, 0, 2, 50})
	// 127.0.0.2 stands for the client's address; its source port is an ephemeral one each time.
	for range 2 {
		c := listen(t, "127.0.0.2")
		send(t, c, at, ask)
		got, from := receive(t, c)
		if from != at {
			t.Errorf("got answer from %s, want %s", from, at)
		}
		if got.MessageType() != dhcpv4.MessageTypeAck || !got.YourIPAddr.IsUnspecified() || got.BootFileName != "t/token/snponly.efi" {
			t.Errorf("got %s, want an ACK with the file and without an address", got)
		}
		if !got.ServerIdentifier().Equal(loopback.AsSlice()) || got.ClassIdentifier() != "PXEClient" || !bytes.Equal(got.Options.Get(optClientUUID), guid) {
			t.Errorf("got options %s, want 54, 60 and 97", got.Options)
		}
	}
}

func TestDHCP13_ServiceSurvivesMalformedPackets(t *testing.T) {
	c := listen(t, "127.0.0.1")
	s, at := start(t, PortDHCP, local(c), newBook())
	for name, b := range hostile() {
		before := s.Dropped()
		send(t, c, at, b)
		send(t, c, at, discover())
		if got, _ := receive(t, c); got.MessageType() != dhcpv4.MessageTypeOffer {
			t.Fatalf("after %s: got %s, want an offer", name, got.MessageType())
		}
		if got := s.Dropped(); got != before+1 {
			t.Errorf("%s: got %d dropped, want %d", name, got, before+1)
		}
	}
}

func TestDHCP09_EachSegmentIsAnsweredFromItsOwnAddress(t *testing.T) {
	// Both ends of each cable are in one namespace, so the kernel has to believe packets from its own addresses.
	if !netiftest.InNamespace(t, `
		ip link add eth0 type veth peer name p0
		ip link add eth1 type veth peer name p1
		for i in eth0 eth1 p0 p1; do ip link set $i up; done
		ip addr add 192.0.2.10/24 dev eth0; ip addr add 192.0.2.20/24 dev eth0; ip addr add 198.51.100.10/24 dev eth1
		ip addr add 192.0.2.99/24 dev p0; ip addr add 198.51.100.99/24 dev p1
		for i in all eth0 eth1 p0 p1; do echo 1 >/proc/sys/net/ipv4/conf/$i/accept_local; echo 0 >/proc/sys/net/ipv4/conf/$i/rp_filter; done`) {
		return
	}
	for _, c := range []struct{ nic, card, address string }{{"eth0", "p0", "192.0.2.20"}, {"eth1", "p1", "198.51.100.10"}} {
		address := netip.MustParseAddr(c.address)
		info, err := netif.Lookup(c.nic, address)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := netif.ListenUDP(t.Context(), c.nic, netip.MustParseAddrPort("0.0.0.0:67"))
		if err != nil {
			t.Fatal(err)
		}
		boots := &book{script: "http://" + c.address + ":8080/b/token/script.ipxe"}
		s := New(Config{Address: address, Index: info.Index, Offers: netip.MustParseAddrPort("255.255.255.255:68"), Boots: boots, Log: slog.New(slog.DiscardHandler)})
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { s.Serve(ctx, conn, PortDHCP) })
		t.Cleanup(func() { stop(); wg.Wait() })
	}
	for _, c := range []struct{ card, address string }{{"p1", "198.51.100.10"}, {"p0", "192.0.2.20"}} {
		client, err := netif.ListenUDP(t.Context(), c.card, netip.MustParseAddrPort("0.0.0.0:68"))
		if err != nil {
			t.Fatal(err)
		}
		send(t, client, netip.MustParseAddrPort("255.255.255.255:67"), discover(opt{77, []byte("iPXE")}))
		got, from := receive(t, client)
		want := netip.MustParseAddr(c.address)
		if from.Addr() != want || !got.ServerIdentifier().Equal(want.AsSlice()) || !got.ServerIPAddr.Equal(want.AsSlice()) ||
			got.BootFileName != "http://"+c.address+":8080/b/token/script.ipxe" {
			t.Errorf("%s: got source %s, server id %s, next server %s, file %q, want %s in all", c.card, from, got.ServerIdentifier(), got.ServerIPAddr, got.BootFileName, want)
		}
		client.Close()
	}
}

type panicky struct{ book }

func (p *panicky) Find(c Client) (string, bool) {
	if c.UUID == "" {
		panic("decoder fault")
	}
	return p.book.Find(c)
}

func TestDHCP13_PanicIsOneDroppedPacket(t *testing.T) {
	c := listen(t, "127.0.0.1")
	s, at := start(t, PortDHCP, local(c), &panicky{*newBook()})
	send(t, c, at, discover(opt{97, nil}))
	send(t, c, at, discover())
	if got, _ := receive(t, c); got.MessageType() != dhcpv4.MessageTypeOffer || s.Dropped() != 1 {
		t.Errorf("got %s, %d dropped, want an offer and 1", got.MessageType(), s.Dropped())
	}
}
