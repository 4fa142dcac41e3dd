package bench

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"firstlight/testbed/netlab"
)

// httpVolume is what one round of P3 moves, in bytes: enough that the start of a round does not count.
const httpVolume = 2 << 30

// nginxPort is the peer's.
const nginxPort = 8080

// httpSide is an HTTP server that is measured.
type httpSide struct {
	name, at  string
	process   *process
	cpu, rate series
}

// startNginx starts the peer as its own documentation says for files: sendfile, one worker per processor, no access log.
func (r *room) startNginx(ctx context.Context, c content) (*process, error) {
	nginx, err := r.peer("nginx", "nginx")
	if err != nil {
		return nil, err
	}
	tmp := filepath.Join(r.dir, "nginx")
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`user root;
daemon off;
worker_processes auto;
pid %[1]s/pid;
error_log stderr;
events { worker_connections 1024; }
http {
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_requests 1000000;
  client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/fastcgi; uwsgi_temp_path %[1]s/uwsgi; scgi_temp_path %[1]s/scgi;
  server {
    listen %[2]s:%[3]d;
    location /f/ { alias %[4]s/; }
    location /blob/ { alias %[5]s/; }
  }
}
`, tmp, peersIP, nginxPort, c.ramdisk, c.blobs)
	path := filepath.Join(tmp, "conf")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return nil, err
	}
	p, err := r.start(ctx, peersAt, "nginx", nginx, "-p", tmp, "-c", path, "-e", "stderr")
	if err != nil {
		return nil, err
	}
	return p, p.await(ctx, "its port", r.dials(ctx, peersAt, net.JoinHostPort(peersIP, strconv.Itoa(nginxPort))))
}

// measureHTTP is P3.
func (b *bench) measureHTTP(ctx context.Context) error {
	nginx, err := b.room.startNginx(ctx, b.content)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name, path, digest string
		size               int
	}{
		{"RAM disk of 32 MiB", "/f/ramdisk.cpio.zst", "", ramdiskSize},
		{"image chunks of 4 MiB", "/blob/" + b.content.chunk, b.content.chunk, chunkSize},
	} {
		for _, n := range []int{1, 16, 64} {
			sides := []*httpSide{{name: "ours", at: fmt.Sprintf("%s:%d", oursIP, bootPort), process: b.site},
				{name: "nginx", at: fmt.Sprintf("%s:%d", peersIP, nginxPort), process: nginx}}
			err := b.rounds(ctx, func() error {
				for _, s := range sides {
					if err := s.round(ctx, b.room, f.path, f.digest, f.size, n); err != nil {
						return fmt.Errorf("%s: %w", s.name, err)
					}
					last := len(s.rate) - 1
					b.say("P3 %s, %d clients, %-6s %.2f GB/s, %.3f s of processor a GB", f.name, n, s.name, s.rate[last], s.cpu[last])
				}
				return nil
			})
			if err != nil {
				return err
			}
			what := fmt.Sprintf("HTTP (the site serves none by TLS), %s, %d clients: ", f.name, n)
			b.add(against("P3", what+"server's seconds of processor per GB over nginx", atMost(1), sides[0].cpu, sides[1].cpu),
				against("P3", what+"GB/s over nginx", atLeast(0.95), sides[0].rate, sides[1].rate))
		}
	}
	return nil
}

// round moves httpVolume from one side to n clients.
func (s *httpSide) round(ctx context.Context, r *room, path, digest string, size, n int) error {
	loads := max(1, httpVolume/(size*n))
	conns := make([]*net.TCPConn, n)
	for i := range conns {
		c, err := r.lab.DialContextFrom(netlab.Peer, clientIP(i))(ctx, "tcp4", s.at)
		if err != nil {
			return err
		}
		defer c.Close()
		conns[i] = c.(*net.TCPConn)
		conns[i].SetDeadline(time.Now().Add(readyLimit))
	}
	// The first answer is read in full: what is measured must be the file.
	if err := whole(conns[0], path, digest, size); err != nil {
		return err
	}
	errs := make([]error, n)
	wall, cpu, err := spent(s.process, func() error {
		var all sync.WaitGroup
		for i, c := range conns {
			all.Go(func() {
				for range loads {
					if errs[i] = discard(c, path, size); errs[i] != nil {
						return
					}
				}
			})
		}
		all.Wait()
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	gb := float64(loads) * float64(n) * float64(size) / 1e9
	s.rate, s.cpu = append(s.rate, gb/wall.Seconds()), append(s.cpu, cpu.Seconds()/gb)
	return nil
}

// get sends a request and reads the head of its answer; rest is what came of the body with it.
func get(c *net.TCPConn, path string, size int) (rest []byte, err error) {
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: bench\r\n\r\n", path); err != nil {
		return nil, err
	}
	const maxHead = 4 << 10
	head := make([]byte, 0, maxHead)
	for {
		n, err := c.Read(head[len(head):maxHead])
		if err != nil {
			return nil, fmt.Errorf("get %s: %w", path, err)
		}
		head = head[:len(head)+n]
		text, rest, ended := bytes.Cut(head, []byte("\r\n\r\n"))
		switch {
		case ended && bytes.HasPrefix(text, []byte("HTTP/1.1 200 ")) && bytes.Contains(text, fmt.Appendf(nil, "\r\nContent-Length: %d", size)):
			return rest, nil
		case ended || len(head) == maxHead:
			return nil, fmt.Errorf("get %s: want status 200 with %d bytes, got %.300q", path, size, text)
		}
	}
}

// whole reads a file in full and checks its digest, where it has one.
func whole(c *net.TCPConn, path, digest string, size int) error {
	rest, err := get(c, path, size)
	if err != nil {
		return err
	}
	h := sha256.New()
	h.Write(rest)
	if _, err := io.CopyN(h, c, int64(size-len(rest))); err != nil {
		return fmt.Errorf("get %s: %w", path, err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); digest != "" && got != digest {
		return fmt.Errorf("get %s: got content of SHA-256 %s", path, got)
	}
	return nil
}

// discard loads a file and has the kernel throw it away (tcp(7), MSG_TRUNC), so that the clients leave the processors to the server.
func discard(c *net.TCPConn, path string, size int) error {
	rest, err := get(c, path, size)
	if err != nil {
		return err
	}
	left := size - len(rest)
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	// Nothing is written into it.
	none := make([]byte, discardStep)
	for left > 0 {
		var n int
		var rerr error
		if err := raw.Read(func(fd uintptr) bool {
			n, _, rerr = unix.Recvfrom(int(fd), none[:min(left, len(none))], unix.MSG_TRUNC|unix.MSG_DONTWAIT)
			return !errors.Is(rerr, unix.EAGAIN)
		}); err != nil {
			return fmt.Errorf("get %s: %w", path, err)
		}
		switch {
		case errors.Is(rerr, unix.EINTR):
		case rerr != nil:
			return fmt.Errorf("get %s: %w", path, rerr)
		case n == 0:
			return fmt.Errorf("get %s: %w with %d bytes missing", path, io.ErrUnexpectedEOF, left)
		}
		left -= n
	}
	return nil
}

// discardStep is what is thrown away at a time, in bytes.
const discardStep = 256 << 10
