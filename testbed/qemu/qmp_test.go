package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const greeting = `{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}}, "capabilities": ["oob"]}}` + "\n"

// fakeQEMU answers each command with what answer gives for its name.
func fakeQEMU(conn net.Conn, answer func(command string, id uint64) string) {
	fmt.Fprint(conn, greeting)
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		var in struct {
			Execute string
			ID      uint64
		}
		if json.Unmarshal(lines.Bytes(), &in) != nil {
			return
		}
		fmt.Fprint(conn, answer(in.Execute, in.ID))
	}
}

func TestQMPCommandsAndEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		q := newQMP(ours)
		go fakeQEMU(theirs, func(command string, id uint64) string {
			switch command {
			case "system_reset":
				return `{"timestamp": {"seconds": 1700000000, "microseconds": 250000}, "event": "RESET", "data": {"guest": true, "reason": "guest-reset"}}` + "\r\n" +
					fmt.Sprintf(`{"return": {"n": 7}, "id": %d}`+"\n", id)
			case "nonsense":
				return fmt.Sprintf(`{"id": %d, "error": {"class": "CommandNotFound", "desc": "The command nonsense has not been found"}}`+"\n", id)
			case "silence":
				return ""
			}
			return fmt.Sprintf(`{"return": {}, "id": %d}`+"\n", id)
		})
		ctx := t.Context()
		if err := q.handshake(ctx); err != nil {
			t.Fatal(err)
		}
		if got, err := q.execute(ctx, "system_reset", nil); err != nil || string(got) != `{"n": 7}` {
			t.Errorf("system_reset: got %s, %v", got, err)
		}
		if _, err := q.execute(ctx, "nonsense", nil); err == nil || !strings.Contains(err.Error(), "CommandNotFound: The command") {
			t.Errorf("nonsense: got %v, want QEMU's words", err)
		}
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := q.execute(short, "silence", nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("silence: got %v, want %v", err, context.DeadlineExceeded)
		}
		if _, err := q.execute(ctx, "cont", nil); err != nil {
			t.Errorf("after a command without answer: %v", err)
		}
		events := q.eventsCopy()
		if len(events) != 1 || events[0].Name != "RESET" || !events[0].Guest() || !events[0].Time.Equal(time.Unix(1700000000, 250000000)) {
			t.Errorf("events: got %+v, want one RESET by the guest", events)
		}
		theirs.Close()
		q.wait()
		if _, err := q.execute(ctx, "cont", nil); !errors.Is(err, errMonitorClosed) {
			t.Errorf("after the end: got %v, want %v", err, errMonitorClosed)
		}
		if got := q.eventsCopy(); len(got) != 1 {
			t.Errorf("events after the end: got %d, want 1", len(got))
		}
	})
}

func TestQMPEndBeforeGreeting(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	q := newQMP(ours)
	theirs.Close()
	if err := q.handshake(t.Context()); err == nil || !strings.Contains(err.Error(), "before its greeting") {
		t.Errorf("got %v, want an error that says so", err)
	}
}

func TestQMPEventsAreBounded(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	q := newQMP(ours)
	fmt.Fprint(theirs, greeting)
	for i := range maxEvents + 10 {
		fmt.Fprintf(theirs, `{"event": "E%d", "timestamp": {"seconds": 1, "microseconds": 0}}`+"\n", i)
	}
	theirs.Close()
	q.wait()
	events := q.eventsCopy()
	if len(events) != maxEvents || events[len(events)-1].Name != fmt.Sprintf("E%d", maxEvents+9) {
		t.Errorf("got %d events, the last %q; want %d and the newest kept", len(events), events[len(events)-1].Name, maxEvents)
	}
}

// FuzzQMP: no line that QEMU could send breaks the reader.
func FuzzQMP(f *testing.F) {
	f.Add([]byte(greeting))
	f.Add([]byte(`{"return": {}, "id": 1}`))
	f.Add([]byte(`{"event": "SHUTDOWN", "data": {"guest": true}, "timestamp": {"seconds": 1, "microseconds": 2}}`))
	f.Add([]byte(`{"error": null, "id": "x"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := decode(line)
		if err != nil {
			return
		}
		Event{Name: m.Event, Data: m.Data}.Guest()
		if _, err := result(m); (err != nil) != (m.Error != nil) {
			t.Errorf("result of %s: got %v", line, err)
		}
		parseBlockStats(m.Return, []Disk{{Serial: "S"}})
	})
}
