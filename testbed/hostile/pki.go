package hostile

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"time"

	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// certLife is how long every certificate lives; it began a day ago.
const certLife = 24 * time.Hour

// authority is one CA.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func newAuthority(name string) (*authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", name, err)
	}
	t := certificate(name)
	t.IsCA, t.BasicConstraintsValid, t.KeyUsage = true, true, x509.KeyUsageCertSign
	a := &authority{key: key}
	a.cert, err = signCertificate(t, t, &key.PublicKey, key)
	return a, err
}

func certificate(name string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err) // the system's random numbers do not fail
	}
	now := time.Now()
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: now.Add(-certLife), NotAfter: now.Add(certLife)}
}

func signCertificate(t, parent *x509.Certificate, pub *ecdsa.PublicKey, by *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, t, parent, pub, by)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %s: %w", t.Subject.CommonName, err)
	}
	return x509.ParseCertificate(der)
}

// serving is a server's certificate with its CA behind it: agents pin the CA's key.
func (a *authority) serving(name string, ip net.IP) (tls.Certificate, error) {
	key, err := newKey()
	if err != nil {
		return tls.Certificate{}, err
	}
	t := certificate(name)
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	t.DNSNames, t.IPAddresses = []string{name}, []net.IP{ip}
	c, err := signCertificate(t, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{c.Raw, a.cert.Raw}, PrivateKey: key, Leaf: c}, nil
}

// agent is the certificate of an agent's key.
func (a *authority) agent(pub *ecdsa.PublicKey, node ident.NodeID, role commonv1.AgentRole) (*x509.Certificate, error) {
	uri, err := ident.Identity{TrustDomain: TrustDomain, Site: Site, Node: node}.URI()
	if err != nil {
		return nil, err
	}
	t := certificate(string(node))
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	t.URIs = []*url.URL{uri, ident.RoleURI(role)}
	return signCertificate(t, a.cert, pub, a.key)
}

// signer is a fresh key that may sign for one purpose.
func (a *authority) signer(p envelope.Purpose) (envelope.Signer, error) {
	key, err := newKey()
	if err != nil {
		return envelope.Signer{}, err
	}
	t := certificate(string(p))
	t.URIs = []*url.URL{ident.SignURI(string(p))}
	c, err := signCertificate(t, a.cert, &key.PublicKey, a.key)
	return envelope.Signer{Key: key, Chain: []*x509.Certificate{c}}, err
}

// pin is the digest by which an agent knows the CA.
func (a *authority) pin() []byte {
	sum := sha256.Sum256(a.cert.RawSubjectPublicKeyInfo)
	return sum[:]
}
