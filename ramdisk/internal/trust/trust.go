// Package trust reads what the RAM disk's overlays carry: the site's trust anchors, and the assertion by which the site says that
// it served this very boot. It verifies the assertion against the anchors at the assertion's own time, because the machine's
// clock cannot be trusted yet.
//
// It is for ramdisk. It does no I/O and sets no clock. Both files come from the network boot: every byte is judged here.
package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
)

// Bounds of the two files.
const (
	// MaxFile bounds each file in bytes.
	MaxFile = 64 << 10
	// MaxPins, MaxCAs and MaxMACs bound the lists in them.
	MaxPins = 8
	MaxCAs  = 16
	MaxMACs = 64
	// MaxLifetime is the longest that an assertion may be good for: it is for one boot.
	MaxLifetime = 24 * time.Hour
	// MaxUptime is the longest kernel uptime that still says something about the time since an assertion was issued.
	MaxUptime = 24 * time.Hour
)

// Anchors is the root of the agent's trust.
type Anchors struct {
	TrustDomain, Site      string
	GatewayURL, ServerName string
	// Pins are SHA-256 digests of the serving CAs' public keys.
	Pins [][]byte
	// JoinSigning verifies who the machine becomes; JoinEncryption is what join secrets are sealed to.
	JoinSigning, JoinEncryption *ecdsa.PublicKey

	nodeCAs envelope.Roots
}

// Assertion is a verified statement of the site about this boot.
type Assertion struct {
	ID, Lease, Workflow string
	// Node is empty when the site does not know the machine.
	Node     ident.NodeID
	MACs     []string
	UUID     string
	IssuedAt time.Time
	NotAfter time.Time
	// ReportURL is where to say why the machine could not join; empty when there is none.
	ReportURL string
	// Raw is the file: the evidence that Join sends.
	Raw []byte
}

// DecodeAnchors reads the anchors.
func DecodeAnchors(b []byte) (*Anchors, error) {
	var m sitev1.TrustAnchors
	if err := unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("read trust anchors: %w", err)
	}
	a := &Anchors{TrustDomain: m.TrustDomain, Site: m.SiteId, GatewayURL: m.GatewayUrl, ServerName: m.GatewayServerName}
	if !ident.Valid(a.TrustDomain) || !ident.Valid(a.Site) {
		return nil, fmt.Errorf("read trust anchors: trust domain %q or site %q is not a valid name", a.TrustDomain, a.Site)
	}
	if u, err := url.Parse(a.GatewayURL); err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("read trust anchors: gateway %q is not an https URL", a.GatewayURL)
	}
	if len(m.ServingCaSpkiSha256) == 0 || len(m.ServingCaSpkiSha256) > MaxPins {
		return nil, fmt.Errorf("read trust anchors: %d pins of the gateway, want 1 to %d", len(m.ServingCaSpkiSha256), MaxPins)
	}
	for _, p := range m.ServingCaSpkiSha256 {
		if len(p) != sha256.Size {
			return nil, fmt.Errorf("read trust anchors: a pin of %d bytes, want %d", len(p), sha256.Size)
		}
		a.Pins = append(a.Pins, p)
	}
	var err error
	if a.JoinSigning, err = ParseKey(m.JoinSigningKey); err != nil {
		return nil, fmt.Errorf("read trust anchors: join signing key: %w", err)
	}
	if a.JoinEncryption, err = ParseKey(m.JoinEncryptionKey); err != nil {
		return nil, fmt.Errorf("read trust anchors: join encryption key: %w", err)
	}
	if len(m.NodeCas) == 0 || len(m.NodeCas) > MaxCAs {
		return nil, fmt.Errorf("read trust anchors: %d node CAs, want 1 to %d", len(m.NodeCas), MaxCAs)
	}
	if a.nodeCAs, err = envelope.ParseRoots(m.NodeCas); err != nil {
		return nil, fmt.Errorf("read trust anchors: node CAs: %w", err)
	}
	a.nodeCAs.AnyPurpose = true
	return a, nil
}

// ParseKey reads a P-256 public key in PKIX form.
func ParseKey(der []byte) (*ecdsa.PublicKey, error) {
	k, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, err
	}
	pub, ok := k.(*ecdsa.PublicKey)
	if !ok || pub.Curve != elliptic.P256() {
		return nil, errors.New("key is not ECDSA P-256")
	}
	return pub, nil
}

// Verify reads the assertion and checks that an agent of role site in the anchors' domain and site signed it: the chain at the
// time at which it says that it was issued, since no clock of this machine is to be believed yet.
func (a *Anchors) Verify(b []byte) (*Assertion, error) {
	signed, body, err := decode(b)
	if err != nil {
		return nil, fmt.Errorf("read the site's assertion: %w", err)
	}
	issued := body.IssuedAt.AsTime()
	leaf, err := a.nodeCAs.Verify(issued, signed.Signature, envelope.DiscoveryAssertion, signed.Body)
	if err != nil {
		return nil, fmt.Errorf("verify the site's assertion at its own time %s: %w", issued.Format(time.RFC3339), err)
	}
	role, err := ident.RoleOf(leaf)
	if err != nil || role != commonv1.AgentRole_AGENT_ROLE_SITE {
		return nil, fmt.Errorf("verify the site's assertion: signed by role %q, want %q", ident.RoleWord(role), "site")
	}
	signer, err := ident.FromCertificate(leaf)
	if err != nil {
		return nil, fmt.Errorf("verify the site's assertion: %w", err)
	}
	for _, w := range []struct{ what, want, signer, body string }{
		{"trust domain", a.TrustDomain, signer.TrustDomain, body.TrustDomain}, {"site", a.Site, signer.Site, body.SiteId}} {
		if w.signer != w.want || w.body != w.want {
			return nil, fmt.Errorf("verify the site's assertion: %s %q signed for %q, this RAM disk is of %q", w.what, w.signer, w.body, w.want)
		}
	}
	return &Assertion{ID: body.AssertionId, Lease: body.LeaseId, Workflow: body.WorkflowId, Node: ident.NodeID(body.NodeId),
		MACs: body.Macs, UUID: body.SystemUuid, IssuedAt: issued, NotAfter: body.NotAfter.AsTime(),
		ReportURL: reportURL(body.ReportUrl), Raw: b}, nil
}

func decode(b []byte) (*sitev1.SignedDiscoveryAssertion, *sitev1.DiscoveryAssertion, error) {
	var signed sitev1.SignedDiscoveryAssertion
	if err := unmarshal(b, &signed); err != nil {
		return nil, nil, err
	}
	var body sitev1.DiscoveryAssertion
	if err := unmarshal(signed.Body, &body); err != nil {
		return nil, nil, err
	}
	switch {
	case !body.IssuedAt.IsValid() || !body.NotAfter.IsValid():
		return nil, nil, errors.New("it has no valid times")
	case !body.NotAfter.AsTime().After(body.IssuedAt.AsTime()) || body.NotAfter.AsTime().Sub(body.IssuedAt.AsTime()) > MaxLifetime:
		return nil, nil, fmt.Errorf("it is good from %s to %s, want at most %s", body.IssuedAt.AsTime(), body.NotAfter.AsTime(), MaxLifetime)
	case body.NodeId != "" && !ident.Valid(body.NodeId):
		return nil, nil, fmt.Errorf("node %q is not a valid name", body.NodeId)
	case len(body.Macs) > MaxMACs:
		return nil, nil, fmt.Errorf("%d MAC addresses, want at most %d", len(body.Macs), MaxMACs)
	}
	return &signed, &body, nil
}

// ReportURL returns the report address of an assertion that may not verify: a hint for telling a person, never a fact.
func ReportURL(b []byte) string {
	_, body, err := decode(b)
	if err != nil {
		return ""
	}
	return reportURL(body.ReportUrl)
}

func reportURL(s string) string {
	if u, err := url.Parse(s); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil {
		return ""
	}
	return s
}

// Clock returns the time to set: the assertion's own time plus how long the kernel has run since, which was loaded right after.
// A kernel that has run longer than an assertion lives says nothing, and only the assertion counts.
func (as *Assertion) Clock(uptime time.Duration) time.Time {
	if uptime < 0 || uptime > MaxUptime {
		uptime = 0
	}
	return as.IssuedAt.Add(uptime)
}

// Mine says whether one of the machine's MAC addresses is in the assertion, or whether it names none.
func (as *Assertion) Mine(macs []string) bool {
	return len(as.MACs) == 0 || slices.ContainsFunc(macs, func(m string) bool { return slices.Contains(as.MACs, m) })
}

func unmarshal(b []byte, m proto.Message) error {
	if len(b) == 0 || len(b) > MaxFile {
		return fmt.Errorf("%d bytes, want 1 to %d", len(b), MaxFile)
	}
	return proto.Unmarshal(b, m)
}
