package appliance

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// pace bounds how slowly a client of the network may send and read: a connection that it holds is one that others do not get.
type pace struct {
	// grace is what a request's body may take whatever its length, rate the bytes a second that it brings beyond that.
	grace time.Duration
	rate  int64
	// write bounds one write of an answer. A stream that is quiet is not slow.
	write time.Duration
}

// usualPace leaves room for a blob over a bad line.
var usualPace = pace{grace: 30 * time.Second, rate: 16 << 10, write: 30 * time.Second}

func (p pace) keep(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		if r.ContentLength != 0 && r.Body != nil {
			b := &pacedBody{ReadCloser: r.Body, rc: rc, pace: p, began: time.Now()}
			b.extend()
			r.Body = b
		}
		next.ServeHTTP(&pacedWriter{w, rc, p}, r)
	})
}

type pacedBody struct {
	io.ReadCloser
	rc    *http.ResponseController
	pace  pace
	began time.Time
	read  int64
}

func (b *pacedBody) extend() {
	b.rc.SetReadDeadline(b.began.Add(b.pace.grace + time.Duration(b.read)*time.Second/time.Duration(b.pace.rate)))
}

// Read gives more time for more bytes. At the end the bound is taken away: what is read then is only whether the client is still there.
func (b *pacedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	if errors.Is(err, io.EOF) {
		b.rc.SetReadDeadline(time.Time{})
	} else if n > 0 {
		b.extend()
	}
	return n, err
}

// pacedWriter takes the bound away after each write: over HTTP/2 one that passes ends a stream that is only quiet.
type pacedWriter struct {
	http.ResponseWriter
	rc   *http.ResponseController
	pace pace
}

// Unwrap is for http.ResponseController.
func (w *pacedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *pacedWriter) Write(b []byte) (int, error) {
	w.rc.SetWriteDeadline(time.Now().Add(w.pace.write))
	defer w.rc.SetWriteDeadline(time.Time{})
	return w.ResponseWriter.Write(b)
}

// FlushError is for http.ResponseController.
func (w *pacedWriter) FlushError() error {
	w.rc.SetWriteDeadline(time.Now().Add(w.pace.write))
	defer w.rc.SetWriteDeadline(time.Time{})
	return w.rc.Flush()
}

// shares is a listener that closes the connections of one address (of IPv6: of one network of 64 bits) beyond most: one client must not
// take all that there are.
type shares struct {
	net.Listener
	most int

	mu   sync.Mutex
	held map[netip.Prefix]int
}

func newShares(l net.Listener, most int) *shares {
	return &shares{Listener: l, most: most, held: map[netip.Prefix]int{}}
}

func shareOf(a net.Addr) netip.Prefix {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := t.AddrPort().Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	p, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

// Accept implements net.Listener.
func (s *shares) Accept() (net.Conn, error) {
	for {
		c, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		who := shareOf(c.RemoteAddr())
		if s.take(who) {
			return &sharedConn{Conn: c, free: sync.OnceFunc(func() { s.free(who) })}, nil
		}
		c.Close()
	}
}

func (s *shares) take(who netip.Prefix) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[who] >= s.most {
		return false
	}
	s.held[who]++
	return true
}

func (s *shares) free(who netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[who]--; s.held[who] <= 0 {
		delete(s.held, who)
	}
}

type sharedConn struct {
	net.Conn
	free func()
}

// Close implements net.Conn.
func (c *sharedConn) Close() error {
	c.free()
	return c.Conn.Close()
}
