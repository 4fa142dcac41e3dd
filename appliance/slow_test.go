package appliance

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"firstlight/appliance/internal/config"
)

// deadlines notes what was set.
type deadlines struct {
	http.ResponseWriter
	read, write []time.Time
	flushes     int
}

func (d *deadlines) SetReadDeadline(t time.Time) error  { d.read = append(d.read, t); return nil }
func (d *deadlines) SetWriteDeadline(t time.Time) error { d.write = append(d.write, t); return nil }
func (d *deadlines) FlushError() error                  { d.flushes++; return nil }

// A body has its time and more for more bytes; a write has its time; and neither bound outlasts what it is for.
func TestPaceIsKept(t *testing.T) {
	t.Parallel()
	d := &deadlines{ResponseWriter: httptest.NewRecorder()}
	h := pace{grace: time.Minute, rate: 100, write: time.Hour}.keep(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.CopyN(io.Discard, r.Body, 200)
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, "x")
		http.NewResponseController(w).Flush()
	}))
	began := time.Now()
	h.ServeHTTP(d, httptest.NewRequest("POST", "/", strings.NewReader(strings.Repeat("x", 300))))
	if n := len(d.read); n < 3 || d.read[0].Before(began.Add(time.Minute)) || d.read[1].Sub(d.read[0]) != 2*time.Second || !d.read[n-1].IsZero() {
		t.Errorf("read deadlines %v, want a minute, 2 s more for 200 bytes, and none at the end", d.read)
	}
	if len(d.write) != 4 || d.write[0].Before(began.Add(time.Hour)) || !d.write[1].IsZero() || d.write[2].IsZero() || !d.write[3].IsZero() || d.flushes != 1 {
		t.Errorf("write deadlines %v, want one for the write and one for the flush, each taken away", d.write)
	}
	d.read = nil
	h.ServeHTTP(d, httptest.NewRequest("GET", "/", nil))
	if len(d.read) != 0 {
		t.Errorf("a request without a body got read deadlines %v", d.read)
	}
}

// Who stops in the middle of a body, or does not read the answer, is let go.
func TestSlowClientsAreLetGo(t *testing.T) {
	t.Parallel()
	ends := make(chan error, 1)
	srv := httptest.NewServer(pace{grace: 50 * time.Millisecond, rate: 1 << 20, write: 50 * time.Millisecond}.keep(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			_, err := io.ReadAll(r.Body)
			ends <- err
			return
		}
		var err error
		for block := make([]byte, 1<<20); err == nil; {
			_, err = w.Write(block)
		}
		ends <- err
	})))
	t.Cleanup(srv.Close)
	for _, request := range []string{"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nname=", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"} {
		c, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, request)
		if err := <-ends; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%.4s: the handler got %v, want its deadline", request, err)
		}
	}
}

// One address cannot take all connections; what it gives back it may have again.
func TestOneAddressHasItsShare(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "x") })}
	go srv.Serve(newShares(l, 2))
	t.Cleanup(func() { srv.Close() })
	ask := func() (net.Conn, error) {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		_, err = http.ReadResponse(bufio.NewReader(c), nil)
		return c, err
	}
	first, err := ask()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ask(); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(); err == nil {
		t.Error("a third connection was served")
	}
	first.Close()
	limit := time.Now().Add(30 * time.Second)
	for {
		if _, err := ask(); err == nil {
			return
		}
		if time.Now().After(limit) {
			t.Fatal("the place of a closed connection stays taken")
		}
	}
}

// The listener for the network has both bounds.
func TestWebServerIsPaced(t *testing.T) {
	t.Parallel()
	s, err := openWebServer(config.Web{Listen: "127.0.0.1:0"}, nil, http.NotFoundHandler(), nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	d := &deadlines{ResponseWriter: httptest.NewRecorder()}
	s.http.Handler.ServeHTTP(d, httptest.NewRequest("POST", "/", strings.NewReader("x")))
	if len(d.read) == 0 || len(d.write) == 0 {
		t.Error("a request has no bound")
	}
	go s.serve()
	t.Cleanup(func() { s.http.Close() })
	var last net.Conn
	for range maxOfOne + 1 {
		if last, err = net.Dial("tcp", s.listener.Addr().String()); err != nil {
			t.Fatal(err)
		}
		defer last.Close()
	}
	last.SetReadDeadline(time.Now().Add(5 * time.Second)) // before headerTimeout, which closes them too
	if _, err := last.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want one connection more than the share closed", err)
	}
}

func TestSharesByAddress(t *testing.T) {
	t.Parallel()
	of := func(ip string) string { return shareOf(&net.TCPAddr{IP: net.ParseIP(ip)}).String() }
	if of("2001:db8::1") != of("2001:db8::ffff:2") || of("2001:db8::1") == of("2001:db8:0:1::1") || of("10.0.0.1") == of("10.0.0.2") || of("::ffff:10.0.0.1") != of("10.0.0.1") {
		t.Error("want one share for each IPv4 address and each IPv6 network of 64 bits")
	}
}
