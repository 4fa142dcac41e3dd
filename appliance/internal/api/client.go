package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"firstlight/appliance/internal/fault"
)

// callTimeout bounds every call but AddImage, PutBlob, FinishUpload, Cancel and what follows a stream.
const callTimeout = time.Minute

// Headers of the protocol.
const (
	// keyHeader names a request: the same key by the same person within a day is the same request.
	keyHeader = "Idempotency-Key"
	// lastHeader is where a stream goes on (HTML, server-sent events, section 9.2.4).
	lastHeader = "Last-Event-ID"
)

// Client calls an appliance. Its errors are fault.Errors. It is safe for use from many goroutines.
type Client struct {
	// base is scheme and host, where says for people what is called.
	base, where string
	token       string
	http        *http.Client
}

// NewClient returns a client of the socket at path; nothing is dialled yet.
func NewClient(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	return &Client{base: "http://firstlight", where: path, http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// NewRemote returns a client of the appliance at address (https://HOST[:PORT]) that shows a token. pin is the SHA-256 of its
// certificate in hex, as `firstlight serve` prints it; empty trusts this system's authorities.
func NewRemote(address, token, pin string) (*Client, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return nil, fault.New(fault.Usage, "call the appliance", address, errors.New("want https://HOST or https://HOST:PORT"), "correct the address")
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS13}
	if pin != "" {
		want, err := hex.DecodeString(strings.ToLower(strings.ReplaceAll(pin, ":", "")))
		if err != nil || len(want) != sha256.Size {
			return nil, fault.New(fault.Usage, "call the appliance", address, errors.New("the pin is not the SHA-256 of a certificate: want 64 hex digits"),
				"take it from what `firstlight serve` prints at its start")
		}
		// The pin replaces the authorities: exactly this certificate is trusted, whatever its name.
		cfg.InsecureSkipVerify = true
		cfg.VerifyConnection = func(s tls.ConnectionState) error { return pinned(s.PeerCertificates, want) }
	}
	t := &http.Transport{TLSClientConfig: cfg, TLSHandshakeTimeout: headerTimeout, ForceAttemptHTTP2: true}
	return &Client{base: "https://" + u.Host, where: address, token: token, http: &http.Client{Transport: t, CheckRedirect: refuseRedirect}}, nil
}

func pinned(certs []*x509.Certificate, want []byte) error {
	if len(certs) == 0 {
		return errors.New("the appliance shows no certificate")
	}
	if got := sha256.Sum256(certs[0].Raw); !bytes.Equal(got[:], want) {
		return fmt.Errorf("the appliance's certificate has SHA-256 %x, not the one that was pinned", got)
	}
	return nil
}

// refuseRedirect keeps the token from going anywhere else.
func refuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// InProcess returns a client that calls a handler in this process: who calls is what the request's context says.
func InProcess(h http.Handler) *Client {
	return &Client{base: "http://firstlight", where: "this process", http: &http.Client{Transport: &inProcess{h}}}
}

type contextKey int

const keyOfRequest contextKey = iota

// WithKey names the requests of a context: the appliance answers a second one of this key with what it answered to the first.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyOfRequest, key)
}

// request is one call.
type request struct {
	op, object   string
	method, path string
	// in is sent as JSON, raw as it is; both nil is no body.
	in  any
	raw io.Reader
	// size is that of raw.
	size int64
	// after is where a stream goes on.
	after string
}

func call[T any](ctx context.Context, c *Client, r request) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return send[T](ctx, c, r)
}

func send[T any](ctx context.Context, c *Client, r request) (T, error) {
	var out T
	resp, err := c.open(ctx, r)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return out, fault.New(fault.Unavailable, r.op, r.object, fmt.Errorf("the appliance's answer broke off: %w", err),
			"look at what was done with `firstlight machine list`, then try again")
	}
	if err := json.Unmarshal(data, &out); err != nil {
		return out, fault.New(fault.Internal, r.op, r.object, fmt.Errorf("read the appliance's answer: %w", err),
			"use the firstlight command of the same version as the appliance")
	}
	return out, nil
}

// open sends a request and returns an answer of status 200, whose body is the caller's to close.
func (c *Client) open(ctx context.Context, r request) (*http.Response, error) {
	body := r.raw
	if r.in != nil {
		data, err := json.Marshal(r.in)
		if err != nil {
			return nil, fault.Of(err, r.op, r.object)
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, c.base+r.path, body)
	if err != nil {
		return nil, fault.New(fault.Usage, r.op, r.object, err, "give a plain name")
	}
	c.head(ctx, req, r)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(r.op, r.object, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, c.unreachable(r.op, r.object, err)
	}
	return nil, refused(r.op, r.object, resp.Status, data)
}

func (c *Client) head(ctx context.Context, req *http.Request, r request) {
	if r.in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.raw != nil {
		req.ContentLength = r.size
		req.Header.Set("Content-Type", "application/octet-stream")
	}
	if r.after != "" {
		req.Header.Set(lastHeader, r.after)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if key, ok := ctx.Value(keyOfRequest).(string); ok && key != "" && r.method != http.MethodGet {
		req.Header.Set(keyHeader, key)
	}
}

func refused(op, object, status string, data []byte) error {
	var r refusal
	if err := json.Unmarshal(data, &r); err != nil || r.Error == nil {
		return fault.New(fault.Internal, op, object, fmt.Errorf("the appliance answered %s", status),
			"use the firstlight command of the same version as the appliance")
	}
	return r.Error
}

func (c *Client) unreachable(op, object string, err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f
	}
	switch {
	case errors.Is(err, os.ErrPermission):
		return fault.New(fault.Denied, op, object, err, "run the command as root or as the user that the appliance runs as")
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fault.New(fault.Unavailable, op, object, fmt.Errorf("no appliance listens on %s", c.where),
			"start `firstlight serve`, or name its socket with --socket or FIRSTLIGHT_SOCKET")
	}
	return fault.New(fault.Unavailable, op, object, err, "see whether `firstlight serve` still runs, then try again")
}
