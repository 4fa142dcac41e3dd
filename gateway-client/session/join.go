package session

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"time"

	"firstlight/gateway-client/ident"
	"firstlight/gateway-client/link"
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
	// Now is the agent's clock; nil is time.Now.
	Now func() time.Time
}

// Join asks for a certificate. It waits and repeats while the JoinService defers; every other refusal is returned at once.
func Join(ctx context.Context, p JoinParams) (*Identity, error) {
	return nil, errors.New("join: being built")
}
