package doctor

import (
	"fmt"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

// Clock is the host's clock.
type Clock interface {
	Now() time.Time
	// Synchronised is the kernel's word on whether somebody keeps it right (adjtimex(2)), and the largest error that it assumes.
	Synchronised() (ok bool, maxError time.Duration, err error)
}

type hostClock struct{}

func (hostClock) Now() time.Time { return time.Now() }

func (hostClock) Synchronised() (bool, time.Duration, error) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return false, 0, fmt.Errorf("adjtimex: %w", err)
	}
	return state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0, time.Duration(t.Maxerror) * time.Microsecond, nil
}

func (c Config) clockChecks() []Check {
	const plausible, kept = "clock: plausible", "clock: synchronised"
	now := c.Clock.Now().UTC()
	var out []Check
	switch {
	case c.Built.IsZero():
		out = append(out, skipped(plausible, "this program does not say when it was built"))
	case now.Before(c.Built):
		out = append(out, bad(Fail, plausible, "it is "+now.Format(time.RFC3339),
			"this program was built later, on "+c.Built.UTC().Format(time.RFC3339)+": certificates made now would be wrong",
			"set the clock, then start the appliance"))
	default:
		out = append(out, well(plausible, "it is "+now.Format(time.RFC3339)+", after the program was built"))
	}
	ok, maxError, err := c.Clock.Synchronised()
	switch {
	case err != nil:
		out = append(out, skipped(kept, "the kernel does not say: "+err.Error()))
	case !ok:
		out = append(out, bad(Warn, kept, "the kernel says that nobody keeps the clock right",
			"machines take their time from this host, and certificates are judged by it", "run chrony, ntpd or systemd-timesyncd on this host"))
	default:
		out = append(out, well(kept, "at most "+maxError.String()+" off, says the kernel"))
	}
	return out
}

// Built is when the source of this program was committed, zero where the Go tool did not write it.
func Built() time.Time {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return time.Time{}
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.time" {
			t, _ := time.Parse(time.RFC3339, s.Value)
			return t
		}
	}
	return time.Time{}
}
