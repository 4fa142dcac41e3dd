// Package netif opens sockets that stay on one network interface.
//
// It is for the boot services of the site agent: a boot answer must leave by the segment's interface even where the routing
// table prefers another. It is Linux only and knows no protocol.
package netif

import (
	"context"
	"fmt"
	"net"
	"net/netip"
)

// Info is what boot services need to know of an interface.
type Info struct {
	Name  string
	Index int
	// MTU is the largest IP packet in bytes.
	MTU int
	// MAC is in lower-case colon form; empty on interfaces without one.
	MAC string
	// Prefix is the address that was looked up with the length of its network.
	Prefix netip.Prefix
}

// Lookup finds the interface and checks that it carries address.
func Lookup(name string, address netip.Addr) (Info, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return Info{}, fmt.Errorf("interface %s: %w", name, err)
	}
	addrs, err := i.Addrs()
	if err != nil {
		return Info{}, fmt.Errorf("interface %s: read addresses: %w", name, err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr() == address {
			return Info{Name: name, Index: i.Index, MTU: i.MTU, MAC: i.HardwareAddr.String(), Prefix: p}, nil
		}
	}
	return Info{}, fmt.Errorf("interface %s: has no address %s", name, address)
}

// ListenUDP opens a UDP socket that receives and sends on the named interface only, broadcasts included. Port 0 takes a free one.
// From the first packet on, the kernel says with each by which interface and to which address it came.
func ListenUDP(ctx context.Context, name string, at netip.AddrPort) (*net.UDPConn, error) {
	c, err := (&net.ListenConfig{Control: bind(name)}).ListenPacket(ctx, "udp4", at.String())
	if err != nil {
		return nil, fmt.Errorf("listen on %s, interface %s: %w", at, name, err)
	}
	return c.(*net.UDPConn), nil
}
