// Package httpboot serves boot files, scripts, overlays and images by plain HTTP/1.1.
//
// It is for the site agent, and for clients that are firmware: no redirects, no compression, a Content-Length on everything, HEAD
// wherever GET is. It opens nothing outside its three roots, and leaves to its Boots what a machine may have. Nothing that it serves
// is a secret, and nothing that it receives is believed.
package httpboot

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/time/rate"

	"firstlight/ipxe"
	"firstlight/site/internal/discovery"
)

const (
	// MaxReport bounds a machine's report in bytes.
	MaxReport = 4 << 10
	// maxConns bounds open connections, maxPerClient those of one address; maxHeader one request's headers in bytes.
	maxConns, maxPerClient, maxHeader = 1024, 32, 8 << 10
	// readLimit bounds a request's arrival, writeLimit an answer's departure, idleLimit the wait for the next one.
	readLimit, writeLimit, idleLimit = 10 * time.Second, 30 * time.Minute, 2 * time.Minute
	// logEvery and logBurst bound what requests can write into the log.
	logEvery, logBurst = time.Second, 60
	// drain is how long Serve waits for answers in progress when it ends.
	drain = 3 * time.Second
)

// ErrUnknown is returned by Boots for a token that names no boot.
var ErrUnknown = errors.New("no such boot")

// ErrTooMany is returned by Boots.Report when reports come too fast.
var ErrTooMany = errors.New("too many reports")

// Refused is returned by Boots for a boot that is known and not served; Reason is for the machine's screen.
type Refused struct{ Reason string }

func (r *Refused) Error() string { return r.Reason }

// Boots decides what a machine may have. It is called from many goroutines. Its errors are ErrUnknown, *Refused, ErrTooMany, or
// anything else for a fault on this side.
type Boots interface {
	// Script returns the script of a boot.
	Script(token string, client netip.AddrPort) ([]byte, error)
	// Token returns the token of the boot that a machine with the MAC may have now, in any spelling of it.
	Token(mac string, client netip.AddrPort) (token string, err error)
	// Firmware says whether a boot may have a first-stage file.
	Firmware(token, name string) error
	// Overlay returns an overlay initrd of a boot: discovery.SiteFile or discovery.BootFile.
	Overlay(token, name string, client netip.AddrPort) ([]byte, error)
	// Report hands on what a machine says of its boot; *Refused for a client that is not the machine.
	Report(token, text string, client netip.AddrPort) error
	// Served is called after a file was sent to its last byte: token is empty for a file that all boots share.
	Served(token, name string, client netip.AddrPort)
}

// Config is what a server needs.
type Config struct {
	// Firmware holds first-stage files, RAMDisk the kernel and the RAM disk, Blobs content-addressed files.
	Firmware, RAMDisk, Blobs *os.Root
	Boots                    Boots
	// Meter is told of every answer after its end: kind of file, status, bytes of its body. Nil is nobody.
	Meter func(file string, status int, bytes int64)
	Log   *slog.Logger
}

// Serve answers requests on l until ctx ends (nil); it closes l.
func Serve(ctx context.Context, l net.Listener, cfg Config) error {
	s := &http.Server{
		Handler:           Handler(cfg),
		ReadHeaderTimeout: readLimit, ReadTimeout: readLimit, WriteTimeout: writeLimit, IdleTimeout: idleLimit,
		MaxHeaderBytes: maxHeader,
		ErrorLog:       slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(newBounded(l)) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve boot http: %w", err)
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	if s.Shutdown(end) != nil {
		s.Close()
	}
	<-ended
	return nil
}

// Handler returns the service without its listener.
func Handler(cfg Config) http.Handler {
	h := &handler{cfg: cfg, logs: rate.NewLimiter(rate.Every(logEvery), logBurst)}
	if cfg.Meter == nil {
		return h
	}
	return metered(h, cfg.Meter)
}

type handler struct {
	cfg  Config
	logs *rate.Limiter
}

// ServeHTTP routes by hand: http.ServeMux would redirect, which firmware does not follow (HTTP-02).
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts, err := SplitPath(r.URL.Path)
	if err != nil {
		h.refuse(w, http.StatusBadRequest, "bad path")
		return
	}
	report := len(parts) == 3 && parts[0] == "b" && parts[2] == discovery.ReportPath
	allow := "GET, HEAD"
	if report {
		allow = "POST"
	}
	if !slices.Contains(strings.Split(allow, ", "), r.Method) {
		w.Header().Set("Allow", allow)
		h.refuse(w, http.StatusMethodNotAllowed, "want "+allow)
		return
	}
	client, _ := netip.ParseAddrPort(r.RemoteAddr)
	client = netip.AddrPortFrom(client.Addr().Unmap(), client.Port())
	switch {
	case len(parts) == 2 && parts[0] == "f" && (parts[1] == discovery.KernelFile || parts[1] == discovery.RAMDiskFile):
		h.file(w, r, h.cfg.RAMDisk, parts[1], "", "", client)
	case len(parts) == 2 && parts[0] == "blob" && isDigest(parts[1]):
		h.file(w, r, h.cfg.Blobs, parts[1], `"`+parts[1]+`"`, "", client)
	case report:
		h.report(w, r, parts[1], client)
	case len(parts) == 3 && parts[0] == "b" && parts[2] == discovery.ScriptFile:
		h.script(w, r, parts[1], client)
	case len(parts) == 3 && parts[0] == "b" && (parts[2] == discovery.SiteFile || parts[2] == discovery.BootFile):
		h.overlay(w, r, parts[1], parts[2], client)
	case len(parts) == 3 && parts[0] == "m" && parts[2] == discovery.ScriptFile:
		token, err := h.cfg.Boots.Token(parts[1], client)
		if err != nil {
			h.fault(w, err)
			return
		}
		h.script(w, r, token, client)
	case len(parts) == 3 && parts[0] == "b":
		if err := h.cfg.Boots.Firmware(parts[1], parts[2]); err != nil {
			h.fault(w, err)
			return
		}
		h.file(w, r, h.cfg.Firmware, parts[2], "", parts[1], client)
	case len(parts) == 4 && parts[0] == "b" && parts[2] == discovery.FailedPath && isImage(parts[3]):
		h.answerReport(w, h.cfg.Boots.Report(parts[1], "iPXE could not load or start the image "+parts[3], client), http.StatusOK)
	default:
		h.refuse(w, http.StatusNotFound, "not found")
	}
}

func (h *handler) script(w http.ResponseWriter, r *http.Request, token string, client netip.AddrPort) {
	b, err := h.cfg.Boots.Script(token, client)
	if refused := (*Refused)(nil); errors.As(err, &refused) {
		notice, nerr := ipxe.Notice(refused.Reason)
		if nerr != nil {
			h.fault(w, nerr)
			return
		}
		// iPXE drops the body of any answer but 200, and the person in front of the machine would see an error number.
		status := http.StatusGone
		if strings.HasPrefix(r.UserAgent(), "iPXE/") {
			status = http.StatusOK
		}
		h.bytes(w, r, status, "text/plain", notice)
		return
	}
	if err != nil {
		h.fault(w, err)
		return
	}
	if h.bytes(w, r, http.StatusOK, "text/plain", b) {
		h.cfg.Boots.Served(token, discovery.ScriptFile, client)
	}
}

func (h *handler) overlay(w http.ResponseWriter, r *http.Request, token, name string, client netip.AddrPort) {
	b, err := h.cfg.Boots.Overlay(token, name, client)
	if err != nil {
		h.fault(w, err)
		return
	}
	if h.bytes(w, r, http.StatusOK, binary, b) {
		h.cfg.Boots.Served(token, name, client)
	}
}

func (h *handler) report(w http.ResponseWriter, r *http.Request, token string, client netip.AddrPort) {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxReport))
	if tooBig := (*http.MaxBytesError)(nil); errors.As(err, &tooBig) {
		h.refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("want at most %d bytes", MaxReport))
		return
	}
	text := CleanReport(b)
	if err != nil || text == "" {
		h.refuse(w, http.StatusBadRequest, "want a text")
		return
	}
	h.answerReport(w, h.cfg.Boots.Report(token, text, client), http.StatusNoContent)
}

func (h *handler) answerReport(w http.ResponseWriter, err error, status int) {
	if err != nil {
		h.fault(w, err)
		return
	}
	if status != http.StatusNoContent {
		w.Header().Set("Content-Length", "0")
	}
	w.WriteHeader(status)
}

const binary = "application/octet-stream"

// bytes sends b and says whether all of it went out in answer to GET.
func (h *handler) bytes(w http.ResponseWriter, r *http.Request, status int, kind string, b []byte) bool {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", fmt.Sprint(len(b)))
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	if r.Method != http.MethodGet {
		return false
	}
	_, err := w.Write(b)
	return err == nil
}

// file sends a regular file of root, or the part of it that a Range asks for.
func (h *handler) file(w http.ResponseWriter, r *http.Request, root *os.Root, name, etag, token string, client netip.AddrPort) {
	f, err := root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		if h.logs.Allow() {
			h.cfg.Log.Warn("boot file is missing", "file", name, "client", client.String())
		}
		h.refuse(w, http.StatusNotFound, "not found")
		return
	}
	if err != nil {
		h.fault(w, err)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		h.fault(w, fmt.Errorf("%s is no regular file", name))
		return
	}
	if etag == "" {
		etag = fmt.Sprintf(`"%x-%x"`, info.Size(), info.ModTime().UnixNano())
	}
	w.Header().Set("Content-Type", binary)
	w.Header().Set("ETag", etag)
	count := &counter{ResponseWriter: w}
	http.ServeContent(count, r, "", info.ModTime(), f)
	if r.Method == http.MethodGet && count.status == http.StatusOK && count.n == info.Size() {
		h.cfg.Boots.Served(token, name, client)
	}
}

func (h *handler) fault(w http.ResponseWriter, err error) {
	var refused *Refused
	switch {
	case errors.Is(err, ErrUnknown):
		h.refuse(w, http.StatusNotFound, "not found")
	case errors.As(err, &refused):
		h.refuse(w, http.StatusGone, refused.Reason)
	case errors.Is(err, ErrTooMany):
		h.refuse(w, http.StatusTooManyRequests, "too many reports")
	default:
		h.cfg.Log.Error("boot request not served", "error", err)
		h.refuse(w, http.StatusInternalServerError, "fault on the server's side")
	}
}

func (h *handler) refuse(w http.ResponseWriter, status int, text string) {
	text += "\n"
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Content-Length", fmt.Sprint(len(text)))
	w.WriteHeader(status)
	io.WriteString(w, text)
}

// isDigest says whether s is a SHA-256 in lower-case hex.
func isDigest(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 32 && s == strings.ToLower(s)
}

// isImage says whether s can be the name of one of a script's images.
func isImage(s string) bool {
	return len(s) <= 16 && !strings.ContainsFunc(s, func(r rune) bool { return r < 'a' || r > 'z' })
}

// counter counts an answer's bytes and keeps the fast path from file to socket.
type counter struct {
	http.ResponseWriter
	status int
	n      int64
}

func (c *counter) WriteHeader(status int) {
	c.status = status
	c.ResponseWriter.WriteHeader(status)
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	c.n += int64(n)
	return n, err
}

// ReadFrom implements io.ReaderFrom.
func (c *counter) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(c.ResponseWriter, r)
	c.n += n
	return n, err
}

// Unwrap is for http.ResponseController.
func (c *counter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// SplitPath splits a decoded path: empty parts and "." mean nothing; "..", backslashes and control characters are an error.
func SplitPath(path string) ([]string, error) {
	var parts []string
	for p := range strings.SplitSeq(path, "/") {
		if p == "" || p == "." {
			continue
		}
		if p == ".." || strings.ContainsFunc(p, func(r rune) bool { return r < 0x20 || r == 0x7f || r == '\\' }) {
			return nil, errors.New("path is not allowed")
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// CleanReport makes one line of readable text of what a machine sent: bytes that are no UTF-8, control and formatting characters
// become blanks, rows of blanks one.
func CleanReport(b []byte) string {
	text := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, string(bytes.ToValidUTF8(b, []byte(" "))))
	return strings.Join(strings.Fields(text), " ")
}
