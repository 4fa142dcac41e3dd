package tftp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

const (
	// DefaultTimeout is how long the first copy of a packet waits for its answer. Each of at most resends further copies waits
	// twice as long as the one before, maxBackoff times the first at most.
	DefaultTimeout = time.Second
	resends        = 5
	maxBackoff     = 4
	// maxLife bounds one transfer, whatever its client does.
	maxLife = 15 * time.Minute
)

// errEvicted ends a transfer for which there is no more place, or which its client has begun anew.
var errEvicted = errors.New("another transfer took its place")

// errTooLong is a transfer that took more than maxLife.
var errTooLong = fmt.Errorf("it took more than %s", maxLife)

// errSilent is a client that did not answer.
var errSilent = errors.New("the machine did not answer")

// drive moves a file over conn, a socket connected to the client, until it is there (nil) or cannot get there. Progress is called
// after each acknowledged packet.
func drive(ctx context.Context, conn *net.UDPConn, s *sender, timeout time.Duration, progress func()) (outcome, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, maxLife, errTooLong)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	in := make([]byte, 4+maxErrorText)
	for copies := 0; copies <= resends; copies++ {
		p, err := s.packet()
		if err != nil {
			conn.Write(encodeError(codeUndefined, "file cannot be read"))
			return ignored, err
		}
		if _, err := conn.Write(p); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
			return ignored, fmt.Errorf("send: %w", err)
		}
		conn.SetReadDeadline(time.Now().Add(timeout * time.Duration(min(1<<copies, maxBackoff))))
		result, err := await(conn, s, in)
		switch {
		case ctx.Err() != nil:
			conn.SetWriteDeadline(time.Time{})
			conn.Write(encodeError(codeUndefined, "the server ends the transfer"))
			return ignored, context.Cause(ctx)
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case result != advanced:
			return result, err
		}
		progress()
		copies = -1
	}
	return ignored, errSilent
}

// await waits for a packet that means something. Neither strays nor repeated ACKs move the deadline.
func await(conn *net.UDPConn, s *sender, in []byte) (outcome, error) {
	for {
		n, err := conn.Read(in)
		switch {
		case errors.Is(err, syscall.ECONNREFUSED) && s.last():
			// It took every block and closed its socket; only its last ACK is missing (RFC 1350, section 6).
			return finished, nil
		case errors.Is(err, syscall.ECONNREFUSED):
			return aborted, errors.New("the machine does not listen any more")
		case err != nil:
			return ignored, err
		}
		if result, err := s.receive(in[:n]); result != ignored {
			return result, err
		}
	}
}
