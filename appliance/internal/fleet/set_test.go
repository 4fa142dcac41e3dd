package fleet_test

import (
	"errors"
	"strings"
	"testing"

	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/store/storetest"
)

func ptr[T any](v T) *T { return &v }

func TestSetMachine(t *testing.T) {
	r := fleet.NewRepo(storetest.New())
	if _, err := r.AddMachine(t.Context(), spec(1), now); err != nil {
		t.Fatal(err)
	}
	if _, err := r.AddMachine(t.Context(), spec(2), now); err != nil {
		t.Fatal(err)
	}
	rec, err := r.SetMachine(t.Context(), "m1", fleet.Patch{Place: ptr("rack 4 unit 12"), DiskSerials: &[]string{"S9"}})
	if err != nil || rec.Place != "rack 4 unit 12" || rec.DiskSerials[0] != "S9" || len(rec.MACs) == 0 {
		t.Errorf("got %+v, %v, want place and disk changed and the rest as it was", rec, err)
	}
	if _, err := r.SetMachine(t.Context(), "m1", fleet.Patch{DiskSerials: &[]string{"DISK0002"}}); !errors.Is(err, fleet.ErrTaken) {
		t.Errorf("another machine's disk: got %v, want fleet.ErrTaken", err)
	}
	for name, p := range map[string]fleet.Patch{"no MACs": {MACs: &[]string{}}, "no MAC": {MACs: &[]string{"x"}}, "/dev name": {DiskSerials: &[]string{"/dev/sda"}},
		"two lines": {Place: ptr("a\nb")}, "http": {BMCURL: ptr("http://x"), BMCPassword: fleet.Secret("new")},
		"a disk twice": {DiskSerials: &[]string{"S9", "S8", "S9"}}} {
		if _, err := r.SetMachine(t.Context(), "m1", p); err == nil {
			t.Errorf("%s: want it refused", name)
		}
	}
	if _, err := r.SetMachine(t.Context(), "m9", fleet.Patch{}); !errors.Is(err, fleet.ErrUnknown) {
		t.Errorf("got %v, want fleet.ErrUnknown", err)
	}
	if _, err := r.SetMachine(t.Context(), "m1", fleet.Patch{BMCPassword: fleet.Secret("new")}); err != nil {
		t.Fatal(err)
	}
	if p, err := r.BMCPassword(t.Context(), "m1"); err != nil || string(p) != "new" {
		t.Errorf("got %d bytes, %v, want the new password", len(p), err)
	}
}

// The password of a controller goes where it was given for, and nowhere else: who may change the address may not read it.
func TestPasswordStaysWithItsController(t *testing.T) {
	r := fleet.NewRepo(storetest.New())
	if _, err := r.AddMachine(t.Context(), spec(1), now); err != nil {
		t.Fatal(err)
	}
	if _, err := r.SetMachine(t.Context(), "m1", fleet.Patch{BMCURL: ptr("https://10.66.6.6")}); err == nil || !strings.Contains(err.Error(), "give it again") {
		t.Errorf("got %v, want that the password is to be given again", err)
	}
	rec, err := r.Machine(t.Context(), "m1")
	if err != nil || rec.BMC.URL != "https://10.78.0.1" {
		t.Errorf("got %+v, %v, want the address as it was", rec.BMC, err)
	}
	if _, err := r.SetMachine(t.Context(), "m1", fleet.Patch{BMCURL: ptr("https://10.78.0.1"), BMCUser: ptr("root")}); err != nil {
		t.Errorf("the same address: %v", err)
	}
	rec, err = r.SetMachine(t.Context(), "m1", fleet.Patch{BMCURL: ptr("https://10.78.0.9"), BMCPassword: fleet.Secret("new")})
	if err != nil || rec.BMC.URL != "https://10.78.0.9" {
		t.Errorf("got %+v, %v, want the new address with its password", rec.BMC, err)
	}
}

// What a workflow works with stays while it is open; where people find the machine may change.
func TestOpenWorkflowHoldsItsMachine(t *testing.T) {
	r := fleet.NewRepo(storetest.New())
	if _, err := r.AddMachine(t.Context(), spec(1), now); err != nil {
		t.Fatal(err)
	}
	run := &fleet.Run{Workflow: fleet.Workflow{ID: "wf-1", State: fleet.WorkflowRunning}, Machine: "m1"}
	rev, err := r.SaveRun(t.Context(), run, 0)
	if err != nil {
		t.Fatal(err)
	}
	rec, err := r.Update(t.Context(), "m1", func(m *fleet.Record) error { m.Workflow = "wf-1"; return nil })
	if err != nil {
		t.Fatal(err)
	}
	run.NodeID = rec.NodeID
	if _, err := r.SetMachine(t.Context(), "m1", fleet.Patch{DiskSerials: &[]string{"S9"}}); !errors.Is(err, fleet.ErrOpen) {
		t.Errorf("disks: got %v, want fleet.ErrOpen", err)
	}
	if _, err := r.SetMachine(t.Context(), "m1", fleet.Patch{Place: ptr("rack 1")}); err != nil {
		t.Errorf("place: %v", err)
	}
	if _, err := r.RemoveMachine(t.Context(), "m1"); !errors.Is(err, fleet.ErrOpen) {
		t.Errorf("remove: got %v, want fleet.ErrOpen", err)
	}
	run.State = fleet.WorkflowFailed
	if rev, err = r.SaveRun(t.Context(), run, rev); err != nil {
		t.Fatal(err)
	}
	if _, err := r.RemoveMachine(t.Context(), "m1"); !errors.Is(err, fleet.ErrOpen) {
		t.Errorf("remove while the site is told: got %v, want fleet.ErrOpen", err)
	}
	run.Closed = true
	if _, err = r.SaveRun(t.Context(), run, rev); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Protect(t.Context(), "m1", "anna", "", now); err != nil {
		t.Fatal(err)
	}
	if _, err := r.RemoveMachine(t.Context(), "m1"); !errors.Is(err, fleet.ErrProtected) {
		t.Errorf("remove: got %v, want fleet.ErrProtected", err)
	}
	if _, err := r.Unprotect(t.Context(), "m1"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.RemoveMachine(t.Context(), "m1"); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"record":   func() error { _, err := r.Machine(t.Context(), "m1"); return err }(),
		"password": func() error { _, err := r.BMCPassword(t.Context(), "m1"); return err }(),
		"workflow": func() error { _, _, err := r.Run(t.Context(), "wf-1"); return err }(),
	} {
		if !errors.Is(err, fleet.ErrUnknown) {
			t.Errorf("%s: got %v, want nothing left", name, err)
		}
	}
}

func TestAdopt(t *testing.T) {
	r := fleet.NewRepo(storetest.New())
	if _, err := r.AddMachine(t.Context(), spec(1), now); err != nil {
		t.Fatal(err)
	}
	rec, err := r.Adopt(t.Context(), "m1", "anna", "customer data", now)
	if err != nil || !rec.Adopted || rec.Protected == nil || rec.Protected.By != "anna" {
		t.Errorf("got %+v, %v, want it adopted and protected by anna", rec, err)
	}
	if _, err := r.Update(t.Context(), "m1", func(m *fleet.Record) error { m.Workflow = "wf-1"; return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Adopt(t.Context(), "m1", "anna", "", now); err == nil {
		t.Error("a machine that this appliance installed was adopted")
	}
}
