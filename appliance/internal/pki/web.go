package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"firstlight/appliance/internal/vault"
)

// webName is the files' name, in a directory of their own: this certificate has nothing to do with what agents trust.
const webName = "web"

// WebConfig is what the page's certificate says.
type WebConfig struct {
	SiteID string
	// Names and IPs are what people call the page by; at least one of them.
	Names []string
	IPs   []net.IP
	// Vault seals the key on disk; nil leaves it in the clear, for tests of others.
	Vault *vault.Vault
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// OpenWeb loads the page's certificate in dir, which nobody vouches for: people compare its SHA-256. When dir does not exist it makes
// it, at once or not at all. A certificate that ends soon or lacks a name of cfg is issued again for the same key.
func OpenWeb(dir string, cfg WebConfig) (tls.Certificate, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if err := plausible(cfg.Now()); err != nil {
		return tls.Certificate{}, fmt.Errorf("open the page's certificate %s: %w", dir, err)
	}
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		if err := makeDir(dir, cfg.create); err != nil {
			return tls.Certificate{}, fmt.Errorf("make the page's certificate %s: %w", dir, err)
		}
	}
	p, err := load(dir, webName, cfg.Vault)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("open the page's certificate: %w", err)
	}
	if leaf := p.chain[0]; !isFor(leaf, cfg.Names, cfg.IPs) || !cfg.Now().Add(renewBefore).Before(leaf.NotAfter) {
		if p.chain, err = cfg.issue(p); err == nil {
			err = writeChain(dir, webName, p.chain)
		}
		if err != nil {
			return tls.Certificate{}, fmt.Errorf("renew the page's certificate %s: %w", dir, err)
		}
	}
	return p.certificate(), nil
}

func (cfg WebConfig) create(dir string) error {
	key, err := newKey()
	if err != nil {
		return err
	}
	chain, err := cfg.issue(pair{key: key})
	if err != nil {
		return err
	}
	return errors.Join(writeKey(dir, webName, key, cfg.Vault), writeChain(dir, webName, chain))
}

// issue makes the certificate of p's key, signed by that key.
func (cfg WebConfig) issue(p pair) ([]*x509.Certificate, error) {
	t := template("firstlight "+cfg.SiteID, cfg.Now(), leafLife)
	t.DNSNames, t.IPAddresses = cfg.Names, cfg.IPs
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	leaf, err := sign(t, &p.key.PublicKey, pair{key: p.key, chain: []*x509.Certificate{t}})
	if err != nil {
		return nil, err
	}
	return []*x509.Certificate{leaf}, nil
}
