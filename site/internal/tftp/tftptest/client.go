// Package tftptest is a TFTP client (RFC 1350, 2347 to 2349) that shares no code with the server. It is for the site agent's tests.
package tftptest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"time"
)

const (
	defaultBlock = 512
	// asks is how often a request goes out, patience how long each waits for its answer.
	asks, patience = 4, 2 * time.Second
)

// Fetch reads a file in mode octet; at is a host and port, options are names and values in turn. A packet of the server's that is
// no answer to what was sent is passed over.
func Fetch(at, name string, options ...string) ([]byte, error) {
	return FetchFrom(nil, at, name, options...)
}

// FetchFrom is Fetch from an address of this machine's.
func FetchFrom(local net.IP, at, name string, options ...string) ([]byte, error) {
	to, err := net.ResolveUDPAddr("udp", at)
	if err != nil {
		return nil, err
	}
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: local})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	c := client{conn: conn, to: to, out: Request(1, append([]string{name, "octet"}, options...)...), block: defaultBlock, in: make([]byte, 1<<16)}
	for {
		done, err := c.step()
		if err != nil {
			return nil, fmt.Errorf("fetch %s: %w", name, err)
		}
		if done {
			return c.got, nil
		}
	}
}

// Request is the packet of a request: an operation and words.
func Request(op uint16, words ...string) []byte {
	b := binary.BigEndian.AppendUint16(nil, op)
	for _, w := range words {
		b = append(append(b, w...), 0)
	}
	return b
}

// client is one transfer: out is what was sent last, to whom.
type client struct {
	conn *net.UDPConn
	to   *net.UDPAddr
	out  []byte
	// bound is set once the server's port is known; began once there is a block.
	bound bool
	block int
	next  uint16
	in    []byte
	got   []byte
}

// step sends what is out and takes the answer.
func (c *client) step() (done bool, err error) {
	for range asks {
		if _, err := c.conn.WriteToUDP(c.out, c.to); err != nil {
			return false, err
		}
		c.conn.SetReadDeadline(time.Now().Add(patience))
		for {
			n, from, err := c.conn.ReadFromUDP(c.in)
			if err != nil {
				break
			}
			if n < 4 || c.bound && from.Port != c.to.Port {
				continue
			}
			if moved, done, err := c.take(c.in[:n], from); moved || err != nil {
				return done, err
			}
		}
	}
	return false, os.ErrDeadlineExceeded
}

func (c *client) take(b []byte, from *net.UDPAddr) (moved, done bool, err error) {
	number := binary.BigEndian.Uint16(b[2:])
	switch op := binary.BigEndian.Uint16(b); {
	case op == 5:
		text, _, _ := bytes.Cut(b[4:], []byte{0})
		return false, false, fmt.Errorf("error %d: %s", number, text)
	case op == 6 && !c.bound:
		c.options(b[2:])
		number = 0
	case op == 3 && number == c.next+1:
		c.got = append(c.got, b[4:]...)
		c.next, done = number, len(b)-4 < c.block
	default:
		return false, false, nil
	}
	c.to, c.bound = from, true
	c.out = binary.BigEndian.AppendUint16([]byte{0, 4}, number)
	if done {
		_, err = c.conn.WriteToUDP(c.out, c.to)
	}
	return true, done, err
}

// options takes what the server granted.
func (c *client) options(b []byte) {
	for words := bytes.Split(b, []byte{0}); len(words) >= 2; words = words[2:] {
		if string(words[0]) == "blksize" {
			fmt.Sscan(string(words[1]), &c.block)
		}
	}
}
