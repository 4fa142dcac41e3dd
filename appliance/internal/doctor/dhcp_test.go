package doctor

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

var (
	self   = netip.MustParseAddr("10.77.0.2")
	plain  = offer{server: netip.MustParseAddr("10.77.0.1"), address: true}
	second = offer{server: netip.MustParseAddr("10.77.0.9"), address: true}
	ours   = offer{server: self, boot: true, file: "t/x/snponly.efi"}
	rival  = offer{server: netip.MustParseAddr("10.77.0.3"), boot: true, file: "pxelinux.0"}
)

func TestJudge(t *testing.T) {
	t.Parallel()
	router := plain
	router.boot, router.file = true, "router.efi"
	for name, c := range map[string]struct {
		all  []offer
		want State
		word string
	}{
		"the usual":            {[]offer{plain}, OK, "10.77.0.1 gives addresses"},
		"the appliance runs":   {[]offer{plain, ours}, OK, "(this appliance) serves boots"},
		"nobody":               {nil, Fail, "nobody gives addresses"},
		"only the appliance":   {[]offer{ours}, Fail, "nobody gives addresses"},
		"two give addresses":   {[]offer{plain, second, ours}, Warn, "2 servers"},
		"a rival":              {[]offer{plain, ours, rival}, Fail, `names the file "pxelinux.0"`},
		"a router with a file": {[]offer{router, ours}, Fail, "10.77.0.1 serves boots, too"},
		"a server on the host": {[]offer{{server: self, address: true}}, Fail, "port 67"},
	} {
		t.Run(name, func(t *testing.T) { holds(t, judge("servers", self, c.all), c.want, c.word) })
	}
}

// What several packets of one server say is one server.
func TestMerge(t *testing.T) {
	t.Parallel()
	all := merge(merge(merge(nil, plain), offer{server: plain.server, boot: true, file: "x"}), rival)
	if len(all) != 2 || !all[0].address || !all[0].boot || all[0].file != "x" {
		t.Errorf("got %+v", all)
	}
}

// answer is a server's offer to a discover of ours, as it stands in the packet.
func answer(t testing.TB, change ...dhcpv4.Modifier) (*dhcpv4.DHCPv4, []byte) {
	t.Helper()
	d, err := discover(net.HardwareAddr{2, 0, 0, 0, 0, 1})
	if err != nil {
		t.Fatal(err)
	}
	r, err := dhcpv4.NewReplyFromRequest(d, append([]dhcpv4.Modifier{dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer), dhcpv4.WithServerIP(net.IPv4(10, 77, 0, 3))}, change...)...)
	if err != nil {
		t.Fatal(err)
	}
	return d, r.ToBytes()
}

func TestOffered(t *testing.T) {
	t.Parallel()
	from := &net.UDPAddr{IP: net.IPv4(10, 77, 0, 3), Port: 67}
	d, b := answer(t, dhcpv4.WithYourIP(net.IPv4(10, 77, 0, 100)), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 77, 0, 4))), dhcpv4.WithOption(dhcpv4.OptBootFileName("a\x1b[2Jb")))
	if o, ok := offered(b, from, d.TransactionID); !ok || o != (offer{server: netip.MustParseAddr("10.77.0.4"), address: true, boot: true, file: "a[2Jb"}) {
		t.Errorf("got %+v, %v, want the server by its identifier, with an address and a readable file", o, ok)
	}
	if _, ok := offered(b, from, dhcpv4.TransactionID{1}); ok {
		t.Error("took an answer to somebody else")
	}
	if _, ok := offered(d.ToBytes(), from, d.TransactionID); ok {
		t.Error("took our own question for an answer")
	}
	d, b = answer(t)
	if o, ok := offered(b, from, d.TransactionID); !ok || o.server.String() != "10.77.0.3" || o.address || o.boot {
		t.Errorf("got %+v, %v, want the sender, who offers nothing", o, ok)
	}
}

// FuzzOffered: whatever answers, what is shown of it is one readable line.
func FuzzOffered(f *testing.F) {
	// Seeds must be the same in every process that fuzzes.
	xid := dhcpv4.WithTransactionID(dhcpv4.TransactionID{1, 2, 3, 4})
	for _, change := range [][]dhcpv4.Modifier{
		{xid, dhcpv4.WithYourIP(net.IPv4(10, 77, 0, 100)), dhcpv4.WithOption(dhcpv4.OptBootFileName("x"))},
		{xid, dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 77, 0, 3))), dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient"))},
	} {
		_, b := answer(f, change...)
		f.Add(b)
	}
	f.Add([]byte("junk"))
	from := &net.UDPAddr{IP: net.IPv4(10, 77, 0, 3), Port: 67}
	f.Fuzz(func(t *testing.T, b []byte) {
		var xid dhcpv4.TransactionID
		if len(b) >= 8 {
			copy(xid[:], b[4:8])
		}
		o, ok := offered(b, from, xid)
		if !ok {
			return
		}
		c := judge("x", self, merge(nil, o))
		if !o.server.IsValid() || strings.ContainsFunc(c.What, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("got %+v, %q", o, c.What)
		}
	})
}
