package netif_test

import (
	"net/netip"
	"testing"

	"firstlight/site/internal/netif"
)

func TestLookup(t *testing.T) {
	lo, err := netif.Lookup("lo", netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		t.Skipf("no loopback interface: %v", err)
	}
	if lo.Index == 0 || lo.MTU < 1500 || lo.MAC != "" {
		t.Errorf("got %+v, want index, MTU and no MAC", lo)
	}
	if _, err := netif.Lookup("lo", netip.MustParseAddr("192.0.2.77")); err == nil {
		t.Error("foreign address: got no error")
	}
	if _, err := netif.Lookup("firstlight-none", netip.MustParseAddr("127.0.0.1")); err == nil {
		t.Error("missing interface: got no error")
	}
	if c, err := netif.ListenUDP(t.Context(), "firstlight-none", netip.MustParseAddrPort("127.0.0.1:0")); err == nil {
		c.Close()
		t.Error("listen on a missing interface: got no error")
	}
}
