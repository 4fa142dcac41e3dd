package tftp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// line is the net.PacketConn on which the library serves one transfer: on one side the library in its single-port mode, on the
// other a socket that is connected to the client.
//
// It hands the library the request, and from then on at most one packet for each packet that the library sends: the ACK that
// belongs to it, or an ERROR. More must not be: the library closes its channel with the end of a transfer, and a packet that is on
// its way then is a panic. So it is the line, too, that counts the copies and ends a silent client's transfer.
type line struct {
	net.Conn
	client  *net.UDPAddr
	timeout time.Duration
	block   int
	// progress is called after each packet that the client acknowledged.
	progress func()
	// request is handed over first; it is ReadFrom's own.
	request []byte
	// outer is the server's wish to go on. ctx ends with it or by kill; its cause is why. The read side of Conn has to end with it.
	outer, ctx context.Context
	kill       context.CancelCauseFunc
	// answered wakes backoff, also for the end; over is closed when the library has ended.
	answered chan struct{}
	over     chan struct{}

	mu sync.Mutex
	// op and number are of the packet that is out, size is its payload in bytes, copies how often it went out.
	op, number   uint16
	size, copies int
	// open says that what is out may still be answered. From true it goes to false with the packet that is handed to the library.
	open bool
	// acked are the bytes of the file that the client has acknowledged.
	acked int64
}

func newLine(ctx context.Context, conn net.Conn, client *net.UDPAddr, request []byte, block int, timeout time.Duration, progress func()) *line {
	l := &line{Conn: conn, client: client, timeout: timeout, block: block, progress: progress, request: request,
		outer: ctx, answered: make(chan struct{}, 1), over: make(chan struct{})}
	l.ctx, l.kill = context.WithCancelCause(ctx)
	return l
}

// Why the line itself ends a transfer. The client gets no word of it: it ended it, or does not listen.
var (
	// errProbe is a client that took the size from the OACK and hung up, as EDK2 does (RFC 2347). Codes 0 and 8 are both in use.
	errProbe  = errors.New("the machine only asked for the size")
	errSilent = errors.New("the machine did not answer")
	errGone   = errors.New("the machine does not listen any more")
	// errOver is the usual end.
	errOver = errors.New("the transfer is over")
)

// ReadFrom implements net.PacketConn for the library's one reader. It fails only after the library has ended.
func (l *line) ReadFrom(b []byte) (int, net.Addr, error) {
	if l.request != nil {
		n := copy(b, l.request)
		l.request = nil
		return n, l.client, nil
	}
	for l.ctx.Err() == nil {
		n, err := l.Conn.Read(b)
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			n = copy(b, l.refused())
		case errors.Is(err, os.ErrDeadlineExceeded):
			n = 0
		case err != nil:
			l.kill(fmt.Errorf("receive: %w", err))
		default:
			n = l.receive(b[:n])
		}
		if n > 0 {
			return n, l.client, nil
		}
	}
	if n := l.last(b); n > 0 {
		return n, l.client, nil
	}
	<-l.over
	return 0, nil, net.ErrClosed
}

// receive takes a packet from the client and says how much of it is for the library.
func (l *line) receive(b []byte) int {
	if len(b) < 4 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := binary.BigEndian.Uint16(b[2:])
	switch op := binary.BigEndian.Uint16(b); {
	case op == opError && l.op == opOACK && (n == codeUndefined || n == codeOption):
		l.kill(errProbe)
	case op == opError:
		text, _, _ := bytes.Cut(b[4:], []byte{0})
		l.kill(fmt.Errorf("the machine ended it with error %d %q", n, text[:min(len(text), maxErrorText)]))
	// Any other ACK is a repeated one, which moves nothing (RFC 1123, section 4.2.3.1).
	case op == opAck && l.open && n == l.number:
		l.handed()
		l.acked += int64(l.size)
		l.progress()
		return 4
	}
	return 0
}

// handed notes that what is out has its answer. The caller holds the lock.
func (l *line) handed() {
	l.open = false
	select {
	case l.answered <- struct{}{}:
	default:
	}
}

// refused is for the client's kernel saying that nobody listens: it has the last block and closed its socket, so that only its
// last ACK is missing (RFC 1350, section 6), or it is gone.
func (l *line) refused() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open && l.op == opData && l.size < l.block {
		l.handed()
		l.acked += int64(l.size)
		return encodeAck(l.number)
	}
	l.kill(errGone)
	return nil
}

// last writes the packet that ends the library's transfer, once, if it waits for one. If it does not, its next packet fails.
func (l *line) last(b []byte) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.open {
		return 0
	}
	l.handed()
	return copy(b, encodeError(codeUndefined, "ended"))
}

// WriteTo implements net.PacketConn for the library, which calls it with its own lock held.
func (l *line) WriteTo(b []byte, _ net.Addr) (int, error) {
	out, err := l.sending(b)
	if out == nil {
		return len(b), err
	}
	// A refusal is that of an earlier packet. The next one that reads hears of it again.
	if _, err := l.Conn.Write(out); err != nil && !errors.Is(err, syscall.ECONNREFUSED) && l.unsent(err) {
		return 0, context.Cause(l.ctx)
	}
	return len(b), nil
}

// sending takes a packet of the library's and returns what goes to the client, nil for nothing. Its error is no net.Error, for which
// the library would try again.
func (l *line) sending(b []byte) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	op, number := binary.BigEndian.Uint16(b), uint16(0)
	if op == opError {
		return l.farewell(), nil
	}
	if op == opData {
		number = binary.BigEndian.Uint16(b[2:])
	}
	again := op == l.op && number == l.number
	switch {
	case again && !l.open:
		return nil, nil // its answer is on its way to the library
	case again && l.copies > resends:
		l.kill(errSilent)
	case !again:
		l.op, l.number, l.size, l.copies = op, number, 0, 0
		if op == opData {
			l.size = len(b) - 4
		}
		select {
		case <-l.answered:
		default:
		}
	}
	l.copies++
	if l.open = l.ctx.Err() == nil; !l.open {
		return nil, context.Cause(l.ctx)
	}
	return b, nil
}

// unsent ends the transfer because a packet could not be sent, unless there is an answer to an earlier copy.
func (l *line) unsent(err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.open {
		return false
	}
	l.open = false
	l.kill(fmt.Errorf("send: %w", err))
	return true
}

// farewell is what the client is told in the place of the library's ERROR, whose words are for programmers.
func (l *line) farewell() []byte {
	l.open = false
	switch {
	case l.outer.Err() != nil:
		return encodeError(codeUndefined, "the server ends the transfer")
	case l.ctx.Err() != nil:
		return nil
	}
	return encodeError(codeUndefined, "file cannot be read")
}

// backoff implements the library's backoff function: it is called when copy number attempt, from 0, was not answered in time, and
// waits on until the next is due.
func (l *line) backoff(attempt int) time.Duration {
	t := time.NewTimer(l.timeout * time.Duration(min(1<<min(attempt, resends), maxBackoff)-1))
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.answered:
	}
	return 0
}

// LocalAddr implements net.PacketConn. The library only wants to read an address without a zone in it.
func (l *line) LocalAddr() net.Addr { return &net.UDPAddr{IP: net.IPv4zero} }

// maxErrorText bounds what is kept of a client's error text in bytes.
const maxErrorText = 80
