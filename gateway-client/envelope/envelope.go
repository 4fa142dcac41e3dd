// Package envelope signs and verifies the bytes that a relay must not alter.
//
// The signature is ES256 in the raw 64-byte r || s form over
//
//	"bettercompute.v1/" || purpose || 0x00 || part_1 || ... || part_n,  part = uint32_be(len(bytes)) || bytes
//
// (agent protocol, "Signed envelopes"). The purpose separates the domains: a signature for one never verifies for another.
// The package is rank 0 and does no I/O: image manifests, assertions and commands all stand on it. It never re-encodes a body.
package envelope

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"time"

	"firstlight/gateway-client/ident"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// Purpose separates what one key may be made to say in one place from every other place.
type Purpose string

// The purposes of the specification (agent protocol, "Signed envelopes"), each with its signer and its parts; ImageManifest is ours
// (gateway-client/README.md, decisions). Strings are UTF-8, an absent one is an empty part; sha256 is the digest's 32 bytes.
const (
	Command            Purpose = "command"             // worker key: Command.body
	DesiredState       Purpose = "desired-state"       // worker key: DesiredState.body
	JoinResponse       Purpose = "join-response"       // JoinService key: JoinResponse.body
	TrustBundle        Purpose = "trust-bundle"        // JoinService key: SignedTrustBundle.body
	AttestedReport     Purpose = "attested-report"     // node key: AttestedReport.body
	CommandUpdate      Purpose = "command-update"      // node key: command_id, uint32_be(state), sha256(result)
	SecretRequest      Purpose = "secret-request"      // node key: request_id, ref, workflow_id, step_id, allocation_id, epk
	WorkloadToken      Purpose = "workload-token"      // node key: request_id, instance_id, audience, epk
	RenewPoP           Purpose = "renew-pop"           // current node key: sha256(csr), node_id, client_time
	X509PoP            Purpose = "x509pop"             // node key, its certificate may have expired: sha256(csr), node_id, client_time
	DiscoveryAssertion Purpose = "discovery-assertion" // site agent's node key: SignedDiscoveryAssertion.body
	BatchApproval      Purpose = "batch-approval"      // approver key: batch_id, scope_root, uint32_be(scope_size), timestamp(not_after), trust_domain
	ApproverSet        Purpose = "approver-set"        // current approver key: uint64_be(approver_set_epoch), sha256(approverSetInput), trust_domain
	ImageManifest      Purpose = "image-manifest"      // image signer's key: SignedImageManifest.body
)

// MaxChain bounds how many certificates a signature may carry.
const MaxChain = 4

var (
	// ErrSignature: the signature does not verify under the key.
	ErrSignature = errors.New("signature does not verify")
	// ErrUntrusted: the key does not chain to a trusted root, or its certificate does not allow the purpose.
	ErrUntrusted = errors.New("signing key is not trusted")
)

// Input returns the bytes that are signed.
func Input(p Purpose, parts ...[]byte) []byte {
	out := append([]byte("bettercompute.v1/"), p...)
	out = append(out, 0)
	for _, b := range parts {
		out = binary.BigEndian.AppendUint32(out, uint32(len(b)))
		out = append(out, b...)
	}
	return out
}

// Signer signs with one P-256 key. Chain is sent along, leaf first, without the root; nil where the verifier holds the key.
type Signer struct {
	Key   crypto.Signer
	Chain []*x509.Certificate
}

// Sign returns the signature over Input(p, parts...).
func (s Signer) Sign(p Purpose, parts ...[]byte) (*commonv1.Signature, error) {
	pub, ok := s.Key.Public().(*ecdsa.PublicKey)
	if !ok || pub.Curve != elliptic.P256() {
		return nil, fmt.Errorf("sign %s: key is not ECDSA P-256", p)
	}
	digest := sha256.Sum256(Input(p, parts...))
	der, err := s.Key.Sign(rand.Reader, digest[:], crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("sign %s: %w", p, err)
	}
	var rs struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(der, &rs); err != nil {
		return nil, fmt.Errorf("sign %s: %w", p, err)
	}
	value := make([]byte, 64)
	rs.R.FillBytes(value[:32])
	rs.S.FillBytes(value[32:])
	kid, err := KeyID(pub)
	if err != nil {
		return nil, err
	}
	sig := &commonv1.Signature{Value: value, Kid: kid}
	for _, c := range s.Chain {
		sig.Chain = append(sig.Chain, c.Raw)
	}
	return sig, nil
}

// KeyID is the key's RFC 7638 thumbprint, base64url without padding.
func KeyID(pub *ecdsa.PublicKey) (string, error) {
	point, err := pub.Bytes()
	if err != nil || pub.Curve != elliptic.P256() {
		return "", errors.New("key id: key is not ECDSA P-256")
	}
	b64 := base64.RawURLEncoding.EncodeToString
	sum := sha256.Sum256(fmt.Appendf(nil, `{"crv":"P-256","kty":"EC","x":"%s","y":"%s"}`, b64(point[1:33]), b64(point[33:])))
	return b64(sum[:]), nil
}

// VerifyKey checks a signature under a key that the caller already trusts.
func VerifyKey(pub *ecdsa.PublicKey, sig *commonv1.Signature, p Purpose, parts ...[]byte) error {
	if sig == nil || len(sig.Value) != 64 {
		return fmt.Errorf("verify %s: %w: want 64 bytes r || s, got %d", p, ErrSignature, len(sig.GetValue()))
	}
	kid, err := KeyID(pub)
	if err != nil {
		return fmt.Errorf("verify %s: %w", p, err)
	}
	if sig.Kid != "" && sig.Kid != kid {
		return fmt.Errorf("verify %s: %w: made by key %q, not by %q", p, ErrSignature, sig.Kid, kid)
	}
	digest := sha256.Sum256(Input(p, parts...))
	r, s := new(big.Int).SetBytes(sig.Value[:32]), new(big.Int).SetBytes(sig.Value[32:])
	if !ecdsa.Verify(pub, digest[:], r, s) {
		return fmt.Errorf("verify %s: %w", p, ErrSignature)
	}
	return nil
}

// Roots verifies signatures whose key comes with a chain.
type Roots struct {
	// Certs are the trusted roots. Empty trusts nothing.
	Certs []*x509.Certificate
	// AnyPurpose skips the urn:bc:sign: statement: for node keys, whose right to sign follows from their role.
	AnyPurpose bool
}

// ParseRoots reads DER certificates as roots.
func ParseRoots(ders [][]byte) (Roots, error) {
	var r Roots
	for _, der := range ders {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return Roots{}, fmt.Errorf("parse root: %w", err)
		}
		r.Certs = append(r.Certs, c)
	}
	return r, nil
}

// Verify checks chain, purpose and signature at the time now, and returns the signing leaf.
//
// The chain is checked first: a key outside the roots is ErrUntrusted whatever it signed.
func (r Roots) Verify(now time.Time, sig *commonv1.Signature, p Purpose, parts ...[]byte) (*x509.Certificate, error) {
	if sig == nil || len(sig.Chain) == 0 || len(sig.Chain) > MaxChain {
		return nil, fmt.Errorf("verify %s: %w: want 1 to %d certificates with it, got %d", p, ErrUntrusted, MaxChain, len(sig.GetChain()))
	}
	var chain []*x509.Certificate
	for _, der := range sig.Chain {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("verify %s: %w: %w", p, ErrUntrusted, err)
		}
		chain = append(chain, c)
	}
	leaf := chain[0]
	if err := r.VerifyChain(now, chain); err != nil {
		return nil, fmt.Errorf("verify %s: key %q: %w", p, sig.Kid, err)
	}
	if !r.AnyPurpose && !allows(leaf, p) {
		return nil, fmt.Errorf("verify %s: %w: its certificate does not allow this purpose", p, ErrUntrusted)
	}
	pub, ok := leaf.PublicKey.(*ecdsa.PublicKey)
	if !ok {
		return nil, fmt.Errorf("verify %s: %w: key is not ECDSA", p, ErrUntrusted)
	}
	if err := VerifyKey(pub, sig, p, parts...); err != nil {
		return nil, err
	}
	return leaf, nil
}

// VerifyChain checks that chain, leaf first, leads to one of the roots at the time now.
func (r Roots) VerifyChain(now time.Time, chain []*x509.Certificate) error {
	if len(chain) == 0 {
		return fmt.Errorf("%w: no certificate", ErrUntrusted)
	}
	roots, middle := x509.NewCertPool(), x509.NewCertPool()
	for _, c := range r.Certs {
		roots.AddCert(c)
	}
	for _, c := range chain[1:] {
		middle.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: middle, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUntrusted, err)
	}
	return nil
}

func allows(c *x509.Certificate, p Purpose) bool {
	want := ident.SignURI(string(p)).String()
	for _, u := range c.URIs {
		if u.String() == want {
			return true
		}
	}
	return false
}
