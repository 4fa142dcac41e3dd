package auth

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// rule is a token bucket: this many attempts at once, and then one each so often.
type rule struct {
	burst int
	every time.Duration
}

// The rules of attempts to show who one is. Only failures count. The narrowest one stops a guesser before he can keep others out;
// the one per name bounds what many addresses can guess together, and is wide because it can keep its user out too: then an
// administrator sets another password, by the unix socket if need be.
var (
	perPair    = rule{burst: 5, every: 30 * time.Second}
	perAddress = rule{burst: 20, every: 10 * time.Second}
	perName    = rule{burst: 50, every: time.Minute}
)

// perDenied is how much of the audit log one person's refusals may take, and those of all whom nobody knows together: it is kept for what
// was done, and must not be washed away.
var perDenied = rule{burst: 50, every: time.Minute}

// maxBuckets bounds the buckets kept; beyond it the one longest unused goes.
const maxBuckets = 4096

// limits counts attempts.
type limits struct {
	mu      sync.Mutex
	buckets map[string]*bucket
}

type bucket struct {
	limiter *rate.Limiter
	used    time.Time
	// unsaid counts the refusals that were not written to the audit log since the last one that was.
	unsaid int
}

func newLimits() *limits { return &limits{buckets: map[string]*bucket{}} }

// attempt takes one from each bucket, or from none and says how long to wait. Give it back when the attempt was right.
func (l *limits) attempt(name, from string, now time.Time) (giveBack func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	address := network(from)
	name = name[:min(len(name), MaxName+1)]
	var taken []*rate.Reservation
	undo := func() {
		for _, r := range taken {
			r.CancelAt(now)
		}
	}
	// The address comes first: one that is refused makes no buckets of the names that it makes up, which would push out those that count.
	for _, b := range []struct {
		key  string
		rule rule
	}{{"address " + address, perAddress}, {"pair " + name + " " + address, perPair}, {"name " + name, perName}} {
		r := l.bucket(b.key, b.rule, now).limiter.ReserveN(now, 1)
		taken = append(taken, r)
		if wait := r.DelayFrom(now); wait > 0 {
			undo()
			return nil, &LimitedError{RetryAfter: wait}
		}
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		undo()
	}, nil
}

// say asks whether a refusal of who is written down, and how many before it were not.
func (l *limits) say(who string, now time.Time) (unsaid int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bucket("denied "+who, perDenied, now)
	if !b.limiter.AllowN(now, 1) {
		b.unsaid++
		return 0, false
	}
	unsaid, b.unsaid = b.unsaid, 0
	return unsaid, true
}

// bucket returns the bucket of key; mu is held.
func (l *limits) bucket(key string, r rule, now time.Time) *bucket {
	b, ok := l.buckets[key]
	if !ok {
		if len(l.buckets) >= maxBuckets {
			l.drop()
		}
		b = &bucket{limiter: rate.NewLimiter(rate.Every(r.every), r.burst)}
		l.buckets[key] = b
	}
	b.used = now
	return b
}

// drop forgets the bucket that was not used for the longest time; mu is held.
func (l *limits) drop() {
	var oldest string
	for k, b := range l.buckets {
		if oldest == "" || b.used.Before(l.buckets[oldest].used) {
			oldest = k
		}
	}
	delete(l.buckets, oldest)
}

// network is what counts as one address: one IPv4 address or one IPv6 network of 64 bits, of which a host has as many addresses as
// it likes. from may carry a port.
func network(from string) string {
	a, err := netip.ParseAddr(from)
	if err != nil {
		p, err := netip.ParseAddrPort(from)
		if err != nil {
			return "unknown"
		}
		a = p.Addr()
	}
	if a = a.Unmap().WithZone(""); a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.String()
		}
	}
	return a.String()
}
