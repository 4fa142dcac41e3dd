package control

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"time"

	"firstlight/appliance/internal/fleet"
	"firstlight/gateway-client/ident"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/gateway-client/sealed"
)

// tokenSize is a join token's size in bytes.
const tokenSize = 32

// MintJoinToken makes a one-time token with which an agent that is no machine may join once as node in role. A token minted before
// for the same node is void, used or not; the certificate that it brought stays good until the next join.
func (c *Control) MintJoinToken(ctx context.Context, node ident.NodeID, role commonv1.AgentRole, life time.Duration) ([]byte, error) {
	if !ident.Valid(string(node)) {
		return nil, fmt.Errorf("mint join token: %q is not a valid node id", node)
	}
	token := make([]byte, tokenSize)
	rand.Read(token)
	hash := sha256.Sum256(token)
	expires := fleet.At(c.cfg.Now().Add(life))
	_, err := c.cfg.Fleet.UpdateAgent(ctx, string(node), func(a *fleet.Agent) error {
		a.NodeID, a.Role, a.TokenHash, a.Expires = string(node), ident.RoleWord(role), hash[:], expires
		a.Used, a.CSRSHA256, a.Response = fleet.Time{}, nil, nil
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("mint join token for %s: %w", node, err)
	}
	return token, nil
}

// open decrypts a sealed proof and checks that it was made for this request.
func (c *Control) open(a *attempt) (hash []byte, d *denied) {
	var claims sealed.JoinClaims
	if err := sealed.Open(c.cfg.PKI.JoinKey(), sealed.TypJoin, string(a.req.Evidence), &claims); err != nil {
		return nil, deny("%v", err)
	}
	if !bytes.Equal(claims.CSRSHA256, a.csr) {
		return nil, deny("the sealed proof was made for another certificate request")
	}
	sum := sha256.Sum256(claims.Secret)
	return sum[:], nil
}

func (c *Control) joinToken(ctx context.Context, a *attempt) ([]byte, error) {
	hash, d := c.open(a)
	if d != nil {
		return nil, d
	}
	agents, err := c.cfg.Fleet.Agents(ctx)
	if err != nil {
		return nil, err
	}
	var found *fleet.Agent
	for i := range agents {
		if subtle.ConstantTimeCompare(agents[i].TokenHash, hash) == 1 {
			found = &agents[i]
		}
	}
	if found == nil {
		return nil, deny("the join token is not known")
	}
	role, err := ident.ParseRole(found.Role)
	if err != nil {
		return nil, err
	}
	switch {
	case a.req.Role != role:
		return nil, deny("the join token is for role %s, not for %s", found.Role, ident.RoleWord(a.req.Role))
	case a.req.NodeId != "" && a.req.NodeId != found.NodeID:
		return nil, deny("the join token is for node %q, not for %q", found.NodeID, a.req.NodeId)
	}
	raw, err := c.respond(a, found.NodeID, role)
	if err != nil {
		return nil, err
	}
	agent, err := c.cfg.Fleet.UpdateAgent(ctx, found.NodeID, func(g *fleet.Agent) error {
		switch {
		case subtle.ConstantTimeCompare(g.TokenHash, hash) != 1:
			return deny("the join token is not known")
		case !g.Used.IsZero() && bytes.Equal(g.CSRSHA256, a.csr):
			return nil
		case !g.Used.IsZero():
			return deny("the join token of %s was used before, at %s by another key", g.NodeID, g.Used)
		case !a.now.Before(g.Expires.Time):
			return deny("the join token of %s expired at %s", g.NodeID, g.Expires)
		}
		g.Used, g.CSRSHA256, g.Response, g.KeyID, g.PreviousKeyID = fleet.At(a.now), a.csr, raw, a.keyID, ""
		return nil
	})
	if err != nil {
		return nil, err
	}
	return agent.Response, nil
}
