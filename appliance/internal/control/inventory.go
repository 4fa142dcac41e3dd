package control

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
	"firstlight/gateway-client/gatewayserver"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
)

// maxSections bounds the section names in a record.
const maxSections = 32

// sectionDir keeps sections by their SHA-256.
type sectionDir string

func openSections(dir string) (sectionDir, error) {
	if dir == "" {
		return "", errors.New("control: no directory for inventory sections")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("open inventory sections: %w", err)
	}
	return sectionDir(dir), nil
}

// put writes a section under its digest, whole or not at all. What is there already is the same.
func (d sectionDir) put(sum [32]byte, b []byte) error {
	path := filepath.Join(string(d), hex.EncodeToString(sum[:]))
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	f, err := os.CreateTemp(string(d), ".new-*")
	if err != nil {
		return fmt.Errorf("store inventory section: %w", err)
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("store inventory section: %w", err)
	}
	return nil
}

// Inventory implements gatewayserver.Control. A section that does not decode is told to people and not asked for again.
func (c *Control) Inventory(ctx context.Context, p gatewayserver.Peer, s *agentv1.InventorySection) error {
	if p.Role == roleSite {
		return nil
	}
	node := string(p.Identity.Node)
	sum := sha256.Sum256(s.Encoding)
	if string(sum[:]) != string(s.Sha256) {
		c.about(ctx, node).Warn("inventory section does not have its digest", "section", fleet.Clip(s.Name))
		return nil
	}
	if err := learn(new(fleet.Hardware), s.Name, s.Encoding); err != nil {
		c.about(ctx, node).Warn("inventory", "err", err)
		return nil
	}
	if err := c.sections.put(sum, s.Encoding); err != nil {
		return err
	}
	m, err := c.cfg.Fleet.ByNode(ctx, node)
	if err != nil {
		return err
	}
	m, err = c.cfg.Fleet.Update(ctx, m.Name, func(r *fleet.Record) error {
		if r.Hardware == nil {
			r.Hardware = &fleet.Hardware{Disks: []fleet.Disk{}, NICs: []fleet.NIC{}}
		}
		h := r.Hardware
		if h.Sections == nil {
			h.Sections = map[string]string{}
		}
		if _, known := h.Sections[s.Name]; known || len(h.Sections) < maxSections {
			h.Sections[fleet.Clip(s.Name)] = hex.EncodeToString(sum[:])
		}
		return learn(h, s.Name, s.Encoding)
	})
	if err == nil && s.Name == "system" && m.Hardware != nil {
		err = c.cfg.Fleet.FlagUUID(ctx, &m, m.Hardware.UUID, c.cfg.Now())
	}
	if err != nil || p.Role != roleRAMDisk {
		return err
	}
	key, err := keyOf(p)
	if err != nil {
		return err
	}
	return c.post(ctx, m.Workflow, executor.Section{Name: s.Name, KeyID: key, At: c.cfg.Now()})
}
