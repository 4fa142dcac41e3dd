package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
	"golang.org/x/sys/unix"
)

const (
	// listenFor is how long servers have to answer: most probe an address for a second before they offer it.
	listenFor = 3 * time.Second
	// askAgain is the pause between two questions: packets get lost, and a switch's port may learn first.
	askAgain = time.Second
	// maxOffers bounds what is kept of a segment where somebody answers without end.
	maxOffers = 64
)

// offer is one server's answer.
type offer struct {
	server netip.Addr
	// address: it offers one. boot: it names a boot file, or says that it is a boot server.
	address, boot bool
	file          string
}

// otherServers asks the boot segment as a machine's firmware would, and looks at who answers. Nothing is taken: a discover binds
// nobody (RFC 2131, section 3.1).
func (c Config) otherServers(ctx context.Context) Check {
	const name = "boot segment: DHCP servers"
	b := c.File.Boot
	if !b.Enabled {
		return skipped(name, noBoot)
	}
	i, err := c.Network.Interface(b.Interface)
	if err != nil || !i.Up || !i.Carrier || len(i.MAC) != 6 {
		return skipped(name, "nothing can be asked by "+b.Interface)
	}
	all, err := ask(ctx, b.Interface, i.MAC, c.Listen)
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return skipped(name, "another program holds UDP port 68, such as a DHCP client of this host")
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES):
		return skipped(name, "this user may not ask; run the doctor as root")
	case err != nil:
		return skipped(name, err.Error())
	}
	return judge(name, b.Address, all)
}

// judge says what the servers of a segment mean for the one at self.
func judge(name string, self netip.Addr, all []offer) Check {
	var address, boot, seen []string
	for _, o := range all {
		does := []string{}
		if o.address {
			does = append(does, "gives addresses")
			address = append(address, o.server.String())
		}
		if o.boot {
			does = append(does, "serves boots")
		}
		if o.file != "" {
			does = append(does, fmt.Sprintf("names the file %q", o.file))
		}
		who := o.server.String()
		if o.server == self {
			who += " (this appliance)"
		} else if o.boot {
			boot = append(boot, o.server.String())
		}
		seen = append(seen, who+" "+strings.Join(does, ", "))
	}
	what := strings.Join(seen, "; ")
	switch {
	case slices.Contains(address, self.String()):
		return bad(Fail, name, what, "a DHCP server on this host gives addresses by this interface, which takes port 67 from the appliance",
			"move it to another host, or keep it off this interface")
	case len(boot) > 0:
		return bad(Fail, name, what, strings.Join(boot, ", ")+" serves boots, too: machines take whoever answers first",
			"take options 66 and 67, next-server, filename and PXE off that server, or name one of the two as the only one")
	case len(address) == 0:
		return bad(Fail, name, what, "nobody gives addresses: machines on this segment cannot boot", "start a DHCP server for the segment; this appliance never gives addresses")
	case len(address) > 1:
		return bad(Warn, name, what, fmt.Sprintf("%d servers give addresses", len(address)), "see that they belong together, or end all but one")
	}
	return well(name, what)
}

// ask sends discovers by an interface and collects the offers, one for each server.
func ask(ctx context.Context, name string, mac net.HardwareAddr, listen time.Duration) ([]offer, error) {
	lc := net.ListenConfig{Control: func(network, address string, raw syscall.RawConn) error {
		var serr error
		err := raw.Control(func(fd uintptr) { serr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1) })
		return errors.Join(err, serr, device(name)(network, address, raw))
	}}
	conn, err := lc.ListenPacket(ctx, "udp4", fmt.Sprintf("0.0.0.0:%d", dhcpv4.ClientPort))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	d, err := discover(mac)
	if err != nil {
		return nil, err
	}
	everybody := &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpv4.ServerPort}
	end := time.Now().Add(listen)
	buf := make([]byte, 1500)
	var out []offer
	for again := (time.Time{}); time.Now().Before(end) && ctx.Err() == nil; {
		if now := time.Now(); now.After(again) {
			if _, err := conn.WriteTo(d.ToBytes(), everybody); err != nil {
				return nil, fmt.Errorf("ask by %s: %w", name, err)
			}
			again = now.Add(askAgain)
		}
		until := again
		if end.Before(until) {
			until = end
		}
		conn.SetReadDeadline(until)
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			continue
		}
		if o, ok := offered(buf[:n], from, d.TransactionID); ok && len(out) < maxOffers {
			out = merge(out, o)
		}
	}
	return out, nil
}

// discover is what firmware says: a PXE client's discover for x86-64 UEFI (RFC 4578).
func discover(mac net.HardwareAddr) (*dhcpv4.DHCPv4, error) {
	var id [17]byte
	if _, err := rand.Read(id[1:]); err != nil {
		return nil, err
	}
	return dhcpv4.NewDiscovery(mac, dhcpv4.WithBroadcast(true), dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient:Arch:00007:UNDI:003016")),
		dhcpv4.WithOption(dhcpv4.OptClientArch(iana.EFI_BC)), dhcpv4.WithGeneric(dhcpv4.OptionClientMachineIdentifier, id[:]),
		dhcpv4.WithGeneric(dhcpv4.OptionClientNetworkInterfaceIdentifier, []byte{1, 3, 16}),
		dhcpv4.WithRequestedOptions(dhcpv4.OptionTFTPServerName, dhcpv4.OptionBootfileName, dhcpv4.OptionVendorSpecificInformation))
}

// offered reads an answer to our question. The codec panics on some packets that nobody sends by mistake; such a one is no answer.
func offered(b []byte, from net.Addr, xid dhcpv4.TransactionID) (o offer, ok bool) {
	defer func() {
		if recover() != nil {
			o, ok = offer{}, false
		}
	}()
	m, err := dhcpv4.FromBytes(b)
	if err != nil || m.OpCode != dhcpv4.OpcodeBootReply || m.TransactionID != xid {
		return offer{}, false
	}
	server, ok := netip.AddrFromSlice(m.ServerIdentifier().To4())
	if !ok {
		udp, is := from.(*net.UDPAddr)
		if !is {
			return offer{}, false
		}
		server, _ = netip.AddrFromSlice(udp.IP.To4())
	}
	file := m.BootFileName
	if name := m.BootFileNameOption(); name != "" {
		file = name
	}
	return offer{server: server, address: !m.YourIPAddr.IsUnspecified(), file: clean(file),
		boot: file != "" || strings.HasPrefix(m.ClassIdentifier(), "PXEClient")}, true
}

// clean makes one readable line of what a server sent.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, s)
}

// merge adds what a server says to what it said before.
func merge(all []offer, o offer) []offer {
	i := slices.IndexFunc(all, func(x offer) bool { return x.server == o.server })
	if i < 0 {
		return append(all, o)
	}
	all[i].address, all[i].boot = all[i].address || o.address, all[i].boot || o.boot
	if o.file != "" {
		all[i].file = o.file
	}
	return all
}
