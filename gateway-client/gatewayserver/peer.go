package gatewayserver

import (
	"context"
	"crypto/x509"
	"errors"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"firstlight/gateway-client/ident"
)

// peer reads who called from the certificate whose key the TLS handshake proved.
func (s *Server) peer(ctx context.Context) (Peer, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Peer{}, status.Error(codes.Internal, "call without a peer")
	}
	out := Peer{Addr: p.Addr.String()}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return out, status.Error(codes.Unauthenticated, "no node certificate")
	}
	chain := info.State.PeerCertificates
	if len(chain) > MaxChain {
		return out, status.Errorf(codes.Unauthenticated, "%d certificates, want at most %d", len(chain), MaxChain)
	}
	if err := s.verifyChain(chain); err != nil {
		return out, err
	}
	var err error
	out.Certificate = chain[0]
	if out.Identity, err = ident.FromCertificate(chain[0]); err != nil {
		return out, status.Errorf(codes.Unauthenticated, "node certificate: %v", err)
	}
	if out.Identity.TrustDomain != s.cfg.TrustDomain {
		return out, status.Errorf(codes.Unauthenticated, "node certificate is of trust domain %q, this gateway of %q", out.Identity.TrustDomain, s.cfg.TrustDomain)
	}
	if out.Role, err = ident.RoleOf(chain[0]); err != nil {
		return out, status.Errorf(codes.PermissionDenied, "node certificate: %v", err)
	}
	return out, nil
}

func (s *Server) verifyChain(chain []*x509.Certificate) error {
	roots, middle := x509.NewCertPool(), x509.NewCertPool()
	for _, c := range s.cfg.NodeCAs() {
		roots.AddCert(c)
	}
	for _, c := range chain[1:] {
		middle.AddCert(c)
	}
	now := s.cfg.Now()
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: middle, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		return status.Errorf(codes.Unauthenticated, "clocks disagree: the gateway's clock says %s, the node certificate lives from %s to %s",
			stamp(now), stamp(invalid.Cert.NotBefore), stamp(invalid.Cert.NotAfter))
	}
	if err != nil {
		return status.Errorf(codes.Unauthenticated, "node certificate is not valid: %v", err)
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// handshake takes one token of the bucket, or refuses and says when to come back.
func (s *Server) handshake(setTrailer func(metadata.MD)) error {
	if s.bucket.Allow() {
		return nil
	}
	return exhausted(setTrailer, "too many handshakes")
}

func exhausted(setTrailer func(metadata.MD), why string) error {
	setTrailer(metadata.Pairs("grpc-retry-pushback-ms", strconv.Itoa(PushbackMillis)))
	return status.Error(codes.ResourceExhausted, why)
}
