package site

import (
	"bytes"
	"encoding/binary"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
)

const (
	floodPackets = 100_000
	floodFrom    = 20_000
	floodGrowth  = 16 << 20
	// floodStep is how many packets of junk lie between two questions of the valid client, floodBoot between two whole boots.
	floodStep, floodBoot = 200, 5_000
)

// junk makes packets for the boot ports: captured ones, changed ones, and nonsense.
type junk struct {
	t     *testing.T
	r     *rig
	rand  *rand.Rand
	seeds [][]byte
	conns []*net.UDPConn
	sent  int
}

func newJunk(t *testing.T, r *rig) *junk {
	j := &junk{t: t, r: r, rand: rand.New(rand.NewPCG(1, 2))}
	for _, dir := range []string{"internal/proxydhcp/testdata/wire", "internal/tftp/testdata/wire"} {
		paths, err := filepath.Glob(filepath.Join(dir, "*.bin"))
		must(t, err)
		for _, p := range paths {
			b, err := os.ReadFile(p)
			must(t, err)
			j.seeds = append(j.seeds, b)
		}
	}
	for i := range 64 {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 1, byte(i+1))})
		must(t, err)
		t.Cleanup(func() { c.Close() })
		j.conns = append(j.conns, c)
	}
	return j
}

// send sends the next packet of junk.
func (j *junk) send() {
	j.sent++
	r := j.r.running
	dhcp, pxe := r.dhcp.LocalAddr().(*net.UDPAddr).Port, r.pxe.LocalAddr().(*net.UDPAddr).Port
	switch j.rand.IntN(10) {
	case 0, 1:
		j.udp(dhcp, j.discover(false))
	case 2:
		j.udp(pxe, j.discover(true))
	case 3:
		j.udp(dhcp, j.changed())
	case 4:
		j.udp(pxe, j.changed())
	case 5:
		j.udp(int(r.tftp.Port()), j.changed())
	case 6, 7:
		j.udp(int(r.tftp.Port()), j.request())
	case 8:
		b := make([]byte, j.rand.IntN(1600))
		for i := range b {
			b[i] = byte(j.rand.Uint32())
		}
		j.udp([]int{dhcp, pxe, int(r.tftp.Port())}[j.rand.IntN(3)], b)
	case 9:
		if j.sent%8 == 0 {
			j.http()
		}
	}
}

func (j *junk) udp(port int, b []byte) {
	c := j.conns[j.rand.IntN(len(j.conns))]
	if _, err := c.WriteToUDP(b, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}); err != nil {
		j.t.Fatal(err)
	}
}

// discover is a good request of a machine that nobody knows.
func (j *junk) discover(request bool) []byte {
	mac := net.HardwareAddr{2, 0, byte(j.rand.Uint32()), byte(j.rand.Uint32()), byte(j.rand.Uint32()), byte(j.rand.Uint32())}
	kind := dhcpv4.MessageTypeDiscover
	if request {
		kind = dhcpv4.MessageTypeRequest
	}
	class := []string{"PXEClient:Arch:00007:UNDI:003001", "HTTPClient:Arch:00016:UNDI:003001", "MSFT 5.0"}[j.rand.IntN(3)]
	p, err := dhcpv4.New(dhcpv4.WithMessageType(kind), dhcpv4.WithHwAddr(mac), dhcpv4.WithOption(dhcpv4.OptClassIdentifier(class)),
		dhcpv4.WithGeneric(dhcpv4.OptionClientSystemArchitectureType, []byte{0, byte(j.rand.IntN(20))}))
	must(j.t, err)
	return p.ToBytes()
}

// changed is a captured packet with some bytes of another, perhaps cut.
func (j *junk) changed() []byte {
	b := bytes.Clone(j.seeds[j.rand.IntN(len(j.seeds))])
	for range j.rand.IntN(8) {
		b[j.rand.IntN(len(b))] = byte(j.rand.Uint32())
	}
	return b[:len(b)-j.rand.IntN(len(b))*j.rand.IntN(2)]
}

// request is a TFTP request that nobody means.
func (j *junk) request() []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(1+j.rand.IntN(2)))
	name := []string{"snponly.efi", "t/nothing/snponly.efi", "none", "../../etc/passwd", strings.Repeat("x", 600)}[j.rand.IntN(5)]
	return append(append(b, name...), "\x00octet\x00tsize\x000\x00blksize\x001468\x00"...)
}

func (j *junk) http() {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 2, byte(1+j.rand.IntN(200)))}, Timeout: patience}
	c, err := d.Dial("tcp", j.r.running.http.Addr().String())
	if err != nil {
		j.t.Fatal(err)
	}
	io.WriteString(c, []string{"GET /b/none/script.ipxe HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\x02\x00", "GET /" + strings.Repeat("x", 9000),
		"POST /b/none/report HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\nx", "GET /f/%00 HTTP/1.1\r\n\r\n", ""}[j.rand.IntN(6)])
	c.Close()
}

// caught takes everything that comes to the network card and hands on the answer to one transaction.
type caught struct {
	want    atomic.Uint32
	answers chan string
}

func catch(t *testing.T, nic *net.UDPConn) *caught {
	c := &caught{answers: make(chan string, 1)}
	nic.SetReadDeadline(time.Time{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 1500)
		for {
			n, err := nic.Read(b)
			if err != nil {
				return
			}
			if n < 240 || binary.BigEndian.Uint32(b[4:]) != c.want.Load() {
				continue
			}
			if p, err := dhcpv4.FromBytes(b[:n]); err == nil {
				select {
				case c.answers <- p.BootFileName:
				default:
				}
			}
		}
	}()
	t.Cleanup(func() { nic.Close(); <-done })
	return c
}

// offer asks as the valid machine does, up to four times like firmware.
func (c *caught) offer(r *rig, ipxe bool) string {
	r.t.Helper()
	xid := dhcpv4.TransactionID{9, byte(rand.Uint32()), byte(rand.Uint32()), byte(rand.Uint32())}
	c.want.Store(binary.BigEndian.Uint32(xid[:]))
	mods := []dhcpv4.Modifier{dhcpv4.WithTransactionID(xid)}
	if ipxe {
		mods = append(mods, dhcpv4.WithGeneric(dhcpv4.OptionUserClassInformation, []byte("iPXE")))
	}
	for range 4 {
		r.ask(mods...)
		select {
		case file := <-c.answers:
			return file
		case <-time.After(patience / 4):
		}
	}
	r.t.Fatal("in the flood: the valid client got no offer")
	return ""
}

// boot goes the whole way of a boot.
func (c *caught) boot(r *rig) {
	r.t.Helper()
	if got, err := r.tftp(c.offer(r, false)); err != nil || !bytes.Equal(got, firmware) {
		r.t.Fatalf("in the flood: got %d bytes by TFTP, %v", len(got), err)
	}
	script := c.offer(r, true)
	status, body := r.get(script)
	if status != http.StatusOK {
		r.t.Fatalf("in the flood: got %d for the script", status)
	}
	r.assertion(body)
}

// settle waits until want goroutines run or, where want is 0, until their number stays; it returns the number and the heap in use.
func settle(t *testing.T, want int) (goroutines int, heap uint64) {
	t.Helper()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(3 * patience)
	for same := 0; goroutines != want && want != 0 || same < 20; {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<16)
			t.Fatalf("got %d goroutines, want %d\n%s", goroutines, want, stacks[:runtime.Stack(stacks, true)])
		}
		<-tick.C
		n := runtime.NumGoroutine()
		if same++; n != goroutines {
			goroutines, same = n, 0
		}
	}
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return goroutines, m.HeapAlloc
}

// TestFloodLeavesServiceAndMemoryAlone is not parallel: it counts goroutines.
func TestFloodLeavesServiceAndMemoryAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("100,000 packets: left out of the short run")
	}
	r := newRig(t)
	r.cfg.Log = slog.New(slog.DiscardHandler)
	r.start()
	r.succeed("boot.prepareRamdisk", r.lease("lease-1"))
	r.succeed("boot.policy", r.policy(1, func(p *sitev1.BootPolicy) { p.Discovery = true }))
	valid := catch(t, r.nic)
	j := newJunk(t, r)
	var goroutines int
	var heap uint64
	began := time.Now()
	for j.sent < floodPackets {
		j.send()
		if j.sent%floodStep == 0 {
			valid.offer(r, false)
		}
		if j.sent%floodBoot == 0 {
			valid.boot(r)
		}
		if j.sent == floodFrom {
			goroutines, heap = settle(t, 0)
		}
	}
	_, after := settle(t, goroutines)
	t.Logf("%d packets in %s: heap %d KiB at %d packets, %d KiB at the end, %d goroutines", j.sent, time.Since(began).Round(time.Millisecond),
		heap>>10, floodFrom, after>>10, goroutines)
	if after > heap+floodGrowth {
		t.Errorf("heap: got %d bytes more after %d packets than after %d, want at most %d", after-heap, floodPackets, floodFrom, floodGrowth)
	}
}
