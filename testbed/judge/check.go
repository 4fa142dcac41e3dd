// Package judge decides from outside whether a machine was provisioned: from the bytes of its disk file, its serial line, the
// packets on the wire and the control plane's public record, never from what a program under test says of itself alone.
//
// It is for testbed/scenario. It reads files and values that others collected, starts nothing and changes nothing.
package judge

import "fmt"

// Check is one thing that was looked at, and what was found.
type Check struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Detail says in words what was found, with numbers.
	Detail string `json:"detail"`
}

// Pass is a check that holds.
func Pass(name, format string, args ...any) Check {
	return Check{Name: name, OK: true, Detail: fmt.Sprintf(format, args...)}
}

// Fail is a check that does not hold.
func Fail(name, format string, args ...any) Check {
	return Check{Name: name, Detail: fmt.Sprintf(format, args...)}
}

// Of is Pass when ok holds and Fail otherwise.
func Of(name string, ok bool, format string, args ...any) Check {
	return Check{Name: name, OK: ok, Detail: fmt.Sprintf(format, args...)}
}

// AllOK says whether every check holds; false for none at all.
func AllOK(checks []Check) bool {
	for _, c := range checks {
		if !c.OK {
			return false
		}
	}
	return len(checks) > 0
}
