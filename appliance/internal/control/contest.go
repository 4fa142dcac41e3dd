package control

import (
	"context"
	"errors"
	"fmt"

	"firstlight/appliance/internal/fleet"
	"firstlight/gateway-client/ident"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// twoMachines is what to do when two machines claimed one boot.
const twoMachines = "find out which other machine is on the boot segment with this machine's addresses, and take it away; then begin again with firstlight provision, which wipes the disks and makes new keys and a new secret"

// The site's events that a boot script, or a file that was made for one boot, was asked for and not given.
const (
	kindScriptRefused = "boot.script.refused"
	kindFileRefused   = "boot.file.refused"
)

// contest takes back what the first of two claimants of one boot got, since nobody can say which of them was the machine: its
// certificate opens no session any more, the one that it has ends, and so with the node that came by this deploy's join secret; the
// secret is void. Everything it does may be done twice.
func (c *Control) contest(ctx context.Context, run *fleet.Run, ramdiskKey, cause string) {
	node, err := c.voidSecret(ctx, run, cause)
	if err != nil {
		c.cfg.Log.Error("void join secret", "machine", run.Machine, "workflow", run.ID, "err", err)
	}
	for key, role := range map[string]commonv1.AgentRole{ramdiskKey: roleRAMDisk, node: roleNode} {
		if key == "" {
			continue
		}
		if _, err := c.cfg.Fleet.Update(ctx, run.Machine, func(r *fleet.Record) error { r.Revoke(key); return nil }); err != nil {
			c.cfg.Log.Error("revoke key", "machine", run.Machine, "workflow", run.ID, "err", err)
		}
		c.cfg.Gateway.Revoke(ident.NodeID(run.NodeID), role, cause)
	}
}

// voidSecret makes the join secret of a workflow's deploy worthless, and returns the key that joined by it, empty when none did.
func (c *Control) voidSecret(ctx context.Context, run *fleet.Run, cause string) (key string, err error) {
	_, err = c.cfg.Fleet.UpdateNodeSecret(ctx, run.NodeID, func(s *fleet.NodeSecret) error {
		if s.Workflow != run.ID {
			return errNoSecret
		}
		key = s.KeyID
		s.Void = fleet.Clip(cause)
		return nil
	})
	if errors.Is(err, errNoSecret) {
		return "", nil
	}
	return key, err
}

var errNoSecret = errors.New("the workflow has no join secret")

// refetched judges that a boot script, or a file of its boot, was asked for whose lease was consumed: either another machine joined with it, or the machine
// started over. Both end the workflow (the executor does that with the event), and what joined is not trusted any more.
func (c *Control) refetched(ctx context.Context, e *fleet.Event) error {
	run, _, err := c.cfg.Fleet.Run(ctx, e.Workflow)
	if errors.Is(err, fleet.ErrUnknown) || err == nil && !run.State.Open() {
		return nil
	}
	if err != nil {
		return err
	}
	lease, err := c.cfg.Fleet.Lease(ctx, run.Plan.LeaseID)
	if errors.Is(err, fleet.ErrUnknown) || err == nil && lease.State != fleet.LeaseConsumed {
		return nil
	}
	if err != nil {
		return err
	}
	cause := fmt.Sprintf("machine %s asked for its boot script or a file of its boot again, from %s, after a machine had joined with it at %s: either another machine joined in its place, or it started over",
		run.Machine, orNone(e.Fields["client"]), lease.Consumed)
	c.contest(ctx, run, lease.KeyID, cause)
	return c.alarm(ctx, run.Machine, run.ID, cause)
}
