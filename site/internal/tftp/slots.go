package tftp

import (
	"net/netip"
	"sync"
)

const (
	// maxTransfers and maxPerClient bound the transfers in progress.
	maxTransfers, maxPerClient = 64, 8
	// maxRemembered bounds how many client and file pairs are known by their newest transfer.
	maxRemembered = 1024
)

// slots counts transfers, and knows which is the newest of a client for a file: firmware that lost a packet begins anew and
// leaves the old transfer to run out.
type slots struct {
	mu     sync.Mutex
	active int
	client map[netip.Addr]int
	newest map[slotKey]uint64
	next   uint64
}

type slotKey struct {
	client netip.Addr
	file   string
}

func newSlots() *slots {
	return &slots{client: map[netip.Addr]int{}, newest: map[slotKey]uint64{}}
}

// take reserves a slot. done gives it back and says whether the transfer is still its client's newest for the file.
func (s *slots) take(t Transfer) (done func() (newest bool), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	addr := t.Client.Addr()
	if s.active >= maxTransfers || s.client[addr] >= maxPerClient {
		return nil, false
	}
	if len(s.newest) >= maxRemembered {
		clear(s.newest)
	}
	s.active++
	s.client[addr]++
	s.next++
	number, key := s.next, slotKey{addr, t.File}
	s.newest[key] = number
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.active--
		if s.client[addr]--; s.client[addr] == 0 {
			delete(s.client, addr)
		}
		return s.newest[key] == number
	}, true
}
