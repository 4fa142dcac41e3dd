package judge

import (
	"bytes"
	"net"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"
)

// scriptName ends the path of every boot script.
const scriptName = "script.ipxe"

// Segment is what the judge of packets knows beforehand.
type Segment struct {
	// Machine is the machine that the checks are about; nobody else may be answered, but for Others.
	Machine net.HardwareAddr
	Others  []net.HardwareAddr
	// Site is where the proxy-DHCP, TFTP and (unless HTTP differs) the boot's HTTP come from; Gateway where the machine joins.
	Site          netip.Addr
	HTTP, Gateway netip.AddrPort
	// GatewayName is the name that the gateway's certificate is for.
	GatewayName string
	// Program is the boot program that the machine is given over TFTP, ProgramSize its size in bytes. Empty is a machine whose
	// firmware is an iPXE already: it is given its script at once.
	Program     string
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
	program := s.Program
	if program == "" {
		program = scriptName
	}
	for _, m := range s.Offers(t, time.Time{}, time.Time{}) {
		if !bytes.Equal(m.Client, s.Machine) || path.Base(m.File) != program {
			continue
		}
		gives := m.YourIP.IsValid() && !m.YourIP.IsUnspecified()
		return Of(name, m.Class == "PXEClient" && !gives, "%s from %s for %s: option 60 %q, boot file %q, gives an address: %v",
			m.Type, m.Src, m.Client, m.Class, m.File, gives)
	}
	return Fail(name, "no offer of %s from %s for %s in %d frames", program, s.Site, s.Machine, t.Frames)
}

func (s Segment) silentToOthers(t *Trace) Check {
	const name = "packets: silent to others"
	answers := s.Offers(t, time.Time{}, time.Time{})
	for _, m := range answers {
		if !bytes.Equal(m.Client, s.Machine) && !slices.ContainsFunc(s.Others, func(o net.HardwareAddr) bool { return bytes.Equal(o, m.Client) }) {
			return Fail(name, "%s from %s for %s, which is not ours", m.Type, m.Src, m.Client)
		}
	}
	return Pass(name, "all %d answers of our proxy are for %s", len(answers), s.known())
}

// known names the machines that may be answered.
func (s Segment) known() string {
	words := []string{s.Machine.String()}
	for _, o := range s.Others {
		words = append(words, o.String())
	}
	return strings.Join(words, ", ")
}

func (s Segment) program(t *Trace) Check {
	const name = "packets: TFTP transfer"
	if s.Program == "" {
		return Of("packets: no TFTP", len(t.TFTP) == 0, "%d files asked for over TFTP", len(t.TFTP))
	}
	for _, x := range t.TFTP {
		if x.Server == s.Site && path.Base(x.File) == s.Program && x.Complete {
			return Of(name, x.Bytes == s.ProgramSize, "%s from %s to %s: %d of %d bytes, acknowledged", x.File, x.Server, x.Client, x.Bytes, s.ProgramSize)
		}
	}
	return Fail(name, "no whole transfer of %s from %s among %d requests", s.Program, s.Site, len(t.TFTP))
}

// Scripts returns the machine's requests for a boot script.
func (s Segment) Scripts(t *Trace) []*HTTP {
	var out []*HTTP
	for _, h := range t.HTTP {
		if h.Method == "GET" && h.Server == s.HTTP && strings.HasSuffix(h.Path, "/"+scriptName) {
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

// Silence checks that from that time on the machine's firmware asked for a network boot and got nothing that boots it: no answer
// of our proxy at all, but for an iPXE, which may be told why there is nothing.
func (s Segment) Silence(t *Trace, from time.Time) []Check {
	const asked, silent = "power cycle: firmware asks the network first", "power cycle: nothing to install is offered"
	asks, fromIPXE := 0, 0
	for _, m := range t.DHCP {
		if m.Type == "DISCOVER" && bytes.Equal(m.Client, s.Machine) && strings.HasPrefix(m.Class, "PXEClient") && within(m.Time, from, time.Time{}) {
			asks++
			if m.IPXE {
				fromIPXE++
			}
		}
	}
	out := []Check{Of(asked, asks > 0, "%d network boot requests of %s after the power cycle", asks, s.Machine)}
	answers := 0
	for _, m := range s.Offers(t, from, time.Time{}) {
		if fromIPXE == 0 || path.Base(m.File) != scriptName {
			return append(out, Fail(silent, "%s with file %q", m.Type, m.File))
		}
		answers++
	}
	served := 0
	for _, x := range t.TFTP {
		if within(x.Time, from, time.Time{}) {
			served++
		}
	}
	for _, h := range t.HTTP {
		told := fromIPXE > 0 && path.Base(h.Path) == scriptName
		if within(h.Time, from, time.Time{}) && !told && (strings.HasPrefix(h.Path, "/b/") || strings.HasPrefix(h.Path, "/f/")) {
			served++
		}
	}
	return append(out, Of(silent, served == 0, "%d boot files asked for by %s; its iPXE was pointed to the reason %d times", served, s.Machine, answers))
}

// Unanswered checks that the machine's firmware asked for a network boot and that our services gave it nothing.
func (s Segment) Unanswered(t *Trace) []Check {
	asks := 0
	for _, m := range t.DHCP {
		if m.Type == "DISCOVER" && bytes.Equal(m.Client, s.Machine) && strings.HasPrefix(m.Class, "PXEClient") {
			asks++
		}
	}
	answers := s.Offers(t, time.Time{}, time.Time{})
	return []Check{
		Of("packets: firmware asked", asks > 0, "%d network boot requests of %s", asks, s.Machine),
		Of("packets: nobody answered", len(answers) == 0 && len(t.TFTP) == 0 && len(t.HTTP) == 0,
			"%d offers, %d TFTP and %d HTTP requests", len(answers), len(t.TFTP), len(t.HTTP)),
	}
}
