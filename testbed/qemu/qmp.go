package qemu

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of the monitor protocol (QEMU's docs/interop/qmp-spec.txt).
const (
	maxLine   = 4 << 20 // bytes of one message
	maxEvents = 10000   // kept; older ones are dropped
)

// Event is one asynchronous message of QEMU, such as RESET or SHUTDOWN.
type Event struct {
	Name string
	Time time.Time       // QEMU's own stamp, microseconds
	Data json.RawMessage // may be nil
}

// Guest reports whether an event such as RESET or SHUTDOWN was caused by the
// guest itself.
func (e Event) Guest() bool {
	var d struct{ Guest bool }
	return json.Unmarshal(e.Data, &d) == nil && d.Guest
}

var errMonitorClosed = errors.New("the machine is off")

// qmp is one monitor connection. Commands are sent one at a time; events are
// collected beside them.
type qmp struct {
	conn     net.Conn
	greeting chan struct{} // closed when QEMU's greeting arrived
	ended    chan struct{} // closed when the reader ended

	// turn is held by the command in flight.
	turn chan struct{}

	// mu guards what follows.
	mu      sync.Mutex
	events  []Event
	nextID  uint64
	pending map[uint64]chan message
}

// message is any line from QEMU.
type message struct {
	QMP       json.RawMessage
	ID        uint64
	Return    json.RawMessage
	Error     *struct{ Class, Desc string }
	Event     string
	Data      json.RawMessage
	Timestamp struct{ Seconds, Microseconds int64 }
}

// socketPair gives a connection for us and the other end for a child.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "qmp"), os.NewFile(uintptr(fds[1]), "qmp-qemu")
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("socket pair: %w", err)
	}
	return conn, theirs, nil
}

func newQMP(conn net.Conn) *qmp {
	q := &qmp{
		conn: conn, greeting: make(chan struct{}), ended: make(chan struct{}),
		turn: make(chan struct{}, 1), pending: make(map[uint64]chan message),
	}
	go q.read()
	return q
}

// read handles every line until QEMU closes the connection.
func (q *qmp) read() {
	defer close(q.ended)
	defer q.conn.Close()
	lines := bufio.NewScanner(q.conn)
	lines.Buffer(make([]byte, 64<<10), maxLine)
	greeted := false
	for lines.Scan() {
		m, err := decode(lines.Bytes())
		switch {
		case err != nil:
			return
		case m.QMP != nil && !greeted:
			greeted = true
			close(q.greeting)
		case m.Event != "":
			q.mu.Lock()
			q.events = append(q.events, Event{
				Name: m.Event, Data: m.Data,
				Time: time.Unix(m.Timestamp.Seconds, m.Timestamp.Microseconds*1000).UTC(),
			})
			if len(q.events) > maxEvents {
				q.events = slices.Delete(q.events, 0, len(q.events)-maxEvents)
			}
			q.mu.Unlock()
		default:
			q.mu.Lock()
			answer := q.pending[m.ID]
			delete(q.pending, m.ID)
			q.mu.Unlock()
			if answer != nil {
				answer <- m
			}
		}
	}
}

// decode reads one line.
func decode(line []byte) (message, error) {
	var m message
	if err := json.Unmarshal(bytes.TrimSpace(line), &m); err != nil {
		return message{}, fmt.Errorf("monitor message: %w", err)
	}
	return m, nil
}

// handshake waits for the greeting and leaves negotiation mode.
func (q *qmp) handshake(ctx context.Context) error {
	select {
	case <-q.greeting:
	case <-q.ended:
		return errors.New("qemu ended before its greeting")
	case <-ctx.Done():
		return fmt.Errorf("wait for qemu's greeting: %w", ctx.Err())
	}
	_, err := q.execute(ctx, "qmp_capabilities", nil)
	return err
}

// execute sends a command and returns its answer.
func (q *qmp) execute(ctx context.Context, command string, args any) ([]byte, error) {
	select {
	case q.turn <- struct{}{}:
		defer func() { <-q.turn }()
	case <-q.ended:
		return nil, errMonitorClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	answer := make(chan message, 1)
	q.mu.Lock()
	q.nextID++
	id := q.nextID
	q.pending[id] = answer
	q.mu.Unlock()
	defer func() {
		q.mu.Lock()
		delete(q.pending, id)
		q.mu.Unlock()
	}()
	line, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        uint64 `json:"id"`
	}{command, args, id})
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		q.conn.SetWriteDeadline(deadline)
	} else {
		q.conn.SetWriteDeadline(time.Time{})
	}
	if _, err := q.conn.Write(append(line, '\n')); err != nil {
		return nil, fmt.Errorf("%w (%w)", errMonitorClosed, err)
	}
	select {
	case m := <-answer:
		return result(m)
	case <-q.ended:
		// The answer may have come just before the end.
		select {
		case m := <-answer:
			return result(m)
		default:
			return nil, errMonitorClosed
		}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func result(m message) ([]byte, error) {
	if m.Error != nil {
		return nil, fmt.Errorf("%s: %s", m.Error.Class, m.Error.Desc)
	}
	return m.Return, nil
}

// wait returns when every message that QEMU sent has been handled.
func (q *qmp) wait() { <-q.ended }

func (q *qmp) eventsCopy() []Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.events)
}
