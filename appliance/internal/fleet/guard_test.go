package fleet_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/store/storetest"
)

const twinUUID = "03000200-0400-0500-0006-000700080009"

// Two machines with one UUID are two machines, both flagged; two with one MAC are refused.
func TestINV02_TwoMachinesWithOneUUID(t *testing.T) {
	t.Parallel()
	r, now := fleet.NewRepo(storetest.New()), time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for i := 1; i <= 2; i++ {
		s := spec(i)
		s.UUID = twinUUID
		if _, err := r.AddMachine(t.Context(), s, now); err != nil {
			t.Fatal(err)
		}
	}
	for name, other := range map[string]string{"m1": "m2", "m2": "m1"} {
		m, err := r.Show(t.Context(), name)
		if err != nil || len(m.Alarms) != 1 || !strings.Contains(m.Alarms[0].Text, "UUID not unique: machine "+other) {
			t.Errorf("got %s with alarms %+v (%v), want one that names %s", name, m.Alarms, err, other)
		}
	}
	all, err := r.Events(t.Context(), "", 0)
	if err != nil || len(all) != 2 || all[0].Kind != "machine.uuid-not-unique" {
		t.Errorf("got events %+v (%v), want one for each", all, err)
	}
	rec, err := r.Machine(t.Context(), "m1")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.FlagUUID(t.Context(), &rec, strings.ToUpper(twinUUID), now.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if all, _ := r.Events(t.Context(), "", 0); len(all) < 2 {
		t.Errorf("got %d events, want at least the first two", len(all))
	}
	s := spec(3)
	s.MACs = spec(1).MACs
	if _, err := r.AddMachine(t.Context(), s, now); !errors.Is(err, fleet.ErrTaken) || !strings.Contains(err.Error(), `machine "m1" already has MAC`) {
		t.Errorf("got %v, want the MAC refused as taken by m1", err)
	}
}

func TestAdoptAndProtect(t *testing.T) {
	t.Parallel()
	r, now := fleet.NewRepo(storetest.New()), time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	s := fleet.Spec{Name: "db", MACs: []string{"52:54:00:00:00:01"}, Adopt: true, By: "uid 0"}
	if _, err := r.AddMachine(t.Context(), s, now); err != nil {
		t.Fatal(err)
	}
	m, err := r.Show(t.Context(), "db")
	if err != nil || m.State != fleet.MachineAdopted || m.Protected == nil || m.Protected.By != "uid 0" {
		t.Fatalf("got %+v (%v), want an adopted, protected machine", m, err)
	}
	if _, err := r.Unprotect(t.Context(), "db"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Unprotect(t.Context(), "db"); !errors.Is(err, fleet.ErrNotProtected) {
		t.Errorf("got %v, want that it is not protected", err)
	}
	for _, by := range []string{"first", "second"} {
		if _, err := r.Protect(t.Context(), "db", by, "x", now); err != nil {
			t.Fatal(err)
		}
	}
	if rec, _ := r.Machine(t.Context(), "db"); rec.Protected == nil || rec.Protected.By != "first" {
		t.Errorf("got %v, want the first mark to stay", rec.Protected)
	}
	s = fleet.Spec{Name: "half", MACs: []string{"52:54:00:00:00:02"}, Adopt: true, BMCURL: "https://10.0.0.1"}
	if _, err := r.AddMachine(t.Context(), s, now); err == nil {
		t.Error("got no error for half a controller, want one")
	}
}
