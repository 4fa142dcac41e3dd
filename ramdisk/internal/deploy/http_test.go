package deploy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// answer serves one raw HTTP answer per connection, then closes it.
func answer(t *testing.T, text string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				io.WriteString(c, text)
			}
			c.Close()
		}
	}()
	return "http://" + l.Addr().String() + "/x"
}

func TestDEP02_OnlyAWholeAnswerIsAnAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want error
	}{
		"content length cut":   {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", io.ErrUnexpectedEOF},
		"no last chunk":        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", io.ErrUnexpectedEOF},
		"longer than declared": {"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\n" + strings.Repeat("x", 200), ErrTooLong},
		"endless":              {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("40\r\n"+strings.Repeat("x", 64)+"\r\n", 4) + "0\r\n\r\n", ErrTooLong},
		"not found":            {"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", ErrRefused},
		"redirect":             {"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			if b, err := NewHTTP().Fetch(context.Background(), answer(t, c.text), 128); !errors.Is(err, c.want) {
				t.Errorf("got %d bytes, %v, want %v", len(b), err, c.want)
			}
		})
	}
}

// TestDEP02_ResetIsNamed breaks real connections: before the header, and in the middle of the content.
func TestDEP02_ResetIsNamed(t *testing.T) {
	for name, text := range map[string]string{"before the header": "", "in the content": "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		got := make(chan struct{})
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				io.WriteString(c, text)
			}
			if text != "" {
				<-got // a reset overtakes what was not read yet
			}
			c.(*net.TCPConn).SetLinger(0)
		}()
		h := newHTTP(func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, address)
			return &watched{Conn: c, end: "half", seen: got}, err
		})
		if _, err := h.Fetch(context.Background(), "http://"+l.Addr().String()+"/x", 128); !errors.Is(err, ErrReset) || !strings.Contains(err.Error(), "the connection was reset") {
			t.Errorf("%s: got %v, want ErrReset", name, err)
		} else if text != "" && !strings.Contains(err.Error(), "after 4 of 100 bytes") {
			t.Errorf("%s: got %v, want how far it came", name, err)
		}
	}
}

// watched tells when a read ended with end.
type watched struct {
	net.Conn
	end  string
	seen chan struct{}
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if strings.HasSuffix(string(b[:n]), w.end) && n > 0 {
		close(w.seen)
	}
	return n, err
}

func TestFetch(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "" {
			t.Errorf("asked for encoding %q", r.Header.Get("Accept-Encoding"))
		}
		io.WriteString(w, "chunk")
	}))
	defer s.Close()
	if b, err := NewHTTP().Fetch(context.Background(), s.URL, 5); err != nil || string(b) != "chunk" {
		t.Errorf("got %q, %v", b, err)
	}
	for _, bad := range []string{"file:///etc/passwd", "http://u:p@h/", "x", "http://"} {
		if _, err := NewHTTP().Fetch(context.Background(), bad, 5); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: got %v, want ErrRefused", bad, err)
		}
	}
}
