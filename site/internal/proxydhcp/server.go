package proxydhcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/net/ipv4"
	"golang.org/x/time/rate"
)

const (
	// maxReadErrors is how many reads in a row may fail before Serve gives up.
	maxReadErrors = 16
	// logEvery and logBurst bound what hostile packets can write into the log.
	logEvery = 10 * time.Second
	logBurst = 5
	// relayPort is where a relay takes answers (RFC 2131, section 4.1).
	relayPort = 67
)

// Config is what a server needs.
type Config struct {
	// Address is the server's own: source of every answer, option 54 and next server.
	Address netip.Addr
	// Index is the interface by which answers leave and requests must come.
	Index int
	// Offers is where answers to clients without an address go: 255.255.255.255:68.
	Offers netip.AddrPort
	Boots  Boots
	// Meter is told how each packet ended: "offered", "silent", "malformed" or "unsent". Nil is nobody.
	Meter func(result string)
	Log   *slog.Logger
}

// Server answers requests, one at a time per port.
type Server struct {
	cfg Config
	// way tells the kernel by which interface and from which address an answer leaves.
	way     []byte
	logs    *rate.Limiter
	dropped atomic.Uint64
}

// New returns a server; Serve runs it.
func New(cfg Config) *Server {
	if cfg.Meter == nil {
		cfg.Meter = func(string) {}
	}
	way := (&ipv4.ControlMessage{IfIndex: cfg.Index, Src: net.IP(cfg.Address.AsSlice())}).Marshal()
	return &Server{cfg: cfg, way: way, logs: rate.NewLimiter(rate.Every(logEvery), logBurst)}
}

// Dropped is how many packets were malformed so far.
func (s *Server) Dropped() uint64 { return s.dropped.Load() }

// Serve answers what comes in on conn, a socket of netif.ListenUDP, until ctx ends (nil); it closes conn.
func (s *Server) Serve(ctx context.Context, conn *net.UDPConn, port Port) error {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	pc := ipv4.NewPacketConn(conn)
	if err := pc.SetControlMessage(ipv4.FlagInterface, true); err != nil {
		return fmt.Errorf("serve boot requests: %w", err)
	}
	buf, oob := make([]byte, MaxPacket+1), make([]byte, maxControl)
	failures := 0
	for {
		n, control, _, from, err := conn.ReadMsgUDPAddrPort(buf, oob)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if failures++; failures >= maxReadErrors || errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("serve boot requests: %w", err)
			}
			continue
		}
		failures = 0
		if s.ours(oob[:control]) {
			s.handle(conn, buf[:n], from, port)
		}
	}
}

// maxControl holds what the kernel says of a packet's interface, in bytes.
const maxControl = 128

// ours says whether a packet came by our interface, where the kernel says by which it came.
func (s *Server) ours(control []byte) bool {
	var m ipv4.ControlMessage
	return len(control) == 0 || m.Parse(control) == nil && m.IfIndex == s.cfg.Index
}

// handle answers one packet. A panic of the codec is one more malformed packet, never the end of the service.
func (s *Server) handle(conn *net.UDPConn, b []byte, from netip.AddrPort, port Port) {
	defer func() {
		if r := recover(); r != nil {
			s.drop(from, fmt.Errorf("%w: %v", errMalformed, r))
		}
	}()
	reply, client, file, err := Answer(b, port, s.cfg.Address, s.cfg.Boots)
	if err != nil {
		s.drop(from, err)
		return
	}
	if reply == nil {
		s.cfg.Meter("silent")
		return
	}
	to := destination(reply, port, from, s.cfg.Offers)
	if _, _, err := conn.WriteMsgUDPAddrPort(reply.ToBytes(), s.way, to); err != nil {
		s.cfg.Meter("unsent")
		s.cfg.Log.Warn("boot offer not sent", "mac", client.MAC.String(), "to", to.String(), "error", err)
		return
	}
	s.cfg.Meter("offered")
	s.cfg.Boots.Offered(client, file, port)
}

// destination is where a reply goes: to the relay that the request came through, whatever else holds (RFC 2131, section 4.1);
// from port 4011 back to the sender, who has an address; else to everybody, because the client has none yet.
func destination(reply *dhcpv4.DHCPv4, port Port, from, offers netip.AddrPort) netip.AddrPort {
	if relay, ok := netip.AddrFromSlice(reply.GatewayIPAddr.To4()); ok && !relay.IsUnspecified() {
		return netip.AddrPortFrom(relay, relayPort)
	}
	if port == PortPXE {
		return from
	}
	return offers
}

func (s *Server) drop(from netip.AddrPort, err error) {
	n := s.dropped.Add(1)
	s.cfg.Meter("malformed")
	if s.logs.Allow() {
		s.cfg.Log.Warn("boot request dropped", "from", from.String(), "dropped", n, "error", err)
	}
}
