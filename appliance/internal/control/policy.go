package control

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/appliance/internal/fleet"
	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
)

const (
	kindPolicy = "boot.policy"
	// policyLife is how long a sent policy may be taken up; it is sent anew in every session.
	policyLife = 10 * time.Minute
	// maxPolicies bounds the sent policies whose answers are waited for.
	maxPolicies = 64
	// policyRetry is when a policy that could not be made or stored is tried again.
	policyRetry = 5 * time.Second
)

// BootPolicy is what an operator decided about network boots for which no lease is open.
type BootPolicy struct {
	// Discovery: an unknown machine boots the RAM disk and appears with its inventory. Nothing is ever done to it.
	Discovery bool
	// ReplaceROM: a machine whose own ROM is iPXE loads the site's iPXE first.
	ReplaceROM bool
	// Anchors are what discovery boots trust.
	Anchors *sitev1.TrustAnchors
}

// policy is what this process knows about the policies that it sent.
type policy struct {
	mu sync.Mutex
	// sent is the generation that the site's present session took; 0 is none.
	sent uint64
	// commands are the ids of sent policies, oldest first.
	commands []string
}

// KeepPolicy sends the site agent its boot policy whenever the fleet changes it, until ctx ends. A new session of the site agent gets
// it in any case.
func (c *Control) KeepPolicy(ctx context.Context) {
	for ctx.Err() == nil {
		changes, err := c.cfg.Fleet.WatchMachines(ctx)
		if err == nil {
			err = c.sendPolicy(ctx, false)
		}
		for err == nil {
			if _, ok := <-changes; !ok {
				break
			}
			err = c.sendPolicy(ctx, false)
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		c.cfg.Log.Warn("keep the site's boot policy", "err", err)
		timer := time.NewTimer(policyRetry)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// sendPolicy sends the policy as it is now, unless the site's present session has it. That there is no session is no error.
func (c *Control) sendPolicy(ctx context.Context, fresh bool) error {
	c.policy.mu.Lock()
	defer c.policy.mu.Unlock()
	if fresh {
		c.policy.sent = 0
	}
	p, err := c.bootPolicy(ctx)
	if err != nil {
		return err
	}
	if p.Generation == c.policy.sent {
		return nil
	}
	cmd, id, err := c.mintPolicy(p)
	if err != nil {
		return err
	}
	if err := c.cfg.Gateway.Send(c.cfg.SiteNode, roleSite, cmd); err != nil {
		c.cfg.Log.Debug("send boot policy", "generation", p.Generation, "err", err)
		return nil
	}
	c.policy.sent = p.Generation
	c.policy.commands = append(c.policy.commands, id)
	if n := len(c.policy.commands) - maxPolicies; n > 0 {
		c.policy.commands = c.policy.commands[n:]
	}
	return nil
}

// bootPolicy makes the policy: the same fleet and settings give the same generation, also after a restart.
func (c *Control) bootPolicy(ctx context.Context) (*sitev1.BootPolicy, error) {
	all, err := c.cfg.Fleet.Machines(ctx)
	if err != nil {
		return nil, err
	}
	p := &sitev1.BootPolicy{Discovery: c.cfg.Boot.Discovery, ReplaceRomIpxe: c.cfg.Boot.ReplaceROM, Anchors: c.cfg.Boot.Anchors}
	for _, m := range all {
		if m.Discovered.IsZero() {
			p.Known = append(p.Known, &sitev1.KnownMachine{NodeId: m.NodeID, Macs: m.MACs, MachineName: m.Name})
		}
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode boot policy: %w", err)
	}
	sum := sha256.Sum256(raw)
	p.Generation, err = c.cfg.Fleet.Policy(ctx, sum[:])
	return p, err
}

func (c *Control) mintPolicy(p *sitev1.BootPolicy) (*agentv1.Command, string, error) {
	payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	if err != nil {
		return nil, "", fmt.Errorf("sign %s: %w", kindPolicy, err)
	}
	id, now := ident.New("cmd"), c.cfg.Now()
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(&agentv1.CommandBody{
		CommandId: id, Kind: kindPolicy, Payload: payload, Audience: string(c.cfg.SiteNode), Role: roleSite,
		IssuedAt: timestamppb.New(now), NotAfter: timestamppb.New(now.Add(policyLife)),
		WorkflowId: kindPolicy, StepId: kindPolicy, Lane: commonv1.Lane_LANE_CONTROL, Generation: p.Generation,
	})
	if err != nil {
		return nil, "", fmt.Errorf("sign %s: %w", kindPolicy, err)
	}
	sig, err := c.cfg.PKI.Commands().Sign(envelope.Command, body)
	if err != nil {
		return nil, "", fmt.Errorf("sign %s: %w", kindPolicy, err)
	}
	return &agentv1.Command{Body: body, Signature: sig, Attempt: 1}, id, nil
}

// policyAnswer tells people when the site did not take a policy up.
func (c *Control) policyAnswer(ctx context.Context, command string, state fleet.CommandState, reject, message string) {
	c.policy.mu.Lock()
	mine := false
	for _, id := range c.policy.commands {
		mine = mine || id == command
	}
	c.policy.mu.Unlock()
	if !mine || !state.Ended() || state == fleet.CommandSucceeded {
		return
	}
	c.emit(ctx, fleet.Event{NodeID: string(c.cfg.SiteNode), Kind: "boot.policy.refused", Fields: map[string]string{"state": string(state), "reason": reject},
		Message: fmt.Sprintf("the site agent did not take up the boot policy (%s %s): %s; it goes on with the one that it had", state, reject, message)})
}
