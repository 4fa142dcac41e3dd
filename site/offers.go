package site

import "sync"

const (
	// maxUnused is how many offers of one transaction a machine may leave before people are told (PXE 2.1 lets firmware merge the
	// offers of two servers, and not every ROM does).
	maxUnused = 3
	// maxWatched bounds the machines that are counted.
	maxWatched = 1024
)

// offers counts the first-stage offers that machines do not take.
type offers struct {
	mu sync.Mutex
	m  map[string]offer
}

type offer struct {
	xid [4]byte
	n   int
}

// made notes an offer and says whether it is the one to tell of: once for each transaction.
func (o *offers) made(mac string, xid [4]byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.m == nil || len(o.m) >= maxWatched {
		o.m = map[string]offer{}
	}
	last := o.m[mac]
	if last.xid != xid {
		last = offer{xid: xid}
	}
	last.n++
	o.m[mac] = last
	return last.n == maxUnused
}

// taken notes that the machine went on.
func (o *offers) taken(mac string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.m, mac)
}
