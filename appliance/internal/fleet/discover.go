package fleet

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"firstlight/appliance/internal/store"
	"firstlight/gateway-client/ident"
)

// MaxDiscovered bounds the machines that are known only because they booted here.
const MaxDiscovered = 512

// foundPrefix begins the name of a discovered machine.
const foundPrefix = "found-"

// policyKey holds the PolicyMark.
const policyKey = "settings/boot-policy"

// Discover returns the record of a machine that no person enrolled: the one it has already, found by MAC, or by system UUID and
// serial number together while that one has no session; else a new one. mac is the card that booted. Claims of an enrolled
// machine's MAC are the caller's to refuse.
func (r *Repo) Discover(ctx context.Context, mac string, claims Claims, serial string, now time.Time) (rec Record, fresh bool, err error) {
	hw, err := net.ParseMAC(mac)
	if err != nil || len(hw) != 6 {
		return Record{}, false, fmt.Errorf("discover machine: %q is not a MAC", Clip(mac))
	}
	r.add.Lock()
	defer r.add.Unlock()
	all, err := r.Machines(ctx)
	if err != nil {
		return Record{}, false, err
	}
	all = slices.DeleteFunc(all, func(m Record) bool { return m.Discovered.IsZero() })
	macs := knownMACs(hw.String(), claims.MACs)
	i := slices.IndexFunc(all, func(m Record) bool {
		return slices.ContainsFunc(m.MACs, func(x string) bool { return slices.Contains(macs, x) })
	})
	if i < 0 && claims.UUID != "" && serial != "" {
		i = slices.IndexFunc(all, func(m Record) bool {
			return m.Connected == nil && strings.EqualFold(m.UUID, claims.UUID) && m.Discovery != nil && m.Discovery.Serial == serial
		})
	}
	if i >= 0 {
		rec, err = r.Update(ctx, all[i].Name, func(m *Record) error {
			m.MACs = knownMACs(m.MACs[0], append(m.MACs, macs...))
			return nil
		})
		return rec, false, err
	}
	if len(all) >= MaxDiscovered {
		return Record{}, false, fmt.Errorf("discover machine: %d machines are discovered and not enrolled, the limit", len(all))
	}
	rec = Record{Name: foundPrefix + strings.ReplaceAll(hw.String(), ":", ""), NodeID: ident.New("node"), MACs: macs,
		UUID: strings.ToLower(claims.UUID), Added: At(now), Discovered: At(now)}
	if _, err := save(ctx, r.store, machinesPrefix+rec.Name, &rec, 0); err != nil {
		return Record{}, false, fmt.Errorf("discover machine %q: %w", rec.Name, err)
	}
	return rec, true, r.FlagUUID(ctx, &rec, rec.UUID, now)
}

// knownMACs are the valid ones, the one that booted first, at most maxMACs.
func knownMACs(first string, more []string) []string {
	out := []string{first}
	for _, m := range more {
		hw, err := net.ParseMAC(m)
		if err == nil && len(hw) == 6 && !slices.Contains(out, hw.String()) && len(out) < maxMACs {
			out = append(out, hw.String())
		}
	}
	return out
}

// Tidy forgets discovered machines that were enrolled meanwhile: enrolling stopped between its two writes.
func (r *Repo) Tidy(ctx context.Context) error {
	all, err := r.Machines(ctx)
	if err != nil {
		return err
	}
	for i := range all {
		if all[i].Discovered.IsZero() {
			continue
		}
		owner, err := r.ByMAC(ctx, all[i].MACs)
		if err != nil {
			return err
		}
		if owner.Discovered.IsZero() {
			if err := r.drop(ctx, machinesPrefix+all[i].Name); err != nil {
				return fmt.Errorf("forget machine %q: %w", all[i].Name, err)
			}
		}
	}
	return nil
}

// WatchMachines sends every change of a machine's record that happens after it returned. The channel is closed when ctx ends or when
// changes were lost: then watch again.
func (r *Repo) WatchMachines(ctx context.Context) (<-chan store.Entry, error) {
	return r.store.Watch(ctx, machinesPrefix)
}

// Policy returns the generation of a boot policy with this digest: the stored one, or the next when the policy changed.
func (r *Repo) Policy(ctx context.Context, sha256 []byte) (uint64, error) {
	m, err := update(ctx, r.store, policyKey, true, func(m *PolicyMark) error {
		if string(m.SHA256) != string(sha256) {
			m.Generation, m.SHA256 = m.Generation+1, sha256
		}
		return nil
	})
	return m.Generation, err
}
