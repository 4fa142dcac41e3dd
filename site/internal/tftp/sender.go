package tftp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// sender is the sending half of one transfer without its socket and its clock (RFC 1350, sections 2 and 6): which packet is out,
// and what a packet of the client changes. Exactly one packet is out at a time (window size 1).
type sender struct {
	content io.ReaderAt
	size    int64
	block   int
	// oack is the packet that goes out as number 0; nil where no option was granted, and number 1 is the first.
	oack []byte

	// out is the number of the packet that is out. It has no bound: only its low 16 bits are on the wire, so that 0 follows 65535.
	out uint64
	buf []byte
}

// outcome is what a packet of the client means.
type outcome int

const (
	// ignored: nothing changes, nothing is sent. A repeated ACK is one (RFC 1123, section 4.2.3.1).
	ignored outcome = iota
	// advanced: the next packet is to be sent.
	advanced
	// finished: the last block was acknowledged.
	finished
	// probed: the client took the size from the OACK and hung up, as EDK2 does (RFC 2347). Codes 0 and 8 are both in use for it.
	probed
	// aborted: the client gave up.
	aborted
)

func newSender(content io.ReaderAt, size int64, t terms) *sender {
	s := &sender{content: content, size: size, block: t.block, out: 1, buf: make([]byte, 4+t.block)}
	if len(t.granted) > 0 {
		s.oack, s.out = encodeOACK(t.granted), 0
	}
	return s
}

// blocks is how many there are; the last is shorter than the others, and may be empty.
func (s *sender) blocks() uint64 { return uint64(s.size/int64(s.block)) + 1 }

// last says whether the last block is out.
func (s *sender) last() bool { return s.out == s.blocks() }

// acked is how many bytes of the file the client has acknowledged.
func (s *sender) acked() int64 {
	if s.out == 0 {
		return 0
	}
	return int64(s.out-1) * int64(s.block)
}

// packet returns the packet that is out; it is good until the next call.
func (s *sender) packet() ([]byte, error) {
	if s.out == 0 {
		return s.oack, nil
	}
	at := s.acked()
	n := int(min(int64(s.block), s.size-at))
	binary.BigEndian.PutUint16(s.buf, opData)
	binary.BigEndian.PutUint16(s.buf[2:], uint16(s.out))
	if got, err := s.content.ReadAt(s.buf[4:4+n], at); got < n {
		return nil, fmt.Errorf("read at byte %d: %w", at, errors.Join(err, io.ErrUnexpectedEOF))
	}
	return s.buf[:4+n], nil
}

// receive takes a packet from the client.
func (s *sender) receive(b []byte) (outcome, error) {
	if len(b) < 4 {
		return ignored, nil
	}
	n := binary.BigEndian.Uint16(b[2:])
	switch binary.BigEndian.Uint16(b) {
	case opAck:
		switch {
		case n != uint16(s.out):
			return ignored, nil
		case s.last():
			return finished, nil
		}
		s.out++
		return advanced, nil
	case opError:
		if s.out == 0 && (n == codeUndefined || n == codeOption) {
			return probed, nil
		}
		text, _, _ := bytes.Cut(b[4:], []byte{0})
		return aborted, fmt.Errorf("the machine ended it with error %d %q", n, text[:min(len(text), maxErrorText)])
	}
	return ignored, nil
}

// maxErrorText bounds what is kept of a client's error text in bytes.
const maxErrorText = 80
