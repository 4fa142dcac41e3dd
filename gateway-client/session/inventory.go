package session

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"firstlight/gateway-client/link"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
)

// KindInventoryRefresh is the one command that the session runs itself.
const KindInventoryRefresh = "inventory.refresh"

// collect asks for the inventory and keeps it.
func (a *Agent) collect(ctx context.Context) (map[string][]byte, error) {
	if a.cfg.Inventory == nil {
		return nil, nil
	}
	a.collecting.Lock()
	defer a.collecting.Unlock()
	sections, err := a.cfg.Inventory(ctx)
	if err != nil {
		return nil, fmt.Errorf("collect inventory: %w", err)
	}
	if len(sections) > MaxSections {
		return nil, fmt.Errorf("collect inventory: %d sections, want at most %d", len(sections), MaxSections)
	}
	for name, enc := range sections {
		if !word(name) || len(enc) > link.MaxCommandBytes {
			return nil, fmt.Errorf("collect inventory: section %q has %d bytes, want at most %d", name, len(enc), link.MaxCommandBytes)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.changed = a.changed || !maps.EqualFunc(a.sections, sections, func(x, y []byte) bool { return string(x) == string(y) })
	a.sections = maps.Clone(sections)
	if a.sections == nil {
		a.sections = make(map[string][]byte)
	}
	return sections, nil
}

// refreshInventory collects again, sends the wanted sections (all when none is named) and answers with their digests.
func (a *Agent) refreshInventory(ctx context.Context, c *Call) (proto.Message, error) {
	var want agentv1.InventoryRefresh
	if err := proto.Unmarshal(c.Payload, &want); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidPayload, err)
	}
	sections, err := a.collect(ctx)
	if err != nil {
		return nil, err
	}
	names := want.Sections
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(sections))
	}
	out := &agentv1.InventoryRefreshResult{Sha256: make(map[string][]byte)}
	for _, name := range names {
		enc, ok := sections[name]
		if !ok {
			return nil, fmt.Errorf("%w: no inventory section %q", ErrInvalidPayload, name)
		}
		sum := sha256.Sum256(enc)
		out.Sha256[name] = sum[:]
		if conn := a.current(); conn != nil {
			conn.send(ctx, sectionFrame(name, enc))
		}
	}
	return out, nil
}

func sectionFrame(name string, enc []byte) *agentv1.AgentFrame {
	sum := sha256.Sum256(enc)
	return &agentv1.AgentFrame{Frame: &agentv1.AgentFrame_Inventory{Inventory: &agentv1.InventorySection{Name: name, Encoding: enc, Sha256: sum[:]}}}
}

func digests(sections map[string][]byte) map[string][]byte {
	out := make(map[string][]byte, len(sections))
	for name, enc := range sections {
		sum := sha256.Sum256(enc)
		out[name] = sum[:]
	}
	return out
}
