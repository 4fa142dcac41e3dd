package deploy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Bounds of a transfer.
const (
	// StallTimeout ends a transfer that brings nothing.
	StallTimeout = 60 * time.Second
	// HeaderTimeout bounds the wait for an answer's header.
	HeaderTimeout = 30 * time.Second
)

var (
	// ErrRefused: the server answered and will answer the same again.
	ErrRefused = errors.New("the server refused")
	// ErrTooLong: more bytes came than the manifest allows.
	ErrTooLong = errors.New("the answer is longer than it may be")
)

// HTTP fetches by plain GET: no proxy, no redirect, no compression on the way. What it fetches is judged by digests, not by TLS.
type HTTP struct{ client *http.Client }

// NewHTTP returns a fetcher.
func NewHTTP() *HTTP {
	return &HTTP{&http.Client{
		Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: Workers, ResponseHeaderTimeout: HeaderTimeout, IdleConnTimeout: time.Minute},
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
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		err := fmt.Errorf("%s: the server answered %q", address, resp.Status)
		if resp.StatusCode >= 400 && resp.StatusCode < 500 {
			return nil, fmt.Errorf("%w: %w", ErrRefused, err)
		}
		return nil, err
	}
	if resp.ContentLength > limit {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLong, resp.ContentLength, limit)
	}
	return readAll(resp.Body, max(resp.ContentLength, 0), limit, cancel)
}

// readAll reads to the end that the protocol declares: a connection that ends before is io.ErrUnexpectedEOF, never success (DEP-02).
func readAll(r io.Reader, expected, limit int64, cancel context.CancelCauseFunc) ([]byte, error) {
	stalled := time.AfterFunc(StallTimeout, func() { cancel(errors.New("the transfer stalled")) })
	defer stalled.Stop()
	buf := make([]byte, 0, expected+1)
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		stalled.Reset(StallTimeout)
		if int64(len(buf)) > limit {
			return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLong, limit)
		}
		if err == io.EOF {
			return buf, nil
		}
		if err != nil {
			return nil, fmt.Errorf("after %d bytes: %w", len(buf), err)
		}
	}
}
