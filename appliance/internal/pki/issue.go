package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"time"

	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
)

// Names of the files, and of what they hold.
const (
	servingCA      = "serving-ca"
	serving        = "serving"
	nodeCA         = "node-ca"
	commandRoot    = "command-root"
	worker         = "worker"
	imageSigner    = "image-signer"
	joinSigning    = "join-signing"
	joinEncryption = "join-encryption"
)

// kind says how the certificate of one key looks. An empty issuer means self-signed.
type kind struct {
	name, issuer string
	life         time.Duration
	ca           bool
	// purpose of a key that signs envelopes by chain; empty for others.
	purpose envelope.Purpose
}

// kinds lists issuers before what they issue.
var kinds = []kind{
	{name: servingCA, life: caLife, ca: true},
	{name: serving, issuer: servingCA, life: leafLife},
	{name: nodeCA, life: caLife, ca: true},
	{name: commandRoot, life: caLife, ca: true},
	{name: worker, issuer: commandRoot, life: leafLife, purpose: envelope.Command},
	{name: imageSigner, issuer: commandRoot, life: imageLife, purpose: envelope.ImageManifest},
	// The two keys of the JoinService are known by themselves; their certificates only let people look at them.
	{name: joinSigning, life: caLife},
	{name: joinEncryption, life: caLife},
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	return key, nil
}

// issue makes the certificate of kind k for key; the chain is leaf first, as it is sent.
func (a *Authority) issue(k kind, key *ecdsa.PrivateKey) ([]*x509.Certificate, error) {
	t := template(k.name+" of "+a.cfg.SiteID, a.cfg.Now(), k.life)
	if k.ca {
		t.IsCA, t.MaxPathLenZero = true, true
		t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	}
	if k.purpose != "" {
		t.URIs = append(t.URIs, ident.SignURI(string(k.purpose)))
	}
	if k.name == serving {
		t.DNSNames, t.IPAddresses = []string{a.cfg.ServerName}, a.cfg.IPs
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	issuer := pair{key: key, chain: []*x509.Certificate{t}}
	if k.issuer != "" {
		issuer = a.held[k.issuer]
	}
	leaf, err := sign(t, &key.PublicKey, issuer)
	if err != nil {
		return nil, fmt.Errorf("issue certificate of %s: %w", k.name, err)
	}
	chain := []*x509.Certificate{leaf}
	if k.name == serving {
		chain = append(chain, issuer.chain[0])
	}
	return chain, nil
}

// template is what all our certificates share. CAs and leaves alike are back-dated.
func template(name string, now time.Time, life time.Duration) *x509.Certificate {
	return &x509.Certificate{
		Subject:               pkix.Name{CommonName: bounded(name)},
		NotBefore:             now.Add(-Backdate),
		NotAfter:              now.Add(life),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
	}
}

// maxCommonName is X.520's upper bound, ub-common-name.
const maxCommonName = 64

func bounded(s string) string {
	if len(s) > maxCommonName {
		return s[:maxCommonName]
	}
	return s
}

func sign(t *x509.Certificate, pub *ecdsa.PublicKey, issuer pair) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	t.SerialNumber = serial.Add(serial, big.NewInt(1))
	der, err := x509.CreateCertificate(rand.Reader, t, issuer.chain[0], pub, issuer.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}
