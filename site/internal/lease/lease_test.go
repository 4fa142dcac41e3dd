package lease_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"firstlight/site/internal/lease"
)

type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func setup(t *testing.T) (*lease.Table, *clock, string) {
	t.Helper()
	c := &clock{t: time.Date(2026, 9, 1, 10, 0, 0, 0, time.UTC)}
	path := filepath.Join(t.TempDir(), "leases.json")
	table, err := lease.Load(path, c.now)
	if err != nil {
		t.Fatal(err)
	}
	return table, c, path
}

func of(c *clock, id, node string, macs ...string) lease.Lease {
	return lease.Lease{ID: id, NodeID: node, WorkflowID: "wf-" + id, Machine: node, MACs: macs, Anchors: []byte{1, 2}, Expires: c.t.Add(time.Hour)}
}

var client = netip.MustParseAddr("10.77.0.100")

func TestLeaseOutlivesRestart(t *testing.T) {
	table, c, path := setup(t)
	if err := table.Prepare(of(c, "l1", "n1", "52:54:00:00:00:01")); err != nil {
		t.Fatal(err)
	}
	if err := table.Saw("l1", "52:54:00:00:00:01", "u-1"); err != nil {
		t.Fatal(err)
	}
	before, _ := table.ByMAC("52:54:00:00:00:01")
	if _, _, err := table.Admit(before.Token, client); err != nil {
		t.Fatal(err)
	}
	again, err := lease.Load(path, c.now)
	if err != nil {
		t.Fatal(err)
	}
	got, ok := again.ByToken(before.Token)
	if !ok || got.State != lease.Open || got.SystemUUID != "u-1" || !got.FirstScript.Equal(c.t) || got.Client != client || string(got.Anchors) != "\x01\x02" {
		t.Errorf("got %+v, %v, want the open lease with all that was noted", got, ok)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got mode %v, %v, want 0600", info.Mode(), err)
	}
}

func TestPrepareIsIdempotentAndSingleUse(t *testing.T) {
	table, c, _ := setup(t)
	l := of(c, "l1", "n1", "aa:bb:cc:00:00:01")
	for range 2 {
		if err := table.Prepare(l); err != nil {
			t.Fatal(err)
		}
	}
	first, _ := table.ByMAC("aa:bb:cc:00:00:01")
	other := l
	other.WorkflowID = "wf-2"
	if err := table.Prepare(other); err == nil {
		t.Error("same id with other content: got no error")
	}
	if err := table.Close("l1", lease.Consumed); err != nil {
		t.Fatal(err)
	}
	if err := table.Close("l1", lease.Cancelled); err != nil {
		t.Fatal(err)
	}
	if err := table.Prepare(l); !errors.Is(err, lease.ErrClosed) {
		t.Errorf("open a consumed lease again: got %v, want ErrClosed", err)
	}
	if got, _ := table.ByToken(first.Token); got.State != lease.Consumed {
		t.Errorf("got state %s, want consumed to be final", got.State)
	}
}

func TestOneOpenLeasePerMachine(t *testing.T) {
	table, c, _ := setup(t)
	must(t, table.Prepare(of(c, "l1", "n1", "aa:bb:cc:00:00:01")))
	if err := table.Prepare(of(c, "l2", "n2", "aa:bb:cc:00:00:01")); err == nil || !strings.Contains(err.Error(), "n1") {
		t.Errorf("another node's MAC: got %v, want an error that names the node", err)
	}
	first, _ := table.ByMAC("aa:bb:cc:00:00:01")
	c.t = c.t.Add(time.Second)
	must(t, table.Prepare(of(c, "l3", "n1", "aa:bb:cc:00:00:01", "aa:bb:cc:00:00:02")))
	if got, _ := table.ByToken(first.Token); got.State != lease.Cancelled {
		t.Errorf("older lease: got %s, want cancelled", got.State)
	}
	if got, _ := table.ByMAC("aa:bb:cc:00:00:01"); got.ID != "l3" || got.State != lease.Open {
		t.Errorf("got lease %s %s, want l3 open", got.ID, got.State)
	}
}

func TestScriptMayBeFetchedAgainForAWhile(t *testing.T) {
	for _, c := range []struct {
		name   string
		after  time.Duration
		end    lease.State
		reason string
	}{
		{"at once", 0, "", ""},
		{"within the time", lease.Refetch, "", ""},
		{"too late", lease.Refetch + 1, "", "first fetched at 2026-09-01T10:00:00Z"},
		{"consumed", time.Second, lease.Consumed, "used up at 2026-09-01T10:00:01Z"},
		{"cancelled", time.Second, lease.Cancelled, "cancelled"},
		{"expired", time.Hour, "", "ran out"},
	} {
		t.Run(c.name, func(t *testing.T) {
			table, clk, _ := setup(t)
			must(t, table.Prepare(of(clk, "l1", "n1", "aa:bb:cc:00:00:01")))
			l, _ := table.ByMAC("aa:bb:cc:00:00:01")
			if l.Serving() == nil {
				t.Error("files before the script: got served")
			}
			if _, ok, err := table.Admit(l.Token, client); !ok || err != nil {
				t.Fatalf("first fetch: got %v, %v", ok, err)
			}
			clk.t = clk.t.Add(c.after)
			if c.end != "" {
				must(t, table.Close("l1", c.end))
			}
			_, ok, err := table.Admit(l.Token, client)
			var r *lease.Refusal
			if !ok || (c.reason == "") != (err == nil) || err != nil && (!errors.As(err, &r) || !strings.Contains(r.Reason, c.reason)) {
				t.Errorf("second fetch: got %v, %v, want reason %q", ok, err, c.reason)
			}
		})
	}
}

func TestEndedLeasesAreForgotten(t *testing.T) {
	table, c, _ := setup(t)
	must(t, table.Prepare(of(c, "l1", "n1", "aa:bb:cc:00:00:01")))
	c.t = c.t.Add(time.Hour + lease.Keep)
	must(t, table.Prepare(of(c, "l2", "n2", "aa:bb:cc:00:00:02")))
	if got, ok := table.ByMAC("aa:bb:cc:00:00:01"); ok {
		t.Errorf("got %s lease, want it forgotten", got.State)
	}
	if err := table.Prepare(of(&clock{t: c.t.Add(-2 * time.Hour)}, "l3", "n3", "aa:bb:cc:00:00:03")); err == nil {
		t.Error("lease that has run out: got no error")
	}
	must(t, table.Close("unknown", lease.Consumed))
}

func TestUnreadableTableIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.json")
	must(t, os.WriteFile(path, []byte("{"), 0o600))
	if _, err := lease.Load(path, time.Now); err == nil {
		t.Error("got no error")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
