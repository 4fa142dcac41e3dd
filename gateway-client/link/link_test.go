package link_test

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"firstlight/gateway-client/gatewaytest"
	"firstlight/gateway-client/link"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
)

// serve is a TLS server without services: a handshake that passes ends in UNIMPLEMENTED.
func serve(t *testing.T, cfg *tls.Config) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(cfg)))
	go s.Serve(l)
	t.Cleanup(s.Stop)
	return "https://" + l.Addr().String()
}

// call dials and makes one call.
func call(t *testing.T, cfg link.Config) error {
	t.Helper()
	cc, err := link.Dial(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	_, err = agentv1.NewAgentGatewayClient(cc).Join(t.Context(), &agentv1.JoinRequest{})
	return err
}

func pin(c *x509.Certificate) []byte {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return sum[:]
}

func TestDial_whomItTrusts(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ca, other := gatewaytest.NewCA(t, "serving", now), gatewaytest.NewCA(t, "other", now)
	good := ca.Serving()
	impostor := other.Serving()
	impostor.Certificate = [][]byte{impostor.Certificate[0], ca.Cert.Raw} // shows the pinned CA, which did not sign it
	alone := ca.Serving()
	alone.Certificate = alone.Certificate[:1]

	for _, c := range []struct {
		name string
		cert tls.Certificate
		max  uint16
		cfg  link.Config
		want error  // wrapped, or
		text string // in it
	}{
		{name: "pinned CA", cert: good, cfg: link.Config{SPKIPins: [][]byte{ca.Pin()}}},
		{name: "one of two pins", cert: good, cfg: link.Config{SPKIPins: [][]byte{other.Pin(), ca.Pin()}}},
		{name: "name of the URL", cert: good, cfg: link.Config{SPKIPins: [][]byte{ca.Pin()}, ServerName: "127.0.0.1"}},
		{name: "another CA", cert: good, cfg: link.Config{SPKIPins: [][]byte{other.Pin()}}, want: link.ErrPin, text: hex.EncodeToString(ca.Pin())},
		{name: "pin of the leaf", cert: good, cfg: link.Config{SPKIPins: [][]byte{pin(good.Leaf)}}, want: link.ErrPin},
		{name: "chain without its CA", cert: alone, cfg: link.Config{SPKIPins: [][]byte{ca.Pin()}}, want: link.ErrPin},
		{name: "pinned CA that did not sign", cert: impostor, cfg: link.Config{SPKIPins: [][]byte{ca.Pin()}}, text: "unknown authority"},
		{name: "another name", cert: good, cfg: link.Config{SPKIPins: [][]byte{ca.Pin()}, ServerName: "gw.other.test"}, text: "gw.other.test"},
		{name: "TLS 1.2", cert: good, max: tls.VersionTLS12, cfg: link.Config{SPKIPins: [][]byte{ca.Pin()}}, text: "protocol version"},
		{name: "SEC-04 clock in the past", cert: good, cfg: link.Config{SPKIPins: [][]byte{ca.Pin()}, Now: func() time.Time { return time.Unix(0, 0) }},
			want: link.ErrClock, text: "1970-01-01T00:00:00Z"},
		{name: "SEC-04 clock in the future", cert: good, cfg: link.Config{SPKIPins: [][]byte{ca.Pin()}, Now: func() time.Time { return time.Date(2090, 1, 1, 0, 0, 0, 0, time.UTC) }},
			want: link.ErrClock, text: "2090-01-01T00:00:00Z"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cfg := c.cfg
			cfg.URL = serve(t, &tls.Config{Certificates: []tls.Certificate{c.cert}, MaxVersion: c.max})
			if cfg.ServerName == "" {
				cfg.ServerName = gatewaytest.ServerName
			}
			err := call(t, cfg)
			if c.want == nil && c.text == "" {
				if status.Code(err) != codes.Unimplemented {
					t.Errorf("got %v, want the call to arrive", err)
				}
				return
			}
			if status.Code(err) != codes.Unavailable || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v, want UNAVAILABLE, %v, with %q", err, c.want, c.text)
			}
		})
	}
}

func TestDial_asksNoProxy(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	t.Setenv("https_proxy", "http://127.0.0.1:1")
	ca := gatewaytest.NewCA(t, "serving", time.Now())
	url := serve(t, &tls.Config{Certificates: []tls.Certificate{ca.Serving()}})
	if err := call(t, link.Config{URL: url, SPKIPins: [][]byte{ca.Pin()}}); status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v, want the call to arrive", err)
	}
}

func TestDial_refusesBadConfigurations(t *testing.T) {
	t.Parallel()
	good := make([]byte, sha256.Size)
	for name, cfg := range map[string]link.Config{
		"no url":    {SPKIPins: [][]byte{good}},
		"http":      {URL: "http://gw:1", SPKIPins: [][]byte{good}},
		"no host":   {URL: "https://:443", SPKIPins: [][]byte{good}},
		"path":      {URL: "https://gw/x", SPKIPins: [][]byte{good}},
		"query":     {URL: "https://gw/?x", SPKIPins: [][]byte{good}},
		"user":      {URL: "https://u:p@gw", SPKIPins: [][]byte{good}},
		"no pin":    {URL: "https://gw"},
		"short pin": {URL: "https://gw", SPKIPins: [][]byte{good[1:]}},
		"many pins": {URL: "https://gw", SPKIPins: make([][]byte, link.MaxPins+1)},
	} {
		if cc, err := link.Dial(cfg); err == nil {
			cc.Close()
			t.Errorf("%s: got a connection", name)
		}
	}
	for _, url := range []string{"https://gw", "https://gw/", "https://10.77.0.2:8443", "https://[2001:db8::1]:8443"} {
		cc, err := link.Dial(link.Config{URL: url, SPKIPins: [][]byte{good}})
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		cc.Close()
	}
}
