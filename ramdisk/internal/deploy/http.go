package deploy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Bounds of one transfer.
const (
	// ConnectTimeout bounds the wait for a connection.
	ConnectTimeout = 10 * time.Second
	// HeaderTimeout bounds the wait for an answer's header.
	HeaderTimeout = 30 * time.Second
	// StallTimeout ends a transfer that brings no byte for so long.
	StallTimeout = 30 * time.Second
	// TransferTimeout ends a transfer that brings a byte now and then.
	TransferTimeout = 10 * time.Minute
)

var (
	// ErrRefused: the server answered and will answer the same again.
	ErrRefused = errors.New("the server refused")
	// ErrTooLong: more bytes came than the manifest allows.
	ErrTooLong = errors.New("the answer is longer than it may be")
	// ErrCut: the answer ended before its declared end (DEP-02).
	ErrCut = errors.New("the answer was cut off")
	// ErrReset: the connection was broken by the other end.
	ErrReset = errors.New("the connection was reset")
	// ErrStalled: the server brings nothing more, or too slowly.
	ErrStalled = errors.New("the transfer stalled")
)

// StatusError is an answer other than success that may be another one later.
type StatusError struct {
	// Status is such as "503 Service Unavailable".
	Status string
	// RetryAfter is how long the server asks to wait (RFC 9110, 10.2.3); 0 when it asks nothing.
	RetryAfter time.Duration
}

func (e *StatusError) Error() string {
	if e.RetryAfter > 0 {
		return fmt.Sprintf("the server answered %q and asks to wait %s", e.Status, e.RetryAfter)
	}
	return fmt.Sprintf("the server answered %q", e.Status)
}

// HTTP fetches by plain GET: no proxy, no redirect, no compression on the way, one try. What it fetches is judged by digests, not by
// TLS.
type HTTP struct{ client *http.Client }

// NewHTTP returns a fetcher.
func NewHTTP() *HTTP {
	return newHTTP((&net.Dialer{Timeout: ConnectTimeout}).DialContext)
}

func newHTTP(dial func(ctx context.Context, network, address string) (net.Conn, error)) *HTTP {
	return &HTTP{&http.Client{
		Transport: &http.Transport{DialContext: dial, DisableCompression: true, MaxIdleConnsPerHost: Workers, ResponseHeaderTimeout: HeaderTimeout, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return fmt.Errorf("%w: it answered with a redirect", ErrRefused)
		},
	}}
}

// Fetch gets a URL.
func (h *HTTP) Fetch(ctx context.Context, address string, limit int64) ([]byte, error) {
	u, err := url.Parse(address)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil {
		return nil, fmt.Errorf("%w: %q is not an http address", ErrRefused, address)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slow := time.AfterFunc(TransferTimeout, func() {
		cancel(fmt.Errorf("%w: it is not done after %s", ErrStalled, TransferTimeout))
	})
	defer slow.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return nil, broken(ctx, err, 0, 0)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, statusError(resp)
	}
	if resp.ContentLength > limit {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLong, resp.ContentLength, limit)
	}
	return readAll(ctx, resp.Body, max(resp.ContentLength, 0), limit, cancel)
}

// statusError tells apart what waiting may change (RFC 9110, 15.5 and 15.6; RFC 6585) from what it cannot.
func statusError(resp *http.Response) error {
	switch c := resp.StatusCode; {
	case c >= 500, c == http.StatusRequestTimeout, c == http.StatusTooEarly, c == http.StatusTooManyRequests:
		return &StatusError{resp.Status, retryAfter(resp.Header, time.Now())}
	}
	return fmt.Errorf("%w: it answered %q", ErrRefused, resp.Status)
}

// retryAfter reads seconds or a date; what cannot be read, or lies in the past, asks nothing. Dates count from the server's own
// clock where it tells it.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if n, err := strconv.ParseUint(v, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	if server, err := http.ParseTime(h.Get("Date")); err == nil {
		now = server
	}
	return max(at.Sub(now), 0)
}

// readAll reads to the end that the protocol declares: a connection that ends before is ErrCut, never success (DEP-02).
func readAll(ctx context.Context, r io.Reader, expected, limit int64, cancel context.CancelCauseFunc) ([]byte, error) {
	stalled := time.AfterFunc(StallTimeout, func() { cancel(fmt.Errorf("%w: no byte came for %s", ErrStalled, StallTimeout)) })
	defer stalled.Stop()
	buf := make([]byte, 0, expected+1)
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := r.Read(buf[len(buf):min(int64(cap(buf)), limit+1)])
		buf = buf[:len(buf)+n]
		if n > 0 {
			stalled.Reset(StallTimeout)
		}
		if int64(len(buf)) > limit {
			return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLong, limit)
		}
		if err == io.EOF {
			return buf, nil
		}
		if err != nil {
			return nil, broken(ctx, err, len(buf), expected)
		}
	}
}

// broken says what ended a transfer, in words.
func broken(ctx context.Context, err error, got int, expected int64) error {
	where := ""
	switch {
	case expected > 0:
		where = fmt.Sprintf(" after %d of %d bytes", got, expected)
	case got > 0:
		where = fmt.Sprintf(" after %d bytes", got)
	}
	var timeout net.Error
	switch cause := context.Cause(ctx); {
	case cause != nil:
		return fmt.Errorf("%w%s", cause, where)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return fmt.Errorf("%w%s: %w", ErrCut, where, err)
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("%w%s: %w", ErrReset, where, err)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%w%s: %w", ErrStalled, where, err)
	case where != "":
		return fmt.Errorf("broken off%s: %w", where, err)
	}
	return err
}
