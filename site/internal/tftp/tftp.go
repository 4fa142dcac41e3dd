// Package tftp serves the first-stage boot files of one directory, read only.
//
// It is for the site agent. It opens nothing outside its root, takes no writes, keeps no caches, and tells its Events what each
// machine fetched. A name may begin with "t/<token>/", which names the boot that the transfer belongs to and no directory.
//
// github.com/pin/tftp/v3 serves: it negotiates, sends, waits and sends again. It speaks RFC 1350 in mode octet with the options
// blksize (512 bytes and more) and tsize, window 1. Around it is what boot ROMs and an open segment need: an answer to every
// request, from the address that was asked and a new port, RFC error codes, one packet per acknowledgement whatever is repeated,
// and places that a flood of unanswered requests cannot hold. request.go reads what comes to the port and writes what the library
// gets of it, line.go is the packet connection that the library serves one transfer on, transfer.go runs it, slots.go are the places.
package tftp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/time/rate"

	"firstlight/site/internal/netif"
)

const (
	// MaxName bounds a file name in bytes.
	MaxName = 255
	// MaxFile bounds a file in bytes.
	MaxFile = 1 << 30
	// DefaultMaxBlock is the largest block that fits an Ethernet packet: 1,500 less headers.
	DefaultMaxBlock = 1468
	// headers4 are IPv4, UDP and TFTP's own; headers6 are with IPv6.
	headers4, headers6 = 20 + 8 + 4, 40 + 8 + 4
	// maxLive bounds transfers with those that have lost their place and are about to end; a request waits for one of those.
	maxLive = 2 * maxTransfers
	// maxReadErrors is how many reads in a row may fail before Serve gives up.
	maxReadErrors = 16
	// logEvery and logBurst bound what the segment can write into the log.
	logEvery, logBurst = time.Second, 60
)

// Transfer is one file on its way to one client.
type Transfer struct {
	// Token names the boot; empty when the name had none.
	Token string
	// File is the cleaned name without the token; empty for a name that was refused.
	File string
	// Client's address is an IPv4 one, or an IPv6 one with its zone where it is link-local.
	Client netip.AddrPort
	// Bytes that the client has acknowledged.
	Bytes int64
}

// Events hears what became of transfers. It is called from many goroutines.
type Events interface {
	// Served is called once the client has acknowledged the last block.
	Served(Transfer)
	// Failed is called when a transfer did not reach its end, with the reason in words; not for a client that only asked for
	// the size, nor for a transfer that the same client has begun anew, nor for one that never began and lost its place.
	Failed(t Transfer, reason string)
}

// Config is what a server needs.
type Config struct {
	Root *os.Root
	// Interface is where transfers leave.
	Interface string
	// MTU of the interface, in bytes.
	MTU int
	// MaxBlock caps the block size whatever the MTU; 0 is DefaultMaxBlock.
	MaxBlock int
	// Timeout is how long the first copy of a packet waits; 0 is DefaultTimeout.
	Timeout time.Duration
	Events  Events
	Log     *slog.Logger
}

// Server serves files. Make it with New.
type Server struct {
	cfg   Config
	slots *slots
	// live holds one entry for each transfer that has not ended yet: those that have a place, and those that just lost it.
	live chan struct{}
	logs *rate.Limiter
}

// New returns a server; Serve runs it.
func New(cfg Config) *Server {
	if cfg.MaxBlock == 0 {
		cfg.MaxBlock = DefaultMaxBlock
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	return &Server{cfg: cfg, slots: newSlots(), live: make(chan struct{}, maxLive), logs: rate.NewLimiter(rate.Every(logEvery), logBurst)}
}

// Serve answers requests on conn until ctx ends (nil), and ends the transfers with it; it closes conn.
func (s *Server) Serve(ctx context.Context, conn *netif.Packets) error {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	var transfers sync.WaitGroup
	defer transfers.Wait()
	life, end := context.WithCancel(ctx)
	defer end()
	b := make([]byte, maxRequest)
	failures := 0
	for {
		n, from, to, err := conn.Read(b)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if failures++; failures >= maxReadErrors {
				return fmt.Errorf("serve tftp: %w", err)
			}
			continue
		}
		failures = 0
		if code, text := s.request(life, &transfers, b[:n], from, to); text != "" {
			conn.Reply(encodeError(code, text), to, from)
		}
	}
}

// What a client is told. It never holds a path.
var errName = errors.New("file name is not allowed")

// request begins a transfer, or returns the error that the client gets; no text is no answer.
func (s *Server) request(ctx context.Context, transfers *sync.WaitGroup, b []byte, from netip.AddrPort, to netip.Addr) (code uint16, text string) {
	// An answer to what was sent to everybody would have no address to come from; one to port 0 nowhere to go.
	if !to.IsValid() || to.IsMulticast() || to == broadcast || to.IsUnspecified() || from.Port() == 0 {
		return 0, ""
	}
	r, err := parseRequest(b)
	t := Transfer{Client: from}
	switch {
	case err != nil && len(r.name) > MaxName:
		s.fail(t, "the name that the machine asked for is too long")
		return codeAccess, errName.Error()
	case err != nil && r.name != "":
		return codeIllegal, errRequest.Error()
	case err != nil:
		return 0, ""
	case r.op == opWrite:
		s.fail(t, "the machine wanted to write a file")
		return codeAccess, "this server takes no files"
	case !strings.EqualFold(r.mode, "octet"):
		s.fail(t, fmt.Sprintf("the machine asked for mode %.16q", r.mode))
		return codeUndefined, "only mode octet is served"
	}
	if t.Token, t.File, err = ParseName(r.name); err != nil {
		s.fail(t, "the name that the machine asked for is not allowed")
		return codeAccess, errName.Error()
	}
	f, size, err := s.open(t.File)
	if err != nil {
		s.fail(t, err.Error())
		return codeNotFound, "file not found"
	}
	if text := s.begin(ctx, transfers, t, r, f, size, to); text != "" {
		f.Close()
		return codeUndefined, text
	}
	return 0, ""
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// begin starts the transfer of f, which is the transfer's from then on; otherwise it returns what the client is told.
func (s *Server) begin(ctx context.Context, transfers *sync.WaitGroup, t Transfer, r request, f *os.File, size int64, to netip.Addr) string {
	ctx, evict := context.WithCancelCause(ctx)
	place, v := s.slots.take(t, func() { evict(errEvicted) })
	switch v {
	case busy:
		evict(nil)
		s.fail(t, "there are too many transfers")
		return "too many transfers"
	case repeated:
		evict(nil)
		f.Close()
		return ""
	}
	conn, err := netif.DialUDP(ctx, s.cfg.Interface, to, t.Client)
	if err != nil {
		evict(nil)
		s.slots.give(place)
		s.note("tftp transfer not begun", t, err.Error())
		return "the server cannot answer"
	}
	headers := headers4
	if to.Is6() {
		headers = headers6
	}
	largest := min(s.cfg.MaxBlock, s.cfg.MTU-headers)
	s.live <- struct{}{}
	transfers.Go(func() {
		defer func() { <-s.live }()
		defer evict(nil)
		defer f.Close()
		defer conn.Close()
		var err error
		t.Bytes, err = serve(ctx, conn, t.Client, r, file{f, size}, largest, s.cfg.Timeout, func() { s.slots.moved(place) })
		s.ended(ctx, place, t, size, err)
	})
	return ""
}

// ended tells what became of a transfer.
func (s *Server) ended(ctx context.Context, place *slot, t Transfer, size int64, err error) {
	matters := s.slots.give(place)
	switch {
	case err == nil:
		s.cfg.Events.Served(t)
	case errors.Is(err, errProbe) || !matters || ctx.Err() != nil:
		s.cfg.Log.Debug("tftp transfer ended early", "file", t.File, "client", t.Client.String(), "error", err)
	default:
		s.fail(t, fmt.Sprintf("the transfer stopped after %d of %d bytes: %v", t.Bytes, size, err))
	}
}

func (s *Server) fail(t Transfer, reason string) {
	s.note("tftp transfer failed", t, reason)
	s.cfg.Events.Failed(t, reason)
}

func (s *Server) note(what string, t Transfer, reason string) {
	if s.logs.Allow() {
		s.cfg.Log.Warn(what, "file", t.File, "client", t.Client.String(), "reason", reason)
	}
}

// open opens a file of the root. Its errors are for people and hold no path but the name that was asked for.
func (s *Server) open(name string) (*os.File, int64, error) {
	// Without blocking: a named pipe must not hold the service.
	f, err := s.cfg.Root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, fmt.Errorf("file %s is missing in the firmware directory", name)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("file %s cannot be opened in the firmware directory", name)
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > MaxFile {
		f.Close()
		return nil, 0, fmt.Errorf("file %s is no regular file of at most %d bytes", name, MaxFile)
	}
	return f, info.Size(), nil
}

// ParseName cleans a name from the wire: '/' and '\' separate, empty parts and "." mean nothing. Control characters, ':' (drive
// letters), ".." and more than MaxName bytes are refused. A leading "t/<token>/" is taken off.
func ParseName(raw string) (token, file string, err error) {
	if len(raw) > MaxName {
		return "", "", errName
	}
	var parts []string
	for p := range strings.SplitSeq(strings.ReplaceAll(raw, `\`, "/"), "/") {
		if p == "" || p == "." {
			continue
		}
		if p == ".." || strings.ContainsFunc(p, func(r rune) bool { return r < 0x20 || r == 0x7f || r == ':' }) {
			return "", "", errName
		}
		parts = append(parts, p)
	}
	if len(parts) >= 3 && parts[0] == "t" {
		token, parts = parts[1], parts[2:]
	}
	if len(parts) == 0 {
		return "", "", errName
	}
	return token, strings.Join(parts, "/"), nil
}
