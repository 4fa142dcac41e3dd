package netif

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// Packets is a UDP socket on every address of one interface, IPv4 and IPv6, that knows which address a packet was sent to.
// Read belongs to one goroutine; Reply may be called from any.
type Packets struct {
	conn *net.UDPConn
	// name is the interface, zone of link-local addresses.
	name string
	v6   bool
	oob  []byte
}

// ListenAll opens a socket for port on the named interface; port 0 takes a free one. Without IPv6 in the kernel it is for IPv4.
func ListenAll(ctx context.Context, name string, port uint16) (*Packets, error) {
	c, err := (&net.ListenConfig{Control: bind(name)}).ListenPacket(ctx, "udp", fmt.Sprintf("[::]:%d", port))
	if errors.Is(err, syscall.EAFNOSUPPORT) {
		c, err = (&net.ListenConfig{Control: bind(name)}).ListenPacket(ctx, "udp4", fmt.Sprintf(":%d", port))
	}
	if err != nil {
		return nil, fmt.Errorf("listen on port %d, interface %s: %w", port, name, err)
	}
	conn := c.(*net.UDPConn)
	return &Packets{conn: conn, name: name, v6: conn.LocalAddr().(*net.UDPAddr).IP.To4() == nil, oob: make([]byte, 256)}, nil
}

// Port is the one that the socket listens on.
func (p *Packets) Port() uint16 { return uint16(p.conn.LocalAddr().(*net.UDPAddr).Port) }

// Close ends a Read in progress.
func (p *Packets) Close() error { return p.conn.Close() }

// Read waits for a packet. To is the address that it was sent to; the zero address when the kernel did not say. IPv4 addresses
// are plain ones.
func (p *Packets) Read(b []byte) (n int, from netip.AddrPort, to netip.Addr, err error) {
	n, oobn, _, from, err := p.conn.ReadMsgUDPAddrPort(b, p.oob)
	if err != nil {
		return 0, from, to, err
	}
	from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	if to = destination(p.oob[:oobn]); to.IsLinkLocalUnicast() && to.Is6() {
		to = to.WithZone(p.name)
	}
	return n, from, to, nil
}

// destination reads IP_PKTINFO or IPV6_PKTINFO (ip(7), ipv6(7), RFC 3542 section 6.2).
func destination(oob []byte) netip.Addr {
	all, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return netip.Addr{}
	}
	for _, m := range all {
		switch {
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			return netip.AddrFrom16([16]byte(m.Data)).Unmap()
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			return netip.AddrFrom4([4]byte(m.Data[8:]))
		}
	}
	return netip.Addr{}
}

// Reply sends b with from as its source address: the one that the client asked.
func (p *Packets) Reply(b []byte, from netip.Addr, to netip.AddrPort) error {
	var oob []byte
	switch {
	case p.v6:
		oob = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: from.As16()})
		if to.Addr().Is4() {
			to = netip.AddrPortFrom(netip.AddrFrom16(to.Addr().As16()), to.Port())
		}
	case from.Is4():
		oob = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: from.As4()})
	}
	_, _, err := p.conn.WriteMsgUDPAddrPort(b, oob, to)
	return err
}

// DialUDP opens a socket from a free port of local to remote, on the named interface only.
func DialUDP(ctx context.Context, name string, local netip.Addr, remote netip.AddrPort) (*net.UDPConn, error) {
	d := net.Dialer{Control: bind(name), LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(local, 0))}
	c, err := d.DialContext(ctx, "udp", remote.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

// receiveBuffer is what a socket may hold unread in bytes, so that a burst of junk does not push out the packet that matters.
const receiveBuffer = 4 << 20

// bind keeps a socket on the named interface and has the kernel say where packets come in, from the first one on.
func bind(name string) func(network, _ string, c syscall.RawConn) error {
	return func(network, _ string, c syscall.RawConn) error {
		var err error
		cerr := c.Control(func(fd uintptr) {
			// As much as the kernel gives: more than its usual bound for root only.
			if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
			}
			err = unix.BindToDevice(int(fd), name)
			if err == nil {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
			}
			if err == nil && network == "udp6" {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
			}
		})
		return errors.Join(cerr, err)
	}
}
