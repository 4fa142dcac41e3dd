package ramdisk

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/gateway-client/session"
	"firstlight/ramdisk/internal/deploy"
	"firstlight/ramdisk/internal/diag"
	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/inventory"
	"firstlight/ramdisk/internal/kexec"
	"firstlight/ramdisk/internal/wipe"
)

// ramdiskHandlers are the commands of role ramdisk; inventory.refresh is the session's own.
func (a *Agent) ramdiskHandlers(id *session.Identity) map[string]session.Handler {
	control, bulk := commonv1.Lane_LANE_CONTROL, commonv1.Lane_LANE_BULK
	wipeDisks := a.handler(control, a.wipe)
	wipeDisks.Attested, wipeDisks.Destructive = true, true
	nvml := a.handler(control, a.nvml)
	nvml.Attested = true
	dcgm := a.handler(bulk, a.dcgm)
	dcgm.Attested = true
	image := a.handler(bulk, func(ctx context.Context, c *session.Call) (proto.Message, error) { return a.deploy(ctx, c, id) })
	image.Attested, image.Destructive = true, true
	jump := a.handler(control, a.kexec)
	jump.SelfTerminating, jump.After = true, a.jump
	return map[string]session.Handler{"disk.wipe": wipeDisks, "diag.nvml": nvml, "diag.dcgm": dcgm, "deploy.image": image, "boot.kexec": jump}
}

// nodeHandlers are the commands of role node.
func (a *Agent) nodeHandlers() map[string]session.Handler {
	nvml := a.handler(commonv1.Lane_LANE_CONTROL, a.nvml)
	nvml.Attested = true
	return map[string]session.Handler{"diag.nvml": nvml}
}

func (a *Agent) wipe(ctx context.Context, c *session.Call) (proto.Message, error) {
	var m agentv1.DiskWipe
	if err := read(c, &m); err != nil {
		return nil, err
	}
	if len(m.Disks) == 0 || len(m.Disks) > wipe.MaxDisks {
		return nil, fmt.Errorf("%w: %d disks named, want 1 to %d", session.ErrInvalidPayload, len(m.Disks), wipe.MaxDisks)
	}
	var selectors []disk.Selector
	for _, d := range m.Disks {
		s, err := selector(d)
		if err != nil {
			return nil, err
		}
		selectors = append(selectors, s)
	}
	tell := a.progress(c, "bytes")
	rs, err := wipe.Disks(ctx, a.p.disks, selectors, wipe.Command{Discard: true, Ledger: &a.ledger, Workflow: c.WorkflowID,
		Progress: func(p wipe.Progress) { tell(step{p.String(), p.Phases()}, p.Done, p.Total) },
		Ended:    func(r wipe.DiskResult) { a.say("command %s: %s", c.Kind, r.Sentence()) }})
	if rs == nil {
		return nil, err
	}
	return wipeResult(rs), err
}

func (a *Agent) nvml(ctx context.Context, c *session.Call) (proto.Message, error) {
	r := diag.NVML(ctx, a.p.programs, inventory.GPUs(a.p.sys))
	a.say("command %s: %s: %s", c.Kind, r.Outcome, r.Reason)
	return diagResult(r), nil
}

func (a *Agent) dcgm(ctx context.Context, c *session.Call) (proto.Message, error) {
	var m agentv1.DiagDCGM
	if err := read(c, &m); err != nil {
		return nil, err
	}
	level := int(m.Level)
	if level == 0 {
		level = 1
	}
	r, err := diag.DCGM(ctx, a.p.programs, inventory.GPUs(a.p.sys), level)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", session.ErrInvalidPayload, err)
	}
	a.say("command %s: %s: %s", c.Kind, r.Outcome, r.Reason)
	return diagResult(r), nil
}

func (a *Agent) deploy(ctx context.Context, c *session.Call, id *session.Identity) (proto.Message, error) {
	var m agentv1.DeployImage
	if err := read(c, &m); err != nil {
		return nil, err
	}
	req, err := deployRequest(&m, c.WorkflowID)
	if err != nil {
		return nil, err
	}
	if _, err := nodeConfig(m.Seed, nil); err != nil {
		return nil, err
	}
	roots, err := imageRoots(id)
	if err != nil {
		return nil, err
	}
	// The secret comes before the first write: without it the disk stays as it is.
	secret, err := c.Secret(ctx, m.Seed.JoinSecretRef)
	if err != nil {
		return nil, fmt.Errorf("deploy: nothing was written: %w", err)
	}
	conf, err := nodeConfig(m.Seed, secret)
	if err != nil {
		return nil, err
	}
	if req.Config, err = conf.Encode(); err != nil {
		return nil, err
	}
	tell := a.progress(c, "bytes")
	d := &deploy.Deployer{System: a.p.disks, Fetch: a.p.fetch, Config: a.p.config, Roots: roots, Now: a.now, Ledger: &a.ledger,
		Progress: func(what string, done, total int64) { tell(step{what, what}, done, total) }}
	r, err := d.Run(ctx, req)
	if err != nil {
		return nil, err
	}
	a.say("command %s: %d chunks written to %s and read back", c.Kind, r.Chunks, r.Disk)
	return deployResult(r), nil
}

func (a *Agent) kexec(ctx context.Context, c *session.Call) (proto.Message, error) {
	var m agentv1.BootKexec
	if err := read(c, &m); err != nil {
		return nil, err
	}
	s, err := selector(m.Disk)
	if err != nil {
		return nil, err
	}
	r, err := kexec.Load(ctx, a.p.disks, s, a.p.volumes, a.p.loader, a.p.tempDir)
	if err != nil {
		return nil, err
	}
	a.say("command %s: boot entry %s is loaded", c.Kind, r.Entry)
	return kexecResult(r), nil
}

// jump leaves for the loaded kernel. When the kernel refuses, the machine starts from its disk by itself, and says so.
func (a *Agent) jump() error {
	a.say("entering the deployed system without firmware (kexec)")
	if err := a.p.jump(); err != nil {
		a.say("the kernel refused the jump (%v); restarting the machine instead", err)
		return a.p.restart()
	}
	return nil
}
