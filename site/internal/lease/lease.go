// Package lease keeps the boot leases of a site: which machine may boot what, until when, and what became of it.
//
// It is for the site agent, whose boot services ask it before they answer anything, and it outlives a restart of the agent. It
// decides nothing on its own beside expiry: leases are opened and closed by signed commands. It does no network I/O.
package lease

import (
	"fmt"
	"net/netip"
	"time"
)

const (
	// MaxLeases bounds the table.
	MaxLeases = 4096
	// Refetch is how long after its first fetch a script may be fetched again: firmware does that.
	Refetch = 5 * time.Minute
	// Explain is how long after its end a lease still answers iPXE, with the reason and nothing to boot.
	Explain = 10 * time.Minute
	// Keep is how long an ended lease is remembered at all.
	Keep = time.Hour
)

// State says where a lease stands. Open is followed by one of the others, which are final.
type State string

// The states.
const (
	Open      State = "open"
	Consumed  State = "consumed"
	Cancelled State = "cancelled"
	Expired   State = "expired"
)

// Lease is one permitted boot of one machine.
type Lease struct {
	ID         string
	NodeID     string
	WorkflowID string
	Machine    string
	// MACs in lower-case colon form; at least one.
	MACs []string
	// KernelArgs follow the site's own.
	KernelArgs []string
	// Anchors is a serialized TrustAnchors message.
	Anchors []byte
	Expires time.Time

	// Token names this boot in paths. It is not a secret: whoever sees the segment sees it.
	Token  string
	Opened time.Time
	State  State
	// Ended is when State became final; zero while open.
	Ended time.Time

	// BootMAC and SystemUUID are what the booting firmware said last; empty before that.
	BootMAC, SystemUUID string
	// FirstScript is when the script was first fetched; zero before that. Client fetched it last.
	FirstScript time.Time
	Client      netip.Addr
}

// at returns the lease as it stands at now.
func (l Lease) at(now time.Time) Lease {
	if l.State == Open && !now.Before(l.Expires) {
		l.State, l.Ended = Expired, l.Expires
	}
	return l
}

// Refusal says why a script is not served, in words for the machine's screen.
type Refusal struct{ Reason string }

func (r *Refusal) Error() string { return r.Reason }

// refusal returns why the lease's boot is not served at now, nil when it is.
func (l Lease) refusal() error {
	switch l.State {
	case Open:
		return nil
	case Consumed:
		return &Refusal{fmt.Sprintf("boot lease %s was used up at %s, when a machine joined with it", l.ID, stamp(l.Ended))}
	case Cancelled:
		return &Refusal{fmt.Sprintf("boot lease %s was cancelled at %s", l.ID, stamp(l.Ended))}
	}
	return &Refusal{fmt.Sprintf("boot lease %s ran out at %s", l.ID, stamp(l.Ended))}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// shares says whether the two leases are for a common MAC.
func (l Lease) shares(other Lease) bool {
	for _, a := range l.MACs {
		for _, b := range other.MACs {
			if a == b {
				return true
			}
		}
	}
	return false
}
