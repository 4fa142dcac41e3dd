package tftp

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// inNamespace runs the calling test again, alone, in a network namespace of its own after the given commands; it returns true
// there, and false in the outer process once the inner run has ended well.
func inNamespace(t *testing.T, commands string) bool {
	t.Helper()
	const mark = "FIRSTLIGHT_TEST_IN_NAMESPACE"
	if os.Getenv(mark) == t.Name() {
		return true
	}
	if os.Getuid() != 0 {
		t.Skip("making a network namespace needs root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skipf("no ip command: %v", err)
	}
	c := exec.CommandContext(t.Context(), "sh", "-ec", "ip link set lo up\n"+commands+"\nexec \"$0\" \"$@\"", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), mark+"="+t.Name())
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := c.CombinedOutput()
	if err != nil {
		t.Errorf("in its namespace: %v\n%s", err, out)
	}
	if strings.Contains(string(out), "--- SKIP") {
		t.Skipf("in its namespace: %s", out)
	}
	return false
}

func TestTFTP07_IPv6ClientsKeepTheirZone(t *testing.T) {
	if !inNamespace(t, "ip addr add fe80::1/64 dev lo nodad\nip addr add fd00::1/64 dev lo nodad") {
		return
	}
	at, rec, _ := start(t, 1500, 0)
	for _, host := range []string{"fe80::1%lo", "fd00::1", "::1", "127.0.0.1", "::ffff:127.0.0.1"} {
		asked := netip.AddrPortFrom(netip.MustParseAddr(host), at.Port())
		bind := asked.Addr().Unmap()
		conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(bind, 0)))
		if err != nil {
			t.Fatal(err)
		}
		c := &raw{t: t, c: conn}
		c.ask(netip.AddrPortFrom(bind, at.Port()), opRead, "none.efi", "octet")
		if op, _ := c.answer(); op != opError || c.peer.Addr() != bind {
			t.Errorf("%s: got op %d from %s, want an error from the address that was asked", host, op, c.peer)
		}
		if l := rec.next(t); !strings.Contains(l, "none.efi") {
			t.Errorf("%s: got %q", host, l)
		}
		c.ask(netip.AddrPortFrom(bind, at.Port()), opRead, "snponly.efi", "octet", "blksize", "1468")
		if op, rest := c.answer(); op != opOACK || bind.Is6() && oack(rest)["blksize"] != "1448" || c.peer.Addr() != bind {
			t.Errorf("%s: got op %d %v from %s, want an OACK from the address that was asked", host, op, oack(rest), c.peer)
		}
		c.send([]byte{0, opError, 0, 3, 'e', 'n', 'o', 'u', 'g', 'h', 0})
		if l := rec.next(t); !strings.Contains(l, `error 3 "enough"`) {
			t.Errorf("%s: got %q", host, l)
		}
		conn.Close()
	}
	if got := rec.clients(); !got[netip.MustParseAddr("fe80::1%lo")] || !got[netip.MustParseAddr("127.0.0.1")] {
		t.Errorf("got clients %v, want the link-local one with its zone", got)
	}
}
