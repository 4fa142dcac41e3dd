package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"firstlight/appliance/internal/store"
)

// Key prefixes in the store.
const (
	machinesPrefix    = "machines/"
	workflowsPrefix   = "workflows/"
	leasesPrefix      = "leases/"
	provisionedPrefix = "provisioned/"
	agentsPrefix      = "agents/"
	cursorsPrefix     = "cursors/"
	eventsPrefix      = "events/"
	bmcSecretsPrefix  = "secrets/bmc/"
	stopKey           = "settings/stop"
)

// updateTries bounds compare-and-swap: more conflicts in a row mean that something writes in circles.
const updateTries = 32

// ErrUnknown: there is no such machine, workflow, lease or secret.
var ErrUnknown = errors.New("not known")

// Repo keeps the fleet in a store. It is safe for use from many goroutines.
type Repo struct {
	store store.Store

	// add serializes AddMachine, so that its check for duplicates holds.
	add sync.Mutex

	events eventRing
}

// NewRepo returns the repository on a store.
func NewRepo(s store.Store) *Repo { return &Repo{store: s} }

func load[T any](ctx context.Context, s store.Store, key string) (T, int64, error) {
	var v T
	e, err := s.Get(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return v, 0, fmt.Errorf("%s: %w", key, ErrUnknown)
	}
	if err != nil {
		return v, 0, err
	}
	if err := json.Unmarshal(e.Value, &v); err != nil {
		return v, 0, fmt.Errorf("decode %s: %w", key, err)
	}
	return v, e.Rev, nil
}

func save[T any](ctx context.Context, s store.Store, key string, v *T, rev int64) (int64, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return 0, fmt.Errorf("encode %s: %w", key, err)
	}
	return s.Put(ctx, key, b, rev)
}

func list[T any](ctx context.Context, s store.Store, prefix string) ([]T, error) {
	es, err := s.List(ctx, prefix)
	if err != nil {
		return nil, err
	}
	out := make([]T, len(es))
	for i, e := range es {
		if err := json.Unmarshal(e.Value, &out[i]); err != nil {
			return nil, fmt.Errorf("decode %s: %w", e.Key, err)
		}
	}
	return out, nil
}

// update is read, change, compare-and-swap, again on conflict. An error of change ends it unwritten. With create, a missing
// entry is a zero value.
func update[T any](ctx context.Context, s store.Store, key string, create bool, change func(*T) error) (T, error) {
	for range updateTries {
		v, rev, err := load[T](ctx, s, key)
		if err != nil && (!create || !errors.Is(err, ErrUnknown)) {
			return v, err
		}
		if err := change(&v); err != nil {
			return v, err
		}
		_, err = save(ctx, s, key, &v, rev)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		return v, err
	}
	return *new(T), fmt.Errorf("update %s: %w %d times in a row", key, store.ErrConflict, updateTries)
}

// Machine returns a machine's record, or ErrUnknown.
func (r *Repo) Machine(ctx context.Context, name string) (Record, error) {
	m, _, err := load[Record](ctx, r.store, machinesPrefix+name)
	if errors.Is(err, ErrUnknown) {
		return m, fmt.Errorf("machine %q: %w", name, ErrUnknown)
	}
	return m, err
}

// Machines returns all records by name.
func (r *Repo) Machines(ctx context.Context) ([]Record, error) {
	return list[Record](ctx, r.store, machinesPrefix)
}

// Update changes a machine's record by compare-and-swap: change may run several times and must depend on its argument only. When
// change returns an error nothing is written and the error comes back.
func (r *Repo) Update(ctx context.Context, name string, change func(*Record) error) (Record, error) {
	return update(ctx, r.store, machinesPrefix+name, false, change)
}

// ByNode returns the record of the machine with this node id, or ErrUnknown.
func (r *Repo) ByNode(ctx context.Context, node string) (Record, error) {
	return r.find(ctx, "node "+node, func(m *Record) bool { return m.NodeID == node })
}

// ByMAC returns the record of the machine that has one of the MACs, or ErrUnknown.
func (r *Repo) ByMAC(ctx context.Context, macs []string) (Record, error) {
	return r.find(ctx, fmt.Sprintf("MACs %v", macs), func(m *Record) bool {
		return slices.ContainsFunc(m.MACs, func(mac string) bool { return slices.Contains(macs, mac) })
	})
}

// find prefers a machine that is enrolled: of one that was just enrolled both records are there for a moment.
func (r *Repo) find(ctx context.Context, what string, is func(*Record) bool) (Record, error) {
	all, err := r.Machines(ctx)
	if err != nil {
		return Record{}, err
	}
	var found *Record
	for i := range all {
		if m := &all[i]; is(m) && (found == nil || !found.Discovered.IsZero()) {
			found = m
		}
	}
	if found != nil {
		return *found, nil
	}
	return Record{}, fmt.Errorf("machine with %s: %w", what, ErrUnknown)
}

// Run returns a workflow and its revision.
func (r *Repo) Run(ctx context.Context, id string) (*Run, int64, error) {
	v, rev, err := load[Run](ctx, r.store, workflowsPrefix+id)
	if err != nil {
		return nil, 0, err
	}
	return &v, rev, nil
}

// Runs returns all workflows, oldest first.
func (r *Repo) Runs(ctx context.Context) ([]Run, error) {
	all, err := list[Run](ctx, r.store, workflowsPrefix)
	slices.SortStableFunc(all, func(a, b Run) int {
		return cmp.Or(a.Started.Compare(b.Started.Time), cmp.Compare(a.Generation, b.Generation))
	})
	return all, err
}

// SaveRun writes a workflow at a revision (0: create) and returns the new one. Only its executor calls it.
func (r *Repo) SaveRun(ctx context.Context, run *Run, rev int64) (int64, error) {
	return save(ctx, r.store, workflowsPrefix+run.ID, run, rev)
}

// DeleteRun removes a workflow and its lease, whatever their revisions; missing is fine. Only its executor calls it.
func (r *Repo) DeleteRun(ctx context.Context, run *Run) error {
	return errors.Join(r.drop(ctx, leasesPrefix+run.Plan.LeaseID), r.drop(ctx, workflowsPrefix+run.ID))
}

// drop removes a key, whatever its revision; missing is fine.
func (r *Repo) drop(ctx context.Context, key string) error {
	e, err := r.store.Get(ctx, key)
	if err == nil {
		err = r.store.Delete(ctx, key, e.Rev)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return nil
}

// Stop returns who stopped everything, nil when nobody did.
func (r *Repo) Stop(ctx context.Context) (*Stop, error) {
	s, _, err := load[Stop](ctx, r.store, stopKey)
	if errors.Is(err, ErrUnknown) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &s, nil
}

// SetStop stores who stopped everything and returns it: the first one, when it was stopped already. Nil lets everything go on.
func (r *Repo) SetStop(ctx context.Context, s *Stop) (*Stop, error) {
	for range updateTries {
		old, rev, err := load[Stop](ctx, r.store, stopKey)
		switch {
		case err != nil && !errors.Is(err, ErrUnknown):
			return nil, err
		case err == nil && s != nil:
			return &old, nil
		case err == nil:
			err = r.store.Delete(ctx, stopKey, rev)
		case s == nil:
			return nil, nil
		default:
			_, err = save(ctx, r.store, stopKey, s, 0)
		}
		if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
			continue
		}
		return s, err
	}
	return nil, fmt.Errorf("update %s: %w %d times in a row", stopKey, store.ErrConflict, updateTries)
}

// CreateLease writes a new lease.
func (r *Repo) CreateLease(ctx context.Context, l *Lease) error {
	_, err := save(ctx, r.store, leasesPrefix+l.ID, l, 0)
	return err
}

// Lease returns a lease, or ErrUnknown.
func (r *Repo) Lease(ctx context.Context, id string) (Lease, error) {
	l, _, err := load[Lease](ctx, r.store, leasesPrefix+id)
	return l, err
}

// UpdateLease changes a lease by compare-and-swap; see Update.
func (r *Repo) UpdateLease(ctx context.Context, id string, change func(*Lease) error) (Lease, error) {
	return update(ctx, r.store, leasesPrefix+id, false, change)
}

// NodeSecrets returns the newest join secrets of all machines.
func (r *Repo) NodeSecrets(ctx context.Context) ([]NodeSecret, error) {
	return list[NodeSecret](ctx, r.store, provisionedPrefix)
}

// UpdateNodeSecret changes or creates the join secret of a node by compare-and-swap; see Update.
func (r *Repo) UpdateNodeSecret(ctx context.Context, node string, change func(*NodeSecret) error) (NodeSecret, error) {
	return update(ctx, r.store, provisionedPrefix+node, true, change)
}

// Agent returns an agent that is no machine, or ErrUnknown.
func (r *Repo) Agent(ctx context.Context, node string) (Agent, error) {
	a, _, err := load[Agent](ctx, r.store, agentsPrefix+node)
	return a, err
}

// Agents returns all agents that are no machines.
func (r *Repo) Agents(ctx context.Context) ([]Agent, error) {
	return list[Agent](ctx, r.store, agentsPrefix)
}

// UpdateAgent changes or creates an agent by compare-and-swap; see Update.
func (r *Repo) UpdateAgent(ctx context.Context, node string, change func(*Agent) error) (Agent, error) {
	return update(ctx, r.store, agentsPrefix+node, true, change)
}

// Cursor returns how far an agent's events are stored; a zero one when none are.
func (r *Repo) Cursor(ctx context.Context, node string) (Cursor, error) {
	c, _, err := load[Cursor](ctx, r.store, cursorsPrefix+node)
	if errors.Is(err, ErrUnknown) {
		return Cursor{}, nil
	}
	return c, err
}

// SetCursor stores how far an agent's events are stored.
func (r *Repo) SetCursor(ctx context.Context, node string, c Cursor) error {
	_, err := update(ctx, r.store, cursorsPrefix+node, true, func(old *Cursor) error { *old = c; return nil })
	return err
}
