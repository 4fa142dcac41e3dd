package session

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"firstlight/gateway-client/envelope"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// updateParts are the signed parts of a CommandUpdate.
func updateParts(u *agentv1.CommandUpdate) [][]byte {
	sum := sha256.Sum256(u.Result)
	return [][]byte{[]byte(u.CommandId), binary.BigEndian.AppendUint32(nil, uint32(u.State)), sum[:]}
}

// VerifyUpdate checks the node's signature on an update, end to end: leaf is the certificate that the session proved.
// An attested report inside must verify too, and say the same. Message, progress and time are not signed: text for people.
func VerifyUpdate(leaf *x509.Certificate, u *agentv1.CommandUpdate) error {
	key, ok := leaf.PublicKey.(*ecdsa.PublicKey)
	if !ok {
		return errors.New("verify update: node key is not ECDSA")
	}
	if err := envelope.VerifyKey(key, u.Signature, envelope.CommandUpdate, updateParts(u)...); err != nil {
		return fmt.Errorf("update of command %s: %w", u.CommandId, err)
	}
	if u.Attested == nil {
		return nil
	}
	body, err := VerifyReport(leaf, u.Attested)
	if err != nil {
		return err
	}
	if body.CommandId != u.CommandId || !bytes.Equal(body.Result, u.Result) {
		return fmt.Errorf("update of command %s: %w: its attested report says something else", u.CommandId, envelope.ErrSignature)
	}
	return nil
}

// VerifyReport checks an attested report and returns what it says. The caller compares node and kind with what it asked.
func VerifyReport(leaf *x509.Certificate, r *agentv1.AttestedReport) (*agentv1.AttestedReportBody, error) {
	key, ok := leaf.PublicKey.(*ecdsa.PublicKey)
	if !ok {
		return nil, errors.New("verify attested report: node key is not ECDSA")
	}
	if err := envelope.VerifyKey(key, r.GetSignature(), envelope.AttestedReport, r.GetBody()); err != nil {
		return nil, fmt.Errorf("attested report: %w", err)
	}
	body := new(agentv1.AttestedReportBody)
	if err := proto.Unmarshal(r.Body, body); err != nil {
		return nil, fmt.Errorf("attested report: %w", err)
	}
	return body, nil
}

// checkBundle verifies a bundle that arrived after Join, and returns it when it is newer than the one held; nil when not.
func checkBundle(signing *ecdsa.PublicKey, signed *commonv1.SignedTrustBundle, have *commonv1.TrustBundle) (*commonv1.TrustBundle, error) {
	if err := envelope.VerifyKey(signing, signed.Signature, envelope.TrustBundle, signed.Body); err != nil {
		return nil, fmt.Errorf("trust bundle: %w", err)
	}
	b := new(commonv1.TrustBundle)
	if err := proto.Unmarshal(signed.Body, b); err != nil {
		return nil, fmt.Errorf("trust bundle: %w", err)
	}
	if b.Version <= have.Version {
		return nil, nil
	}
	if b.TrustDomain != have.TrustDomain {
		return nil, fmt.Errorf("trust bundle %d is of trust domain %q, this agent of %q", b.Version, b.TrustDomain, have.TrustDomain)
	}
	if _, err := commandRoots(b); err != nil {
		return nil, err
	}
	// The quorum changes only with the approvers' signatures, which this version does not check: it is kept as it was.
	b.ApproverKeys, b.ApproverThreshold, b.QuorumTiers = have.ApproverKeys, have.ApproverThreshold, have.QuorumTiers
	b.ApproverSetEpoch, b.UnbatchedDestructivePerHour = have.ApproverSetEpoch, have.UnbatchedDestructivePerHour
	b.ApproverSetSignatures = have.ApproverSetSignatures
	return b, nil
}

func commandRoots(b *commonv1.TrustBundle) (envelope.Roots, error) {
	roots, err := envelope.ParseRoots(b.CommandSigningRoots)
	if err != nil {
		return envelope.Roots{}, fmt.Errorf("trust bundle %d: %w", b.Version, err)
	}
	if len(roots.Certs) == 0 {
		return envelope.Roots{}, fmt.Errorf("trust bundle %d has no command-signing root", b.Version)
	}
	return roots, nil
}
