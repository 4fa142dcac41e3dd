package proxydhcp

import (
	"log/slog"
	"net"
	"testing"
)

// deaf knows no machine.
type deaf struct{ *book }

func (deaf) Find(Client) (string, bool) { return "", false }

// Each packet is counted once, by how it ended.
func TestMeterIsToldOfEveryPacket(t *testing.T) {
	t.Parallel()
	out, client := listen(t, "127.0.0.1"), listen(t, "127.0.0.1")
	var told []string
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Skipf("no loopback interface: %v", err)
	}
	s := New(Config{Address: loopback, Index: lo.Index, Offers: local(client), Boots: newBook(), Log: slog.New(slog.DiscardHandler),
		Meter: func(result string) { told = append(told, result) }})
	from := local(client)
	s.handle(out, discover(), from, PortDHCP)
	s.cfg.Boots = deaf{newBook()}
	s.handle(out, discover(), from, PortDHCP)
	s.cfg.Boots = newBook()
	s.handle(out, []byte("junk"), from, PortDHCP)
	out.Close()
	s.handle(out, discover(), from, PortDHCP)
	want := []string{"offered", "silent", "malformed", "unsent"}
	if len(told) != len(want) {
		t.Fatalf("told %q, want %q", told, want)
	}
	for i := range want {
		if told[i] != want[i] {
			t.Errorf("packet %d: told %q, want %q", i+1, told[i], want[i])
		}
	}
}
