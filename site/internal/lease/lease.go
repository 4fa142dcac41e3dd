// Package lease decides which machine of a site may boot what, until when, and keeps what became of it.
//
// It is for the site agent, whose boot services ask it before they answer anything. Book is the whole of its rules as a state
// machine without clock, randomness or I/O; testdata holds its transcripts. Table is a Book with those three: it outlives a
// restart of the agent. Installing leases are opened and closed by signed commands only; what Book decides on its own is expiry,
// and which machine nobody knows gets a discovery lease, where the policy says so.
package lease

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

const (
	// MaxLeases bounds the table.
	MaxLeases = 4096
	// MaxDiscoveries bounds the discovery leases among them: anybody on the segment can cause one.
	MaxDiscoveries = 256
	// DiscoveryLife is how long a discovery lease is open.
	DiscoveryLife = 30 * time.Minute
	// Refetch is how long after its first fetch a script may be fetched again: firmware does that.
	Refetch = 5 * time.Minute
	// Explain is how long after its end a lease still answers iPXE, with the reason and nothing to boot.
	Explain = 10 * time.Minute
	// Keep is how long an ended lease is remembered at all.
	Keep = time.Hour
	// Chain is how long after the transfer of the site's own iPXE the machine's next question counts as that iPXE's.
	Chain = 2 * time.Minute
)

// State says where a lease stands:
//
//	Open ── script fetched ──► Fetched
//	Open, Fetched ──► Consumed | Cancelled | Expired | Superseded, which are final
type State string

// The states. Superseded is the end of a lease whose machine got a newer one.
const (
	Open       State = "open"
	Fetched    State = "fetched"
	Consumed   State = "consumed"
	Cancelled  State = "cancelled"
	Expired    State = "expired"
	Superseded State = "superseded"
)

// Live says whether a boot is served in this state.
func (s State) Live() bool { return s == Open || s == Fetched }

// Lease is one permitted boot of one machine.
type Lease struct {
	ID string
	// NodeID and WorkflowID are empty for a discovery lease.
	NodeID     string
	WorkflowID string
	// Machine is its name for people.
	Machine string
	// Discovery says that the boot is an unknown machine's, that may say what it is and nothing else.
	Discovery bool
	// MACs in lower-case colon form; at least one.
	MACs []string
	// Arch overrides the architecture that firmware announces: a key of proxydhcp.Pins; empty for none.
	Arch string
	// KernelArgs follow the site's own.
	KernelArgs []string
	// Anchors is a serialized TrustAnchors message.
	Anchors []byte
	Expires time.Time

	// Token names this boot in paths. It is not a secret: whoever sees the segment sees it.
	Token  string
	Opened time.Time
	State  State
	// Ended is when State became final; zero before that.
	Ended time.Time

	// BootMAC and SystemUUID are what the booting firmware said last; empty before that.
	BootMAC, SystemUUID string
	// FirstScript is when the script was first fetched; zero before that. Client fetched it, and nobody else may.
	FirstScript time.Time
	Client      netip.Addr
	// Chained is when the machine got the site's own iPXE for the present boot; zero when it did not.
	Chained time.Time
}

// at returns the lease as it stands at now.
func (l Lease) at(now time.Time) Lease {
	if l.State.Live() && !now.Before(l.Expires) {
		l.State, l.Ended = Expired, l.Expires
	}
	return l
}

// Refusal says why a boot is not served, in words for the machine's screen.
type Refusal struct{ Reason string }

func (r *Refusal) Error() string { return r.Reason }

func refuse(format string, args ...any) error { return &Refusal{fmt.Sprintf(format, args...)} }

// Over returns why the lease's boot is not served any more, nil when it is.
func (l Lease) Over() error {
	at := stamp(l.Ended)
	switch l.State {
	case Open, Fetched:
		return nil
	case Consumed:
		return refuse("boot lease %s was used up at %s, when a machine joined with it", l.ID, at)
	case Cancelled:
		return refuse("boot lease %s was cancelled at %s", l.ID, at)
	case Superseded:
		return refuse("boot lease %s was replaced by a newer one at %s", l.ID, at)
	}
	return refuse("boot lease %s ran out at %s", l.ID, at)
}

// fetchable returns why client does not get the script at now, nil when it does.
func (l Lease) fetchable(client netip.Addr, now time.Time) error {
	if err := l.Over(); err != nil || l.State == Open {
		return err
	}
	if client != l.Client {
		return refuse("the script of boot lease %s was fetched by %s at %s and is not for %s", l.ID, l.Client, stamp(l.FirstScript), client)
	}
	if now.After(l.FirstScript.Add(Refetch)) {
		return refuse("the script of boot lease %s was first fetched at %s, more than %d minutes ago", l.ID, stamp(l.FirstScript), int(Refetch.Minutes()))
	}
	return nil
}

// serving returns why client does not get the files that the script names, nil when it does.
func (l Lease) serving(client netip.Addr) error {
	switch {
	case l.State == Open:
		return refuse("the script of boot lease %s was not fetched yet", l.ID)
	case l.State == Fetched && client != l.Client:
		return refuse("the script of boot lease %s was fetched by %s, its files are not for %s", l.ID, l.Client, client)
	}
	return l.Over()
}

// Reporting returns why client may not say anything of the boot, nil when it may: in whatever state the lease is, its machine is the
// one that fetched the script.
func (l Lease) Reporting(client netip.Addr) error {
	switch {
	case !l.Client.IsValid():
		return refuse("the script of boot lease %s was not fetched yet, nobody reports on its boot", l.ID)
	case client != l.Client:
		return refuse("the script of boot lease %s was fetched by %s, %s does not report on its boot", l.ID, l.Client, client)
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// shares says whether the two leases are for a common MAC.
func (l Lease) shares(other Lease) bool {
	return slices.ContainsFunc(l.MACs, func(m string) bool { return slices.Contains(other.MACs, m) })
}

// ParseMAC reads an Ethernet address in any usual spelling, "aa-bb-cc-dd-ee-ff", "AA:BB:CC:DD:EE:FF", "aabb.ccdd.eeff" or
// "aabbccddeeff", and returns it in lower-case colon form.
func ParseMAC(s string) (string, error) {
	if b, err := hex.DecodeString(s); err == nil && len(b) == 6 {
		return net.HardwareAddr(b).String(), nil
	}
	mac, err := net.ParseMAC(s)
	if err != nil || len(mac) != 6 {
		return "", fmt.Errorf("MAC %q: want six bytes in hex", s)
	}
	return strings.ToLower(mac.String()), nil
}
