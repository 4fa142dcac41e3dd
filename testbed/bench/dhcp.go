package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"firstlight/testbed/netlab"
)

// The load of P2.
const (
	outstanding = 64
	// offersTook is how long a round asks, aloneAsks how often it asks with one question on its way.
	offersTook = 3 * time.Second
	aloneAsks  = 2000
	// lost is how long an answer is waited for before a question counts as lost.
	lost = 500 * time.Millisecond
	// maxLost bounds the lost questions of a round in percent.
	maxLost = 1
	// warmLimit bounds the wait for a server behind a cable that has just been plugged in.
	warmLimit = 20 * time.Second
)

// dhcpSide is a proxy-DHCP server that is measured.
type dhcpSide struct {
	name, role string
	process    *process
	rate, cpu  series
	p99        series
}

// measureDHCP is P2. What is broadcast reaches everybody, so the side whose turn it is not has its cable out. dnsmasq logs every offer,
// as it does unless it is told otherwise.
func (b *bench) measureDHCP(ctx context.Context) error {
	dnsmasq, err := b.room.peer("dnsmasq-base", "dnsmasq")
	if err != nil {
		return err
	}
	peer, err := b.room.start(ctx, peersAt, "dnsmasq-proxy", dnsmasq, "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root", "--interface=eth0",
		"--bind-interfaces", "--dhcp-range=10.77.0.0,proxy", "--pxe-service=X86-64_EFI,boot,snponly.efi", "--log-facility="+filepath.Join(b.room.dir, "dnsmasq.log"), "--pid-file=")
	if err != nil {
		return err
	}
	sides := []*dhcpSide{{name: "ours", role: oursAt, process: b.site}, {name: "dnsmasq", role: peersAt, process: peer}}
	in, err := b.room.udp("0.0.0.0:68")
	if err != nil {
		return err
	}
	defer in.Close()
	// A broadcast leaves by the interface of its source address.
	out, err := b.room.udp(net.JoinHostPort(netlab.PeerAddress, "0"))
	if err != nil {
		return err
	}
	defer out.Close()
	q, err := newAsker(in, out)
	if err != nil {
		return err
	}
	err = b.rounds(ctx, func() error {
		for i, s := range sides {
			if err := errors.Join(b.room.cut(ctx, sides[1-i].role, true), b.room.cut(ctx, s.role, false)); err != nil {
				return err
			}
			if err := s.round(ctx, q); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			last := len(s.rate) - 1
			b.say("P2 %-8s %.0f offers/s, %.1f µs of processor an offer, p99 %.0f µs", s.name, s.rate[last], s.cpu[last], s.p99[last])
		}
		return nil
	})
	if err = errors.Join(err, b.room.cut(ctx, oursAt, false), b.room.cut(ctx, peersAt, false)); err != nil {
		return err
	}
	ours, theirs := sides[0], sides[1]
	b.add(against("P2", "proxy-DHCP, 64 DISCOVERs outstanding: offers/s over dnsmasq, which logs each as it does by itself", atLeast(3), ours.rate, theirs.rate),
		against("P2", "proxy-DHCP, 64 DISCOVERs outstanding: µs of processor per offer over dnsmasq", atMost(0.35), ours.cpu, theirs.cpu),
		against("P2", "proxy-DHCP, 1 DISCOVER outstanding: p99 in µs over dnsmasq", atMost(0.6), ours.p99, theirs.p99))
	return nil
}

// round measures one side once.
func (s *dhcpSide) round(ctx context.Context, q *asker) error {
	if err := q.warm(ctx); err != nil {
		return err
	}
	offers, missing := 0, 0
	wall, cpu, err := spent(s.process, func() (err error) {
		offers, missing, err = q.flood(ctx, offersTook)
		return err
	})
	if err != nil {
		return err
	}
	if missing*100 > maxLost*offers {
		return fmt.Errorf("%d of %d questions were not answered: too many for a figure", missing, offers+missing)
	}
	times, err := q.oneByOne(ctx, aloneAsks)
	if err != nil {
		return err
	}
	s.rate = append(s.rate, float64(offers)/wall.Seconds())
	s.cpu = append(s.cpu, float64(cpu.Microseconds())/float64(offers))
	s.p99 = append(s.p99, times.quantile(0.99))
	return nil
}

// asker is as many machines as there are questions outstanding; each has one on its way at a time.
type asker struct {
	in, out  *net.UDPConn
	question []byte
	to       netip.AddrPort
	buf      []byte
	// serial numbers the questions; a transaction is its serial, its machine the serial's rest by outstanding.
	serial uint32
	// asked holds the transaction that each machine waits for.
	asked [outstanding]uint32
}

// Places in a DHCP message (RFC 2131, section 2): transaction, and the last byte of a hardware address of six.
const (
	atTransaction = 4
	atMachine     = 28 + 5
	// atType is the value of option 53 where that is the first one, behind the cookie.
	atType = 240 + 2
)

func newAsker(in, out *net.UDPConn) (*asker, error) {
	m, err := dhcpv4.NewDiscovery(net.HardwareAddr{0x52, 0x54, 0, 0xbe, 0xac, 0}, dhcpv4.WithBroadcast(true),
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient:Arch:00007:UNDI:003016")),
		dhcpv4.WithOption(dhcpv4.OptClientArch(iana.EFI_X86_64)),
		dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionClientNetworkInterfaceIdentifier, []byte{1, 3, 16})),
		dhcpv4.WithRequestedOptions(dhcpv4.OptionTFTPServerName, dhcpv4.OptionBootfileName, dhcpv4.OptionVendorSpecificInformation))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(in.SetReadBuffer(socketBuffer), out.SetWriteBuffer(socketBuffer)); err != nil {
		return nil, err
	}
	return &asker{in: in, out: out, question: m.ToBytes(), to: netip.MustParseAddrPort("255.255.255.255:67"), buf: make([]byte, 1500)}, nil
}

// socketBuffer holds more than can be outstanding, in bytes.
const socketBuffer = 1 << 20

// ask sends machine i's next question.
func (q *asker) ask(i int) error {
	q.serial++
	x := q.serial*outstanding + uint32(i)
	q.asked[i] = x
	binary.BigEndian.PutUint32(q.question[atTransaction:], x)
	q.question[atMachine] = byte(i)
	_, err := q.out.WriteToUDPAddrPort(q.question, q.to)
	return err
}

// answer waits for an offer that a machine waits for, until the deadline of the socket.
func (q *asker) answer() (machine int, err error) {
	for {
		n, _, err := q.in.ReadFromUDPAddrPort(q.buf)
		if err != nil {
			return 0, err
		}
		b := q.buf[:n]
		if n <= atType || b[0] != 2 || !isOffer(b) {
			continue
		}
		x := binary.BigEndian.Uint32(b[atTransaction:])
		if i := int(x % outstanding); q.asked[i] == x && b[atMachine] == byte(i) {
			q.asked[i] = 0
			return i, nil
		}
	}
}

// isOffer says whether a message is an offer; servers put option 53 first, and one that does not is read in full.
func isOffer(b []byte) bool {
	if b[atType-2] == byte(dhcpv4.OptionDHCPMessageType) {
		return b[atType] == byte(dhcpv4.MessageTypeOffer)
	}
	m, err := dhcpv4.FromBytes(b)
	return err == nil && m.MessageType() == dhcpv4.MessageTypeOffer
}

// warm asks for each machine until it is answered: afterwards both servers know it.
func (q *asker) warm(ctx context.Context) error {
	limit := time.Now().Add(warmLimit)
	for i := range outstanding {
		for {
			if err := ctx.Err(); err != nil {
				return err
			}
			if time.Now().After(limit) {
				return fmt.Errorf("machine %d of %d is not answered", i+1, outstanding)
			}
			if err := q.ask(i); err != nil {
				return err
			}
			q.in.SetReadDeadline(time.Now().Add(lost))
			got, err := q.answer()
			if err == nil && got == i {
				break
			}
		}
	}
	return nil
}

// flood keeps all machines asking for so long, and counts.
func (q *asker) flood(ctx context.Context, took time.Duration) (offers, missing int, err error) {
	for i := range outstanding {
		if err := q.ask(i); err != nil {
			return 0, 0, err
		}
	}
	for end := time.Now().Add(took); ; {
		if offers%1024 == 0 && ctx.Err() != nil {
			return offers, missing, ctx.Err()
		}
		if offers%64 == 0 {
			if time.Now().After(end) {
				return offers, missing, nil
			}
			q.in.SetReadDeadline(time.Now().Add(lost))
		}
		i, err := q.answer()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if err := q.again(&missing); err != nil {
				return offers, missing, err
			}
			if time.Now().After(end) {
				return offers, missing, nil
			}
			q.in.SetReadDeadline(time.Now().Add(lost))
			continue
		case err != nil:
			return offers, missing, err
		}
		offers++
		if err := q.ask(i); err != nil {
			return offers, missing, err
		}
	}
}

// again asks anew for everybody who waits in vain.
func (q *asker) again(missing *int) error {
	for i := range outstanding {
		if q.asked[i] == 0 {
			continue
		}
		*missing++
		if err := q.ask(i); err != nil {
			return err
		}
	}
	return nil
}

// oneByOne asks n times with one question on its way, and returns the microseconds of each.
func (q *asker) oneByOne(ctx context.Context, n int) (series, error) {
	var out series
	for i := range n {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		began := time.Now()
		q.in.SetReadDeadline(began.Add(lost))
		if err := q.ask(i % outstanding); err != nil {
			return nil, err
		}
		// Answers to questions of before may still come: they are nobody's.
		for {
			got, err := q.answer()
			if err != nil {
				return nil, fmt.Errorf("question %d of %d: %w", i+1, n, err)
			}
			if got == i%outstanding {
				break
			}
		}
		out = append(out, float64(time.Since(began).Nanoseconds())/1000)
	}
	return out, nil
}
