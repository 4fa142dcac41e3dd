package executor_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/store"
)

// meddler does something before the first workflow is stored.
type meddler struct {
	store.Store
	once sync.Once
	do   func()
}

func (m *meddler) Put(ctx context.Context, key string, value []byte, rev int64) (int64, error) {
	if strings.HasPrefix(key, "workflows/") {
		m.once.Do(m.do)
	}
	return m.Store.Put(ctx, key, value, rev)
}

// A workflow never takes a machine whose disks were corrected between its plan and its begin: it would wipe those that the person just
// took out of the record.
func TestRecordChangesWhileAnOrderBegins(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		if err := <-r.cancel(); err != nil {
			t.Fatal(err)
		}
		r.stop()
		r.fate = &fate{Store: &meddler{Store: r.store, do: func() {
			if _, err := r.repo.SetMachine(t.Context(), "m1", fleet.Patch{DiskSerials: &[]string{"DISK0002"}}); err != nil {
				t.Error(err)
			}
		}}}
		r.start()
		if _, err := r.ex.Provision(t.Context(), r.order()); !errors.Is(err, executor.ErrBusy) || !contains(err.Error(), "changed its record") {
			t.Fatalf("got %v, want the order refused", err)
		}
		if m := r.show(); m.State != fleet.MachineCancelled {
			t.Errorf("got %s, want the machine left alone", r.describe())
		}
		wf, err := r.ex.Provision(t.Context(), r.order())
		if err != nil {
			t.Fatal(err)
		}
		run, _, err := r.repo.Run(t.Context(), wf)
		if err != nil || len(run.Disks) != 1 || run.Disks[0].Serial != "DISK0002" || run.Disks[0].Holds != fleet.HoldsUnknown || contains(run.Disks[0].Why, "never") {
			t.Errorf("got disks %+v (%v), want the corrected one, of which nothing is known", run.Disks, err)
		}
	})
}
