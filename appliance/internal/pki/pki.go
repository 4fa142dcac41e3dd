// Package pki holds the site's keys and certificates: what agents trust, what they are issued, and what signs their orders.
//
// It is for appliance and its internal packages. It decides nothing: who may have a certificate is control's business, what a
// certificate of that kind looks like is this package's. All keys are ECDSA P-256, on disk sealed by the vault, with mode 0600.
//
//	serving-ca   ── serving        the gateway's TLS certificate; agents pin serving-ca by its public key
//	node-ca      ── (agents)       24 h client certificates, never written here
//	command-root ── worker         signs commands (urn:bc:sign:command)
//	             └─ image-signer   signs image manifests (urn:bc:sign:image-manifest)
//	join-signing                   signs JoinResponse and TrustBundle; agents hold its public key
//	join-encryption                opens join tokens sealed to it
package pki

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/protobuf/proto"

	"firstlight/appliance/internal/vault"
	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
)

const (
	// Backdate is how long before its issue every certificate is already valid: a machine's clock may lag (field case SEC-04).
	Backdate = 24 * time.Hour
	// AgentLifetime is how long an agent's certificate is valid.
	AgentLifetime = 24 * time.Hour

	caLife   = 20 * 365 * 24 * time.Hour
	leafLife = 2 * 365 * 24 * time.Hour
	// imageLife is long because a stored image is not signed again.
	imageLife   = 10 * 365 * 24 * time.Hour
	renewBefore = 90 * 24 * time.Hour
)

// bundleVersion of the trust bundle. It grows when roots change, which nothing does yet.
const bundleVersion = 1

// earliest is a time that is certainly past: a clock before it is wrong, and no CA is made by it.
var earliest = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

// ErrClock: the machine's clock is certainly wrong, so nothing was issued.
var ErrClock = errors.New("the clock is wrong")

// Config of an Authority.
type Config struct {
	TrustDomain, SiteID string
	// ServerName is the DNS name that agents expect of the gateway; IPs are the addresses that it serves on besides.
	ServerName string
	IPs        []net.IP
	// Vault seals the keys on disk, also those that lie there in the clear; nil leaves them in the clear, for tests of others.
	Vault *vault.Vault
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Authority is safe for use from many goroutines: it does not change after Open.
type Authority struct {
	cfg  Config
	held map[string]pair
}

// Open loads the keys and certificates in dir. When dir does not exist or is empty it makes them all, at once or not at all.
// Certificates that this authority issued and that end soon, or that lack a name of cfg, are issued again for the same key.
// Foreign ones are taken as they are: whether they are trusted is for those to say who verify.
func Open(dir string, cfg Config) (*Authority, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	for what, name := range map[string]string{"trust domain": cfg.TrustDomain, "site id": cfg.SiteID, "gateway server name": cfg.ServerName} {
		if !ident.Valid(name) {
			return nil, fmt.Errorf("open keys %s: %s %q is not a valid name", dir, what, name)
		}
	}
	if err := plausible(cfg.Now()); err != nil {
		return nil, fmt.Errorf("open keys %s: %w", dir, err)
	}
	a := &Authority{cfg: cfg, held: map[string]pair{}}
	there, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("open keys: %w", err)
	}
	if len(there) == 0 {
		if err := a.create(dir); err != nil {
			return nil, fmt.Errorf("make keys %s: %w", dir, err)
		}
		return a, nil
	}
	for _, k := range kinds {
		if a.held[k.name], err = load(dir, k.name, cfg.Vault); err != nil {
			return nil, fmt.Errorf("open keys: %w", err)
		}
	}
	if err := a.renew(dir); err != nil {
		return nil, fmt.Errorf("renew certificates in %s: %w", dir, err)
	}
	return a, nil
}

func plausible(now time.Time) error {
	if now.Before(earliest) {
		return fmt.Errorf("%w: it says %s", ErrClock, now.UTC().Format(time.RFC3339))
	}
	return nil
}

// create makes everything, at once or not at all.
func (a *Authority) create(dir string) error {
	return makeDir(dir, func(fresh string) error {
		for _, k := range kinds {
			key, err := newKey()
			if err != nil {
				return err
			}
			chain, err := a.issue(k, key)
			if err != nil {
				return err
			}
			a.held[k.name] = pair{key: key, chain: chain}
			if err := writeKey(fresh, k.name, key, a.cfg.Vault); err != nil {
				return err
			}
			if err := writeChain(fresh, k.name, chain); err != nil {
				return err
			}
		}
		return nil
	})
}

func (a *Authority) renew(dir string) error {
	for _, k := range kinds {
		if k.issuer == "" {
			continue
		}
		held := a.held[k.name]
		leaf := held.chain[0]
		if leaf.CheckSignatureFrom(a.held[k.issuer].chain[0]) != nil {
			continue
		}
		if a.cfg.Now().Add(renewBefore).Before(leaf.NotAfter) && (k.name != serving || a.covers(leaf)) {
			continue
		}
		chain, err := a.issue(k, held.key)
		if err != nil {
			return err
		}
		if err := writeChain(dir, k.name, chain); err != nil {
			return err
		}
		a.held[k.name] = pair{key: held.key, chain: chain}
	}
	return nil
}

func (a *Authority) covers(leaf *x509.Certificate) bool {
	return isFor(leaf, []string{a.cfg.ServerName}, a.cfg.IPs)
}

// isFor says whether the certificate is for all the names and addresses.
func isFor(leaf *x509.Certificate, names []string, ips []net.IP) bool {
	for _, n := range names {
		if leaf.VerifyHostname(n) != nil {
			return false
		}
	}
	for _, ip := range ips {
		if leaf.VerifyHostname(ip.String()) != nil {
			return false
		}
	}
	return true
}

// Serving is the gateway's TLS certificate; its chain includes the serving CA, which agents pin.
func (a *Authority) Serving() tls.Certificate {
	return a.held[serving].certificate()
}

// ServingPins are the SHA-256 sums of the SubjectPublicKeyInfo of the serving CAs that agents accept.
func (a *Authority) ServingPins() [][]byte {
	sum := sha256.Sum256(a.held[servingCA].chain[0].RawSubjectPublicKeyInfo)
	return [][]byte{sum[:]}
}

// NodeCAs are the roots of agents' certificates.
func (a *Authority) NodeCAs() []*x509.Certificate {
	return []*x509.Certificate{a.held[nodeCA].chain[0]}
}

// IssueAgent issues a certificate for pub: one SPIFFE id, one role, client authentication only, AgentLifetime from now.
// The chain is leaf first and leaves the root out. It does not ask whether the holder may have it.
func (a *Authority) IssueAgent(pub *ecdsa.PublicKey, id ident.Identity, role commonv1.AgentRole, now time.Time) ([]*x509.Certificate, error) {
	if id.TrustDomain != a.cfg.TrustDomain || id.Site != a.cfg.SiteID {
		return nil, fmt.Errorf("issue certificate for %s: not of trust domain %s, site %s", id, a.cfg.TrustDomain, a.cfg.SiteID)
	}
	if _, err := ident.ParseRole(ident.RoleWord(role)); err != nil {
		return nil, fmt.Errorf("issue certificate for %s: %w", id, err)
	}
	if _, err := envelope.KeyID(pub); err != nil {
		return nil, fmt.Errorf("issue certificate for %s: %w", id, err)
	}
	uri, err := id.URI()
	if err != nil {
		return nil, fmt.Errorf("issue certificate: %w", err)
	}
	t := template(string(id.Node), now, AgentLifetime)
	t.URIs = append(t.URIs, uri, ident.RoleURI(role))
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	leaf, err := sign(t, pub, a.held[nodeCA])
	if err != nil {
		return nil, fmt.Errorf("issue certificate for %s: %w", id, err)
	}
	return []*x509.Certificate{leaf}, nil
}

// JoinSigner signs JoinResponse and TrustBundle. Agents hold the key itself, so no chain goes along.
func (a *Authority) JoinSigner() envelope.Signer {
	return envelope.Signer{Key: a.held[joinSigning].key}
}

// JoinKey opens what is sealed to the JoinService.
func (a *Authority) JoinKey() *ecdsa.PrivateKey { return a.held[joinEncryption].key }

// Commands signs commands.
func (a *Authority) Commands() envelope.Signer { return a.held[worker].signer() }

// Images signs image manifests.
func (a *Authority) Images() envelope.Signer { return a.held[imageSigner].signer() }

// CommandRoots verify what Commands and Images sign.
func (a *Authority) CommandRoots() envelope.Roots {
	return envelope.Roots{Certs: []*x509.Certificate{a.held[commandRoot].chain[0]}}
}

// Bundle is what agents are told to trust.
func (a *Authority) Bundle() *commonv1.TrustBundle {
	return &commonv1.TrustBundle{
		Version:             bundleVersion,
		TrustDomain:         a.cfg.TrustDomain,
		CommandSigningRoots: [][]byte{a.held[commandRoot].chain[0].Raw},
		NodeCas:             [][]byte{a.held[nodeCA].chain[0].Raw},
	}
}

// SignedBundle is Bundle signed by the JoinService key.
func (a *Authority) SignedBundle() (*commonv1.SignedTrustBundle, error) {
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(a.Bundle())
	if err != nil {
		return nil, fmt.Errorf("encode trust bundle: %w", err)
	}
	sig, err := a.JoinSigner().Sign(envelope.TrustBundle, body)
	if err != nil {
		return nil, err
	}
	return &commonv1.SignedTrustBundle{Body: body, Signature: sig}, nil
}

// Anchors is the root of a RAM disk's trust: how to reach the gateway and by which keys to know it, the JoinService and the site.
func (a *Authority) Anchors(gatewayURL, serverName string) *sitev1.TrustAnchors {
	return &sitev1.TrustAnchors{
		TrustDomain:         a.cfg.TrustDomain,
		SiteId:              a.cfg.SiteID,
		GatewayUrl:          gatewayURL,
		GatewayServerName:   serverName,
		ServingCaSpkiSha256: a.ServingPins(),
		JoinSigningKey:      a.held[joinSigning].public(),
		JoinEncryptionKey:   a.held[joinEncryption].public(),
		NodeCas:             [][]byte{a.held[nodeCA].chain[0].Raw},
	}
}
