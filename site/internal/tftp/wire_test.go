package tftp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"firstlight/site/internal/tftp/tftptest"
)

// seeds are the requests of real firmware, taken from a scenario's capture.
func seeds(tb testing.TB) [][]byte {
	tb.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", "wire", "*.bin"))
	if err != nil || len(paths) == 0 {
		tb.Fatalf("no captured requests: %v", err)
	}
	var all [][]byte
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			tb.Fatal(err)
		}
		all = append(all, b)
	}
	return all
}

func TestRequestsOfRealFirmware(t *testing.T) {
	for _, b := range seeds(t) {
		r, err := parseRequest(b)
		if err != nil || r.op != opRead || !strings.EqualFold(r.mode, "octet") {
			t.Errorf("%q: got %+v, %v, want a read request in mode octet", b, r, err)
		}
		if token, file, err := ParseName(r.name); err != nil || token == "" || file != "snponly.efi" {
			t.Errorf("%q: got token %q, file %q, %v", b, token, file, err)
		}
	}
}

func TestCurlFetches(t *testing.T) {
	t.Parallel()
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skipf("no second client at hand: %v", err)
	}
	at, rec, _ := start(t, 1500, 0)
	for _, options := range [][]string{nil, {"--tftp-no-options"}, {"--tftp-blksize", "8"}, {"--tftp-blksize", "1468"}, {"--tftp-blksize", "9000"}} {
		c := exec.CommandContext(t.Context(), curl, append(options, "-sS", "--max-time", "10", "tftp://"+at.String()+"/t/token/snponly.efi")...)
		var complaint bytes.Buffer
		c.Stderr = &complaint
		if got, err := c.Output(); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%v: got %d bytes, %v, %s, want the file", options, len(got), err, complaint.String())
			continue
		}
		if l, want := rec.next(t), fmt.Sprintf("served token snponly.efi %d", len(content)); l != want {
			t.Errorf("%v: got %q, want %q", options, l, want)
		}
	}
}

func TestTFTP03_RollOverOnTheWire(t *testing.T) {
	if testing.Short() {
		t.Skip("80,000 packets: left out of the short run")
	}
	t.Parallel()
	at, rec, dir := start(t, 1500, 0)
	want := make([]byte, 512*70000+3)
	pattern(len(want)).ReadAt(want, 0)
	if err := os.WriteFile(filepath.Join(dir, "large"), want, 0o644); err != nil {
		t.Fatal(err)
	}
	c := newRaw(t)
	c.ask(at, opRead, "large", "octet", "blksize", "512", "tsize", "0")
	got := make([]byte, 0, len(want))
	for {
		op, rest := c.answer()
		if op == opOACK {
			c.send(ack(0))
			continue
		}
		n := binary.BigEndian.Uint16(rest)
		if uint16(len(got)/512+1) == n {
			got = append(got, rest[2:]...)
		}
		c.send(ack(n))
		if len(rest) < 2+512 {
			break
		}
	}
	if !bytes.Equal(got, want) {
		t.Errorf("got %d bytes, want the file's %d", len(got), len(want))
	}
	if l := rec.next(t); l != "served  large 35840003" {
		t.Errorf("got %q", l)
	}
}

func (r *raw) send(b []byte) {
	r.t.Helper()
	if _, err := r.c.WriteToUDPAddrPort(b, r.peer); err != nil {
		r.t.Fatal(err)
	}
}

// quiet says whether nothing comes for d.
func (r *raw) quiet(d time.Duration) bool {
	r.c.SetReadDeadline(time.Now().Add(d))
	_, _, err := r.c.ReadFromUDPAddrPort(make([]byte, 2000))
	return err != nil
}

func TestTFTP05_DataComesFromTheAddressThatWasAsked(t *testing.T) {
	t.Parallel()
	at, _, _ := start(t, 1500, 0)
	for _, host := range []string{"127.0.0.1", "127.0.0.20", "127.3.4.5", "::1"} {
		asked := netip.AddrPortFrom(netip.MustParseAddr(host), at.Port())
		ports := map[uint16]bool{at.Port(): true}
		for _, words := range [][]string{{"snponly.efi", "octet"}, {"snponly.efi", "octet", "blksize", "1024"}, {"none", "octet"}} {
			c := newRaw(t)
			if asked.Addr().Is6() {
				c = newRawAt(t, "::1")
			}
			c.ask(asked, opRead, words...)
			op, _ := c.answer()
			if c.peer.Addr() != asked.Addr() {
				t.Errorf("%s: got an answer from %s", host, c.peer)
			}
			if op != opError && ports[c.peer.Port()] {
				t.Errorf("%s: got port %d, want a new one for each transfer", host, c.peer.Port())
			}
			ports[c.peer.Port()] = true
		}
	}
}

func newRawAt(t *testing.T, host string) *raw {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(host), 0)))
	if err != nil {
		t.Skipf("no address %s here: %v", host, err)
	}
	t.Cleanup(func() { c.Close() })
	return &raw{t: t, c: c}
}

func TestTFTP08_WritesAreRefused(t *testing.T) {
	at, rec, dir := start(t, 1500, 0)
	c := newRaw(t)
	c.ask(at, opWrite, "new.efi", "octet", "tsize", "100")
	if op, rest := c.answer(); op != opError || rest[1] != codeAccess {
		t.Errorf("got op %d %q, want ERROR 2", op, rest)
	}
	if _, err := os.Stat(filepath.Join(dir, "new.efi")); err == nil {
		t.Error("got a file, want none")
	}
	if l := rec.next(t); !strings.Contains(l, "wanted to write") {
		t.Errorf("got %q", l)
	}
}

func TestTFTP08_SilentClientGetsSixCopiesFurtherAndFurtherApart(t *testing.T) {
	t.Parallel()
	at, rec, _ := start(t, 1500, 0)
	c := newRaw(t)
	began := time.Now()
	c.ask(at, opRead, "snponly.efi", "octet")
	for i := range 1 + resends {
		if op, rest := c.answer(); op != opData || rest[1] != 1 {
			t.Fatalf("copy %d: got op %d %v, want block 1", i+1, op, rest[:2])
		}
	}
	// 1, 2, 4, 4, 4 timeouts lie between six copies.
	if took := time.Since(began); took < 15*soon {
		t.Errorf("got six copies in %s, want them in at least %s", took, 15*soon)
	}
	if l := rec.next(t); !strings.HasSuffix(l, "stopped after 0 of 4800 bytes: the machine did not answer") {
		t.Errorf("got %q", l)
	}
	if !c.quiet(2 * soon) {
		t.Error("got a seventh copy")
	}
}

func TestTFTP08_FloodOfSilentClientsLeavesRoom(t *testing.T) {
	t.Parallel()
	at, _, dir := start(t, 1500, 0)
	big, err := os.Create(filepath.Join(dir, "big"))
	if err != nil {
		t.Fatal(err)
	}
	if err := big.Truncate(100 << 20); err != nil {
		t.Fatal(err)
	}
	big.Close()
	request := append(binary.BigEndian.AppendUint16(nil, opRead), "big\x00octet\x00"...)
	// Every address of 127/8 is one of loopback's: as good as spoofed ones.
	for i := range 500 {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 10, byte(i>>4), byte(i))})
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			if _, err := c.WriteToUDPAddrPort(request, at); err != nil {
				t.Fatal(err)
			}
		}
		defer c.Close()
		if i%100 != 50 {
			continue
		}
		if got, err := fetch(t, at, "snponly.efi"); err != nil || !bytes.Equal(got, content) {
			t.Errorf("in the flood: got %d bytes, %v, want the file", len(got), err)
		}
	}
}

// TestNoisyClientsAreServed has clients that say everything several times, and those that end it with several ERRORs at any moment:
// with the library alone either could be a panic.
func TestNoisyClientsAreServed(t *testing.T) {
	t.Parallel()
	at, _, _ := start(t, 1500, 0)
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 20, 0, byte(i))})
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			c := &raw{t: t, c: conn}
			c.ask(at, opRead, "snponly.efi", "octet", "tsize", "0")
			for last := uint16(len(content)/512 + 1); ; {
				op, rest := c.answer()
				n := uint16(0)
				if op == opData {
					n = binary.BigEndian.Uint16(rest)
				}
				if i%2 == 1 && int(n) == i%int(last) {
					for range 3 {
						c.error(3, "enough")
						c.send(ack(n))
					}
					return
				}
				for range 3 {
					c.send(ack(n - 1))
					c.send(ack(n))
					c.send([]byte{0, opOACK, 0, 0, 0, 0})
				}
				if n == last {
					return
				}
			}
		})
	}
	all.Wait()
	if got, err := fetch(t, at, "snponly.efi"); err != nil || !bytes.Equal(got, content) {
		t.Errorf("afterwards: got %d bytes, %v, want the file", len(got), err)
	}
}

func TestPlacesAreBounded(t *testing.T) {
	s := newSlots()
	at := func(i, port int) Transfer {
		return Transfer{File: "f", Client: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), uint16(port))}
	}
	evicted := map[string]bool{}
	take := func(tr Transfer) (*slot, verdict) { return s.take(tr, func() { evicted[tr.Client.String()] = true }) }
	for p := range maxPerClient {
		if _, v := take(at(1, 1000+p)); v != granted {
			t.Fatalf("got verdict %d, want a place", v)
		}
	}
	if _, v := take(at(1, 1000)); v != repeated {
		t.Errorf("same request again: got verdict %d, want it taken for a repetition", v)
	}
	last, v := take(at(1, 2000))
	if v != granted || !evicted["10.0.0.1:1000"] || len(s.all) != maxPerClient {
		t.Errorf("got verdict %d, %v, %d places, want the client's oldest gone", v, evicted, len(s.all))
	}
	s.moved(last)
	for i := 2; len(s.all) < maxTransfers; i++ {
		o, _ := take(at(i, 1))
		s.moved(o)
	}
	for p := range maxPerClient - 1 {
		take(at(5000, p+1))
	}
	if len(s.all) != maxTransfers || s.all[at(1, 2000).Client] != last {
		t.Errorf("got %d places, want %d and those that move kept", len(s.all), maxTransfers)
	}
	for _, o := range s.all {
		s.moved(o)
	}
	if _, v := take(at(6000, 1)); v != busy {
		t.Errorf("all places move: got verdict %d, want busy", v)
	}
	if !s.give(last) {
		t.Error("got a transfer that does not matter, want the newest to")
	}
	if _, v := take(at(6000, 1)); v != granted || s.count[netip.MustParseAddr("10.0.0.1")] != 0 {
		t.Errorf("after one was given back: got verdict %d, counts %v", v, s.count)
	}
}

func TestNewerRequestForAFileIsWhatMatters(t *testing.T) {
	s := newSlots()
	client := func(port uint16) Transfer {
		return Transfer{File: "f", Client: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), port)}
	}
	first, _ := s.take(client(1), func() {})
	second, _ := s.take(client(2), func() {})
	if s.give(first) || !s.give(second) {
		t.Error("want the first not to matter any more, and the second to")
	}
}

func TestOptions(t *testing.T) {
	for ask, want := range map[string]string{
		"":                                "512 f octet",
		"BLKSIZE 1432 TSIZE 0":            "1432 f octet blksize 1432 tsize 0",
		"windowsize 64 timeout 3 x 1":     "512 f octet",
		"blksize 9 blksize 1024":          "512 f octet",
		"blksize 1024 blksize 9":          "1024 f octet blksize 1024",
		"tsize 0 tsize 7":                 "512 f octet tsize 0",
		"tsize -1 blksize 99999999999999": "512 f octet",
		"blksize 65464":                   "1468 f octet blksize 1468",
		"blksize 65465 tsize":             "512 f octet",
	} {
		r, err := parseRequest(tftptest.Request(opRead, append([]string{"f", "OCTET"}, strings.Fields(ask)...)...))
		if err != nil {
			t.Errorf("%q: %v", ask, err)
		}
		words := strings.Split(string(r.encode(1468)[2:]), "\x00")
		if got := strings.TrimSpace(fmt.Sprint(r.granted(1468), " ", strings.Join(words, " "))); got != want {
			t.Errorf("%q: got %q, want %q", ask, got, want)
		}
	}
}
