package lease_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
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
	if a, err := table.Boot(lease.Boot{MAC: "52:54:00:00:00:01", UUID: "u-1", Firmware: true}); err != nil || a.Verdict != lease.First {
		t.Fatalf("got %+v, %v, want the first-stage file", a, err)
	}
	before, _ := table.ByMAC("52:54:00:00:00:01")
	if _, _, err := table.Script(before.Token, client); err != nil {
		t.Fatal(err)
	}
	again, err := lease.Load(path, c.now)
	if err != nil {
		t.Fatal(err)
	}
	got, ok := again.ByToken(before.Token)
	if !ok || got.State != lease.Fetched || got.SystemUUID != "u-1" || !got.FirstScript.Equal(c.t) || got.Client != client || string(got.Anchors) != "\x01\x02" {
		t.Errorf("got %+v, %v, want the fetched lease with all that was noted", got, ok)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got mode %v, %v, want 0600", info.Mode(), err)
	}
}

func TestStepThatIsNotOnTheDiskDidNotHappen(t *testing.T) {
	table, c, path := setup(t)
	must(t, os.Mkdir(path, 0o700)) // a directory cannot be replaced by a file
	if err := table.Prepare(of(c, "l1", "n1", "52:54:00:00:00:01")); err == nil {
		t.Error("got no error")
	}
	if l, ok := table.ByMAC("52:54:00:00:00:01"); ok {
		t.Errorf("got %+v, want no lease", l)
	}
}

func TestDiscoveryIsWrittenWithItsScript(t *testing.T) {
	table, c, path := setup(t)
	must(t, table.SetPolicy(lease.Policy{Generation: 1, Discovery: true, Anchors: []byte{7}}))
	a, err := table.Boot(lease.Boot{MAC: "52:54:00:00:00:01", Firmware: true})
	if err != nil || a.Verdict != lease.First || !a.Lease.Discovery || string(a.Lease.Anchors) != "\x07" {
		t.Fatalf("got %+v, %v, want a discovery lease", a, err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("got a file after a request alone, want none")
	}
	_, _, err = table.Script(a.Lease.Token, client)
	must(t, err)
	again, err := lease.Load(path, c.now)
	must(t, err)
	if l, ok := again.ByToken(a.Lease.Token); !ok || !l.Discovery || l.State != lease.Fetched {
		t.Errorf("got %+v, %v, want the discovery lease again", l, ok)
	}
}

func TestDiscoveriesAreBounded(t *testing.T) {
	table, c, _ := setup(t)
	must(t, table.SetPolicy(lease.Policy{Generation: 1, Discovery: true}))
	var first lease.Lease
	for i := range lease.MaxDiscoveries + 100 {
		c.t = c.t.Add(time.Millisecond)
		a, err := table.Boot(lease.Boot{MAC: fmt.Sprintf("52:54:00:00:%02x:%02x", i>>8, i&255), Firmware: true})
		if err != nil || a.Verdict != lease.First {
			t.Fatalf("machine %d: got %+v, %v", i, a, err)
		}
		if i == 0 {
			first = a.Lease
			_, _, err := table.Script(first.Token, client)
			must(t, err)
		}
	}
	if _, ok := table.ByToken(first.Token); !ok {
		t.Error("got the fetched lease pushed out, want it kept")
	}
	if _, ok := table.ByMAC("52:54:00:00:00:01"); ok {
		t.Error("got the oldest that fetched nothing, want it pushed out")
	}
}

func TestIPXE04_MACSpellings(t *testing.T) {
	for _, s := range []string{"52-54-00-77-aa-03", "52:54:00:77:AA:03", "52540077aa03", "5254.0077.aa03"} {
		if got, err := lease.ParseMAC(s); err != nil || got != "52:54:00:77:aa:03" {
			t.Errorf("%s: got %q, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "52540077aa", "52:54:00:77:aa:03:04:05", "not a mac", "52540077aa0g"} {
		if got, err := lease.ParseMAC(s); err == nil {
			t.Errorf("%q: got %q, want an error", s, got)
		}
	}
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
