package flood

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"firstlight/testbed/judge"
)

// The size of a flood, and what it may cost.
const (
	// Packets is how many are sent; from From on memory is watched.
	Packets = 100_000
	From    = 20_000
	// MaxGrowth bounds how much memory grows between the two, in bytes.
	MaxGrowth = 16 << 20
	// perSecond is how fast, so that most packets reach the program and not the end of a socket's queue.
	perSecond = 1500
	// MaxDropped is how many of a hundred packets the kernel may throw away.
	MaxDropped = 20
)

// httpLinger is how long a connection with junk stays open, at most; maxJunk is how many there are at a time.
const (
	httpLinger = 2 * time.Second
	maxJunk    = 64
	// bootEvery is how long the honest client pauses between two boots.
	bootEvery = 100 * time.Millisecond
)

// Config is what a flood needs.
type Config struct {
	Network
	// MAC is a machine's whose boot lease is open.
	MAC net.HardwareAddr
	// Program is the name of a boot program that the site serves.
	Program string
	Seed    uint64
	// Usage looks at the program under test, UDP reads its namespace's /proc/net/udp.
	Usage func() (Usage, error)
	UDP   func() (string, error)
	// Goroutines says how many the program has, in its own words.
	Goroutines func(ctx context.Context) (int, error)
	Say        func(format string, args ...any)
}

// Result is what was seen.
type Result struct {
	Sent  int
	Kinds map[string]int
	// At holds the usage when so many packets were sent: From, and Packets.
	At map[int]Usage
	// Goroutines holds how many there were when the flood paused at so many packets and everything had settled.
	Goroutines map[int]int
	// Peak is the highest RSS between the two, in bytes.
	Peak int64
	// Boots of the honest client while packets flew, and those that failed.
	Boots  int
	Failed []error
	// Slowest is the longest of them.
	Slowest time.Duration
	Dropped int64
}

// Run floods. An error is of the testbed; what the program did wrong is in the result.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	res := &Result{Kinds: map[string]int{}, At: map[int]Usage{}, Goroutines: map[int]int{}}
	before, err := cfg.drops()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	over, done := make(chan struct{}), make(chan struct{})
	var boots atomic.Int64
	var between sync.Mutex
	go func() {
		defer close(done)
		cfg.boots(ctx, over, res, &boots, &between)
	}()
	err = cfg.send(ctx, res, &boots, &between)
	close(over)
	if err != nil {
		stop()
	}
	<-done
	if err != nil {
		return nil, err
	}
	res.Boots = int(boots.Load())
	after, err := cfg.drops()
	res.Dropped = after - before
	return res, err
}

// boots boots the honest client again and again until over is closed; whoever holds between has it pause. Only count is for others
// to read meanwhile.
func (cfg Config) boots(ctx context.Context, over <-chan struct{}, res *Result, count *atomic.Int64, between *sync.Mutex) {
	for {
		between.Lock()
		start := time.Now()
		_, err := cfg.boot(ctx, cfg.MAC)
		between.Unlock()
		if ctx.Err() != nil {
			return
		}
		n := count.Add(1)
		res.Slowest = max(res.Slowest, time.Since(start))
		if err != nil {
			res.Failed = append(res.Failed, fmt.Errorf("boot %d: %w", n, err))
		}
		select {
		case <-over:
			return
		case <-time.After(bootEvery):
		}
	}
}

func (cfg Config) drops() (int64, error) {
	text, err := cfg.UDP()
	if err != nil {
		return 0, err
	}
	return Drops(text, portDHCP, portPXE, portTFTP)
}

// send sends every packet, at an even pace.
func (cfg Config) send(ctx context.Context, res *Result, boots *atomic.Int64, between *sync.Mutex) error {
	var from []net.PacketConn
	for _, a := range cfg.Flood {
		c, err := cfg.ListenPacket("udp4", net.JoinHostPort(a, "0"))
		if err != nil {
			return err
		}
		defer c.Close()
		from = append(from, c)
	}
	m, junk := newMix(cfg.Seed, cfg.MAC, cfg.Program), make(chan struct{}, maxJunk)
	site := net.ParseIP(cfg.Site)
	start := time.Now()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for res.Sent < Packets {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		due := min(Packets, int(time.Since(start).Seconds()*perSecond))
		for ; res.Sent < due; res.Sent++ {
			p := m.next()
			res.Kinds[p.what]++
			if p.port == portHTTP {
				cfg.junk(ctx, junk, p.data)
			} else if _, err := from[res.Sent%len(from)].WriteTo(p.data, &net.UDPAddr{IP: site, Port: p.port}); err != nil {
				return fmt.Errorf("send packet %d (%s): %w", res.Sent, p.what, err)
			}
			if err := cfg.watch(res, res.Sent+1, boots); err != nil {
				return err
			}
			if res.Sent+1 != From {
				continue
			}
			pause := time.Now()
			if err := cfg.count(ctx, res, From, junk, between); err != nil {
				return err
			}
			start = start.Add(time.Since(pause))
		}
	}
	return cfg.count(ctx, res, Packets, junk, between)
}

// count notes how many goroutines are left when nothing flies: the honest client pauses, too.
func (cfg Config) count(ctx context.Context, res *Result, sent int, junk chan struct{}, between *sync.Mutex) error {
	between.Lock()
	defer between.Unlock()
	// Nothing waits in a queue any more when the last junk is gone.
	for range maxJunk {
		select {
		case junk <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for range maxJunk {
		<-junk
	}
	n, err := settled(ctx, cfg.Goroutines)
	if err != nil {
		return fmt.Errorf("count goroutines after packet %d: %w", sent, err)
	}
	res.Goroutines[sent] = n
	cfg.Say("%6d packets: %d goroutines", sent, n)
	return nil
}

// watch looks at the program at every thousandth packet.
func (cfg Config) watch(res *Result, sent int, boots *atomic.Int64) error {
	if sent%1000 != 0 {
		return nil
	}
	u, err := cfg.Usage()
	if err != nil {
		return fmt.Errorf("look at the program after packet %d: %w", sent, err)
	}
	if sent == From || sent == Packets {
		res.At[sent] = u
	}
	if sent >= From {
		res.Peak = max(res.Peak, u.RSS)
	}
	if sent%10_000 == 0 {
		cfg.Say("%6d packets: %s, %d threads, %d open files, %d boots of the honest client", sent, mib(u.RSS), u.Threads, u.Files, boots.Load())
	}
	return nil
}

// junk puts bytes on a connection of their own and leaves it to the server to end it; no more than maxJunk at a time.
func (cfg Config) junk(ctx context.Context, slots chan struct{}, data []byte) {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return
	}
	go func() {
		defer func() { <-slots }()
		c, err := cfg.FloodDial(ctx, "tcp", cfg.HTTP)
		if err != nil {
			return
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(httpLinger))
		if _, err := c.Write(data); err == nil {
			c.Read(make([]byte, 512))
		}
	}()
}

// Checks says whether the program withstood.
func (r *Result) Checks() []judge.Check {
	a, b := r.At[From], r.At[Packets]
	grown := b.RSS - a.RSS
	return []judge.Check{
		judge.Of("packets were sent", r.Sent == Packets && len(r.Kinds) == len(kinds()), "%d packets: %v", r.Sent, r.Kinds),
		judge.Of("packets reached the program", r.Dropped*100 <= MaxDropped*Packets, "%d of %d thrown away by the kernel because a queue was full", r.Dropped, Packets),
		judge.Of("an honest client was served throughout", r.Boots >= 5 && len(r.Failed) == 0,
			"%d whole boots while packets flew, the slowest took %.1f s, %d failed%s", r.Boots, r.Slowest.Seconds(), len(r.Failed), reasons(r.Failed)),
		judge.Of("memory does not grow", a.RSS > 0 && grown <= MaxGrowth, "%s after packet %d, %s after packet %d (grown by %s, at most %s); %s at the peak between",
			mib(a.RSS), From, mib(b.RSS), Packets, mib(grown), mib(MaxGrowth), mib(r.Peak)),
		judge.Of("goroutines do not grow", r.Goroutines[From] > 0 && r.Goroutines[Packets] == r.Goroutines[From],
			"%d after packet %d, %d after packet %d, when what the packets had begun was over", r.Goroutines[From], From, r.Goroutines[Packets], Packets),
		judge.Of("threads and files do not grow", b.Threads > 0 && b.Threads <= a.Threads+maxMoreThreads && b.Files <= a.Files+maxJunk,
			"%d threads and %d open files after packet %d, %d and %d after packet %d", a.Threads, a.Files, From, b.Threads, b.Files, Packets),
	}
}

// reasons is the errors as the end of a sentence; nothing where there is none.
func reasons(errs []error) string {
	if len(errs) == 0 {
		return ""
	}
	return ": " + errors.Join(errs...).Error()
}

// maxMoreThreads is how many threads the runtime may add for files that block.
const maxMoreThreads = 8

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
