package httpboot

import (
	"net"
	"net/netip"
	"sync"
)

// perClient closes at once what an address opens beyond its share, so that one client cannot take every connection.
type perClient struct {
	net.Listener
	mu   sync.Mutex
	open map[netip.Addr]int
}

func newPerClient(l net.Listener) *perClient {
	return &perClient{Listener: l, open: map[netip.Addr]int{}}
}

// Accept implements net.Listener.
func (p *perClient) Accept() (net.Conn, error) {
	for {
		c, err := p.Listener.Accept()
		if err != nil {
			return nil, err
		}
		at, _ := netip.ParseAddrPort(c.RemoteAddr().String())
		addr := at.Addr().Unmap()
		if p.take(addr) {
			return &counted{Conn: c, done: sync.OnceFunc(func() { p.give(addr) })}, nil
		}
		c.Close()
	}
}

func (p *perClient) take(a netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[a] >= maxPerClient {
		return false
	}
	p.open[a]++
	return true
}

func (p *perClient) give(a netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[a]--; p.open[a] == 0 {
		delete(p.open, a)
	}
}

// counted gives its place back when it is closed.
type counted struct {
	net.Conn
	done func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.done()
	return c.Conn.Close()
}
