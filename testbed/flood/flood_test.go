package flood

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

var testMAC = net.HardwareAddr{0x52, 0x54, 0, 0x77, 0, 1}

func TestMixHasEveryKindInItsShareAndRepeats(t *testing.T) {
	t.Parallel()
	const n = 20_000
	a, b := newMix(7, testMAC, "snponly.efi"), newMix(7, testMAC, "snponly.efi")
	got := map[string]int{}
	for i := range n {
		x, y := a.next(), b.next()
		if x.what != y.what || string(x.data) != string(y.data) {
			t.Fatalf("packet %d: got %s and %s from one seed", i, x.what, y.what)
		}
		got[x.what]++
	}
	sum := 0
	for _, k := range kinds() {
		sum += k.share
		if want := n * k.share / 100; got[k.what] < want*8/10 || got[k.what] > want*12/10 {
			t.Errorf("%s: got %d, want about %d", k.what, got[k.what], want)
		}
	}
	if sum != 100 {
		t.Errorf("got shares of %d, want 100", sum)
	}
}

func TestMachinesDiscoverIsOne(t *testing.T) {
	t.Parallel()
	m := newMix(1, testMAC, "x")
	d, err := dhcpv4.FromBytes(m.dhcp(testMAC, dhcpv4.MessageTypeDiscover, true))
	if err != nil || d.MessageType() != dhcpv4.MessageTypeDiscover || d.ClientHWAddr.String() != testMAC.String() || !strings.HasPrefix(d.ClassIdentifier(), "PXEClient") {
		t.Errorf("got %v, %v", d, err)
	}
	if a, b := m.stranger(), m.stranger(); a.String() == b.String() || a.String() == testMAC.String() {
		t.Errorf("got strangers %s and %s", a, b)
	}
}

func TestUsageOfThisProcess(t *testing.T) {
	t.Parallel()
	u, err := ReadUsage(os.Getpid())
	if err != nil || u.RSS < 1<<20 || u.Anonymous <= 0 || u.Threads < 1 || u.Files < 3 {
		t.Errorf("got %+v, %v", u, err)
	}
	if _, err := readUsage(t.TempDir()); err == nil {
		t.Error("got no error for a folder without status")
	}
}

func TestDrops(t *testing.T) {
	t.Parallel()
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  407: 00000000:0043 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1 2 0000000000000000 5
  408: 00000000:0045 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1 2 0000000000000000 7
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  410: 00000000000000000000000000000000:0FAB 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1 2 0000000000000000 1
  409: 00000000:0044 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1 2 0000000000000000 9
`
	if n, err := Drops(table, 67, 69, 4011); err != nil || n != 13 {
		t.Errorf("got %d, %v, want 13", n, err)
	}
	if _, err := Drops(table, 67, 4012); err == nil {
		t.Error("got no error for a port that nobody listens at")
	}
}

// Each check must be able to fail.
func TestChecks(t *testing.T) {
	t.Parallel()
	good := func() *Result {
		r := &Result{Sent: Packets, Kinds: map[string]int{}, Goroutines: map[int]int{From: 140, Packets: 140}, Boots: 9, Slowest: time.Second,
			At: map[int]Usage{From: {RSS: 50 << 20, Threads: 9, Files: 30}, Packets: {RSS: 60 << 20, Threads: 9, Files: 30}}}
		for _, k := range kinds() {
			r.Kinds[k.what] = 1
		}
		return r
	}
	for _, c := range good().Checks() {
		if !c.OK {
			t.Errorf("%s: got a failure: %s", c.Name, c.Detail)
		}
	}
	for name, spoil := range map[string]func(*Result){
		"packets were sent":                      func(r *Result) { r.Sent-- },
		"packets reached the program":            func(r *Result) { r.Dropped = Packets / 2 },
		"an honest client was served throughout": func(r *Result) { r.Failed = []error{errors.New("no offer")} },
		"memory does not grow":                   func(r *Result) { r.At[Packets] = Usage{RSS: 67 << 20, Threads: 9, Files: 30} },
		"goroutines do not grow":                 func(r *Result) { r.Goroutines[Packets]++ },
		"threads and files do not grow":          func(r *Result) { r.At[Packets] = Usage{RSS: 60 << 20, Threads: 90, Files: 30} },
	} {
		r := good()
		spoil(r)
		for _, c := range r.Checks() {
			if c.OK == (c.Name == name) {
				t.Errorf("spoiled for %q: %s: got %v", name, c.Name, c.OK)
			}
		}
	}
}
