package tftp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
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

func (p pattern) file() file { return file{io.NewSectionReader(p, 0, int64(p)), int64(p)} }

// byteAt differs between any two blocks whose numbers are equal in their low 16 bits.
func byteAt(at int64) byte { return byte(at ^ at>>9 ^ at>>25*31) }

func ack(n uint16) []byte { return binary.BigEndian.AppendUint16([]byte{0, opAck}, n) }

// end is what became of a transfer.
type end struct {
	acked int64
	err   error
}

// over serves a transfer in memory; the client's end of the connection moves whole packets.
func over(t *testing.T, ctx context.Context, r request, f file) (net.Conn, chan end) {
	t.Helper()
	client, server := net.Pipe()
	ended := make(chan end, 1)
	go func() {
		acked, err := serve(ctx, server, netip.MustParseAddrPort("192.0.2.1:2000"), r, f, DefaultMaxBlock, time.Second, func() {})
		server.Close()
		ended <- end{acked, err}
	}()
	return client, ended
}

// receiver is a client that checks what it gets, and acknowledges.
type receiver struct {
	t    *testing.T
	want uint64
	got  int64
}

func (r *receiver) take(p []byte) []byte {
	op, n := binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:])
	if op == opOACK {
		return ack(0)
	}
	if op != opData {
		r.t.Fatalf("got op %d %q", op, p[2:])
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
		name string
		size int64
		ask  request
		// lost says whether the ACK of the block goes missing the first time.
		lost func(n uint64) bool
	}{
		{"40 MiB", 40 << 20, request{op: opRead, name: "f", size: true}, func(n uint64) bool { return n%65536 < 3 || n > 32760 && n < 32776 || n%65536 > 65530 }},
		{"70 MiB, two roll-overs", 70 << 20, request{op: opRead, name: "f", block: 512}, func(n uint64) bool { return n == 65536 || n == 131072 }},
		{"no options", 35 << 20, request{op: opRead, name: "f"}, func(n uint64) bool { return n == 65535 || n == 65536 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { rollOver(t, c.size, c.ask, c.lost) })
		})
	}
}

func rollOver(t *testing.T, size int64, ask request, lost func(n uint64) bool) {
	conn, ended := over(t, t.Context(), ask, pattern(size).file())
	r := &receiver{t: t, want: 1}
	dropped := map[uint64]bool{}
	b := make([]byte, 2000)
	packets := 0
	for r.want <= uint64(size/512)+1 {
		n, err := conn.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		packets++
		answer := r.take(b[:n])
		if last := r.want - 1; lost(last) && !dropped[last] {
			dropped[last] = true
			continue // its timer sends the block again
		}
		// A late repetition of the answer before this one moves nothing.
		conn.Write(ack(binary.BigEndian.Uint16(answer[2:]) - 1))
		conn.Write(answer)
	}
	if e := <-ended; r.got != size || e.err != nil || e.acked != size {
		t.Errorf("got %d bytes, %d of them acknowledged, %v, want %d", r.got, e.acked, e.err, size)
	}
	if most := int(r.want) + len(dropped); packets > most {
		t.Errorf("got %d packets for %d blocks of which %d were lost", packets, r.want-1, len(dropped))
	}
}

func TestTFTP03_AckOfOptionsIsNotAckOfBlock65536(t *testing.T) {
	l := newLine(t.Context(), nil, nil, nil, defaultBlock, time.Second, func() {})
	data := func(n uint16) []byte {
		return append(binary.BigEndian.AppendUint16([]byte{0, opData}, n), make([]byte, 512)...)
	}
	if out, err := l.sending(data(65535)); out == nil || err != nil {
		t.Fatalf("got %v, %v", out, err)
	}
	if l.receive(ack(0)) != 0 {
		t.Error("ACK 0 while 65535 is out: got it handed on")
	}
	if l.receive(ack(65535)) == 0 || l.receive(ack(65535)) != 0 {
		t.Error("ACK 65535: want it handed on once")
	}
	l.sending(data(0))
	if l.receive(ack(0)) == 0 || l.acked != 1024 {
		t.Errorf("ACK 0 of block 65536: want it handed on, got %d bytes", l.acked)
	}
}

func TestTFTP04_RepeatedAckDoesNotDoubleTheStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size = 4800
		conn, ended := over(t, t.Context(), request{op: opRead, name: "f"}, pattern(size).file())
		r := &receiver{t: t, want: 1}
		b := make([]byte, 2000)
		for n := uint64(1); n <= size/512+1; n++ {
			got, err := conn.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			answer := r.take(b[:got])
			if r.want != n+1 {
				t.Fatalf("got block %d, want block %d once", binary.BigEndian.Uint16(b[2:]), n)
			}
			conn.Write(answer)
			conn.Write(answer)
		}
		if n, err := conn.Read(b); err == nil {
			t.Errorf("got %d bytes after the last ACK, want none", n)
		}
		if e := <-ended; e.err != nil || e.acked != size {
			t.Errorf("got %d bytes, %v", e.acked, e.err)
		}
	})
}

func TestTFTP04_LostBlockIsSentAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn, ended := over(t, t.Context(), request{op: opRead, name: "f"}, pattern(4800).file())
		b := make([]byte, 2000)
		conn.Read(b)
		conn.Write(ack(1))
		conn.Read(b) // block 2, which the client claims not to have got
		began := time.Now()
		conn.Write(ack(1))
		conn.Read(b)
		if took := time.Since(began); b[1] != opData || b[3] != 2 || took != time.Second {
			t.Errorf("got op %d block %d after %s, want block 2 again after one timeout", b[1], b[3], took)
		}
		conn.Write(ack(2))
		if conn.Read(b); b[3] != 3 {
			t.Errorf("got block %d, want 3", b[3])
		}
		conn.Close()
		if e := <-ended; e.err == nil {
			t.Error("got no error from a client that went away")
		}
	})
}

func TestSizesAtBlockBounds(t *testing.T) {
	t.Parallel()
	for _, size := range []int64{0, 1, 511, 512, 513, 1024} {
		synctest.Test(t, func(t *testing.T) {
			conn, ended := over(t, t.Context(), request{op: opRead, name: "f"}, pattern(size).file())
			r := &receiver{t: t, want: 1}
			b := make([]byte, 2000)
			for n := 4 + 512; n == 4+512; {
				n, _ = conn.Read(b)
				conn.Write(r.take(b[:n]))
			}
			if e := <-ended; e.err != nil || r.got != size || r.want-1 != uint64(size/512)+1 {
				t.Errorf("%d bytes: got %d in %d blocks, %v", size, r.got, r.want-1, e.err)
			}
		})
	}
}

func TestFileThatChangesOrBreaks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		f      file
		reason string
	}{
		{file{pattern(600).file(), 2000}, "the file became shorter"},
		{file{io.MultiReader(pattern(600).file(), iotest.ErrReader(errors.New("broken"))), 2000}, "broken"},
	} {
		synctest.Test(t, func(t *testing.T) {
			conn, ended := over(t, t.Context(), request{op: opRead, name: "f"}, c.f)
			r := &receiver{t: t, want: 1}
			b := make([]byte, 2000)
			n, _ := conn.Read(b)
			conn.Write(r.take(b[:n]))
			if n, _ = conn.Read(b); b[1] != opError || !strings.Contains(string(b[4:n]), "file cannot be read") {
				t.Errorf("got %q, want an ERROR", b[:n])
			}
			if e := <-ended; e.err == nil || e.err.Error() != c.reason {
				t.Errorf("got %v, want %s", e.err, c.reason)
			}
		})
	}
}

func TestClientErrors(t *testing.T) {
	mistake := append(binary.BigEndian.AppendUint16([]byte{0, opError}, 8), "User aborted the transfer\x00"...)
	for _, c := range []struct {
		name  string
		ask   request
		probe bool
	}{{"answer to the OACK", request{op: opRead, name: "f", size: true}, true}, {"answer to block 1", request{op: opRead, name: "f"}, false}} {
		synctest.Test(t, func(t *testing.T) {
			conn, ended := over(t, t.Context(), c.ask, pattern(9).file())
			conn.Read(make([]byte, 2000))
			began := time.Now()
			conn.Write(mistake)
			e := <-ended
			if errors.Is(e.err, errProbe) != c.probe || !c.probe && !strings.Contains(e.err.Error(), `error 8 "User aborted`) {
				t.Errorf("%s: got %v, want a probe: %v", c.name, e.err, c.probe)
			}
			if took := time.Since(began); took != 0 {
				t.Errorf("%s: got the end after %s, want it at once", c.name, took)
			}
			if n, err := conn.Read(make([]byte, 9)); err == nil {
				t.Errorf("%s: got %d bytes in answer to an ERROR, want none", c.name, n)
			}
		})
	}
}

func TestEndIsAtOnceWhateverTheLibraryDoes(t *testing.T) {
	for _, copies := range []int{1, 2, 3} {
		synctest.Test(t, func(t *testing.T) {
			ctx, evict := context.WithCancelCause(t.Context())
			conn, ended := over(t, ctx, request{op: opRead, name: "f"}, pattern(9000).file())
			b := make([]byte, 2000)
			for range copies {
				conn.Read(b)
			}
			// Within the wait for the answer to one copy, or in the pause before the next.
			time.Sleep(1500 * time.Millisecond)
			began := time.Now()
			evict(errEvicted)
			n, _ := conn.Read(b)
			if b[1] == opData { // the next copy was due in the meantime
				n, _ = conn.Read(b)
			}
			if b[1] != opError || !bytes.Contains(b[:n], []byte("the server ends the transfer")) {
				t.Errorf("after %d copies: got %q, want an ERROR", copies, b[:n])
			}
			if e := <-ended; !errors.Is(e.err, errEvicted) || time.Since(began) != 0 {
				t.Errorf("after %d copies: got %v after %s, want the end at once", copies, e.err, time.Since(began))
			}
		})
	}
}

func TestLateAnswerEndsThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, ended := over(t, t.Context(), request{op: opRead, name: "f"}, pattern(9).file())
		b := make([]byte, 2000)
		conn.Read(b)
		conn.Read(b)
		time.Sleep(1500 * time.Millisecond)
		began := time.Now()
		conn.Write(ack(1))
		if e := <-ended; e.err != nil || time.Since(began) != 0 {
			t.Errorf("got %v after %s, want the end at once", e.err, time.Since(began))
		}
	})
}

// refusing is a socket whose client does not listen: the kernel says so to the read after a write.
type refusing struct {
	net.Conn
	wrote, deadline chan struct{}
}

func (r refusing) Write(b []byte) (int, error) {
	r.wrote <- struct{}{}
	return len(b), nil
}

func (r refusing) Read([]byte) (int, error) {
	select {
	case <-r.wrote:
		return 0, &net.OpError{Op: "read", Err: syscall.ECONNREFUSED}
	case <-r.deadline:
		return 0, os.ErrDeadlineExceeded
	}
}

func (r refusing) SetReadDeadline(time.Time) error {
	close(r.deadline)
	return nil
}

func TestClientThatIsGone(t *testing.T) {
	for size, want := range map[int64]error{9: nil, 2000: errGone} {
		synctest.Test(t, func(t *testing.T) {
			conn := refusing{wrote: make(chan struct{}, 1), deadline: make(chan struct{})}
			at := netip.MustParseAddrPort("192.0.2.1:2000")
			acked, err := serve(t.Context(), conn, at, request{op: opRead, name: "f"}, pattern(size).file(), DefaultMaxBlock, time.Second, func() {})
			if !errors.Is(err, want) || want == nil && acked != size {
				t.Errorf("%d bytes: got %d, %v, want %v", size, acked, err, want)
			}
		})
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
		if bytes.ContainsRune([]byte(r.name+r.mode), 0) || r.block < 0 || r.block > maxBlock {
			t.Fatalf("got %+v", r)
		}
		// What the library gets reads as the same request.
		r.block = r.granted(DefaultMaxBlock)
		if again, err := parseRequest(r.encode(DefaultMaxBlock)); err != nil || again != (request{r.op, r.name, "octet", r.block, r.size}) {
			t.Fatalf("got %+v, %v, want %+v", again, err, r)
		}
		l := newLine(t.Context(), nil, nil, nil, r.block, time.Second, func() {})
		for _, out := range [][]byte{{0, opOACK, 'x', 0, 'y', 0}, {0, opData, 0, 1, 9}, {0, opData, 0, 2}} {
			if _, err := l.sending(out); err != nil != (l.ctx.Err() != nil) {
				t.Fatalf("got %v", err)
			}
			first, second := l.receive(answer), l.receive(answer)
			if first != 0 && (first != 4 || answer[1] != opAck) || second != 0 || l.acked > 1 {
				t.Fatalf("got %d and %d bytes handed on, %d acknowledged", first, second, l.acked)
			}
		}
	})
}
