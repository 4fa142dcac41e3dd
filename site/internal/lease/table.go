package lease

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"firstlight/site/internal/statefile"
)

// maxFile bounds what is read back, in bytes.
const maxFile = 32 << 20

// Table holds the leases. Its methods may be called from any goroutine; what they return is a copy.
type Table struct {
	path string
	now  func() time.Time

	mu     sync.Mutex
	leases map[string]Lease // by ID
}

// Load reads the table from path, which need not exist yet. Every change is on disk before the method that makes it returns.
func Load(path string, now func() time.Time) (*Table, error) {
	t := &Table{path: path, now: now, leases: map[string]Lease{}}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err == nil && info.Size() > maxFile {
		err = fmt.Errorf("%d bytes, the most is %d", info.Size(), maxFile)
	}
	if err != nil {
		return nil, fmt.Errorf("read leases: %w", err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read leases: %w", err)
	}
	var all []Lease
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, fmt.Errorf("read leases %s: %w", path, err)
	}
	for _, l := range all {
		t.leases[l.ID] = l
	}
	return t, nil
}

// ErrClosed is wrapped by Prepare for a lease that has already ended.
var ErrClosed = errors.New("lease has ended")

// Prepare opens a lease. Doing it again with the same content does nothing. An older open lease of the same node for one of its
// MACs is cancelled; one of another node is an error. Token, Opened, State and what the boot told are set here.
func (t *Table) Prepare(l Lease) error {
	if l.ID == "" || l.NodeID == "" || len(l.MACs) == 0 {
		return errors.New("open lease: id, node or MAC is missing")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	if old, ok := t.leases[l.ID]; ok {
		switch old = old.at(now); {
		case !sameOrder(old, l):
			return fmt.Errorf("open lease %s: it exists with other content", l.ID)
		case old.State != Open:
			return fmt.Errorf("open lease %s: %w: %w", l.ID, ErrClosed, old.refusal())
		}
		return nil
	}
	if !now.Before(l.Expires) {
		return fmt.Errorf("open lease %s: it ran out at %s", l.ID, stamp(l.Expires))
	}
	next := t.live(now)
	if len(next) >= MaxLeases {
		return fmt.Errorf("open lease %s: there are %d leases, the most", l.ID, MaxLeases)
	}
	for id, other := range next {
		if other.State != Open || !other.shares(l) {
			continue
		}
		if other.NodeID != l.NodeID {
			return fmt.Errorf("open lease %s: lease %s of node %s is open for the same MAC", l.ID, id, other.NodeID)
		}
		other.State, other.Ended = Cancelled, now
		next[id] = other
	}
	l.Token, l.Opened, l.State = strings.ToLower(rand.Text()), now, Open
	l.Ended, l.BootMAC, l.SystemUUID, l.FirstScript, l.Client = time.Time{}, "", "", time.Time{}, netip.Addr{}
	next[l.ID] = l
	return t.store(next)
}

func sameOrder(a, b Lease) bool {
	return a.NodeID == b.NodeID && a.WorkflowID == b.WorkflowID && a.Machine == b.Machine && a.Expires.Equal(b.Expires) &&
		slices.Equal(a.MACs, b.MACs) && slices.Equal(a.KernelArgs, b.KernelArgs) && bytes.Equal(a.Anchors, b.Anchors)
}

// Close ends a lease with a final state. A lease that is unknown or has ended stays as it is.
func (t *Table) Close(id string, s State) error {
	return t.change(id, func(l *Lease) bool {
		if l.State != Open {
			return false
		}
		l.State, l.Ended = s, t.now()
		return true
	})
}

// Saw notes what the booting firmware said of itself: the MAC that it boots from, and its system UUID where it gave one. Only
// what is new goes to the disk, and only the first time, because anybody on the segment can say it.
func (t *Table) Saw(id, mac, uuid string) error {
	return t.change(id, func(l *Lease) bool {
		first := l.BootMAC == "" || l.SystemUUID == "" && uuid != ""
		l.BootMAC = mac
		if uuid != "" {
			l.SystemUUID = uuid
		}
		return first
	})
}

// Admit decides whether the script of token is served to client, and notes that it was. A *Refusal says why not; ok is false
// for a token that is not known.
func (t *Table) Admit(token string, client netip.Addr) (l Lease, ok bool, err error) {
	l, ok = t.ByToken(token)
	if !ok {
		return Lease{}, false, nil
	}
	now := t.now()
	refusal := l.refusal()
	if refusal == nil && !l.FirstScript.IsZero() && now.After(l.FirstScript.Add(Refetch)) {
		refusal = &Refusal{fmt.Sprintf("the script of boot lease %s was first fetched at %s, more than %d minutes ago", l.ID, stamp(l.FirstScript), int(Refetch.Minutes()))}
	}
	if refusal != nil {
		return l, true, refusal
	}
	err = t.change(l.ID, func(l *Lease) bool {
		if l.State != Open {
			return false
		}
		changed := l.FirstScript.IsZero() || l.Client != client
		if l.FirstScript.IsZero() {
			l.FirstScript = now
		}
		l.Client = client
		return changed
	})
	if err != nil {
		return l, true, err
	}
	l, _ = t.ByToken(token)
	return l, true, l.refusal()
}

// Serving says whether the files of the lease's boot are served: it is open and its script was fetched.
func (l Lease) Serving() error {
	if l.State == Open && l.FirstScript.IsZero() {
		return &Refusal{"the script of boot lease " + l.ID + " was not fetched yet"}
	}
	return l.refusal()
}

// ByMAC returns the newest lease for a machine with the MAC (lower-case colon form), whatever its state.
func (t *Table) ByMAC(mac string) (Lease, bool) {
	return t.newest(func(l Lease) bool { return slices.Contains(l.MACs, mac) })
}

// ByToken returns the lease whose boot the token names.
func (t *Table) ByToken(token string) (Lease, bool) {
	return t.newest(func(l Lease) bool { return l.Token == token })
}

// ByClient returns the newest lease whose script the address fetched.
func (t *Table) ByClient(a netip.Addr) (Lease, bool) {
	return t.newest(func(l Lease) bool { return l.Client.IsValid() && l.Client == a })
}

func (t *Table) newest(match func(Lease) bool) (Lease, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var best Lease
	found := false
	for _, l := range t.leases {
		if match(l) && (!found || l.Opened.After(best.Opened)) {
			best, found = l, true
		}
	}
	return best.at(t.now()), found
}

// live returns a copy of the table without what is too old to remember.
func (t *Table) live(now time.Time) map[string]Lease {
	next := make(map[string]Lease, len(t.leases))
	for id, l := range t.leases {
		if l = l.at(now); l.State == Open || now.Before(l.Ended.Add(Keep)) {
			next[id] = l
		}
	}
	return next
}

// change applies edit to a lease and stores the table when edit says that it must be kept.
func (t *Table) change(id string, edit func(*Lease) (keep bool)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	l, ok := t.leases[id]
	if !ok {
		return nil
	}
	now := t.now()
	l = l.at(now)
	if !edit(&l) {
		t.leases[id] = l
		return nil
	}
	next := t.live(now)
	next[id] = l
	return t.store(next)
}

// store writes next to the disk and only then takes it as the table.
func (t *Table) store(next map[string]Lease) error {
	all := make([]Lease, 0, len(next))
	for _, l := range next {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b Lease) int { return a.Opened.Compare(b.Opened) })
	b, err := json.MarshalIndent(all, "", " ")
	if err == nil {
		err = statefile.Write(t.path, b)
	}
	if err != nil {
		return fmt.Errorf("store leases: %w", err)
	}
	t.leases = next
	return nil
}
