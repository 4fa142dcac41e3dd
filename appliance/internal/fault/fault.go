// Package fault is an error as a person is told it: what was attempted, on what, why it did not work, and what to do next.
//
// It is for the API and the command, on both sides of the socket; deeper packages return plain errors and leave the words for
// people to the edge. It imports nothing of ours.
package fault

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Kind says what sort of trouble it is. Each has its exit code.
type Kind string

// The kinds.
const (
	// Internal: the appliance could not do its part.
	Internal Kind = "internal"
	// Usage: the command line is wrong.
	Usage Kind = "usage"
	// Invalid: a value is wrong: a MAC, a file, an image.
	Invalid Kind = "invalid"
	// NotFound: there is no such object.
	NotFound Kind = "not-found"
	// Conflict: the object's state does not allow it now.
	Conflict Kind = "conflict"
	// Denied: this person may not.
	Denied Kind = "denied"
	// Unavailable: the appliance does not answer.
	Unavailable Kind = "unavailable"
)

// ExitCode of the command. 0 is success and never a kind's.
func (k Kind) ExitCode() int {
	switch k {
	case Usage:
		return 2
	case NotFound:
		return 3
	case Conflict:
		return 4
	case Invalid:
		return 5
	case Denied:
		return 6
	case Unavailable:
		return 7
	}
	return 1
}

// Error is what a person is told. Its parts are one line each.
type Error struct {
	Kind Kind
	// Op and Object: "add machine", "m1".
	Op, Object string
	// Cause is why; errors.Is and As see it.
	Cause error
	// Next is what to do, as an order.
	Next string
}

// New returns an Error about an object.
func New(kind Kind, op, object string, cause error, next string) *Error {
	return &Error{Kind: kind, Op: op, Object: object, Cause: cause, Next: next}
}

// Error is the short form: operation, object, cause.
func (e *Error) Error() string { return e.head() + ": " + e.cause() }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Lines are the three lines for a terminal: what, why, what next.
func (e *Error) Lines() [3]string {
	next := e.Next
	if next == "" {
		next = "see the appliance's log, then try again"
	}
	return [3]string{line(e.head()), "cause: " + line(e.cause()), "next: " + line(next)}
}

func (e *Error) head() string {
	if e.Object == "" {
		return e.Op
	}
	return e.Op + " " + e.Object
}

// cause leaves out what head already says: deeper packages name operation and object themselves.
func (e *Error) cause() string {
	if e.Cause == nil {
		return "unknown"
	}
	text := e.Cause.Error()
	for _, head := range []string{e.head(), fmt.Sprintf("%s %q", e.Op, e.Object)} {
		text = strings.TrimPrefix(text, head+": ")
	}
	return text
}

// line keeps foreign text from making lines or moving the cursor.
func line(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return ' '
		}
		return r
	}, s)
}

// wire is the JSON form.
type wire struct {
	Kind   Kind   `json:"kind"`
	Op     string `json:"op"`
	Object string `json:"object"`
	Cause  string `json:"cause"`
	Next   string `json:"next"`
}

// MarshalJSON implements json.Marshaler.
func (e *Error) MarshalJSON() ([]byte, error) {
	return json.Marshal(wire{e.Kind, e.Op, e.Object, e.cause(), e.Next})
}

// UnmarshalJSON implements json.Unmarshaler.
func (e *Error) UnmarshalJSON(b []byte) error {
	var w wire
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	*e = Error{Kind: w.Kind, Op: w.Op, Object: w.Object, Cause: errors.New(w.Cause), Next: w.Next}
	return nil
}

// Of returns err as an Error: itself when it is one, else an Internal one about op and object.
func Of(err error, op, object string) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Kind: Internal, Op: op, Object: object, Cause: err}
}
