package fault

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"time"
)

// handshakeLimit bounds one connection to a rogue gateway that ends as it should.
const handshakeLimit = 20 * time.Second

// Gateway is somebody else's: it has the right name and another CA. Connections from one address (the site's own agent) are
// passed on to the real one as they are.
type Gateway struct {
	cert   tls.Certificate
	friend netip.Addr
	real   string
	dial   func(ctx context.Context, network, addr string) (net.Conn, error)

	ctx    context.Context
	cancel context.CancelFunc

	mu    sync.Mutex
	met   []Meeting
	conns sync.WaitGroup
}

// Meeting is one connection that was not passed on.
type Meeting struct {
	From netip.AddrPort
	// Err is how the handshake ended; nil when the machine took the certificate.
	Err error
	// Bytes is how much the machine said after the handshake.
	Bytes int64
}

// NewGateway returns a rogue gateway for serverName and addresses. real is the true gateway, reached by dial.
func NewGateway(serverName string, ips []net.IP, friend netip.Addr, real string, dial func(ctx context.Context, network, addr string) (net.Conn, error)) (*Gateway, error) {
	ca, caKey, err := newCA("rogue serving CA")
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	leaf := template(serverName)
	leaf.DNSNames, leaf.IPAddresses = []string{serverName}, ips
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	if err != nil {
		return nil, fmt.Errorf("rogue gateway: %w", err)
	}
	g := &Gateway{cert: tls.Certificate{Certificate: [][]byte{der, ca.Raw}, PrivateKey: key}, friend: friend, real: real, dial: dial}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g, nil
}

// Serve serves until the listener is closed.
func (g *Gateway) Serve(ln net.Listener) error {
	for {
		c, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("rogue gateway: %w", err)
		}
		g.conns.Go(func() { g.handle(c) })
	}
}

// Close ends every connection; the listener is its owner's.
func (g *Gateway) Close() {
	g.cancel()
	g.conns.Wait()
}

// Met lists the connections that were not passed on.
func (g *Gateway) Met() []Meeting {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.met)
}

func (g *Gateway) handle(c net.Conn) {
	defer c.Close()
	defer context.AfterFunc(g.ctx, func() { c.Close() })()
	from, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return
	}
	if from.Addr() == g.friend {
		g.passOn(c)
		return
	}
	m := Meeting{From: from}
	c.SetDeadline(time.Now().Add(handshakeLimit))
	t := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{g.cert}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}})
	if m.Err = t.HandshakeContext(g.ctx); m.Err == nil {
		// In TLS 1.3 a client's refusal may follow its Finished: what it then says first is an alert, which is an error here.
		var n int64
		n, m.Err = io.Copy(io.Discard, io.LimitReader(t, 1<<20))
		m.Bytes = n
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.met) < 1000 {
		g.met = append(g.met, m)
	}
}

// passOn joins two connections until one side ends.
func (g *Gateway) passOn(c net.Conn) {
	up, err := g.dial(g.ctx, "tcp", g.real)
	if err != nil {
		return
	}
	defer up.Close()
	done := make(chan struct{}, 2)
	pipe := func(dst, src net.Conn) {
		io.Copy(dst, src)
		done <- struct{}{}
	}
	go pipe(up, c)
	go pipe(c, up)
	select {
	case <-done:
	case <-g.ctx.Done():
	}
}

// newCA returns a CA that nobody knows.
func newCA(name string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	t := template(name)
	t.IsCA, t.BasicConstraintsValid = true, true
	t.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, nil, fmt.Errorf("make %s: %w", name, err)
	}
	c, err := x509.ParseCertificate(der)
	return c, key, err
}

// template is a certificate of ten years around now: no clock that is right refuses it for its dates.
func template(name string, uris ...*url.URL) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err) // the system's random numbers do not fail
	}
	now := time.Now()
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: now.AddDate(-5, 0, 0), NotAfter: now.AddDate(5, 0, 0), URIs: uris}
}
