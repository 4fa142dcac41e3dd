package session

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	"firstlight/gateway-client/link"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// JoinParams is one attempt to become somebody.
type JoinParams struct {
	// Link without Certificate.
	Link link.Config
	// JoinSigningKey is pinned: only its holder can answer.
	JoinSigningKey *ecdsa.PublicKey
	Key            *ecdsa.PrivateKey
	Role           commonv1.AgentRole
	// Attestor is "join-token", "discovery" or "provisioned".
	Attestor string
	// Evidence is asked once per request, with the SHA-256 of the CSR that it goes with.
	Evidence func(csrSHA256 []byte) ([]byte, error)
	Hardware *commonv1.HardwareClaims
	// NodeID is who the agent believes to be; empty when it does not know. Another one in the answer is an error.
	NodeID  ident.NodeID
	Version string
	// Now is the agent's clock; nil is time.Now. It is used for the gateway's certificate (Link.Now, unless that is set);
	// the answer is judged by the JoinService's own signed time.
	Now func() time.Time
}

// Join asks for a certificate. It waits and repeats, with the same CSR, while the JoinService defers; every other refusal
// is returned at once, and is a gRPC status when the gateway made it.
//
// The same key always makes the same CSR, so that an agent whose answer was lost may Join again with its key, also after a
// restart, and is recognised by a JoinService that grants its evidence once.
func Join(ctx context.Context, p JoinParams) (*Identity, error) {
	if p.JoinSigningKey == nil || p.Key == nil || p.Evidence == nil {
		return nil, errors.New("join: signing key, key and evidence are required")
	}
	p.Link.Certificate = nil
	if p.Link.Now == nil {
		p.Link.Now = p.Now
	}
	// Without a random source the signature is RFC 6979's, which depends on the key and the content alone.
	csr, err := x509.CreateCertificateRequest(nil, &x509.CertificateRequest{}, p.Key)
	if err != nil {
		return nil, fmt.Errorf("join: make csr: %w", err)
	}
	conn, err := link.Dial(p.Link)
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	defer conn.Close()
	gateway := agentv1.NewAgentGatewayClient(conn)
	sum := sha256.Sum256(csr)
	for {
		evidence, err := p.Evidence(sum[:])
		if err != nil {
			return nil, fmt.Errorf("join: evidence for %s: %w", p.Attestor, err)
		}
		resp, err := gateway.Join(ctx, &agentv1.JoinRequest{
			Csr: csr, Role: p.Role, Attestor: p.Attestor, Evidence: evidence, Hardware: p.Hardware,
			DaemonVersion: p.Version, NodeId: string(p.NodeID),
		})
		if err != nil {
			return nil, fmt.Errorf("join gateway %s as %s: %w", p.Link.URL, ident.RoleWord(p.Role), err)
		}
		id, wait, err := p.open(sum[:], resp)
		if err != nil || id != nil {
			return id, err
		}
		if err := sleep(ctx, wait); err != nil {
			return nil, fmt.Errorf("join: deferred by the gateway: %w", err)
		}
	}
}

// open judges the answer; without an identity and an error it is a deferral.
func (p JoinParams) open(csrSHA256 []byte, resp *agentv1.JoinResponse) (*Identity, time.Duration, error) {
	if err := envelope.VerifyKey(p.JoinSigningKey, resp.Signature, envelope.JoinResponse, resp.Body); err != nil {
		return nil, 0, fmt.Errorf("join: the answer is not the pinned JoinService's: %w", err)
	}
	var body agentv1.JoinResponseBody
	if err := proto.Unmarshal(resp.Body, &body); err != nil {
		return nil, 0, fmt.Errorf("join: answer: %w", err)
	}
	if !bytes.Equal(body.CsrSha256, csrSHA256) {
		return nil, 0, errors.New("join: the answer is to another certificate request")
	}
	if d := body.Deferral; d != nil {
		if len(d.Challenge) > 0 {
			return nil, 0, fmt.Errorf("join: the JoinService asks a challenge, which attestor %s cannot answer", p.Attestor)
		}
		return nil, min(max(time.Duration(d.RetryAfterSeconds)*time.Second, time.Second), MaxDeferral), nil
	}
	id, err := p.identity(&body)
	if err != nil {
		return nil, 0, fmt.Errorf("join: answer: %w", err)
	}
	return id, 0, nil
}

func (p JoinParams) identity(body *agentv1.JoinResponseBody) (*Identity, error) {
	if !body.ServerTime.IsValid() {
		return nil, errors.New("no server time")
	}
	id := &Identity{NodeID: ident.NodeID(body.NodeId), Role: body.Role, Key: p.Key, Trust: body.Trust, ServerTime: body.ServerTime.AsTime()}
	for _, der := range body.CertificateChain {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("certificate: %w", err)
		}
		id.Chain = append(id.Chain, c)
	}
	switch {
	case len(id.Chain) == 0 || len(id.Chain) > envelope.MaxChain:
		return nil, fmt.Errorf("want 1 to %d certificates, got %d", envelope.MaxChain, len(id.Chain))
	case body.Role != p.Role:
		return nil, fmt.Errorf("role %s, asked for %s", ident.RoleWord(body.Role), ident.RoleWord(p.Role))
	case p.NodeID != "" && id.NodeID != p.NodeID:
		return nil, fmt.Errorf("node %q, this agent is %q", id.NodeID, p.NodeID)
	case body.Trust == nil:
		return nil, errors.New("no trust bundle")
	}
	if _, err := commandRoots(body.Trust); err != nil {
		return nil, err
	}
	cas, err := envelope.ParseRoots(body.Trust.NodeCas)
	if err != nil {
		return nil, err
	}
	if err := cas.VerifyChain(id.ServerTime, id.Chain); err != nil {
		return nil, fmt.Errorf("own certificate at the server's time %s: %w", stamp(id.ServerTime), err)
	}
	return id, id.check()
}

// check holds the parts of an identity against each other.
func (id *Identity) check() error {
	if id.Key == nil || len(id.Chain) == 0 || id.Trust == nil {
		return errors.New("identity has no key, certificate or trust bundle")
	}
	leaf := id.Chain[0]
	if !id.Key.PublicKey.Equal(leaf.PublicKey) {
		return errors.New("certificate is for another key")
	}
	name, err := ident.FromCertificate(leaf)
	if err != nil {
		return err
	}
	role, err := ident.RoleOf(leaf)
	if err != nil {
		return err
	}
	if name.Node != id.NodeID || role != id.Role || name.TrustDomain != id.Trust.TrustDomain {
		return fmt.Errorf("certificate says %s as %s, want node %q of %q as %s", name, ident.RoleWord(role), id.NodeID, id.Trust.TrustDomain, ident.RoleWord(id.Role))
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
