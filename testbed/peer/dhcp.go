// Package peer is one more host on the segment, with no more rights than any: it asks for another machine's boot, fetches what
// the site serves, and joins with what it found. It is how the testbed plays a thief.
//
// It is for testbed/scenario. It uses the protocol's public client and no door that a stranger would not find.
package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
)

// Bounds of asking for a boot script.
const (
	askEvery = 2 * time.Second
	askLimit = 30 * time.Second
)

// Host is where the peer stands: its sockets open in a network namespace of their own.
type Host struct {
	Dial         func(ctx context.Context, network, addr string) (net.Conn, error)
	ListenPacket func(network, addr string) (net.PacketConn, error)
	// Address is the host's own on the segment.
	Address string
}

// AskScript asks, as the iPXE of the machine with that MAC would, and returns the URL of its boot script.
func (h Host) AskScript(ctx context.Context, mac net.HardwareAddr) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	// Two sockets: a broadcast leaves by the interface of its source address, and arrives only where none is bound.
	in, err := h.ListenPacket("udp4", "0.0.0.0:68")
	if err != nil {
		return "", fmt.Errorf("ask for a boot script: %w", err)
	}
	defer in.Close()
	out, err := h.ListenPacket("udp4", net.JoinHostPort(h.Address, "0"))
	if err != nil {
		return "", fmt.Errorf("ask for a boot script: %w", err)
	}
	defer out.Close()
	defer context.AfterFunc(ctx, func() { in.SetReadDeadline(time.Unix(1, 0)) })()

	ask, err := discover(mac)
	if err != nil {
		return "", err
	}
	buf := make([]byte, 1500)
	for ctx.Err() == nil {
		if _, err := out.WriteTo(ask.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpv4.ServerPort}); err != nil {
			return "", fmt.Errorf("ask for a boot script: %w", err)
		}
		until := time.Now().Add(askEvery)
		for ctx.Err() == nil {
			in.SetReadDeadline(until)
			n, _, err := in.ReadFrom(buf)
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				break
			}
			if err != nil {
				return "", fmt.Errorf("ask for a boot script: %w", err)
			}
			if u, ok := scriptURL(buf[:n], ask); ok {
				return u, nil
			}
		}
	}
	return "", fmt.Errorf("ask for the boot script of %s: no offer with one: %w", mac, ctx.Err())
}

// discover is what Debian's iPXE sends, as far as a boot server looks at it.
func discover(mac net.HardwareAddr) (*dhcpv4.DHCPv4, error) {
	m, err := dhcpv4.New(
		dhcpv4.WithHwAddr(mac), dhcpv4.WithBroadcast(true),
		dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover),
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient:Arch:00007:UNDI:003010")),
		dhcpv4.WithOption(dhcpv4.OptClientArch(iana.EFI_X86_64)),
		dhcpv4.WithUserClass("iPXE", false),
		dhcpv4.WithRequestedOptions(dhcpv4.OptionBootfileName, dhcpv4.OptionTFTPServerName),
	)
	if err != nil {
		return nil, fmt.Errorf("ask for a boot script: %w", err)
	}
	return m, nil
}

// scriptURL takes the script's URL from an offer that answers ask.
func scriptURL(b []byte, ask *dhcpv4.DHCPv4) (string, bool) {
	m, err := dhcpv4.FromBytes(b)
	if err != nil || m.OpCode != dhcpv4.OpcodeBootReply || m.TransactionID != ask.TransactionID || !bytes.Equal(m.ClientHWAddr, ask.ClientHWAddr) {
		return "", false
	}
	for _, f := range []string{m.BootFileName, string(m.Options.Get(dhcpv4.OptionBootfileName))} {
		f = strings.TrimRight(f, "\x00")
		if u, err := url.Parse(f); err == nil && u.Scheme == "http" && u.Host != "" {
			return f, true
		}
	}
	return "", false
}
