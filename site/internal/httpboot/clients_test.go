package httpboot_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"firstlight/site/internal/httpboot"
)

// watched is a listener whose connections tell from what kind of reader they were filled.
type watched struct {
	net.Listener
	files, others atomic.Int64
}

func (w *watched) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &filled{c.(*net.TCPConn), w}, nil
}

type filled struct {
	*net.TCPConn
	w *watched
}

func (f *filled) ReadFrom(r io.Reader) (int64, error) {
	if l, ok := r.(*io.LimitedReader); ok {
		if _, ok := l.R.(*os.File); ok {
			f.w.files.Add(1)
			return f.TCPConn.ReadFrom(r)
		}
	}
	f.w.others.Add(1)
	return f.TCPConn.ReadFrom(r)
}

// A file goes from the disk to the wire inside the kernel (sendfile): nothing between net/http and the connection hides that the
// one is a file and the other a TCP connection. Hidden, it costs one and a half times the processor time (make bench, P3).
func TestFilesReachTheConnectionAsFiles(t *testing.T) {
	t.Parallel()
	_, cfg := setup(t)
	cfg.Meter = func(string, int, int64) {}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &watched{Listener: l}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		if err := httpboot.Serve(ctx, w, cfg); err != nil {
			t.Errorf("serve: got %v, want nil at the end", err)
		}
	})
	resp, err := http.Get("http://" + l.Addr().String() + "/f/vmlinuz")
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || string(got) != string(kernel) {
		t.Errorf("got %d bytes, %v, want the kernel", len(got), err)
	}
	stop()
	all.Wait()
	if w.files.Load() != 1 || w.others.Load() != 0 {
		t.Errorf("the connection was filled %d times from a file and %d times from something else, want once from the file", w.files.Load(), w.others.Load())
	}
}

// What an address has open beyond its share is closed at once, and a place that is given back can be taken again.
func TestOneAddressDoesNotTakeEveryConnection(t *testing.T) {
	t.Parallel()
	_, at := serve(t)
	const share = 32
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
		return c
	}
	for range share {
		if !answers(t, dial()) {
			t.Fatal("a connection within the share got no answer")
		}
	}
	if answers(t, dial()) {
		t.Errorf("connection %d of one address got an answer, want at most %d", share+1, share)
	}
	open[0].Close()
	// The server hears of the end when it hears of it.
	for range 1000 {
		if answers(t, dial()) {
			return
		}
	}
	t.Error("a place that was given back was not taken again")
}

// answers asks for the kernel's head on a connection and says whether there was an answer.
func answers(t *testing.T, c net.Conn) bool {
	t.Helper()
	if _, err := io.WriteString(c, "HEAD /f/vmlinuz HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		return false
	}
	n, _ := c.Read(make([]byte, 512))
	return n > 0
}
