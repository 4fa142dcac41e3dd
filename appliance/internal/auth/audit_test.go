package auth

import (
	"fmt"
	"strings"
	"testing"
)

func TestAudit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	if all, err := r.Entries(ctx, 0, 10); err != nil || len(all) != 0 {
		t.Errorf("got %v, %v, want none", all, err)
	}
	for i := range 5 {
		if err := r.Record(ctx, Entry{Who: "anna", Role: RoleAdmin, What: "provision", Object: fmt.Sprintf("machine m%d", i), Outcome: Done}); err != nil {
			t.Fatal(err)
		}
	}
	other := r.restart(t, cheap)
	page, err := other.Entries(ctx, 0, 2)
	if err != nil || len(page) != 2 || page[0].Object != "machine m4" || page[1].Seq != 4 || !page[0].Time.Equal(r.clock.time()) {
		t.Fatalf("got %+v, %v, want the newest two", page, err)
	}
	page, err = other.Entries(ctx, page[1].Seq, 100)
	if err != nil || len(page) != 3 || page[0].Seq != 3 || page[2].Object != "machine m0" {
		t.Errorf("got %+v, %v, want the rest", page, err)
	}
	// Two appliances on one store overwrite nothing.
	for _, a := range []*Accounts{other, r.Accounts, other, r.Accounts} {
		if err := a.Record(ctx, Entry{Who: "anna", What: "x", Outcome: Done}); err != nil {
			t.Fatal(err)
		}
	}
	if page, err = r.Entries(ctx, 0, 100); err != nil || len(page) != 9 || page[0].Seq != 9 {
		t.Errorf("got %d entries, %v, want 9", len(page), err)
	}
}

func TestAuditIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	r.ring.loaded, r.ring.first, r.ring.next = true, 1, 1
	for range MaxAudit + 3 {
		if err := r.Record(ctx, Entry{What: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	left, err := r.store.List(ctx, auditPrefix)
	if err != nil || len(left) != MaxAudit || left[0].Key != auditKey(4) {
		t.Errorf("got %d entries, %v, want %d from the fourth on", len(left), err, MaxAudit)
	}
	if page, err := r.Entries(ctx, 0, 1<<20); err != nil || len(page) != MaxAuditPage {
		t.Errorf("got a page of %d, %v, want %d", len(page), err, MaxAuditPage)
	}
	if page, err := r.restart(t, cheap).Entries(ctx, 6, 10); err != nil || len(page) != 2 || page[1].Seq != 4 {
		t.Errorf("got %v, %v, want the two oldest", page, err)
	}
}

// What comes from outside is bounded, and cannot make lines.
func TestAuditTextIsClipped(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	long := strings.Repeat("é", maxAuditText) + "\x1b[2J\n"
	if err := r.Record(t.Context(), Entry{Who: "an\nna", What: long, Object: long, Detail: long, From: "\x00"}); err != nil {
		t.Fatal(err)
	}
	e := r.newest(t)
	if e.Who != "an na" || len(e.What) != maxAuditText || len(e.Object) != maxAuditText || len(e.Detail) != maxAuditText || e.From != " " {
		t.Errorf("got %+v", e)
	}
}

// Whoever is refused again and again does not push out what was done.
func TestRefusalsDoNotFillTheAuditLog(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	denied := func(who string) {
		t.Helper()
		if err := r.Record(ctx, Entry{Who: who, What: "addMachine", Outcome: Denied, Detail: "no token"}); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 * perDenied.burst {
		denied(Nobody)
	}
	denied("anna")
	if err := r.Record(ctx, Entry{Who: "anna", What: "provision", Outcome: Done}); err != nil {
		t.Fatal(err)
	}
	all, err := r.Entries(ctx, 0, MaxAuditPage)
	if err != nil || len(all) != perDenied.burst+2 || all[0].What != "provision" || all[1].Who != "anna" {
		t.Errorf("got %d entries, %v, want %d, and anna's", len(all), err, perDenied.burst+2)
	}
	r.clock.pass(perDenied.every)
	denied(Nobody)
	if e, want := r.newest(t), fmt.Sprintf("%d refusals before this one were not written; no token", 9*perDenied.burst); e.Detail != want {
		t.Errorf("got %q, want %q", e.Detail, want)
	}
	for range 2 * perDenied.burst {
		if err := r.Record(ctx, Entry{Who: "anna", What: "provision", Outcome: Done}); err != nil {
			t.Fatal(err)
		}
	}
	if all, err = r.Entries(ctx, 0, MaxAuditPage); err != nil || len(all) != 3*perDenied.burst+3 {
		t.Errorf("got %d entries, %v: what was done is always written", len(all), err)
	}
}
