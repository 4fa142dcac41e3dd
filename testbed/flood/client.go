package flood

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// Bounds of the honest client.
const (
	// tryLimit is how long one answer is waited for before the question is sent again.
	tryLimit = time.Second
	// maxTries bounds that.
	maxTries = 15
	// blockSize is what OVMF and iPXE ask for (RFC 2348).
	blockSize  = 1468
	maxProgram = 4 << 20
	maxScript  = 64 << 10
)

// Network is where the client and the flood stand.
type Network struct {
	ListenPacket func(network, addr string) (net.PacketConn, error)
	Dial         func(ctx context.Context, network, addr string) (net.Conn, error)
	// FloodDial dials from an address that is not the client's: the site bounds the connections of each address.
	FloodDial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Site is the server's address.
	Site string
	// HTTP is its HTTP server's, with the port.
	HTTP string
	// Client is the honest client's own address; Flood are those that the flood comes from.
	Client string
	Flood  []string
}

// served is what an honest boot got.
type served struct {
	file   string
	bytes  int
	script string
}

// boot goes the way of a firmware and the iPXE that it loads: discover, the boot server's port, the program, discover, the script.
func (n Network) boot(ctx context.Context, mac net.HardwareAddr) (*served, error) {
	s := &served{}
	var err error
	if s.file, err = n.discover(ctx, mac, false); err != nil {
		return nil, fmt.Errorf("discover as firmware: %w", err)
	}
	again, err := n.ask(ctx, mac)
	if err != nil {
		return nil, fmt.Errorf("ask port %d: %w", portPXE, err)
	}
	if again != s.file {
		return nil, fmt.Errorf("port %d says %q, the offer said %q", portPXE, again, s.file)
	}
	if s.bytes, err = n.download(ctx, s.file); err != nil {
		return nil, fmt.Errorf("load %s: %w", s.file, err)
	}
	if s.script, err = n.discover(ctx, mac, true); err != nil {
		return nil, fmt.Errorf("discover as iPXE: %w", err)
	}
	return s, n.script(ctx, s.script)
}

// discover returns the boot file of the offer.
func (n Network) discover(ctx context.Context, mac net.HardwareAddr, ipxe bool) (string, error) {
	in, err := n.ListenPacket("udp4", "0.0.0.0:68")
	if err != nil {
		return "", err
	}
	defer in.Close()
	// A broadcast leaves by the interface of its source address.
	out, err := n.ListenPacket("udp4", net.JoinHostPort(n.Client, "0"))
	if err != nil {
		return "", err
	}
	defer out.Close()
	return n.exchange(ctx, pxe(mac, dhcpv4.MessageTypeDiscover, ipxe, transaction()), in, out, &net.UDPAddr{IP: net.IPv4bcast, Port: portDHCP})
}

// ask puts the firmware's second question.
func (n Network) ask(ctx context.Context, mac net.HardwareAddr) (string, error) {
	c, err := n.ListenPacket("udp4", net.JoinHostPort(n.Client, "0"))
	if err != nil {
		return "", err
	}
	defer c.Close()
	d := pxe(mac, dhcpv4.MessageTypeRequest, false, transaction())
	d.ClientIPAddr = net.ParseIP(n.Client)
	return n.exchange(ctx, d, c, c, &net.UDPAddr{IP: net.ParseIP(n.Site), Port: portPXE})
}

func transaction() (x dhcpv4.TransactionID) {
	rand.Read(x[:])
	return x
}

// exchange sends d until its answer comes.
func (n Network) exchange(ctx context.Context, d *dhcpv4.DHCPv4, in, out net.PacketConn, to net.Addr) (string, error) {
	buf := make([]byte, 1500)
	for range maxTries {
		if _, err := out.WriteTo(d.ToBytes(), to); err != nil {
			return "", err
		}
		in.SetReadDeadline(time.Now().Add(tryLimit))
		for ctx.Err() == nil {
			size, _, err := in.ReadFrom(buf)
			if timeout(err) {
				break
			}
			if err != nil {
				return "", err
			}
			m, err := dhcpv4.FromBytes(buf[:size])
			if err != nil || m.OpCode != dhcpv4.OpcodeBootReply || m.TransactionID != d.TransactionID || !bytes.Equal(m.ClientHWAddr, d.ClientHWAddr) {
				continue
			}
			file := m.BootFileName
			if file == "" {
				file = string(m.Options.Get(dhcpv4.OptionBootfileName))
			}
			if file = strings.TrimRight(file, "\x00"); file != "" {
				return file, nil
			}
		}
	}
	return "", errors.Join(fmt.Errorf("no answer with a file to %d tries", maxTries), ctx.Err())
}

func timeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// download loads a file by TFTP to its end and returns its size in bytes.
func (n Network) download(ctx context.Context, file string) (int, error) {
	c, err := n.ListenPacket("udp4", net.JoinHostPort(n.Client, "0"))
	if err != nil {
		return 0, err
	}
	defer c.Close()
	var to net.Addr = &net.UDPAddr{IP: net.ParseIP(n.Site), Port: portTFTP}
	out := request(1, file, "octet", "blksize", strconv.Itoa(blockSize))
	buf := make([]byte, 2048)
	size, next, tries, begun := 0, uint16(1), 0, false
	for {
		if _, err := c.WriteTo(out, to); err != nil {
			return size, err
		}
		c.SetReadDeadline(time.Now().Add(tryLimit))
		got, from, err := c.ReadFrom(buf)
		if ctx.Err() != nil {
			return size, ctx.Err()
		}
		if timeout(err) {
			if tries++; tries == maxTries {
				return size, fmt.Errorf("no answer to %d tries after %d bytes", maxTries, size)
			}
			continue
		}
		if err != nil {
			return size, err
		}
		if got < 4 || begun && from.String() != to.String() {
			continue
		}
		op, block := binary.BigEndian.Uint16(buf), binary.BigEndian.Uint16(buf[2:])
		switch {
		case op == 5:
			return size, fmt.Errorf("server says error %d %q", block, buf[4:got])
		case op == 6 && !begun:
			to, begun, tries = from, true, 0
			out = []byte{0, 4, 0, 0}
		case op == 3 && block == next:
			size, next, tries = size+got-4, next+1, 0
			out = []byte{0, 4, buf[2], buf[3]}
			if size > maxProgram {
				return size, fmt.Errorf("over %d bytes", maxProgram)
			}
			if got-4 < blockSize {
				_, err := c.WriteTo(out, to)
				return size, err
			}
		}
	}
}

// script fetches a boot script.
func (n Network) script(ctx context.Context, url string) error {
	c := &http.Client{Transport: &http.Transport{DialContext: n.Dial, DisableKeepAlives: true}, Timeout: maxTries * tryLimit}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxScript))
	if err != nil {
		return fmt.Errorf("get %s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK || !bytes.HasPrefix(b, []byte("#!ipxe\n")) || !bytes.Contains(b, []byte("/boot.cpio")) {
		return fmt.Errorf("get %s: %s, %d bytes that are no installing script", url, resp.Status, len(b))
	}
	return nil
}
