package judge

import (
	"bytes"
	"net"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"firstlight/testbed/fixtures"
)

// Segment is what the judge of packets knows beforehand.
type Segment struct {
	// Machine is the only machine that may be answered.
	Machine net.HardwareAddr
	// Site is where the proxy-DHCP, TFTP and (unless HTTP differs) the boot's HTTP come from; Gateway where the machine joins.
	Site          netip.Addr
	HTTP, Gateway netip.AddrPort
	// GatewayName is the name that the gateway's certificate is for.
	GatewayName string
	// ProgramSize is the size of the UEFI boot program, in bytes.
	ProgramSize int64
}

// Boot checks that the capture shows a network boot by our services: offer, program, script, join.
func (s Segment) Boot(t *Trace) []Check {
	return []Check{s.offer(t), s.silentToOthers(t), s.program(t), s.script(t), s.gateway(t)}
}

// Offers returns the answers of our proxy between from and until; zero times are no bounds.
func (s Segment) Offers(t *Trace, from, until time.Time) []DHCP {
	var out []DHCP
	for _, m := range t.DHCP {
		if m.ServerSaid() && m.Src.Addr() == s.Site && within(m.Time, from, until) {
			out = append(out, m)
		}
	}
	return out
}

func within(at, from, until time.Time) bool {
	return (from.IsZero() || !at.Before(from)) && (until.IsZero() || at.Before(until))
}

func (s Segment) offer(t *Trace) Check {
	const name = "packets: proxy offer"
	for _, m := range s.Offers(t, time.Time{}, time.Time{}) {
		if !bytes.Equal(m.Client, s.Machine) || path.Base(m.File) != fixtures.UEFIProgram {
			continue
		}
		gives := m.YourIP.IsValid() && !m.YourIP.IsUnspecified()
		return Of(name, m.Class == "PXEClient" && !gives, "%s from %s for %s: option 60 %q, boot file %q, gives an address: %v",
			m.Type, m.Src, m.Client, m.Class, m.File, gives)
	}
	return Fail(name, "no offer of %s from %s for %s in %d frames", fixtures.UEFIProgram, s.Site, s.Machine, t.Frames)
}

func (s Segment) silentToOthers(t *Trace) Check {
	const name = "packets: silent to others"
	answers := s.Offers(t, time.Time{}, time.Time{})
	for _, m := range answers {
		if !bytes.Equal(m.Client, s.Machine) {
			return Fail(name, "%s from %s for %s, which is not ours", m.Type, m.Src, m.Client)
		}
	}
	return Pass(name, "all %d answers of our proxy are for %s", len(answers), s.Machine)
}

func (s Segment) program(t *Trace) Check {
	const name = "packets: TFTP transfer"
	for _, x := range t.TFTP {
		if x.Server == s.Site && path.Base(x.File) == fixtures.UEFIProgram && x.Complete {
			return Of(name, x.Bytes == s.ProgramSize, "%s from %s to %s: %d of %d bytes, acknowledged", x.File, x.Server, x.Client, x.Bytes, s.ProgramSize)
		}
	}
	return Fail(name, "no whole transfer of %s from %s among %d requests", fixtures.UEFIProgram, s.Site, len(t.TFTP))
}

// Scripts returns the machine's requests for a boot script.
func (s Segment) Scripts(t *Trace) []*HTTP {
	var out []*HTTP
	for _, h := range t.HTTP {
		if h.Method == "GET" && h.Server == s.HTTP && strings.HasSuffix(h.Path, "/script.ipxe") {
			out = append(out, h)
		}
	}
	return out
}

// SystemFiles returns the machine's requests for what boots it: kernel, RAM disk, overlays.
func (s Segment) SystemFiles(t *Trace) []*HTTP {
	var out []*HTTP
	for _, h := range t.HTTP {
		if h.Method == "GET" && h.Server == s.HTTP && (strings.HasPrefix(h.Path, "/f/") || strings.HasSuffix(h.Path, ".cpio")) {
			out = append(out, h)
		}
	}
	return out
}

func (s Segment) script(t *Trace) Check {
	const name = "packets: HTTP script"
	scripts := s.Scripts(t)
	for _, h := range scripts {
		if h.Status == 200 {
			return Pass(name, "GET script.ipxe from %s answered %d", h.Server, h.Status)
		}
	}
	return Fail(name, "no script.ipxe from %s answered 200 among %d requests", s.HTTP, len(scripts))
}

func (s Segment) gateway(t *Trace) Check {
	const name = "packets: TLS to the gateway"
	for _, x := range t.TLS {
		if x.Server != s.Gateway {
			continue
		}
		ok := x.Chosen == TLS13 && slices.Contains(x.Offered, TLS13) && (s.GatewayName == "" || x.Name == s.GatewayName)
		return Of(name, ok, "ClientHello from %s to %s for %q, version %#04x agreed", x.Client, x.Server, x.Name, x.Chosen)
	}
	return Fail(name, "no ClientHello to %s", s.Gateway)
}

// Silence checks that from that time on the machine's firmware asked for a network boot and our proxy did not answer.
func (s Segment) Silence(t *Trace, from time.Time) []Check {
	const asked, silent = "power cycle: firmware asks the network first", "power cycle: proxy stays silent"
	asks := 0
	for _, m := range t.DHCP {
		if m.Type == "DISCOVER" && bytes.Equal(m.Client, s.Machine) && strings.HasPrefix(m.Class, "PXEClient") && within(m.Time, from, time.Time{}) {
			asks++
		}
	}
	out := []Check{Of(asked, asks > 0, "%d network boot requests of %s after the power cycle", asks, s.Machine)}
	if answers := s.Offers(t, from, time.Time{}); len(answers) > 0 {
		return append(out, Fail(silent, "%d answers, the first one %s with file %q", len(answers), answers[0].Type, answers[0].File))
	}
	served := 0
	for _, x := range t.TFTP {
		if within(x.Time, from, time.Time{}) {
			served++
		}
	}
	for _, h := range t.HTTP {
		if within(h.Time, from, time.Time{}) && strings.HasPrefix(h.Path, "/b/") {
			served++
		}
	}
	return append(out, Of(silent, served == 0, "no answer to %s, %d boot files asked for", s.Machine, served))
}
