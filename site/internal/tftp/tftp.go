// Package tftp serves the first-stage boot files of one directory, read only, around github.com/pin/tftp.
//
// It is for the site agent. It opens nothing outside its root, takes no writes, keeps no caches, and tells its Events what each
// machine fetched. A name may begin with "t/<token>/", which names the boot that the transfer belongs to and no directory.
package tftp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/pin/tftp/v3"
)

const (
	// MaxName bounds a file name in bytes.
	MaxName = 255
	// MaxFile bounds a file in bytes: it is held in memory while it travels.
	MaxFile = 32 << 20
	// DefaultMaxBlock is the largest block that fits an Ethernet packet: 1,500 less headers.
	DefaultMaxBlock = 1468
	// headers are IPv4, UDP and TFTP's own.
	headers = 20 + 8 + 4
	// A block is sent at most 1+retries times, each waiting timeout and then a little longer.
	timeout, retries, backoff = time.Second, 5, 250 * time.Millisecond
	// drain is how long Serve waits for transfers when it ends.
	drain = 3 * time.Second
)

// Transfer is one file on its way to one client.
type Transfer struct {
	// Token names the boot; empty when the name had none.
	Token string
	// File is the cleaned name without the token; empty for a name that was refused.
	File   string
	Client netip.AddrPort
	Bytes  int64
}

// Events hears what became of transfers. It is called from many goroutines.
type Events interface {
	// Served is called once the client has acknowledged the last block.
	Served(Transfer)
	// Failed is called when a transfer did not reach its end, with the reason in words; not for a client that only asked for
	// the size, nor for a transfer that the same client has begun anew.
	Failed(t Transfer, reason string)
}

// Config is what a server needs.
type Config struct {
	Root *os.Root
	// MTU of the interface, in bytes.
	MTU int
	// MaxBlock caps the block size whatever the MTU; 0 is DefaultMaxBlock.
	MaxBlock int
	Events   Events
	Log      *slog.Logger
}

// Server serves files. Make it with New.
type Server struct {
	cfg   Config
	slots *slots
}

// New returns a server; Serve runs it.
func New(cfg Config) *Server {
	if cfg.MaxBlock == 0 {
		cfg.MaxBlock = DefaultMaxBlock
	}
	return &Server{cfg: cfg, slots: newSlots()}
}

// Serve answers requests on conn until ctx ends; it closes conn.
func (s *Server) Serve(ctx context.Context, conn *net.UDPConn) error {
	srv := tftp.NewServer(func(name string, rf io.ReaderFrom) error { return s.read(ctx, name, rf) }, nil)
	srv.SetTimeout(timeout)
	srv.SetRetries(retries)
	srv.SetBackoff(func(n int) time.Duration { return time.Duration(n) * backoff })
	srv.SetBlockSize(min(s.cfg.MaxBlock, s.cfg.MTU-headers))
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(conn) }()
	select {
	case err := <-ended:
		conn.Close()
		return fmt.Errorf("serve tftp: %w", errors.Join(err, errors.New("the server ended")))
	case <-ctx.Done():
	}
	gone := make(chan struct{})
	go func() { srv.Shutdown(); close(gone) }()
	select {
	case <-gone:
	case <-time.After(drain):
	}
	return nil
}

// What a client is told. It never holds a path.
var (
	errName    = errors.New("file name is not allowed")
	errMissing = errors.New("file not found")
	errBusy    = errors.New("too many transfers")
)

// read serves one read request; its error goes to the client as ERROR 1.
func (s *Server) read(ctx context.Context, raw string, rf io.ReaderFrom) error {
	out := rf.(tftp.OutgoingTransfer)
	remote := out.RemoteAddr()
	t := Transfer{Client: remote.AddrPort()}
	var err error
	if t.Token, t.File, err = ParseName(raw); err != nil {
		s.fail(t, "the name that the machine asked for is not allowed")
		return errName
	}
	done, ok := s.slots.take(t)
	if !ok {
		s.fail(t, errBusy.Error())
		return errBusy
	}
	content, err := s.load(t.File)
	if err != nil {
		done()
		s.fail(t, err.Error())
		return errMissing
	}
	out.SetSize(int64(len(content)))
	t.Bytes, err = rf.ReadFrom(&reader{ctx: ctx, r: bytes.NewReader(content)})
	newest := done()
	switch {
	case err == nil:
		s.cfg.Events.Served(t)
	case probe.MatchString(err.Error()) || !newest || ctx.Err() != nil:
		s.cfg.Log.Debug("tftp transfer ended early", "file", t.File, "client", t.Client.String(), "error", err)
	default:
		s.fail(t, fmt.Sprintf("the transfer stopped after %d of %d bytes: %v", t.Bytes, len(content), err))
	}
	return nil
}

// probe is how the library says that a client took the size from the OACK and hung up, as EDK2 does (RFC 2347). Codes 0 and 8
// are both in use for it.
var probe = regexp.MustCompile(`^sending block 0: code=(0|8), `)

func (s *Server) fail(t Transfer, reason string) {
	s.cfg.Log.Warn("tftp transfer failed", "file", t.File, "client", t.Client.String(), "reason", reason)
	s.cfg.Events.Failed(t, reason)
}

func (s *Server) load(name string) ([]byte, error) {
	f, err := s.cfg.Root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("file %s is missing in the firmware directory", name)
	}
	if err != nil {
		return nil, fmt.Errorf("file %s cannot be opened in the firmware directory", name)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > MaxFile {
		return nil, fmt.Errorf("file %s is no regular file of at most %d bytes", name, MaxFile)
	}
	b, err := io.ReadAll(io.LimitReader(f, MaxFile))
	if err != nil {
		return nil, fmt.Errorf("file %s cannot be read", name)
	}
	return b, nil
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

// reader ends with the context, so that a transfer does not outlive the agent by more than a block.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r *reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, errors.New("server stops")
	}
	return r.r.Read(p)
}
