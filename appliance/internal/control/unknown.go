package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"firstlight/appliance/internal/fleet"
	"firstlight/gateway-client/ident"
)

// joinUnknown grants a RAM disk certificate to a machine that nobody enrolled, so that its inventory can be seen. Nothing else
// follows from it: no workflow, no command, no secret.
func (c *Control) joinUnknown(ctx context.Context, a *attempt, as *assertion) ([]byte, error) {
	have := orNone(strings.Join(a.claims.MACs, ", "))
	switch {
	case !c.cfg.Boot.Discovery:
		return nil, deny("the assertion names no machine, and discovery is off (MAC %s)", have)
	case len(as.macs) == 0 || !slices.Contains(a.claims.MACs, as.macs[0]):
		return nil, deny("the assertion is for the boot of MAC %v, this hardware has MAC %s", as.macs, have)
	case !ident.Valid(as.lease):
		return nil, deny("the assertion has no boot lease")
	}
	owner, err := c.cfg.Fleet.ByMAC(ctx, a.claims.MACs)
	if err == nil && owner.Discovered.IsZero() {
		d := deny("the assertion names no machine, and this hardware has MAC %s and is machine %s, which is not being provisioned", have, owner.Name)
		d.machine = owner.Name
		return nil, d
	}
	if err != nil && !errors.Is(err, fleet.ErrUnknown) {
		return nil, err
	}
	serial := fleet.Clip(a.req.Hardware.GetSystemSerial())
	rec, fresh, err := c.cfg.Fleet.Discover(ctx, as.macs[0], a.claims, serial, a.now)
	if err != nil {
		return nil, err
	}
	raw, err := c.respond(a, rec.NodeID, roleRAMDisk)
	if err != nil {
		return nil, err
	}
	rec, err = c.cfg.Fleet.Update(ctx, rec.Name, func(r *fleet.Record) error {
		if d := r.Discovery; d != nil && d.Lease == as.lease {
			if bytes.Equal(d.CSRSHA256, a.csr) {
				return nil
			}
			return &denied{code: deniedCode, machine: r.Name, alarm: true, cause: fmt.Sprintf(
				"the discovery boot of %s was used already, at %s by another key: two machines presented it (now from %s)", r.Name, d.At, a.addr)}
		}
		r.Discovery = &fleet.Discovery{Lease: as.lease, At: fleet.At(a.now), CSRSHA256: a.csr, Response: raw, KeyID: a.keyID, Serial: serial}
		return nil
	})
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("an unknown machine (MAC %s) joined from %s and is listed as %s", have, a.addr, rec.Name)
	kind := "machine.seen"
	if fresh {
		kind = "machine.discovered"
	}
	c.emit(ctx, fleet.Event{Machine: rec.Name, NodeID: rec.NodeID, Kind: kind, Message: text, Fields: map[string]string{"macs": have, "uuid": a.claims.UUID,
		"serial": serial, "from": a.addr, "next": "firstlight machine add NAME --from " + rec.Name}})
	return rec.Discovery.Response, nil
}
