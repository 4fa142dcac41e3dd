package tftp

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"firstlight/site/internal/netif"
	"firstlight/site/internal/tftp/tftptest"
)

const (
	patience = 10 * time.Second
	// soon is the servers' first timeout, short so that resends are seen quickly.
	soon = 50 * time.Millisecond
)

// record keeps what the server said, one line each.
type record struct {
	lines chan string
	mu    *sync.Mutex
	seen  map[netip.Addr]bool
}

func (r record) saw(t Transfer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[t.Client.Addr()] = true
}

// clients are those of whom the server has told.
func (r record) clients() map[netip.Addr]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.seen)
}

func (r record) Served(t Transfer) {
	r.saw(t)
	r.lines <- fmt.Sprintf("served %s %s %d", t.Token, t.File, t.Bytes)
}
func (r record) Failed(t Transfer, why string) {
	r.saw(t)
	r.lines <- fmt.Sprintf("failed %s %s: %s", t.Token, t.File, why)
}

func (r record) next(t testing.TB) string {
	t.Helper()
	select {
	case l := <-r.lines:
		return l
	case <-time.After(patience):
		t.Fatal("the server said nothing")
		return ""
	}
}

var content = bytes.Repeat([]byte("0123456789abcdef"), 300)

func start(t testing.TB, mtu, maxBlock int) (netip.AddrPort, record, string) {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "boot", "x64", "a.efi"))
	write(t, filepath.Join(dir, "snponly.efi"))
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := netif.ListenAll(t.Context(), "lo", 0)
	if err != nil {
		t.Skipf("no loopback interface to bind to: %v", err)
	}
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), conn.Port())
	r := record{make(chan string, 10000), new(sync.Mutex), map[netip.Addr]bool{}}
	ctx, stop := context.WithCancel(t.Context())
	s := New(Config{Root: root, Interface: "lo", MTU: mtu, MaxBlock: maxBlock, Timeout: soon, Events: r, Log: slog.New(slog.DiscardHandler)})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Serve(ctx, conn); err != nil {
			t.Errorf("serve: got %v, want nil at the end", err)
		}
	})
	t.Cleanup(func() { stop(); wg.Wait(); root.Close() })
	return at, r, dir
}

func write(t testing.TB, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// raw is a client that says exactly what it is told to.
type raw struct {
	t    *testing.T
	c    *net.UDPConn
	peer netip.AddrPort
}

func newRaw(t *testing.T) *raw {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &raw{t: t, c: c}
}

func (r *raw) ask(to netip.AddrPort, op uint16, words ...string) {
	r.t.Helper()
	b := binary.BigEndian.AppendUint16(nil, op)
	for _, w := range words {
		b = append(append(b, w...), 0)
	}
	if _, err := r.c.WriteToUDPAddrPort(b, to); err != nil {
		r.t.Fatal(err)
	}
}

func (r *raw) answer() (op uint16, rest []byte) {
	r.t.Helper()
	b := make([]byte, 70000)
	r.c.SetReadDeadline(time.Now().Add(patience))
	n, from, err := r.c.ReadFromUDPAddrPort(b)
	if err != nil {
		r.t.Fatalf("no answer: %v", err)
	}
	r.peer = from
	return binary.BigEndian.Uint16(b), b[2:n]
}

func (r *raw) error(code uint16, text string) {
	r.t.Helper()
	b := binary.BigEndian.AppendUint16([]byte{0, 5}, code)
	if _, err := r.c.WriteToUDPAddrPort(append(append(b, text...), 0), r.peer); err != nil {
		r.t.Fatal(err)
	}
}

func oack(b []byte) map[string]string {
	words := strings.Split(string(b), "\x00")
	m := map[string]string{}
	for i := 0; i+1 < len(words); i += 2 {
		m[words[i]] = words[i+1]
	}
	return m
}

func fetch(t *testing.T, at netip.AddrPort, name string) ([]byte, error) {
	t.Helper()
	return tftptest.Fetch(at.String(), name, "blksize", "1468", "tsize", "0")
}

func TestTFTP01_SizeProbeThenDownload(t *testing.T) {
	for _, code := range []uint16{0, 8} {
		t.Run(strconv.Itoa(int(code)), func(t *testing.T) {
			t.Parallel()
			at, rec, _ := start(t, 1500, 0)
			c := newRaw(t)
			c.ask(at, 1, "t/token/snponly.efi", "octet", "tsize", "0", "blksize", "1468")
			op, rest := c.answer()
			if got := oack(rest); op != 6 || got["tsize"] != strconv.Itoa(len(content)) || got["blksize"] != "1468" {
				t.Fatalf("got op %d %v, want an OACK with size and block size", op, got)
			}
			c.error(code, "User aborted the transfer")
			got, err := fetch(t, at, "t/token/snponly.efi")
			if err != nil || !bytes.Equal(got, content) {
				t.Fatalf("got %d bytes, %v, want the file", len(got), err)
			}
			if got, want := rec.next(t), fmt.Sprintf("served token snponly.efi %d", len(content)); got != want {
				t.Errorf("got first event %q, want %q", got, want)
			}
		})
	}
}

func TestTFTP02_BlockSizeIsBoundByThePath(t *testing.T) {
	for _, c := range []struct {
		mtu, cap  int
		ask, want string
	}{
		{1500, 0, "512", "512"}, {1500, 0, "1468", "1468"}, {1500, 0, "8192", "1468"}, {1500, 0, "65464", "1468"},
		{1420, 0, "1468", "1388"}, {1420, 0, "512", "512"}, {9000, 8900, "65464", "8900"}, {9000, 9000, "65464", "8968"},
		{1500, 0, "511", ""}, {1500, 0, "8", ""}, {1500, 0, "7", ""}, {1500, 0, "65465", ""}, {1500, 0, "-1", ""}, {1500, 0, "abc", ""},
	} {
		t.Run(fmt.Sprintf("%d-%d-%s", c.mtu, c.cap, c.ask), func(t *testing.T) {
			t.Parallel()
			at, _, _ := start(t, c.mtu, c.cap)
			cl := newRaw(t)
			cl.ask(at, 1, "snponly.efi", "octet", "blksize", c.ask)
			op, rest := cl.answer()
			if c.want == "" && (op != 3 || len(rest) != 2+512) {
				t.Errorf("got op %d of %d bytes, want a first block of 512", op, len(rest))
			}
			if c.want != "" && (op != 6 || oack(rest)["blksize"] != c.want) {
				t.Errorf("got op %d %v, want block size %s", op, oack(rest), c.want)
			}
			cl.error(0, "enough")
		})
	}
}

func TestTFTP06_NamesStayInTheRoot(t *testing.T) {
	at, rec, dir := start(t, 1500, 0)
	for _, name := range []string{`\boot\x64\a.efi`, "/boot//x64/a.efi", "boot/x64/a.efi", "boot/./x64/a.efi", `t\token\boot\x64\a.efi`} {
		if got, err := fetch(t, at, name); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s: got %d bytes, %v, want the file", name, len(got), err)
		}
		rec.next(t)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret)
	if err := os.Symlink(secret, filepath.Join(dir, "link.efi")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"../etc/passwd", `..\..\etc\passwd`, "boot/../../etc/passwd", "/etc/passwd", `C:\a`, "boot", "", "link.efi",
		"a\x01b", strings.Repeat("x", 300), "t/token/../../etc/passwd", "BOOT/x64/a.efi"} {
		c := newRaw(t)
		c.ask(at, 1, name, "octet")
		op, rest := c.answer()
		if op != 5 || rest[0] != 0 || rest[1] != 1 && rest[1] != 2 || bytes.ContainsAny(rest, `/\`) {
			t.Errorf("%q: got op %d %q, want ERROR 1 or 2 without a path", name, op, rest)
		}
		if got := rec.next(t); !strings.HasPrefix(got, "failed") || strings.Contains(got, dir) {
			t.Errorf("%q: got event %q, want a failure without the directory", name, got)
		}
	}
	// NUL ends a name on the wire, so the rest is a mode that does not exist.
	c := newRaw(t)
	c.ask(at, 1, "boot\x00/x64/a.efi", "octet")
	if op, _ := c.answer(); op != 5 {
		t.Errorf("name with NUL: got op %d, want an error", op)
	}
	c.ask(at, 1, strings.Repeat("x", 600), "octet")
	if op, rest := c.answer(); op != 5 || rest[1] != 2 {
		t.Errorf("600-byte name: got op %d %q, want ERROR 2", op, rest)
	}
	if _, err := fetch(t, at, "snponly.efi"); err != nil {
		t.Errorf("after a 600-byte name: got %v, want the file", err)
	}
}

func TestMissingFileIsNamed(t *testing.T) {
	at, rec, _ := start(t, 1500, 0)
	if _, err := fetch(t, at, "t/token/undionly.kpxe"); err == nil {
		t.Error("got no error, want one")
	}
	if got, want := rec.next(t), "failed token undionly.kpxe: file undionly.kpxe is missing in the firmware directory"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzParseName(f *testing.F) {
	for _, s := range []string{`\boot\x64\a.efi`, "t/token/snponly.efi", "../etc/passwd", `C:\a`, "a\x00b", "t//x/./y", strings.Repeat("x", 300)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		token, file, err := ParseName(raw)
		if err != nil {
			return
		}
		if !filepath.IsLocal(file) || filepath.Clean(file) != file || strings.ContainsAny(file+token, "\\\x00:") || strings.Contains(token, "/") {
			t.Fatalf("%q: got token %q, file %q", raw, token, file)
		}
	})
}
