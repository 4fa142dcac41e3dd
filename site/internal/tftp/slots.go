package tftp

import (
	"net/netip"
	"sync"
)

const (
	// maxTransfers and maxPerClient bound the transfers in progress.
	maxTransfers, maxPerClient = 128, 8
)

// slots are the places for transfers. A transfer of which nothing was acknowledged yet can be anybody's, under any address: it
// gives its place to a newer one when there is none left, the oldest first. One that moves keeps its place.
type slots struct {
	mu    sync.Mutex
	all   map[netip.AddrPort]*slot
	count map[netip.Addr]int
	next  uint64
}

// slot is the place of one transfer.
type slot struct {
	t      Transfer
	number uint64
	// moving is set with the first acknowledgement; superseded when its client asked for the same file anew.
	moving, superseded bool
	// evict ends the transfer.
	evict func()
}

func newSlots() *slots {
	return &slots{all: map[netip.AddrPort]*slot{}, count: map[netip.Addr]int{}}
}

// verdict is the answer to a request for a place.
type verdict int

const (
	granted verdict = iota
	// repeated: the client's earlier request for the file waits for its first acknowledgement; the packet that is out is sent
	// again by its timer.
	repeated
	busy
)

// take asks for a place. evict is called with the lock held and must not block.
func (s *slots) take(t Transfer, evict func()) (*slot, verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	addr := t.Client.Addr()
	if old, ok := s.all[t.Client]; ok {
		if !old.moving && old.t.File == t.File && old.t.Token == t.Token {
			return nil, repeated
		}
		s.end(old)
	}
	if s.count[addr] >= maxPerClient && !s.makeRoom(func(o *slot) bool { return o.t.Client.Addr() == addr }) {
		return nil, busy
	}
	if len(s.all) >= maxTransfers && !s.makeRoom(func(*slot) bool { return true }) {
		return nil, busy
	}
	// Firmware that lost a packet begins anew from another port and leaves the old transfer to run out.
	for _, o := range s.all {
		if o.t.Client.Addr() == addr && o.t.File == t.File {
			o.superseded = true
		}
	}
	s.next++
	n := &slot{t: t, number: s.next, evict: evict}
	s.all[t.Client] = n
	s.count[addr]++
	return n, granted
}

// makeRoom ends the oldest transfer of those that among allows and that do not move.
func (s *slots) makeRoom(among func(*slot) bool) bool {
	var oldest *slot
	for _, o := range s.all {
		if !o.moving && among(o) && (oldest == nil || o.number < oldest.number) {
			oldest = o
		}
	}
	if oldest != nil {
		s.end(oldest)
	}
	return oldest != nil
}

func (s *slots) end(o *slot) {
	s.remove(o)
	o.superseded = true
	o.evict()
}

func (s *slots) remove(o *slot) {
	if s.all[o.t.Client] != o {
		return
	}
	delete(s.all, o.t.Client)
	addr := o.t.Client.Addr()
	if s.count[addr]--; s.count[addr] == 0 {
		delete(s.count, addr)
	}
}

// moved notes that something was acknowledged.
func (s *slots) moved(o *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.moving = true
}

// give gives a place back and says whether what became of the transfer still matters: not when its client began it anew.
func (s *slots) give(o *slot) (matters bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(o)
	return !o.superseded
}
