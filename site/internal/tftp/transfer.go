package tftp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"reflect"
	"time"

	"github.com/pin/tftp/v3"
)

const (
	// DefaultTimeout is how long the first copy of a packet waits for its answer. Each of at most resends further copies waits
	// twice as long as the one before, maxBackoff times the first at most.
	DefaultTimeout = time.Second
	resends        = 5
	maxBackoff     = 4
	// maxLife bounds one transfer, whatever its client does.
	maxLife = 15 * time.Minute
	// readAhead is how many bytes of the file are read at a time.
	readAhead = 16 << 10
)

// errEvicted ends a transfer for which there is no more place, or which its client has begun anew.
var errEvicted = errors.New("another transfer took its place")

// errTooLong is a transfer that took more than maxLife.
var errTooLong = fmt.Errorf("it took more than %s", maxLife)

// file is what a transfer moves.
type file struct {
	io.Reader
	size int64
}

// serve has the library move f over conn, a socket connected to the client, and returns how much arrived; no error is all of it.
// Each transfer has a server of the library's of its own, so that timers, backoff and the end are its own too.
func serve(ctx context.Context, conn net.Conn, client netip.AddrPort, r request, f file, largest int, timeout time.Duration, progress func()) (int64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, maxLife, errTooLong)
	defer cancel()
	block := r.granted(largest)
	l := newLine(ctx, conn, net.UDPAddrFromAddrPort(client), r.encode(largest), block, timeout, progress)
	defer context.AfterFunc(l.ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })()

	var result error
	var srv *tftp.Server
	srv = tftp.NewServer(func(_ string, out io.ReaderFrom) error {
		widen(out, block)
		out.(tftp.OutgoingTransfer).SetSize(f.size)
		_, result = out.ReadFrom(bufio.NewReaderSize(&exactly{f.Reader, f.size}, readAhead))
		if cause := context.Cause(l.ctx); result != nil && cause != nil {
			result = cause
		}
		srv.Shutdown()
		close(l.over)
		l.kill(errOver)
		return nil
	}, nil)
	srv.EnableSinglePort()
	srv.SetTimeout(timeout)
	srv.SetBackoff(l.backoff)
	// The line counts the copies.
	srv.SetRetries(math.MaxInt)
	if err := srv.Serve(l); err != nil {
		return 0, err
	}
	return l.acked, result
}

// widen lets the library send blocks of n bytes. On anything but a *net.UDPConn it knows no MTU, takes 512 bytes for it, and has no
// setter for more, so its field is set by name. A version without the field goes on with blocks of 512, and a test says so.
func widen(out io.ReaderFrom, n int) {
	v := reflect.Indirect(reflect.ValueOf(out))
	if v.Kind() != reflect.Struct {
		return
	}
	if f := v.FieldByName("maxBlockLen"); f.Kind() == reflect.Int && f.CanAddr() {
		*(*int)(f.Addr().UnsafePointer()) = n
	}
}

// exactly reads as many bytes as it was told there are. The library takes io.ErrUnexpectedEOF for the end of the file.
type exactly struct {
	r    io.Reader
	left int64
}

func (e *exactly) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n, err := e.r.Read(p[:min(int64(len(p)), e.left)])
	e.left -= int64(n)
	if errors.Is(err, io.EOF) && e.left > 0 {
		err = errors.New("the file became shorter")
	}
	return n, err
}
