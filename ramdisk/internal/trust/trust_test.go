package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
)

var issued = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// site is a node CA with one agent's certificate.
type site struct {
	anchors *sitev1.TrustAnchors
	signer  envelope.Signer
}

func key(t testing.TB) *ecdsa.PrivateKey {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func newSite(t testing.TB, role commonv1.AgentRole, id ident.Identity) site {
	ca, leaf, join := key(t), key(t), key(t)
	caT := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "node CA"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: issued.Add(-48 * time.Hour), NotAfter: issued.Add(240 * time.Hour)}
	caDER, err := x509.CreateCertificate(rand.Reader, caT, caT, &ca.PublicKey, ca)
	if err != nil {
		t.Fatal(err)
	}
	uri, err := id.URI()
	if err != nil {
		t.Fatal(err)
	}
	leafT := &x509.Certificate{SerialNumber: big.NewInt(2), URIs: []*url.URL{uri, ident.RoleURI(role)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		KeyUsage: x509.KeyUsageDigitalSignature, NotBefore: issued.Add(-24 * time.Hour), NotAfter: issued.Add(time.Hour)}
	leafDER, err := x509.CreateCertificate(rand.Reader, leafT, caT, &leaf.PublicKey, ca)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(leafDER)
	if err != nil {
		t.Fatal(err)
	}
	pkixKey, err := x509.MarshalPKIXPublicKey(&join.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return site{&sitev1.TrustAnchors{TrustDomain: "fl.test", SiteId: "a", GatewayUrl: "https://10.77.0.2:8443", GatewayServerName: "gw",
		ServingCaSpkiSha256: [][]byte{make([]byte, 32)}, JoinSigningKey: pkixKey, JoinEncryptionKey: pkixKey, NodeCas: [][]byte{caDER}},
		envelope.Signer{Key: leaf, Chain: []*x509.Certificate{cert}}}
}

func (s site) anchorsFile(t testing.TB) *Anchors {
	b, err := proto.Marshal(s.anchors)
	if err != nil {
		t.Fatal(err)
	}
	a, err := DecodeAnchors(b)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (s site) sign(t testing.TB, edit func(*sitev1.DiscoveryAssertion)) []byte {
	body := &sitev1.DiscoveryAssertion{AssertionId: "as-1", TrustDomain: "fl.test", SiteId: "a", NodeId: "m-1", Macs: []string{"52:54:00:00:00:01"},
		IssuedAt: timestamppb.New(issued), NotAfter: timestamppb.New(issued.Add(30 * time.Minute)), ReportUrl: "http://10.77.0.2:8080/b/t/report"}
	if edit != nil {
		edit(body)
	}
	b, err := proto.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	sig, err := s.signer.Sign(envelope.DiscoveryAssertion, b)
	if err != nil {
		t.Fatal(err)
	}
	out, err := proto.Marshal(&sitev1.SignedDiscoveryAssertion{Body: b, Signature: sig})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

const siteRole = commonv1.AgentRole_AGENT_ROLE_SITE

func TestSEC04_AssertionGivesTheTimeWhateverTheClock(t *testing.T) {
	s := newSite(t, siteRole, ident.Identity{TrustDomain: "fl.test", Site: "a", Node: "site-1"})
	// Nothing here reads the machine's clock: 1980, 2011, 2090 make no difference.
	as, err := s.anchorsFile(t).Verify(s.sign(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := as.Clock(42*time.Second), issued.Add(42*time.Second); !got.Equal(want) {
		t.Errorf("clock: got %s, want %s", got, want)
	}
	for _, odd := range []time.Duration{-time.Second, 40 * 24 * time.Hour} {
		if got := as.Clock(odd); !got.Equal(issued) {
			t.Errorf("clock with uptime %s: got %s, want %s", odd, got, issued)
		}
	}
	if !as.Mine([]string{"52:54:00:00:00:01"}) || as.Mine([]string{"52:54:00:00:00:02"}) {
		t.Error("Mine must tell this machine's assertion from another's")
	}
}

func TestVerifyRefuses(t *testing.T) {
	id := ident.Identity{TrustDomain: "fl.test", Site: "a", Node: "site-1"}
	good := newSite(t, siteRole, id)
	anchors := good.anchorsFile(t)
	flipped := good.sign(t, nil)
	flipped[10] ^= 1
	elsewhere := id
	elsewhere.Site = "b"
	otherSite := newSite(t, siteRole, elsewhere)
	otherSite.anchors.SiteId = "a"
	node := newSite(t, commonv1.AgentRole_AGENT_ROLE_NODE, id)
	for name, c := range map[string]struct {
		anchors *Anchors
		file    []byte
		want    string
	}{
		"another site's key": {anchors, newSite(t, siteRole, id).sign(t, nil), "not trusted"},
		"a node's key":       {node.anchorsFile(t), node.sign(t, nil), "role"},
		"an agent of site b": {otherSite.anchorsFile(t), otherSite.sign(t, nil), "site"},
		"for another site":   {anchors, good.sign(t, func(b *sitev1.DiscoveryAssertion) { b.SiteId = "b" }), "site"},
		"for another domain": {anchors, good.sign(t, func(b *sitev1.DiscoveryAssertion) { b.TrustDomain = "x" }), "trust domain"},
		"one byte changed":   {anchors, flipped, ""},
		"years long":         {anchors, good.sign(t, func(b *sitev1.DiscoveryAssertion) { b.NotAfter = timestamppb.New(issued.Add(9e3 * time.Hour)) }), "at most"},
		"outside the certificate": {anchors, good.sign(t, func(b *sitev1.DiscoveryAssertion) {
			b.IssuedAt, b.NotAfter = timestamppb.New(issued.Add(2*time.Hour)), timestamppb.New(issued.Add(3*time.Hour))
		}), "not trusted"},
		"empty": {anchors, nil, "0 bytes"},
	} {
		if _, err := c.anchors.Verify(c.file); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error that says %q", name, err, c.want)
		}
	}
}

func TestReportURLOfAnUnverifiedAssertion(t *testing.T) {
	s := newSite(t, siteRole, ident.Identity{TrustDomain: "fl.test", Site: "a", Node: "site-1"})
	if got := ReportURL(s.sign(t, nil)); got != "http://10.77.0.2:8080/b/t/report" {
		t.Errorf("got %q", got)
	}
	if got := ReportURL(s.sign(t, func(b *sitev1.DiscoveryAssertion) { b.ReportUrl = "file:///etc/passwd" })); got != "" {
		t.Errorf("got %q, want nothing", got)
	}
}

func FuzzAssertion(f *testing.F) {
	s := newSite(f, siteRole, ident.Identity{TrustDomain: "fl.test", Site: "a", Node: "site-1"})
	good := s.sign(f, nil)
	a := s.anchorsFile(f)
	f.Add(good)
	f.Add([]byte{0x0a, 0x00})
	f.Fuzz(func(t *testing.T, b []byte) {
		as, err := a.Verify(b)
		if err == nil && as.Node != "m-1" {
			t.Fatal("an assertion that the site did not sign was accepted")
		}
		ReportURL(b)
	})
}

func FuzzAnchors(f *testing.F) {
	s := newSite(f, siteRole, ident.Identity{TrustDomain: "fl.test", Site: "a", Node: "site-1"})
	good, _ := proto.Marshal(s.anchors)
	f.Add(good)
	f.Add([]byte("garbage"))
	f.Fuzz(func(t *testing.T, b []byte) { DecodeAnchors(b) })
}
