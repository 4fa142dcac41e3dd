package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

// Bounds of a TFTP client.
const (
	tftpClients = 50
	// tftpPatience is how long an answer is waited for before the last packet is sent again, tftpTries how often in a row.
	tftpPatience = time.Second
	tftpTries    = 20
	// tftpTook is how long a round of one server lasts at least.
	tftpTook = 2 * time.Second
)

// tftpServer is one that is measured.
type tftpServer struct {
	name string
	at   netip.AddrPort
}

// startTFTPPeers starts tftpd-hpa, atftpd and dnsmasq, each at a port of its own.
func (r *room) startTFTPPeers(ctx context.Context, c content) ([]tftpServer, error) {
	const hpaPort, atftpdPort, dnsmasqPort = 6969, 6970, 69
	dnsmasq, err := r.peer("dnsmasq-base", "dnsmasq")
	if err != nil {
		return nil, err
	}
	hpa, err := r.peer("tftpd-hpa", "in.tftpd")
	if err != nil {
		return nil, err
	}
	atftpd, err := r.peer("atftpd", "atftpd")
	if err != nil {
		return nil, err
	}
	var out []tftpServer
	for _, s := range []struct {
		name, program string
		port          uint16
		args          []string
	}{
		{"tftpd-hpa", hpa, hpaPort, []string{"-L", "--address", fmt.Sprintf("%s:%d", peersIP, hpaPort), "--user", "root", "--secure", c.firmware}},
		{"atftpd", atftpd, atftpdPort, []string{"--daemon", "--no-fork", "--user", "root", "--group", "root", "--bind-address", peersIP, "--port", strconv.Itoa(atftpdPort),
			"--logfile", "/dev/null", "--verbose=0", c.firmware}},
		{"dnsmasq-tftp", dnsmasq, dnsmasqPort, []string{"--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root", "--interface=eth0", "--bind-interfaces",
			"--enable-tftp", "--tftp-root=" + c.firmware, "--tftp-max=200", "--quiet-tftp", "--log-facility=/dev/null", "--pid-file="}},
	} {
		p, err := r.start(ctx, peersAt, s.name, s.program, s.args...)
		if err != nil {
			return nil, err
		}
		server := tftpServer{s.name, netip.AddrPortFrom(netip.MustParseAddr(peersIP), s.port)}
		ready := func() bool { return r.fetchTFTP(server, 0, c.program, 1468) == nil }
		if err := p.await(ctx, "a file", ready); err != nil {
			return nil, err
		}
		out = append(out, server)
	}
	return out, nil
}

// measureTFTP is P1.
func (b *bench) measureTFTP(ctx context.Context) error {
	peers, err := b.room.startTFTPPeers(ctx, b.content)
	if err != nil {
		return err
	}
	servers := append([]tftpServer{{"ours", netip.AddrPortFrom(netip.MustParseAddr(oursIP), 69)}}, peers...)
	for _, block := range []int{512, 1468} {
		rates, slow, middle := make([]series, len(servers)), series{}, series{}
		err := b.rounds(ctx, func() error {
			for i, s := range servers {
				l, err := b.room.loadTFTP(s, b.content.program, block)
				if err != nil {
					return fmt.Errorf("%s, blksize %d: %w", s.name, block, err)
				}
				rates[i] = append(rates[i], float64(l.loads)*tftpClients*programSize/l.wall.Seconds()/(1<<20))
				if i == 0 {
					slow, middle = append(slow, l.slowest), append(middle, l.median)
				}
				b.say("P1 blksize %-4d %-12s %.1f MiB/s", block, s.name, rates[i][len(rates[i])-1])
			}
			return nil
		})
		if err != nil {
			return err
		}
		best := 1
		for i := range rates[1:] {
			if rates[1+i].median() > rates[best].median() {
				best = 1 + i
			}
		}
		b.add(against("P1", fmt.Sprintf("TFTP, %d clients, 1 MiB, blksize %d, window 1: MiB/s over %s, the fastest of %d peers", tftpClients, block, servers[best].name, len(peers)),
			atLeast(1), rates[0], rates[best]),
			against("P1", fmt.Sprintf("TFTP, blksize %d: seconds of the slowest client over the median client's", block), atMost(1.3), slow, middle))
	}
	return nil
}

// tftpLoad is what a round of one server took.
type tftpLoad struct {
	loads int
	wall  time.Duration
	// slowest and median are the seconds of the slowest and of the median client, means of the loads.
	slowest, median float64
}

// loadTFTP has all clients load the file at once, again and again for tftpTook.
func (r *room) loadTFTP(s tftpServer, want []byte, block int) (l tftpLoad, err error) {
	for l.wall < tftpTook {
		took := make(series, tftpClients)
		errs := make([]error, tftpClients)
		var all sync.WaitGroup
		began := time.Now()
		for i := range tftpClients {
			all.Go(func() {
				errs[i] = r.fetchTFTP(s, i, want, block)
				took[i] = time.Since(began).Seconds()
			})
		}
		all.Wait()
		l.wall += time.Since(began)
		if err := errors.Join(errs...); err != nil {
			return l, err
		}
		_, last := took.ends()
		n := float64(l.loads)
		l.slowest, l.median = (l.slowest*n+last)/(n+1), (l.median*n+took.median())/(n+1)
		l.loads++
	}
	return l, nil
}

// fetchTFTP loads the file as firmware does: one block on its way at a time. What comes must be what is wanted.
func (r *room) fetchTFTP(s tftpServer, client int, want []byte, block int) error {
	conn, err := r.udp(net.JoinHostPort(clientIP(client), "0"))
	if err != nil {
		return err
	}
	defer conn.Close()
	t := transfer{conn: conn, to: s.at, want: want, block: block,
		out: []byte("\x00\x01" + programName + "\x00octet\x00blksize\x00" + strconv.Itoa(block) + "\x00tsize\x000\x00")}
	return t.run()
}

// transfer is one TFTP client (RFC 1350, 2347 to 2349).
type transfer struct {
	conn *net.UDPConn
	// to is the server's port, from the first answer on the one that it took for the transfer (RFC 1350, section 4).
	to    netip.AddrPort
	want  []byte
	block int
	// out is what was sent last.
	out     []byte
	granted bool
	got     int
	next    uint16
}

func (t *transfer) run() error {
	in := make([]byte, 4+t.block)
	for tries := 0; tries < tftpTries; tries++ {
		if _, err := t.conn.WriteToUDPAddrPort(t.out, t.to); err != nil {
			return err
		}
		t.conn.SetReadDeadline(time.Now().Add(tftpPatience))
		for {
			n, from, err := t.conn.ReadFromUDPAddrPort(in)
			if err != nil {
				break // time to send again
			}
			if t.granted && from != t.to {
				continue
			}
			moved, done, err := t.take(in[:n], from)
			if done || err != nil {
				return err
			}
			if !moved {
				continue
			}
			tries = -1
			break
		}
	}
	return fmt.Errorf("no answer to %d tries after %d bytes", tftpTries, t.got)
}

// take takes one packet; out is then its answer.
func (t *transfer) take(b []byte, from netip.AddrPort) (moved, done bool, err error) {
	if len(b) < 4 {
		return false, false, nil
	}
	op, number := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	switch {
	case op == 5:
		return false, false, fmt.Errorf("server says error %d %q", number, b[4:])
	case op == 6 && !t.granted:
		if !bytes.Contains(bytes.ToLower(b[2:]), []byte("blksize\x00"+strconv.Itoa(t.block)+"\x00")) {
			return false, false, fmt.Errorf("server does not grant blksize %d: %q", t.block, b[2:])
		}
		t.to, t.granted, t.next = from, true, 1
		number = 0
	case op == 3 && t.granted && number == t.next:
		data := b[4:]
		if t.got+len(data) > len(t.want) || !bytes.Equal(data, t.want[t.got:t.got+len(data)]) {
			return false, false, fmt.Errorf("block %d is not the file's", number)
		}
		t.got += len(data)
		t.next++
		done = len(data) < t.block
	default:
		return false, false, nil
	}
	t.out = []byte{0, 4, byte(number >> 8), byte(number)}
	if !done {
		return true, false, nil
	}
	if t.got != len(t.want) {
		return false, true, fmt.Errorf("file ended after %d of %d bytes", t.got, len(t.want))
	}
	_, err = t.conn.WriteToUDPAddrPort(t.out, t.to)
	return true, true, err
}
