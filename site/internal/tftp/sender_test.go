package tftp

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"
)

// pattern is a file of any size whose bytes are known by their offset.
type pattern int64

func (p pattern) ReadAt(b []byte, at int64) (int, error) {
	for i := range b {
		if at+int64(i) >= int64(p) {
			return i, io.EOF
		}
		b[i] = byteAt(at + int64(i))
	}
	return len(b), nil
}

// byteAt differs between any two blocks whose numbers are equal in their low 16 bits.
func byteAt(at int64) byte { return byte(at ^ at>>9 ^ at>>25*31) }

func ack(n uint16) []byte { return binary.BigEndian.AppendUint16([]byte{0, opAck}, n) }

// receiver is a client that checks what it gets, and acknowledges.
type receiver struct {
	t     *testing.T
	block int
	want  uint64
	got   int64
}

func (r *receiver) take(p []byte) []byte {
	op, n := binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:])
	if op == opOACK {
		return ack(0)
	}
	if n != uint16(r.want) {
		return ack(n)
	}
	for i, b := range p[4:] {
		if b != byteAt(r.got+int64(i)) {
			r.t.Fatalf("block %d: got other bytes than the file's", r.want)
		}
	}
	r.got += int64(len(p) - 4)
	r.want++
	return ack(n)
}

func TestTFTP03_BlockNumberRollsOver(t *testing.T) {
	for _, c := range []struct {
		name  string
		size  int64
		asked []option
		// lost says whether the ACK of the block goes missing the first time.
		lost func(n uint64) bool
	}{
		{"40 MiB", 40 << 20, []option{{"tsize", "0"}}, func(n uint64) bool { return n%65536 < 3 || n > 32760 && n < 32776 || n%65536 > 65530 }},
		{"70 MiB, two roll-overs", 70 << 20, []option{{"blksize", "512"}}, func(n uint64) bool { return n == 65536 || n == 131072 }},
		{"no options", 35 << 20, nil, func(n uint64) bool { return n == 65535 || n == 65536 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSender(pattern(c.size), c.size, agree(c.asked, c.size, DefaultMaxBlock))
			r := &receiver{t: t, block: 512, want: 1}
			dropped := map[uint64]bool{}
			for {
				p, err := s.packet()
				if err != nil {
					t.Fatal(err)
				}
				n := s.out
				answer := r.take(p)
				if c.lost(n) && !dropped[n] {
					dropped[n] = true
					continue // its timer sends the block again
				}
				// A late repetition of the answer before this one moves nothing.
				if result, _ := s.receive(ack(uint16(n - 1))); result != ignored {
					t.Fatalf("block %d: got %v for the ACK before, want it ignored", n, result)
				}
				result, err := s.receive(answer)
				if result == finished {
					break
				}
				if result != advanced || err != nil {
					t.Fatalf("block %d: got %v, %v, want the next", n, result, err)
				}
			}
			if r.got != c.size || s.out != uint64(c.size/512)+1 {
				t.Errorf("got %d bytes in %d blocks, want %d", r.got, s.out, c.size)
			}
		})
	}
}

func TestTFTP03_AckOfOptionsIsNotAckOfBlock65536(t *testing.T) {
	s := newSender(pattern(0), 0, terms{block: 512})
	s.size, s.out = 1<<30, 65535
	if result, _ := s.receive(ack(0)); result != ignored {
		t.Errorf("ACK 0 while 65535 is out: got %v, want it ignored", result)
	}
	if result, _ := s.receive(ack(65535)); result != advanced || s.out != 65536 {
		t.Errorf("got %v, %d, want block 65536 out", result, s.out)
	}
	if result, _ := s.receive(ack(0)); result != advanced || s.out != 65537 {
		t.Errorf("ACK 0 of block 65536: got %v, %d, want the next out", result, s.out)
	}
}

func TestSizesAtBlockBounds(t *testing.T) {
	for _, c := range []struct {
		size   int64
		blocks uint64
		last   int
	}{{0, 1, 0}, {1, 1, 1}, {511, 1, 511}, {512, 2, 0}, {513, 2, 1}, {1024, 3, 0}} {
		s := newSender(pattern(c.size), c.size, terms{block: 512})
		for s.blocks() != s.out {
			s.receive(ack(uint16(s.out)))
		}
		p, err := s.packet()
		if err != nil || len(p)-4 != c.last || s.out != c.blocks {
			t.Errorf("%d bytes: got last block %d of %d bytes, %v, want %d of %d", c.size, s.out, len(p)-4, err, c.blocks, c.last)
		}
	}
	short := newSender(pattern(10), 20, terms{block: 512})
	if _, err := short.packet(); err == nil {
		t.Error("file that shrank: got no error")
	}
}

func TestClientErrors(t *testing.T) {
	mistake := append(binary.BigEndian.AppendUint16([]byte{0, opError}, 8), "User aborted the transfer\x00"...)
	probing := newSender(pattern(9), 9, terms{block: 512, granted: []option{{"tsize", "9"}}})
	if got, err := probing.receive(mistake); got != probed || err != nil {
		t.Errorf("answer to the OACK: got %v, %v, want a probe", got, err)
	}
	moving := newSender(pattern(9), 9, terms{block: 512})
	if got, err := moving.receive(mistake); got != aborted || err == nil {
		t.Errorf("answer to block 1: got %v, %v, want an end with its reason", got, err)
	}
}

func FuzzPackets(f *testing.F) {
	for _, b := range seeds(f) {
		f.Add(b, []byte{0, 4, 0, 0})
	}
	f.Add([]byte("\x00\x01snponly.efi\x00octet\x00tsize\x000\x00blksize\x001468\x00"), []byte{0, 4, 0, 0})
	f.Add([]byte("\x00\x01a\x00octet\x00windowsize\x0016\x00timeout\x003\x00"), []byte("\x00\x05\x00\x08User aborted\x00"))
	f.Add([]byte("\x00\x02a\x00netascii\x00"), []byte{0})
	f.Fuzz(func(t *testing.T, ask, answer []byte) {
		r, err := parseRequest(ask)
		if err != nil {
			return
		}
		if len(r.options) > maxOptions || bytes.ContainsRune([]byte(r.name+r.mode), 0) {
			t.Fatalf("got %+v", r)
		}
		a := agree(r.options, 3000, DefaultMaxBlock)
		if a.block < minBlock || a.block > DefaultMaxBlock || a.timeout > maxAskedTimeout*1e9 || len(a.granted) > 4 {
			t.Fatalf("got %+v", a)
		}
		s := newSender(pattern(3000), 3000, a)
		for range 4 {
			before := s.out
			if result, _ := s.receive(answer); result == advanced != (s.out == before+1) || s.out > s.blocks() {
				t.Fatalf("got %v, packet %d after %d of %d", result, s.out, before, s.blocks())
			}
			if p, err := s.packet(); err != nil || s.out > 0 && len(p) > 4+a.block {
				t.Fatalf("got %d bytes, %v", len(p), err)
			}
		}
	})
}
