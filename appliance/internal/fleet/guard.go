package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrNotProtected: there is no protection to remove.
var ErrNotProtected = errors.New("machine is not protected")

// ErrProtected: a person protects the machine.
var ErrProtected = errors.New("machine is protected")

// Protect marks a machine: no workflow touches its disks until Unprotect. The first mark stays.
func (r *Repo) Protect(ctx context.Context, name, by, why string, now time.Time) (Record, error) {
	return r.Update(ctx, name, func(m *Record) error {
		if m.Protected == nil {
			m.Protected = &Protection{Since: At(now), By: Clip(by), Why: Clip(why)}
		}
		return nil
	})
}

// Unprotect removes the mark, or returns ErrNotProtected.
func (r *Repo) Unprotect(ctx context.Context, name string) (Record, error) {
	return r.Update(ctx, name, func(m *Record) error {
		if m.Protected == nil {
			return ErrNotProtected
		}
		m.Protected = nil
		return nil
	})
}

// FlagUUID raises an alarm on a machine and on every other one that has the same system UUID, which it has or claims (INV-02): such
// machines are told apart by their MACs, and none ever takes another's record. An empty UUID is nobody's.
func (r *Repo) FlagUUID(ctx context.Context, rec *Record, uuid string, now time.Time) error {
	if uuid == "" {
		return nil
	}
	all, err := r.Machines(ctx)
	if err != nil {
		return err
	}
	for i := range all {
		other := &all[i]
		if other.Name == rec.Name || other.NodeID == rec.NodeID || !other.hasUUID(uuid) {
			continue
		}
		for _, pair := range [][2]*Record{{rec, other}, {other, rec}} {
			m, twin := pair[0], pair[1]
			text := fmt.Sprintf("UUID not unique: machine %s (MAC %s) has the system UUID %s of machine %s (MAC %s) too; they are told apart by their MACs",
				twin.Name, strings.Join(twin.MACs, ", "), uuid, m.Name, strings.Join(m.MACs, ", "))
			fresh := false
			_, err := r.Update(ctx, m.Name, func(m *Record) error { fresh = m.Alarm(now, text); return nil })
			if err != nil {
				return fmt.Errorf("flag UUID of machine %q: %w", m.Name, err)
			}
			if !fresh {
				continue
			}
			if err := r.Emit(ctx, Event{Time: At(now), Machine: m.Name, NodeID: m.NodeID, Source: "control", Kind: "machine.uuid-not-unique",
				Fields: map[string]string{"uuid": uuid, "other": twin.Name}, Message: text}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *Record) hasUUID(uuid string) bool {
	return strings.EqualFold(r.UUID, uuid) || r.Hardware != nil && strings.EqualFold(r.Hardware.UUID, uuid)
}
