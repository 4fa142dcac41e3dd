package httpboot

import (
	"io"
	"net"
	"net/netip"
	"sync"
)

// bounded is a listener with at most so many open connections, and so many of one address: what an address opens beyond its share is
// closed at once, so that one client cannot take them all; what is beyond the whole waits.
type bounded struct {
	net.Listener
	slots  chan struct{}
	closed chan struct{}
	once   sync.Once

	mu   sync.Mutex
	open map[netip.Addr]int
}

func newBounded(l net.Listener) *bounded {
	return &bounded{Listener: l, slots: make(chan struct{}, maxConns), closed: make(chan struct{}), open: map[netip.Addr]int{}}
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	select {
	case b.slots <- struct{}{}:
	case <-b.closed:
		return nil, net.ErrClosed
	}
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			<-b.slots
			return nil, err
		}
		at, _ := netip.ParseAddrPort(c.RemoteAddr().String())
		addr := at.Addr().Unmap()
		if b.take(addr) {
			return &counted{Conn: c, done: sync.OnceFunc(func() { b.give(addr) })}, nil
		}
		c.Close()
	}
}

// Close implements net.Listener.
func (b *bounded) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.Listener.Close()
}

func (b *bounded) take(a netip.Addr) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[a] >= maxPerClient {
		return false
	}
	b.open[a]++
	return true
}

func (b *bounded) give(a netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[a]--; b.open[a] == 0 {
		delete(b.open, a)
	}
	<-b.slots
}

// counted gives its place back when it is closed.
type counted struct {
	net.Conn
	done func()
}

// ReadFrom implements io.ReaderFrom: without it net/http would copy every file through this process, and never use sendfile.
func (c *counted) ReadFrom(r io.Reader) (int64, error) {
	if from, ok := c.Conn.(io.ReaderFrom); ok {
		return from.ReadFrom(r)
	}
	return io.Copy(struct{ io.Writer }{c.Conn}, r)
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.done()
	return c.Conn.Close()
}
