// Package fault spoils one link of the chain from outside: bytes between a machine and its site, a gateway that is another one,
// a signing key that nobody trusts, an image that lacks its kernel. Production code has no hook for any of it.
//
// It is for testbed/scenario. Every fault counts what it did, so that a run can prove that its fault was met.
package fault

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"
)

// maxSpoiled bounds a body that is changed, in bytes: chunks, manifests and overlays are below it.
const maxSpoiled = 32 << 20

// Spoil changes answers on their way.
type Spoil struct {
	// Refuse is asked first, for each request: a status that the client gets in place of an answer, or 0. It may be nil, and is
	// called from several goroutines.
	Refuse func(path string) int
	// Match picks requests by their path.
	Match func(path string) bool
	// Change returns what the machine gets instead. It is called for answers with status 200 to GET.
	Change func(body []byte) ([]byte, error)
}

// FlipByte turns every bit of the byte in the middle.
func FlipByte(body []byte) ([]byte, error) {
	if len(body) == 0 {
		return nil, fmt.Errorf("flip one byte: there is none")
	}
	out := bytes.Clone(body)
	out[len(out)/2] ^= 0xff
	return out, nil
}

// Proxy is a man in the middle between machines and the site's HTTP server.
type Proxy struct {
	server *http.Server

	mu      sync.Mutex
	spoiled []string
	errs    []error
}

// NewProxy returns a proxy to target ("host:port"), reached by dial, that spoils one kind of answer.
func NewProxy(target string, dial func(ctx context.Context, network, addr string) (net.Conn, error), s Spoil) *Proxy {
	p := &Proxy{}
	// Nothing is decoded on the way: the machine gets the site's bytes, or ours.
	transport := &http.Transport{DialContext: dial, DisableCompression: true, MaxIdleConns: 8, IdleConnTimeout: 30 * time.Second}
	rp := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: target})
			// A part of a body cannot be spoiled at a known place: ask for the whole.
			if s.Match(r.In.URL.Path) {
				r.Out.Header.Del("Range")
			}
		},
		Transport:      transport,
		ModifyResponse: func(r *http.Response) error { return p.modify(r, s) },
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			p.note("", fmt.Errorf("pass on %s %s: %w", r.Method, r.URL.Path, err))
			w.WriteHeader(http.StatusBadGateway)
		},
		ErrorLog: nil,
	}
	p.server = &http.Server{Handler: p.refuse(s, rp), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	return p
}

// refuse answers with an error what is to be refused, and lets the rest go on.
func (p *Proxy) refuse(s Spoil, next http.Handler) http.Handler {
	if s.Refuse == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status := s.Refuse(r.URL.Path); status != 0 {
			p.note(r.URL.Path, nil)
			http.Error(w, http.StatusText(status), status)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (p *Proxy) modify(r *http.Response, s Spoil) error {
	path := r.Request.URL.Path
	if r.Request.Method != http.MethodGet || r.StatusCode != http.StatusOK || !s.Match(path) {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxSpoiled+1))
	r.Body.Close()
	if err != nil {
		return err
	}
	if len(body) > maxSpoiled {
		return fmt.Errorf("spoil %s: over %d bytes", path, maxSpoiled)
	}
	body, err = s.Change(body)
	if err != nil {
		return fmt.Errorf("spoil %s: %w", path, err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	r.Header.Set("Content-Length", strconv.Itoa(len(body)))
	p.note(path, nil)
	return nil
}

func (p *Proxy) note(path string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if path != "" && len(p.spoiled) < 1000 {
		p.spoiled = append(p.spoiled, path)
	}
	if err != nil && len(p.errs) < 100 {
		p.errs = append(p.errs, err)
	}
}

// Spoiled lists the paths of the answers that were changed or refused, in their order.
func (p *Proxy) Spoiled() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.spoiled)
}

// Errors lists what could not be passed on.
func (p *Proxy) Errors() []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.errs)
}

// Serve serves until Close.
func (p *Proxy) Serve(ln net.Listener) error {
	if err := p.server.Serve(ln); err != http.ErrServerClosed {
		return fmt.Errorf("proxy: %w", err)
	}
	return nil
}

// Close ends every connection.
func (p *Proxy) Close() error { return p.server.Close() }
