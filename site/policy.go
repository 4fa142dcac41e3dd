package site

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"

	"google.golang.org/protobuf/proto"

	"firstlight/gateway-client/ident"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
	"firstlight/gateway-client/session"
	"firstlight/ipxe"
	"firstlight/site/internal/discovery"
	"firstlight/site/internal/lease"
	"firstlight/site/internal/statefile"
)

const (
	policyFile = "policy.binpb"
	// maxPolicy bounds the policy's file in bytes, maxKnown the machines in it.
	maxPolicy, maxKnown = 8 << 20, 16384
)

// policies runs boot.policy and keeps the newest policy on the disk.
type policies struct {
	site   discovery.Site
	leases *lease.Table
	path   string
	log    *slog.Logger

	mu  sync.Mutex
	now *sitev1.BootPolicy
}

// load takes the policy of an earlier run; there need not be one.
func (p *policies) load() error {
	info, err := os.Stat(p.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && info.Size() > maxPolicy {
		err = fmt.Errorf("%d bytes, the most is %d", info.Size(), maxPolicy)
	}
	var b []byte
	if err == nil {
		b, err = os.ReadFile(p.path)
	}
	var m sitev1.BootPolicy
	if err == nil {
		err = proto.Unmarshal(b, &m)
	}
	var plain lease.Policy
	if err == nil {
		plain, err = p.check(&m)
	}
	if err != nil {
		return fmt.Errorf("read boot policy %s: %w", p.path, err)
	}
	p.now = &m
	return p.leases.SetPolicy(plain)
}

// set is the handler of boot.policy.
func (p *policies) set(_ context.Context, call *session.Call) (proto.Message, error) {
	var m sitev1.BootPolicy
	if err := proto.Unmarshal(call.Payload, &m); err != nil {
		return nil, fmt.Errorf("%w: %w", session.ErrInvalidPayload, err)
	}
	plain, err := p.check(&m)
	if err != nil {
		return nil, fmt.Errorf("%w: boot policy: %w", session.ErrInvalidPayload, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case m.Generation < p.now.GetGeneration():
		return nil, fmt.Errorf("boot policy of generation %d is older than the one in force, %d", m.Generation, p.now.Generation)
	case m.Generation == p.now.GetGeneration() && proto.Equal(&m, p.now):
		return &sitev1.BootPolicyResult{}, nil
	case m.Generation == p.now.GetGeneration():
		return nil, fmt.Errorf("boot policy of generation %d is in force with other content", m.Generation)
	}
	b, err := proto.Marshal(&m)
	if err == nil {
		err = statefile.Write(p.path, b)
	}
	if err == nil {
		err = p.leases.SetPolicy(plain)
	}
	if err != nil {
		return nil, err
	}
	p.now = &m
	p.log.Info("boot policy", "generation", m.Generation, "discovery", m.Discovery, "known", len(m.Known), "replace_rom_ipxe", m.ReplaceRomIpxe)
	return &sitev1.BootPolicyResult{}, nil
}

// check reads a policy. Of two machines with one MAC the first counts.
func (p *policies) check(m *sitev1.BootPolicy) (lease.Policy, error) {
	out := lease.Policy{Generation: m.Generation, Discovery: m.Discovery, ReplaceROM: m.ReplaceRomIpxe, Known: map[string]lease.Known{}}
	if m.Generation == 0 || len(m.Known) > maxKnown {
		return out, fmt.Errorf("generation %d with %d machines: want at least 1, and at most %d", m.Generation, len(m.Known), maxKnown)
	}
	for _, k := range m.Known {
		if !ident.Valid(k.NodeId) || len(k.Macs) > maxMACs {
			return out, fmt.Errorf("machine %q with %d MACs: want a node id, and at most %d", k.NodeId, len(k.Macs), maxMACs)
		}
		known := lease.Known{NodeID: k.NodeId, Machine: k.MachineName}
		if ipxe.CheckText("machine name", known.Machine) != nil {
			known.Machine = k.NodeId
		}
		for _, s := range k.Macs {
			mac, err := lease.ParseMAC(s)
			if err != nil {
				return out, fmt.Errorf("machine %s: %w", k.NodeId, err)
			}
			if _, taken := out.Known[mac]; !taken {
				out.Known[mac] = known
			}
		}
	}
	if !m.Discovery && m.Anchors == nil {
		return out, nil
	}
	var err error
	out.Anchors, err = anchors(p.site, m.Anchors)
	return out, err
}

// anchors checks that trust anchors are this site's and complete, and returns them as the overlay carries them.
func anchors(site discovery.Site, t *sitev1.TrustAnchors) ([]byte, error) {
	if t.GetTrustDomain() != site.TrustDomain || t.GetSiteId() != site.SiteID {
		return nil, fmt.Errorf("trust anchors are for site %q of %q, this is site %q of %q", t.GetSiteId(), t.GetTrustDomain(), site.SiteID, site.TrustDomain)
	}
	if len(t.ServingCaSpkiSha256) == 0 || len(t.JoinSigningKey) == 0 || len(t.NodeCas) == 0 || t.GatewayUrl == "" {
		return nil, errors.New("trust anchors: pins, join key, node CA or gateway address is missing")
	}
	return (proto.MarshalOptions{Deterministic: true}).Marshal(t)
}
