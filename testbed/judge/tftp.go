package judge

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Operations of RFC 1350 and RFC 2347.
const (
	tftpRead  = 1
	tftpData  = 3
	tftpAck   = 4
	tftpError = 5
	tftpOack  = 6
)

// tftpDefaultBlock is the block size without an option; RFC 1350.
const tftpDefaultBlock = 512

// TFTP is one transfer: a read request and what came of it.
type TFTP struct {
	Time   time.Time
	Client netip.AddrPort
	// Server is the address that the request went to, and the one that the data came from.
	Server netip.Addr
	File   string
	// Bytes counts data without repetitions.
	Bytes int64
	// Complete: the last block came and the client acknowledged it.
	Complete bool
	// Error is the text of an error message of either side; empty when there was none.
	Error string

	blockSize int
	expect    uint16 // the next block that counts
	last      bool   // the short block that ends the transfer has come
}

// tftpRequest starts a transfer. A client that asks twice from one port starts a new one.
func (d *dissector) tftpRequest(p packet) {
	if len(p.payload) < 4 || binary.BigEndian.Uint16(p.payload) != tftpRead || len(d.t.TFTP) >= maxFlows {
		return
	}
	file, _, ok := strings.Cut(string(p.payload[2:]), "\x00")
	if !ok {
		return
	}
	t := &TFTP{Time: p.time, Client: p.flow.src, Server: p.flow.dst.Addr(), File: file, blockSize: tftpDefaultBlock, expect: 1}
	d.tftp[p.flow.src] = t
	d.t.TFTP = append(d.t.TFTP, t)
}

// tftpData follows a transfer by the client's port: RFC 1350 lets the server answer from any port of its own.
func (d *dissector) tftpData(p packet) {
	if len(p.payload) < 4 {
		return
	}
	op, arg := binary.BigEndian.Uint16(p.payload), binary.BigEndian.Uint16(p.payload[2:])
	if t := d.tftp[p.flow.dst]; t != nil && p.flow.src.Addr() == t.Server {
		t.fromServer(op, arg, p.payload)
	}
	if t := d.tftp[p.flow.src]; t != nil && p.flow.dst.Addr() == t.Server {
		switch {
		case op == tftpAck && t.last && arg == t.expect-1:
			t.Complete = true
		case op == tftpError && !t.Complete:
			t.Error = tftpText(p.payload[4:])
		}
	}
}

func (t *TFTP) fromServer(op, arg uint16, b []byte) {
	switch op {
	case tftpOack:
		words := strings.Split(string(b[2:]), "\x00")
		for i := 0; i+1 < len(words); i += 2 {
			if n, err := strconv.Atoi(words[i+1]); err == nil && strings.EqualFold(words[i], "blksize") && n >= 8 {
				t.blockSize = n
			}
		}
	case tftpData:
		if arg != t.expect || t.last {
			return
		}
		t.expect++
		t.Bytes += int64(len(b) - 4)
		t.last = len(b)-4 < t.blockSize
	case tftpError:
		t.Error = tftpText(b[4:])
	}
}

func tftpText(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	if s == "" {
		return "an error without text"
	}
	return s
}
