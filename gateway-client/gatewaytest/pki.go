package gatewaytest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"net/url"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// CA is a certificate authority of a test. Its certificates live from a day before to a year after now.
type CA struct {
	tb   testing.TB
	Key  *ecdsa.PrivateKey
	Cert *x509.Certificate
	now  time.Time
}

// Key returns a fresh P-256 key.
func Key(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

// NewCA makes a self-signed authority.
func NewCA(tb testing.TB, name string, now time.Time) *CA {
	tb.Helper()
	ca := &CA{tb: tb, Key: Key(tb), now: now}
	t := ca.template(name)
	t.IsCA, t.BasicConstraintsValid, t.KeyUsage = true, true, x509.KeyUsageCertSign
	ca.Cert = ca.sign(t, t, ca.Key.Public(), ca.Key)
	return ca
}

func (ca *CA) template(name string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		ca.tb.Fatal(err)
	}
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: ca.now.Add(-24 * time.Hour), NotAfter: ca.now.Add(365 * 24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature}
}

func (ca *CA) sign(t, parent *x509.Certificate, pub any, by *ecdsa.PrivateKey) *x509.Certificate {
	ca.tb.Helper()
	der, err := x509.CreateCertificate(rand.Reader, t, parent, pub, by)
	if err != nil {
		ca.tb.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		ca.tb.Fatal(err)
	}
	return c
}

// Issue signs a certificate for pub; change may alter the template first, and may be nil.
func (ca *CA) Issue(name string, pub *ecdsa.PublicKey, change func(*x509.Certificate)) *x509.Certificate {
	ca.tb.Helper()
	t := ca.template(name)
	if change != nil {
		change(t)
	}
	return ca.sign(t, ca.Cert, pub, ca.Key)
}

// Agent issues a node certificate, for clients only.
func (ca *CA) Agent(pub *ecdsa.PublicKey, id ident.Identity, role commonv1.AgentRole) *x509.Certificate {
	ca.tb.Helper()
	uri, err := id.URI()
	if err != nil {
		ca.tb.Fatal(err)
	}
	return ca.Issue(string(id.Node), pub, func(t *x509.Certificate) {
		t.NotAfter = ca.now.Add(24 * time.Hour)
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		t.URIs = []*url.URL{uri, ident.RoleURI(role)}
	})
}

// Signer issues a key that may sign for one purpose.
func (ca *CA) Signer(purpose envelope.Purpose) envelope.Signer {
	ca.tb.Helper()
	key := Key(ca.tb)
	c := ca.Issue(string(purpose), &key.PublicKey, func(t *x509.Certificate) { t.URIs = []*url.URL{ident.SignURI(string(purpose))} })
	return envelope.Signer{Key: key, Chain: []*x509.Certificate{c}}
}

// Serving issues a server's certificate for ServerName and the loopback, with the CA in its chain.
func (ca *CA) Serving() tls.Certificate {
	ca.tb.Helper()
	key := Key(ca.tb)
	c := ca.Issue(ServerName, &key.PublicKey, func(t *x509.Certificate) {
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		t.DNSNames = []string{ServerName}
		t.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	})
	return tls.Certificate{Certificate: [][]byte{c.Raw, ca.Cert.Raw}, PrivateKey: key, Leaf: c}
}

// Pin is the SHA-256 of the CA's SubjectPublicKeyInfo.
func (ca *CA) Pin() []byte {
	sum := sha256.Sum256(ca.Cert.RawSubjectPublicKeyInfo)
	return sum[:]
}

func marshal(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}
