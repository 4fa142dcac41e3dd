package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"firstlight/appliance/internal/store"
)

// ErrOpen: a workflow of the machine is open, so what it works with must stay.
var ErrOpen = errors.New("a workflow of the machine is open")

// Patch changes what a person said about a machine; what is nil stays.
type Patch struct {
	Place       *string
	MACs        *[]string
	UUID        *string
	DiskSerials *[]string
	Firmware    *string
	BMCURL      *string
	BMCUser     *string
	BMCPassword Secret
	// BMCCertificateSHA256 is 32 bytes.
	BMCCertificateSHA256 []byte
}

// place says whether nothing but the place changes, which no workflow looks at.
func (p *Patch) place() bool {
	return p.MACs == nil && p.UUID == nil && p.DiskSerials == nil && p.Firmware == nil && p.BMCURL == nil && p.BMCUser == nil && p.BMCPassword == nil && p.BMCCertificateSHA256 == nil
}

// SetMachine changes a machine's record, with the checks of AddMachine. While a workflow is open only the place may change (ErrOpen).
func (r *Repo) SetMachine(ctx context.Context, name string, p Patch) (Record, error) {
	r.add.Lock()
	defer r.add.Unlock()
	rec, err := r.Machine(ctx, name)
	if err != nil {
		return Record{}, err
	}
	if !p.place() {
		if err := r.settled(ctx, &rec, false); err != nil {
			return Record{}, fmt.Errorf("set machine %q: %w", name, err)
		}
	}
	s, err := r.patched(ctx, &rec, p)
	if err != nil {
		return Record{}, err
	}
	if err := r.free(ctx, name, s); err != nil {
		return Record{}, err
	}
	if p.BMCPassword != nil {
		if err := r.setBMCPassword(ctx, name, p.BMCPassword); err != nil {
			return Record{}, err
		}
	}
	return r.Update(ctx, name, func(m *Record) error {
		if m.Workflow != rec.Workflow {
			return fmt.Errorf("set machine %q: %w: it began meanwhile", name, ErrOpen)
		}
		m.Place, m.MACs, m.UUID, m.DiskSerials = s.Place, s.MACs, s.UUID, s.DiskSerials
		m.Firmware = s.Firmware
		m.BMC, m.BMCCertificateSHA256 = BMC{URL: s.BMCURL, User: s.BMCUser}, s.BMCCertificateSHA256
		return nil
	})
}

// settled returns ErrOpen while a workflow of the machine is open; with closed also while its site agent is still told of its end.
func (r *Repo) settled(ctx context.Context, rec *Record, closed bool) error {
	if rec.Workflow == "" {
		return nil
	}
	run, _, err := r.Run(ctx, rec.Workflow)
	if err != nil && !errors.Is(err, ErrUnknown) {
		return err
	}
	switch {
	case err != nil:
	case run.State.Open():
		return fmt.Errorf("%w: %s, begun %s by %s", ErrOpen, run.ID, run.Started, run.By)
	case closed && !run.Closed:
		return fmt.Errorf("%w: %s is over, and the site agent is still to be told, until %s", ErrOpen, run.ID, run.CloseBy)
	}
	return nil
}

// patched is what the record says with the changes, checked as a new machine's.
func (r *Repo) patched(ctx context.Context, rec *Record, p Patch) (*Spec, error) {
	s := &Spec{Name: rec.Name, Place: rec.Place, MACs: slices.Clone(rec.MACs), UUID: rec.UUID, DiskSerials: slices.Clone(rec.DiskSerials),
		Firmware: rec.Firmware,
		BMCURL:   rec.BMC.URL, BMCUser: rec.BMC.User, BMCPassword: p.BMCPassword, BMCCertificateSHA256: rec.BMCCertificateSHA256,
		Adopt: rec.Adopted || !rec.Discovered.IsZero()}
	if p.BMCPassword == nil {
		// Who may change the address may not read the password: it must not go to a host of his.
		if p.BMCURL != nil && rec.BMC.URL != "" && *p.BMCURL != rec.BMC.URL {
			return nil, fmt.Errorf("set machine %q: the BMC's password was given for %s and is sent to no other address: give it again", rec.Name, rec.BMC.URL)
		}
		known, err := r.BMCPassword(ctx, rec.Name)
		if err != nil && !errors.Is(err, ErrUnknown) {
			return nil, err
		}
		s.BMCPassword = known
	}
	for _, f := range []struct{ to, from *string }{{&s.Place, p.Place}, {&s.UUID, p.UUID}, {&s.Firmware, p.Firmware}, {&s.BMCURL, p.BMCURL}, {&s.BMCUser, p.BMCUser}} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	if p.MACs != nil {
		s.MACs = slices.Clone(*p.MACs)
	}
	if p.DiskSerials != nil {
		s.DiskSerials = slices.Clone(*p.DiskSerials)
	}
	if p.BMCCertificateSHA256 != nil {
		s.BMCCertificateSHA256 = p.BMCCertificateSHA256
	}
	return s, s.checkAs("set machine")
}

// free returns ErrTaken when another machine has a MAC or disk serial of the specification; the add mutex is held.
func (r *Repo) free(ctx context.Context, name string, s *Spec) error {
	all, err := r.Machines(ctx)
	if err != nil {
		return err
	}
	for i := range all {
		if all[i].Name == name {
			continue
		}
		if what := shared(&all[i], s); what != "" {
			return fmt.Errorf("set machine %q: %w: machine %q already has %s", name, ErrTaken, all[i].Name, what)
		}
	}
	return nil
}

// Adopt takes over a machine that had no workflow and that nobody has to enrol first: it runs, and is protected from now on.
func (r *Repo) Adopt(ctx context.Context, name, by, why string, now time.Time) (Record, error) {
	return r.Update(ctx, name, func(m *Record) error {
		switch {
		case !m.Discovered.IsZero():
			return fmt.Errorf("adopt machine %q: it was discovered and needs a name", name)
		case m.Workflow != "":
			return fmt.Errorf("adopt machine %q: %w or was: this appliance installed it", name, ErrOpen)
		}
		m.Adopted = true
		if m.Protected == nil {
			m.Protected = &Protection{Since: At(now), By: Clip(by), Why: Clip(why)}
		}
		return nil
	})
}

// RemoveMachine forgets a machine, its workflows, its join secret and its controller's password. One that is protected
// (ErrProtected) or has an open workflow (ErrOpen) stays. What remains after a crash in the middle belongs to no record.
func (r *Repo) RemoveMachine(ctx context.Context, name string) (Record, error) {
	r.add.Lock()
	defer r.add.Unlock()
	key := machinesPrefix + name
	for range updateTries {
		rec, rev, err := load[Record](ctx, r.store, key)
		if err != nil {
			return Record{}, fmt.Errorf("machine %q: %w", name, err)
		}
		if rec.Protected != nil {
			return rec, fmt.Errorf("remove machine %q: %w: it is %s", name, ErrProtected, rec.Protected)
		}
		if err := r.settled(ctx, &rec, true); err != nil {
			return rec, fmt.Errorf("remove machine %q: %w", name, err)
		}
		err = r.store.Delete(ctx, key, rev)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return rec, fmt.Errorf("remove machine %q: %w", name, err)
		}
		return rec, errors.Join(r.drop(ctx, bmcSecretsPrefix+name), r.drop(ctx, provisionedPrefix+rec.NodeID), r.dropRuns(ctx, &rec))
	}
	return Record{}, fmt.Errorf("remove machine %q: %w %d times in a row", name, store.ErrConflict, updateTries)
}

// dropRuns removes the workflows of a machine that is gone.
func (r *Repo) dropRuns(ctx context.Context, rec *Record) error {
	es, err := r.store.List(ctx, workflowsPrefix)
	if err != nil {
		return err
	}
	for _, e := range es {
		var run Run
		if err := json.Unmarshal(e.Value, &run); err != nil {
			return fmt.Errorf("decode %s: %w", e.Key, err)
		}
		if run.NodeID != rec.NodeID {
			continue
		}
		if err := r.DeleteRun(ctx, &run); err != nil {
			return err
		}
	}
	return nil
}
