package redfish

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Bounds of one exchange with a controller. Controllers are slow: a reset
// request may take several seconds to be accepted.
const (
	dialLimit     = 10 * time.Second
	tlsLimit      = 20 * time.Second
	exchangeLimit = 60 * time.Second
	maxBody       = 4 << 20 // bytes of one answer
)

// ErrCertificate: the controller's TLS certificate is not the pinned one.
var ErrCertificate = errors.New("the management controller shows another certificate than the one on record")

// pinnedClient checks cfg and returns the base URL without its trailing slash
// and an HTTP client that talks to the pinned certificate only.
func pinnedClient(cfg Config) (string, *http.Client, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return "", nil, errors.New("the address must have the form https://host[:port]")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
		return "", nil, errors.New("the address must have neither user, path nor query")
	}
	if len(cfg.CertificateSHA256) != sha256.Size {
		return "", nil, fmt.Errorf("the certificate's SHA-256 has %d bytes, not %d", len(cfg.CertificateSHA256), sha256.Size)
	}
	want := [sha256.Size]byte(cfg.CertificateSHA256)
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dialLimit}).DialContext,
		TLSHandshakeTimeout: tlsLimit,
		IdleConnTimeout:     time.Minute,
		MaxIdleConnsPerHost: 1,
		TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS12,
			// The chain and the name are replaced by VerifyConnection, which
			// also runs for resumed sessions.
			InsecureSkipVerify: true,
			VerifyConnection:   func(s tls.ConnectionState) error { return checkLeaf(s, want) },
		},
	}
	client := &http.Client{
		Transport: keepOpen{transport},
		Timeout:   exchangeLimit,
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return errors.New("the controller redirects; the token is not sent elsewhere")
		},
	}
	return "https://" + u.Host, client, nil
}

func checkLeaf(s tls.ConnectionState, want [sha256.Size]byte) error {
	if len(s.PeerCertificates) == 0 {
		return ErrCertificate
	}
	got := sha256.Sum256(s.PeerCertificates[0].Raw)
	if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
		return fmt.Errorf("%w: expected SHA-256 %x, found %x", ErrCertificate, want, got)
	}
	return nil
}

// keepOpen undoes gofish's "Connection: close", which would cost a TLS
// handshake per request, and bounds the answer.
type keepOpen struct{ *http.Transport }

// RoundTrip is http.RoundTripper.
func (k keepOpen) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Close {
		r = r.Clone(r.Context())
		r.Close = false
	}
	resp, err := k.Transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, maxBody), resp.Body}
	return resp, nil
}
