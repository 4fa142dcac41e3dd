package control_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"firstlight/appliance/internal/control"
	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/pki"
	"firstlight/appliance/internal/store"
	"firstlight/appliance/internal/store/storetest"
	"firstlight/gateway-client/gatewayserver"
	"firstlight/gateway-client/ident"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// deaf is a set of workflows in which none is open.
type deaf struct{}

func (deaf) Post(context.Context, string, executor.Fact) error { return executor.ErrNotOpen }
func (deaf) Report(context.Context, executor.Report) error     { return executor.ErrNotOpen }
func (deaf) Available(ident.NodeID, commonv1.AgentRole)        {}
func b64(b []byte) string                                      { return base64.StdEncoding.EncodeToString(b) }
func mustParse(t *testing.T, der []byte) *x509.Certificate {
	t.Helper()
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// dump is everything in the store.
func (r *rig) dump() []store.Entry {
	r.t.Helper()
	all, err := r.mem.List(r.t.Context(), "")
	r.must(err)
	return all
}

func (r *rig) breakStore(broken bool) {
	if !broken {
		r.mem.FailWrites(nil)
		return
	}
	r.mem.FailWrites(func(string) error { return errors.New("disk is full") })
}

// fuzzControl is a control side with one machine, m1, and a CSR.
func fuzzControl(f *testing.F) (c *control.Control, repo *fleet.Repo, dir string, csr []byte) {
	f.Helper()
	dir = f.TempDir()
	authority, err := pki.Open(filepath.Join(dir, "pki"), pki.Config{TrustDomain: domain, SiteID: siteID, ServerName: "gw", Now: time.Now})
	if err != nil {
		f.Fatal(err)
	}
	repo = fleet.NewRepo(storetest.New())
	if _, err := repo.AddMachine(f.Context(), fleet.Spec{Name: "m1", MACs: []string{mac1}, DiskSerials: []string{"D"}, BMCURL: "https://x", BMCUser: "a",
		BMCPassword: fleet.Secret("x"), BMCCertificateSHA256: make([]byte, 32)}, time.Now()); err != nil {
		f.Fatal(err)
	}
	c, err = control.New(control.Config{Fleet: repo, Workflows: deaf{}, PKI: authority, Gateway: &control.Gateway{}, TrustDomain: domain, SiteID: siteID,
		SectionDir: filepath.Join(dir, "sections"), Now: time.Now})
	if err != nil {
		f.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	csr, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		f.Fatal(err)
	}
	return c, repo, dir, csr
}

func fuzzPeer(f *testing.F, repo *fleet.Repo) gatewayserver.Peer {
	f.Helper()
	m, err := repo.Machine(f.Context(), "m1")
	if err != nil {
		f.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	return gatewayserver.Peer{Identity: ident.Identity{TrustDomain: domain, Site: siteID, Node: ident.NodeID(m.NodeID)}, Role: ramdisk,
		Certificate: &x509.Certificate{PublicKey: &key.PublicKey}}
}
