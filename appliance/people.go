package appliance

import (
	"context"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/roster"
	"firstlight/appliance/internal/store"
	"firstlight/gateway-client/ident"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// people is what the API needs besides the parts that machines need too.
type people struct {
	kept     store.Store
	roster   *roster.Roster
	accounts *auth.Accounts
}

func (p *parts) openPeople(context.Context) (err error) {
	p.roster = roster.New(roster.Config{Source: p.fleet, Now: p.cfg.Now, Log: p.log("roster")})
	p.metrics.Machines(p.machineCounts)
	p.accounts, err = auth.New(auth.Config{Store: p.kept, Now: p.cfg.Now, Log: p.log("auth")})
	return err
}

// forget ends the sessions of a machine that is not known any more, and removes its log; Admit keeps it from coming back.
func (p *parts) forget(node string) {
	p.gateway.Revoke(ident.NodeID(node), commonv1.AgentRole_AGENT_ROLE_UNSPECIFIED, "the machine was removed")
	if err := p.logs.Remove(node); err != nil {
		p.log("control").Warn("remove a machine's log", "node", node, "err", err)
	}
}

// mintJoin makes a one-time token for the site's agent in a process of its own, with what that needs to reach and to trust the gateway.
// A site has one agent: where this process runs it, there is nobody to join.
func (p *parts) mintJoin(ctx context.Context, life time.Duration) (api.JoinToken, error) {
	const role = commonv1.AgentRole_AGENT_ROLE_SITE
	if p.site != nil {
		return api.JoinToken{}, fault.New(fault.Conflict, "make join token", "", errors.New("this appliance runs its site's agent itself"),
			"set boot.enabled = false and boot.http_advertise in its configuration and start it again")
	}
	expires := fleet.At(p.cfg.Now().Add(life))
	token, err := p.control.MintJoinToken(ctx, p.siteNode, role, life)
	if err != nil {
		return api.JoinToken{}, err
	}
	out := api.JoinToken{NodeID: string(p.siteNode), Role: ident.RoleWord(role), Expires: expires, Gateway: p.gatewayURL(), ServerName: p.cfg.File.Gateway.ServerName,
		TrustDomain: p.cfg.File.TrustDomain, SiteID: p.cfg.File.SiteID, Token: token}
	for _, pin := range p.keys.ServingPins() {
		out.SPKIPins = append(out.SPKIPins, hex.EncodeToString(pin))
	}
	if out.JoinSigningKey, err = x509.MarshalPKIXPublicKey(p.keys.JoinSigner().Key.Public()); err == nil {
		out.JoinEncryptionKey, err = x509.MarshalPKIXPublicKey(&p.keys.JoinKey().PublicKey)
	}
	if err != nil {
		return api.JoinToken{}, fmt.Errorf("encode the join keys: %w", err)
	}
	return out, nil
}
