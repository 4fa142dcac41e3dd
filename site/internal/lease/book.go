package lease

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Policy is what the site does with boots for which no lease is live.
type Policy struct {
	// Generation is 0 before the control plane has said anything.
	Generation uint64
	// Discovery: an unknown machine gets a discovery lease. Anchors is a serialized TrustAnchors message for it.
	Discovery bool
	Anchors   []byte
	// ReplaceROM: a machine whose own ROM is iPXE loads the site's iPXE first.
	ReplaceROM bool
	// Known are the machines that the control plane has a record of, by MAC.
	Known map[string]Known
}

// Known is a machine of the policy.
type Known struct{ NodeID, Machine string }

// Book holds all leases of a site and its policy. Every method is one step of the state machine: what comes out depends on what
// went in, the time and the fresh names included, and on nothing else. A copy of a Book is another Book.
type Book struct {
	policy Policy
	leases map[string]Lease // by ID; shared between copies until owned
	owned  bool
	// byMAC and byToken find the IDs of leases, and are shared as leases is; nil before the first search. Searches are most of what a
	// site does, and there may be thousands of leases. What a key has is never changed, only replaced.
	byMAC, byToken map[string][]string
	// durable says that a step changed what must outlive a restart.
	durable bool
}

// put changes a lease. Durable says that the change must be on the disk before anybody hears of it.
func (b *Book) put(l Lease, durable bool) {
	b.own()
	if old, had := b.leases[l.ID]; !had || old.Token != l.Token || !slices.Equal(old.MACs, l.MACs) {
		b.remove(l.ID)
		b.enter(l)
	}
	b.leases[l.ID] = l
	b.durable = b.durable || durable
}

func (b *Book) own() {
	if b.owned {
		return
	}
	if b.leases = maps.Clone(b.leases); b.leases == nil {
		b.leases = map[string]Lease{}
	}
	b.byMAC, b.byToken = maps.Clone(b.byMAC), maps.Clone(b.byToken)
	b.owned = true
}

// remove drops a lease of an owned book.
func (b *Book) remove(id string) {
	l, ok := b.leases[id]
	if !ok {
		return
	}
	delete(b.leases, id)
	if b.byMAC == nil {
		return
	}
	without(b.byToken, l.Token, id)
	for _, mac := range l.MACs {
		without(b.byMAC, mac, id)
	}
}

func without(index map[string][]string, key, id string) {
	left := slices.DeleteFunc(slices.Clone(index[key]), func(other string) bool { return other == id })
	if len(left) == 0 {
		delete(index, key)
		return
	}
	index[key] = left
}

// enter makes a lease of an owned book findable.
func (b *Book) enter(l Lease) {
	if b.byMAC == nil {
		return
	}
	b.byToken[l.Token] = append(slices.Clip(b.byToken[l.Token]), l.ID)
	for _, mac := range l.MACs {
		b.byMAC[mac] = append(slices.Clip(b.byMAC[mac]), l.ID)
	}
}

// index makes leases findable, unless they are.
func (b *Book) index() {
	if b.byMAC != nil {
		return
	}
	b.byMAC, b.byToken = map[string][]string{}, map[string][]string{}
	for _, l := range b.leases {
		b.enter(l)
	}
}

// forget drops what is too old to remember.
func (b *Book) forget(now time.Time) {
	b.own()
	for id, l := range b.leases {
		if l = l.at(now); !l.State.Live() && !now.Before(l.Ended.Add(Keep)) {
			b.remove(id)
		}
	}
}

// SetPolicy takes a policy of a newer generation; the present one again changes nothing, an older one is an error.
func (b *Book) SetPolicy(p Policy) error {
	if p.Generation < b.policy.Generation {
		return fmt.Errorf("boot policy of generation %d is older than the one in force, %d", p.Generation, b.policy.Generation)
	}
	b.policy = p
	return nil
}

// ErrClosed is wrapped by Prepare for a lease that has already ended.
var ErrClosed = errors.New("lease has ended")

// Prepare opens an installing lease under a fresh token. Doing it again with the same content does nothing. A live lease of the
// same node for one of its MACs is superseded, as is a discovery lease; one of another node is an error.
func (b *Book) Prepare(now time.Time, l Lease, token string) error {
	if l.ID == "" || l.NodeID == "" || len(l.MACs) == 0 {
		return errors.New("open lease: id, node or MAC is missing")
	}
	if old, ok := b.leases[l.ID]; ok {
		switch old = old.at(now); {
		case !sameOrder(old, l):
			return fmt.Errorf("open lease %s: it exists with other content", l.ID)
		case !old.State.Live():
			return fmt.Errorf("open lease %s: %w: %w", l.ID, ErrClosed, old.Over())
		}
		return nil
	}
	if !now.Before(l.Expires) {
		return fmt.Errorf("open lease %s: it ran out at %s", l.ID, stamp(l.Expires))
	}
	b.forget(now)
	if len(b.leases) >= MaxLeases {
		return fmt.Errorf("open lease %s: there are %d leases, the most", l.ID, MaxLeases)
	}
	var older []Lease
	for id, other := range b.leases {
		if other = other.at(now); !other.State.Live() || !other.shares(l) {
			continue
		}
		if !other.Discovery && other.NodeID != l.NodeID {
			return fmt.Errorf("open lease %s: lease %s of node %s is open for the same MAC", l.ID, id, other.NodeID)
		}
		other.State, other.Ended = Superseded, now
		older = append(older, other)
	}
	for _, o := range older {
		b.put(o, true)
	}
	b.put(opened(now, l, token), true)
	return nil
}

// opened returns l as it begins, whatever it says of its past.
func opened(now time.Time, l Lease, token string) Lease {
	l.Token, l.Opened, l.State, l.Ended = token, now, Open, time.Time{}
	l.BootMAC, l.SystemUUID, l.FirstScript, l.Client, l.Chained = "", "", time.Time{}, netip.Addr{}, time.Time{}
	return l
}

func sameOrder(a, b Lease) bool {
	return a.NodeID == b.NodeID && a.WorkflowID == b.WorkflowID && a.Machine == b.Machine && a.Arch == b.Arch && a.Expires.Equal(b.Expires) &&
		slices.Equal(a.MACs, b.MACs) && slices.Equal(a.KernelArgs, b.KernelArgs) && bytes.Equal(a.Anchors, b.Anchors)
}

// Close ends a lease with a final state. A lease that is unknown or has ended stays as it is.
func (b *Book) Close(now time.Time, id string, s State) {
	if l, ok := b.leases[id]; ok && l.at(now).State.Live() {
		l.State, l.Ended = s, now
		b.put(l, true)
	}
}

// Verdict is the answer to a boot request.
type Verdict string

// The verdicts. Silent says nothing to nobody; Ignored and Refused say nothing to the machine and something to people; First is
// the first-stage file; Script is the script's address.
const (
	Silent  Verdict = "silent"
	Ignored Verdict = "ignored"
	Refused Verdict = "refused"
	First   Verdict = "first"
	Script  Verdict = "script"
)

// Boot is what a boot request says of its sender.
type Boot struct {
	// MAC in lower-case colon form; UUID empty when not said.
	MAC, UUID string
	// IPXE says that iPXE asks, not the firmware.
	IPXE bool
	// Firmware says that the site has a first-stage file for it.
	Firmware bool
}

// Answer is the verdict and what it is about: a lease, or a known machine, or neither. Reason and Next are words for people.
type Answer struct {
	Verdict Verdict
	Lease   Lease
	Known   Known
	Reason  string
	Next    string
}

// Boot answers a boot request. Fresh makes the id and the token of a discovery lease that it opens.
func (b *Book) Boot(now time.Time, q Boot, fresh func() (id, token string)) Answer {
	l, ok := b.ByMAC(now, q.MAC)
	known, isKnown := b.policy.Known[q.MAC]
	if l.Discovery && l.State == Fetched && now.After(l.FirstScript.Add(Refetch)) {
		// It was discovered, or tried to be, and starts over: nothing but time ends such a lease if nobody joined with it.
		l.State, l.Ended = Superseded, now
		b.put(l, true)
	}
	switch {
	case ok && l.State.Live():
		return b.serve(now, l, q)
	case ok && !l.Discovery && q.IPXE && now.Before(l.Ended.Add(Explain)):
		return Answer{Verdict: Script, Lease: l, Reason: l.Over().Error()}
	case ok && !l.Discovery:
		return ignored(Known{l.NodeID, l.Machine})
	case isKnown:
		return ignored(known)
	case b.policy.Generation == 0:
		return Answer{Verdict: Silent}
	case !b.policy.Discovery:
		return Answer{Verdict: Refused, Reason: "no machine has this MAC and discovery is off",
			Next: fmt.Sprintf("firstlight machine add NAME --mac %s …, or turn discovery on", q.MAC)}
	}
	l, ok = b.discover(now, q, fresh)
	if !ok {
		return Answer{Verdict: Refused, Reason: fmt.Sprintf("%d unknown machines are being discovered, the most", MaxDiscoveries),
			Next: "wait until they are done, then start the machine again"}
	}
	return b.serve(now, l, q)
}

func ignored(k Known) Answer {
	return Answer{Verdict: Ignored, Known: k, Reason: fmt.Sprintf("machine %s is not being provisioned", k.Machine),
		Next: "nothing: it goes on to its next boot entry"}
}

// serve answers a machine with a live lease.
func (b *Book) serve(now time.Time, l Lease, q Boot) Answer {
	if !q.IPXE && !q.Firmware {
		return Answer{Verdict: Refused, Lease: l, Reason: "there is no boot file for its architecture",
			Next: "put the file into the site's firmware directory, or set another architecture"}
	}
	chained := !l.Chained.IsZero() && !now.After(l.Chained.Add(Chain))
	verdict := First
	if q.IPXE && (chained || !q.Firmware || !b.policy.ReplaceROM) {
		verdict = Script
	}
	seen := l
	seen.BootMAC = q.MAC
	if q.UUID != "" {
		seen.SystemUUID = q.UUID
	}
	if !q.IPXE {
		seen.Chained = time.Time{} // a new boot
	}
	if seen.BootMAC != l.BootMAC || seen.SystemUUID != l.SystemUUID || !seen.Chained.Equal(l.Chained) {
		// On the disk only the first time, because anybody on the segment can say it.
		b.put(seen, !l.Discovery && (l.BootMAC == "" || l.SystemUUID == "" && q.UUID != ""))
	}
	return Answer{Verdict: verdict, Lease: seen}
}

// discover opens a discovery lease. Where there are too many, the oldest whose script nobody fetched makes room. It is on the
// disk from its first script on: a request alone writes nothing.
func (b *Book) discover(now time.Time, q Boot, fresh func() (id, token string)) (Lease, bool) {
	b.forget(now)
	var count int
	var oldest Lease
	for _, l := range b.leases {
		if !l.Discovery || !l.at(now).State.Live() {
			continue
		}
		count++
		if l.State == Open && (oldest.ID == "" || l.Opened.Before(oldest.Opened)) {
			oldest = l
		}
	}
	if count >= MaxDiscoveries || len(b.leases) >= MaxLeases {
		if oldest.ID == "" {
			return Lease{}, false
		}
		b.remove(oldest.ID)
	}
	id, token := fresh()
	l := opened(now, Lease{ID: id, Discovery: true, Machine: "unknown machine " + q.MAC, MACs: []string{q.MAC},
		Anchors: b.policy.Anchors, Expires: now.Add(DiscoveryLife)}, token)
	b.put(l, false)
	return l, true
}

// Transferred notes that the boot's machine got the site's own iPXE.
func (b *Book) Transferred(now time.Time, token string) {
	if l, ok := b.ByToken(now, token); ok && l.State.Live() {
		l.Chained = now
		b.put(l, false)
	}
}

// Script decides whether the script of token is served to client, and notes that it was. A *Refusal says why not; ok is false
// for a token that is not known.
func (b *Book) Script(now time.Time, token string, client netip.Addr) (l Lease, ok bool, err error) {
	l, ok = b.ByToken(now, token)
	if !ok {
		return Lease{}, false, nil
	}
	if err := l.fetchable(client, now); err != nil {
		return l, true, err
	}
	first := l.State == Open
	if first {
		l.State, l.FirstScript, l.Client = Fetched, now, client
	}
	if first || !l.Chained.IsZero() {
		l.Chained = time.Time{}
		b.put(l, first)
	}
	return l, true, nil
}

// Files decides whether client gets the files that the script of token names: as Script, and only after it.
func (b *Book) Files(now time.Time, token string, client netip.Addr) (l Lease, ok bool, err error) {
	if l, ok = b.ByToken(now, token); !ok {
		return Lease{}, false, nil
	}
	return l, true, l.serving(client)
}

// ByMAC returns the lease for a machine with the MAC (lower-case colon form): the live one, else the newest.
func (b *Book) ByMAC(now time.Time, mac string) (Lease, bool) {
	b.index()
	return b.newest(now, b.byMAC[mac])
}

// ByToken returns the lease whose boot the token names.
func (b *Book) ByToken(now time.Time, token string) (Lease, bool) {
	b.index()
	return b.newest(now, b.byToken[token])
}

// ByClient returns the newest lease whose script the address fetched.
func (b *Book) ByClient(now time.Time, a netip.Addr) (Lease, bool) {
	var ids []string
	for id, l := range b.leases {
		if l.Client.IsValid() && l.Client == a {
			ids = append(ids, id)
		}
	}
	return b.newest(now, ids)
}

// newest returns the live one of some leases, else the one that was opened last.
func (b *Book) newest(now time.Time, ids []string) (Lease, bool) {
	var best Lease
	found := false
	for _, id := range ids {
		l := b.leases[id].at(now)
		if !found || l.State.Live() && !best.State.Live() || l.State.Live() == best.State.Live() && l.Opened.After(best.Opened) {
			best, found = l, true
		}
	}
	return best, found
}
