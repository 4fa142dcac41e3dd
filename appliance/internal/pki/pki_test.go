package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

var issued = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func config(now time.Time) Config {
	return Config{TrustDomain: "firstlight.test", SiteID: "site-a", ServerName: "gw.site-a.firstlight.test",
		IPs: []net.IP{net.IPv4(10, 77, 0, 2)}, Now: func() time.Time { return now }}
}

func open(t *testing.T, dir string, cfg Config) *Authority {
	t.Helper()
	a, err := Open(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestOpenKeepsKeys(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	first, second := open(t, dir, config(issued)), open(t, dir, config(issued.Add(time.Hour)))
	for _, k := range kinds {
		if !first.held[k.name].key.Equal(second.held[k.name].key) {
			t.Errorf("%s: another key after a restart", k.name)
		}
		if !first.held[k.name].chain[0].Equal(second.held[k.name].chain[0]) {
			t.Errorf("%s: another certificate after a restart", k.name)
		}
		info, err := os.Stat(filepath.Join(dir, k.name+".key"))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s.key: got mode %v, want 0600", k.name, info.Mode().Perm())
		}
	}
}

// An appliance that was set up seconds ago is believed by machines whose clocks lag by a day.
func TestSEC04_CertificatesAreBackDated(t *testing.T) {
	a := open(t, filepath.Join(t.TempDir(), "pki"), config(issued))
	certs := map[string]*x509.Certificate{"agent": agent(t, a)}
	for _, k := range kinds {
		certs[k.name] = a.held[k.name].chain[0]
	}
	for name, c := range certs {
		if got := issued.Sub(c.NotBefore); got < 24*time.Hour {
			t.Errorf("%s: back-dated by %v, want at least 24h", name, got)
		}
	}
}

func TestSEC04_NoKeysOnAWrongClock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	_, err := Open(dir, config(time.Date(2000, 1, 1, 0, 0, 12, 0, time.UTC)))
	if !errors.Is(err, ErrClock) || !strings.Contains(err.Error(), "2000-01-01") {
		t.Errorf("got %v, want ErrClock that names the clock", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("keys were made: %v", err)
	}
}

func agent(t *testing.T, a *Authority) *x509.Certificate {
	t.Helper()
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	id := ident.Identity{TrustDomain: "firstlight.test", Site: "site-a", Node: "m-1"}
	chain, err := a.IssueAgent(&key.PublicKey, id, commonv1.AgentRole_AGENT_ROLE_RAMDISK, issued)
	if err != nil {
		t.Fatal(err)
	}
	return chain[0]
}

func TestIssueAgent(t *testing.T) {
	a := open(t, filepath.Join(t.TempDir(), "pki"), config(issued))
	c := agent(t, a)
	if id, err := ident.FromCertificate(c); err != nil || id.String() != "spiffe://firstlight.test/site/site-a/node/m-1" {
		t.Errorf("identity: got %v, %v", id, err)
	}
	if role, err := ident.RoleOf(c); err != nil || role != commonv1.AgentRole_AGENT_ROLE_RAMDISK {
		t.Errorf("role: got %v, %v, want ramdisk", role, err)
	}
	if fmt.Sprint(c.ExtKeyUsage) != fmt.Sprint([]x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) || c.IsCA || c.KeyUsage != x509.KeyUsageDigitalSignature {
		t.Errorf("usage: got %v, CA %v, key usage %v, want client authentication alone", c.ExtKeyUsage, c.IsCA, c.KeyUsage)
	}
	if got := c.NotAfter.Sub(issued); got != AgentLifetime {
		t.Errorf("lifetime: got %v, want %v", got, AgentLifetime)
	}
	if err := (envelope.Roots{Certs: a.NodeCAs()}).VerifyChain(issued, []*x509.Certificate{c}); err != nil {
		t.Error(err)
	}
}

func TestIssueAgentRefuses(t *testing.T) {
	a := open(t, filepath.Join(t.TempDir(), "pki"), config(issued))
	p256, _ := newKey()
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good := ident.Identity{TrustDomain: "firstlight.test", Site: "site-a", Node: "m-1"}
	foreign, bad := good, good
	foreign.Site, bad.Node = "site-b", "../m"
	role := commonv1.AgentRole_AGENT_ROLE_NODE
	for name, try := range map[string]func() ([]*x509.Certificate, error){
		"other site": func() ([]*x509.Certificate, error) { return a.IssueAgent(&p256.PublicKey, foreign, role, issued) },
		"bad node":   func() ([]*x509.Certificate, error) { return a.IssueAgent(&p256.PublicKey, bad, role, issued) },
		"no role":    func() ([]*x509.Certificate, error) { return a.IssueAgent(&p256.PublicKey, good, 0, issued) },
		"P-384":      func() ([]*x509.Certificate, error) { return a.IssueAgent(&p384.PublicKey, good, role, issued) },
	} {
		if chain, err := try(); err == nil {
			t.Errorf("%s: got %v, want an error", name, chain[0].URIs)
		}
	}
}

func TestSigners(t *testing.T) {
	a := open(t, filepath.Join(t.TempDir(), "pki"), config(issued))
	body := []byte("body")
	for _, tc := range []struct {
		name    string
		signer  envelope.Signer
		purpose envelope.Purpose
		ok      bool
	}{
		{"worker signs commands", a.Commands(), envelope.Command, true},
		{"worker signs no manifests", a.Commands(), envelope.ImageManifest, false},
		{"image signer signs manifests", a.Images(), envelope.ImageManifest, true},
		{"image signer signs no commands", a.Images(), envelope.Command, false},
	} {
		sig, err := tc.signer.Sign(tc.purpose, body)
		if err != nil {
			t.Fatal(err)
		}
		roots, err := envelope.ParseRoots(a.Bundle().CommandSigningRoots)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := roots.Verify(issued, sig, tc.purpose, body); (err == nil) != tc.ok {
			t.Errorf("%s: got %v, want ok %v", tc.name, err, tc.ok)
		}
	}
	signed, err := a.SignedBundle()
	if err != nil {
		t.Fatal(err)
	}
	if err := envelope.VerifyKey(&a.held[joinSigning].key.PublicKey, signed.Signature, envelope.TrustBundle, signed.Body); err != nil {
		t.Error(err)
	}
}

func TestServingChainHoldsThePinnedCA(t *testing.T) {
	a := open(t, filepath.Join(t.TempDir(), "pki"), config(issued))
	c := a.Serving()
	if len(c.Certificate) != 2 {
		t.Fatalf("got %d certificates, want leaf and CA", len(c.Certificate))
	}
	ca, err := x509.ParseCertificate(c.Certificate[1])
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(ca.RawSubjectPublicKeyInfo); string(sum[:]) != string(a.ServingPins()[0]) {
		t.Error("the CA in the chain is not the pinned one")
	}
	if !a.covers(c.Leaf) {
		t.Error("the leaf does not cover the configured names")
	}
}

func TestOpenRenewsOnlyItsOwn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	first := open(t, dir, config(issued))

	moved := config(issued)
	moved.ServerName = "gw.site-b.firstlight.test"
	second := open(t, dir, moved)
	if !second.covers(second.Serving().Leaf) || !second.held[serving].key.Equal(first.held[serving].key) {
		t.Error("serving certificate: want the new name on the same key")
	}

	late := open(t, dir, config(issued.Add(leafLife-time.Hour)))
	if late.held[worker].chain[0].Equal(first.held[worker].chain[0]) {
		t.Error("worker certificate: want a new one near its end")
	}

	foreign := open(t, filepath.Join(t.TempDir(), "pki"), config(issued))
	if err := errors.Join(writeKey(dir, worker, foreign.held[worker].key, nil), writeChain(dir, worker, foreign.held[worker].chain)); err != nil {
		t.Fatal(err)
	}
	spoiled := open(t, dir, config(issued.Add(leafLife-time.Hour)))
	if !spoiled.held[worker].chain[0].Equal(foreign.held[worker].chain[0]) {
		t.Error("foreign worker certificate: want it as it was")
	}
}

func TestOpenNamesTheMissingFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	open(t, dir, config(issued))
	if err := os.Remove(filepath.Join(dir, "node-ca.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, config(issued)); err == nil || !strings.Contains(err.Error(), "node-ca.key") {
		t.Errorf("got %v, want an error that names node-ca.key and no new CA", err)
	}
}

func TestKeysDoNotPrint(t *testing.T) {
	a := open(t, filepath.Join(t.TempDir(), "pki"), config(issued))
	for _, verb := range []string{"%v", "%+v", "%s"} {
		if got := fmt.Sprintf(verb, a.held[worker]); got != "[secret]" {
			t.Errorf("%s: got %q, want [secret]", verb, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if der, sealed, err := openKey(data, worker, nil); err == nil && (sealed || der == nil) {
			t.Error("no key and no error")
		} else if key, err := parseKey(der); err == nil && key == nil {
			t.Error("no key and no error")
		}
		if chain, err := parseChain(data); err == nil && len(chain) == 0 {
			t.Error("no chain and no error")
		}
	})
}
