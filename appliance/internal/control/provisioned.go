package control

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"firstlight/appliance/internal/fleet"
	"firstlight/gateway-client/ident"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

const deniedCode = codes.PermissionDenied

// leaked is what to do when a deploy's secret was in other hands.
const leaked = "find out who copied the secret from the disk or the wire; then begin again with firstlight provision, which makes a new one"

// mintNodeSecret makes the join secret of a workflow's deploy and returns its value, which is kept nowhere. Asked again, it makes
// another one and the earlier is void: an answer may have been lost, and what is on the disk is the last one.
func (c *Control) mintNodeSecret(ctx context.Context, run *fleet.Run) ([]byte, error) {
	lease, err := c.cfg.Fleet.Lease(ctx, run.Plan.LeaseID)
	if err != nil {
		return nil, err
	}
	value := make([]byte, nodeSecretSize)
	rand.Read(value)
	hash := sha256.Sum256(value)
	fresh := fleet.NodeSecret{NodeID: run.NodeID, Machine: run.Machine, Workflow: run.ID, Hash: hash[:],
		Expires: fleet.At(c.cfg.Now().Add(nodeSecretLife)), Claims: lease.Claims}
	_, err = c.cfg.Fleet.UpdateNodeSecret(ctx, run.NodeID, func(s *fleet.NodeSecret) error {
		if s.Workflow == run.ID && (!s.Used.IsZero() || s.Void != "") {
			return errSecretUsed
		}
		*s = fresh
		return nil
	})
	return value, err
}

var errSecretUsed = errors.New("the deploy's join secret was used already")

func (c *Control) joinProvisioned(ctx context.Context, a *attempt) ([]byte, error) {
	if a.req.Role != commonv1.AgentRole_AGENT_ROLE_NODE {
		return nil, deny("a provisioned system may join as node only, not as %s", ident.RoleWord(a.req.Role))
	}
	hash, d := c.open(a)
	if d != nil {
		return nil, c.tie(ctx, a, d, fleet.StepNodeJoin)
	}
	secrets, err := c.cfg.Fleet.NodeSecrets(ctx)
	if err != nil {
		return nil, err
	}
	var found *fleet.NodeSecret
	for i := range secrets {
		if subtle.ConstantTimeCompare(secrets[i].Hash, hash) == 1 {
			found = &secrets[i]
		}
	}
	if found == nil {
		return nil, c.tie(ctx, a, deny("the node's secret is not that of any machine's last deploy"), fleet.StepNodeJoin)
	}
	run, _, err := c.cfg.Fleet.Run(ctx, found.Workflow)
	if err != nil {
		return nil, err
	}
	raw, err := c.respond(a, found.NodeID, commonv1.AgentRole_AGENT_ROLE_NODE)
	if err != nil {
		return nil, err
	}
	var refusal *denied
	secret, err := c.cfg.Fleet.UpdateNodeSecret(ctx, found.NodeID, func(s *fleet.NodeSecret) error {
		if subtle.ConstantTimeCompare(s.Hash, hash) != 1 {
			return deny("the node's secret is not that of any machine's last deploy")
		}
		refusal = redeem(s, run, a, raw)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if refusal != nil {
		return nil, c.distrust(ctx, &secret, run, refusal)
	}
	_, err = c.cfg.Fleet.Update(ctx, secret.Machine, func(r *fleet.Record) error {
		r.NodeKeyID, r.PreviousKeyID = a.keyID, ""
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := c.joined(ctx, a, secret.Machine, secret.NodeID, run.ID, ident.RoleWord(commonv1.AgentRole_AGENT_ROLE_NODE)); err != nil {
		return nil, err
	}
	return secret.Response, nil
}

// redeem is the decision of a provisioned join. Before the machine is told to enter its installed system nobody can rightly hold the
// secret, so whoever presents it then gets nothing. A secret that anybody else but its machine may have presented is spent by that:
// the change of s is stored also with a refusal.
func redeem(s *fleet.NodeSecret, run *fleet.Run, a *attempt, response []byte) *denied {
	at := &denied{code: deniedCode, machine: s.Machine, workflow: s.Workflow, step: fleet.StepNodeJoin}
	who := fmt.Sprintf("%s (MAC %s)", a.addr, orNone(strings.Join(a.claims.MACs, ", ")))
	if s.Void != "" {
		at.alarm, at.next = true, leaked
		at.cause = fmt.Sprintf("the node's secret is void and was used from %s: %s", who, s.Void)
		return at
	}
	if !s.Used.IsZero() {
		if bytes.Equal(s.CSRSHA256, a.csr) && len(s.Response) > 0 {
			return nil
		}
		at.alarm, at.next = true, leaked
		at.cause = fmt.Sprintf("the node's secret was used twice: first at %s from %s, then from %s with another key", s.Used, s.UsedFrom, who)
		return at
	}
	kexec := run.Step(fleet.StepKexec)
	switch {
	case !run.State.Open():
		at.step = ""
		at.cause = fmt.Sprintf("workflow %s of machine %s is over (%s)", run.ID, s.Machine, run.State)
		return at
	case !a.now.Before(s.Expires.Time):
		at.cause = fmt.Sprintf("the node's secret expired at %s", s.Expires)
		return at
	case a.req.NodeId != "" && a.req.NodeId != s.NodeID:
		at.cause = fmt.Sprintf("the node's secret is that of node %s, the agent says that it is %q", s.NodeID, a.req.NodeId)
	case kexec == nil || kexec.Start.IsZero():
		at.cause = fmt.Sprintf("the node's secret was used from %s before the machine was started into its installed system", who)
	case !sameHardware(s.Claims, a.claims):
		at.cause = fmt.Sprintf("the node's secret was used from %s, by other hardware than was installed (MAC %s, UUID %s)", who,
			strings.Join(s.Claims.MACs, ", "), s.Claims.UUID)
	default:
		s.Used, s.UsedFrom, s.CSRSHA256, s.Response, s.KeyID = fleet.At(a.now), who, a.csr, response, a.keyID
		return nil
	}
	at.alarm, at.next = true, leaked
	s.Used, s.UsedFrom, s.CSRSHA256 = fleet.At(a.now), who, a.csr
	return at
}

// sameHardware: the same UUID where both name one, and a MAC in common. Not all MACs: the installed system may lack a driver that
// the RAM disk has, or make some up.
func sameHardware(was, is fleet.Claims) bool {
	if was.UUID != "" && is.UUID != "" && !strings.EqualFold(was.UUID, is.UUID) {
		return false
	}
	return slices.ContainsFunc(was.MACs, func(m string) bool { return slices.Contains(is.MACs, m) })
}

// distrust acts on a refusal: while the machine is not handed over, a key that came by this secret is good for nothing any more,
// since nobody can say whose it is. After that the machine keeps its identity and gets the alarm.
func (c *Control) distrust(ctx context.Context, s *fleet.NodeSecret, run *fleet.Run, d *denied) *denied {
	if !d.alarm {
		return d
	}
	if s.KeyID == "" || !run.State.Open() {
		return d
	}
	_, err := c.cfg.Fleet.Update(ctx, s.Machine, func(r *fleet.Record) error {
		r.Revoke(s.KeyID)
		return nil
	})
	if err != nil {
		c.cfg.Log.Error("revoke key", "machine", s.Machine, "workflow", s.Workflow, "err", err)
	}
	c.cfg.Gateway.Revoke(ident.NodeID(s.NodeID), commonv1.AgentRole_AGENT_ROLE_NODE, d.cause)
	return d
}
