package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"firstlight/appliance/internal/fleet"
	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
)

// provisionAgain is what helps when a boot's one join is spoilt.
const provisionAgain = "begin again with firstlight provision: a boot lease is good for one join"

// assertion is a verified discovery assertion as plain values.
type assertion struct {
	node, lease, workflow string
	// macs: the one that booted first.
	macs []string
}

// verifyAssertion checks a serialized SignedDiscoveryAssertion at the server's time.
func (c *Control) verifyAssertion(a *attempt) (*assertion, *denied) {
	var signed sitev1.SignedDiscoveryAssertion
	if err := proto.Unmarshal(a.req.Evidence, &signed); err != nil {
		return nil, deny("the discovery assertion does not decode")
	}
	roots := envelope.Roots{Certs: c.cfg.PKI.NodeCAs(), AnyPurpose: true}
	leaf, err := roots.Verify(a.now, signed.Signature, envelope.DiscoveryAssertion, signed.Body)
	if err != nil {
		return nil, deny("the discovery assertion is not this site's: %v", err)
	}
	role, err := ident.RoleOf(leaf)
	if err != nil || role != commonv1.AgentRole_AGENT_ROLE_SITE {
		return nil, deny("the discovery assertion was signed by an agent that is not the site's")
	}
	by, err := ident.FromCertificate(leaf)
	if err != nil {
		return nil, deny("the discovery assertion's signer: %v", err)
	}
	var b sitev1.DiscoveryAssertion
	if err := proto.Unmarshal(signed.Body, &b); err != nil {
		return nil, deny("the discovery assertion does not decode")
	}
	switch {
	case by.TrustDomain != c.cfg.TrustDomain || by.Site != c.cfg.SiteID || b.TrustDomain != c.cfg.TrustDomain || b.SiteId != c.cfg.SiteID:
		return nil, deny("the discovery assertion is of site %q in %q, this is %q in %q", b.SiteId, b.TrustDomain, c.cfg.SiteID, c.cfg.TrustDomain)
	case !b.IssuedAt.IsValid() || !b.NotAfter.IsValid():
		return nil, deny("the discovery assertion has no times")
	case b.IssuedAt.AsTime().After(a.now.Add(clockSkew)):
		return nil, deny("the discovery assertion was issued at %s, which is not yet (appliance's clock %s)", fleet.At(b.IssuedAt.AsTime()), fleet.At(a.now))
	case !a.now.Before(b.NotAfter.AsTime()):
		return nil, deny("the discovery assertion expired at %s (appliance's clock %s)", fleet.At(b.NotAfter.AsTime()), fleet.At(a.now))
	}
	return &assertion{node: b.NodeId, lease: b.LeaseId, workflow: b.WorkflowId, macs: b.Macs}, nil
}

func (c *Control) joinDiscovery(ctx context.Context, a *attempt) ([]byte, error) {
	if a.req.Role != commonv1.AgentRole_AGENT_ROLE_RAMDISK {
		return nil, deny("a discovered machine may join as ramdisk only, not as %s", ident.RoleWord(a.req.Role))
	}
	as, d := c.verifyAssertion(a)
	if d != nil {
		return nil, c.tie(ctx, a, d, fleet.StepJoin)
	}
	if as.node == "" && as.workflow == "" {
		return c.joinUnknown(ctx, a, as)
	}
	lease, err := c.cfg.Fleet.Lease(ctx, as.lease)
	if errors.Is(err, fleet.ErrUnknown) {
		return nil, c.tie(ctx, a, deny("the boot lease %q of the assertion is not known", as.lease), fleet.StepJoin)
	}
	if err != nil {
		return nil, err
	}
	rec, run, err := c.ofLease(ctx, &lease)
	if err != nil {
		return nil, err
	}
	if d := c.fits(ctx, a, as, &lease, &rec); d != nil {
		return nil, d
	}
	if !run.State.Open() {
		d := &denied{code: deniedCode, machine: rec.Name, workflow: run.ID, cause: fmt.Sprintf("workflow %s of machine %s is over (%s)", run.ID, rec.Name, run.State)}
		if lease.State == fleet.LeaseConsumed && !bytes.Equal(lease.CSRSHA256, a.csr) {
			d.alarm, d.next = true, twoMachines
			d.cause += fmt.Sprintf(", and its boot lease was consumed already, at %s by another key: two machines presented this boot's assertion (now from %s)", lease.Consumed, a.addr)
		}
		return nil, d
	}
	raw, err := c.respond(a, rec.NodeID, commonv1.AgentRole_AGENT_ROLE_RAMDISK)
	if err != nil {
		return nil, err
	}
	lease, err = c.cfg.Fleet.UpdateLease(ctx, lease.ID, func(l *fleet.Lease) error { return consume(l, a, raw) })
	if d, ok := errors.AsType[*denied](err); ok && d.contest {
		c.contest(ctx, run, lease.KeyID, d.cause)
	}
	if err != nil {
		return nil, err
	}
	if err := c.cfg.Fleet.FlagUUID(ctx, &rec, a.claims.UUID, a.now); err != nil {
		return nil, err
	}
	if err := c.joined(ctx, a, rec.Name, rec.NodeID, run.ID, ident.RoleWord(commonv1.AgentRole_AGENT_ROLE_RAMDISK)); err != nil {
		return nil, err
	}
	return lease.Response, nil
}

// consume is the decision of a discovery: the first key gets the lease, and the same request again gets the same answer.
func consume(l *fleet.Lease, a *attempt, response []byte) error {
	at := denied{code: deniedCode, machine: l.Machine, workflow: l.Workflow, step: fleet.StepJoin, next: provisionAgain}
	switch {
	case l.State == fleet.LeaseConsumed && bytes.Equal(l.CSRSHA256, a.csr):
		return nil
	case l.State == fleet.LeaseConsumed:
		at.alarm, at.contest, at.next = true, true, twoMachines
		at.cause = fmt.Sprintf("the boot lease of machine %s was consumed already, at %s by another key: two machines presented this boot's assertion (now from %s, hardware with MAC %s)",
			l.Machine, l.Consumed, a.addr, strings.Join(a.claims.MACs, ", "))
		return &at
	case l.State != fleet.LeaseOpen:
		at.cause = fmt.Sprintf("the boot lease of machine %s is %s", l.Machine, l.State)
		return &at
	case !a.now.Before(l.Expires.Time):
		at.cause = fmt.Sprintf("the boot lease of machine %s expired at %s", l.Machine, l.Expires)
		return &at
	}
	l.State, l.Consumed, l.CSRSHA256, l.Response, l.KeyID, l.Claims = fleet.LeaseConsumed, fleet.At(a.now), a.csr, response, a.keyID, a.claims
	return nil
}

// ofLease returns the lease's machine and workflow, which must be the machine's newest.
func (c *Control) ofLease(ctx context.Context, l *fleet.Lease) (fleet.Record, *fleet.Run, error) {
	rec, err := c.cfg.Fleet.Machine(ctx, l.Machine)
	if errors.Is(err, fleet.ErrUnknown) || err == nil && rec.Workflow != l.Workflow {
		return rec, nil, &denied{code: deniedCode, machine: rec.Name, cause: fmt.Sprintf("the boot lease of machine %s is of an earlier workflow", l.Machine)}
	}
	if err != nil {
		return rec, nil, err
	}
	run, _, err := c.cfg.Fleet.Run(ctx, l.Workflow)
	return rec, run, err
}

// fits holds the assertion against its lease, and the hardware that presents it against the machine's record. A misfit is tied to
// the machine whose MACs are claimed when the fleet knows them, else to the lease's machine.
func (c *Control) fits(ctx context.Context, a *attempt, as *assertion, l *fleet.Lease, rec *fleet.Record) *denied {
	var cause string
	booted := ""
	if len(as.macs) > 0 {
		booted = as.macs[0]
	}
	have := strings.Join(a.claims.MACs, ", ")
	owner, err := c.cfg.Fleet.ByMAC(ctx, a.claims.MACs)
	other := err == nil && owner.Name != rec.Name
	switch {
	case as.node != l.NodeID || as.workflow != l.Workflow:
		cause = fmt.Sprintf("the assertion names node %s and workflow %s, its boot lease %s and %s", as.node, as.workflow, l.NodeID, l.Workflow)
	case !slices.Contains(rec.MACs, booted):
		cause = fmt.Sprintf("the assertion is for the boot of MAC %q, machine %s has MAC %s", booted, rec.Name, strings.Join(rec.MACs, ", "))
	case other:
		cause = fmt.Sprintf("the assertion is for machine %s (MAC %s), this hardware has MAC %s and is machine %s", rec.Name, strings.Join(rec.MACs, ", "), have, owner.Name)
	case !slices.Contains(a.claims.MACs, booted):
		cause = fmt.Sprintf("the assertion is for machine %s (MAC %s), this hardware has MAC %s", rec.Name, booted, orNone(have))
	case rec.UUID != "" && a.claims.UUID != "" && !strings.EqualFold(rec.UUID, a.claims.UUID):
		cause = fmt.Sprintf("the assertion is for machine %s (UUID %s), this hardware has UUID %s", rec.Name, rec.UUID, a.claims.UUID)
	default:
		return nil
	}
	d := &denied{code: deniedCode, cause: cause}
	if other {
		d = c.tie(ctx, a, d, fleet.StepJoin)
		d.next = "find out how the machine got another machine's assertion; then begin again with firstlight provision"
		return d
	}
	d.machine, d.workflow, d.step = rec.Name, l.Workflow, fleet.StepJoin
	d.next = "correct the machine's record or its cabling; then begin again with firstlight provision"
	return d
}

func orNone(s string) string {
	if s == "" {
		return "none that it names"
	}
	return s
}
