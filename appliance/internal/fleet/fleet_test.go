package fleet_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/store/storetest"
)

var now = time.Date(2026, 11, 30, 12, 0, 0, 123_456_789, time.FixedZone("x", 3600))

func spec(i int) fleet.Spec {
	return fleet.Spec{Name: fmt.Sprintf("m%d", i), MACs: []string{fmt.Sprintf("52-54-00-00-00-%02X", i+10)}, UUID: "",
		DiskSerials: []string{fmt.Sprintf("DISK%04d", i)}, BMCURL: "https://10.78.0.1", BMCUser: "admin", BMCPassword: fleet.Secret("pw"),
		BMCCertificateSHA256: make([]byte, 32)}
}

func TestTimeJSON(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   fleet.Time
		want string
	}{
		{fleet.At(now), `"2026-11-30T11:00:00.123Z"`},
		{fleet.At(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), `"2026-01-02T03:04:05.000Z"`},
		{fleet.Time{}, `null`},
	} {
		b, err := json.Marshal(c.in)
		if err != nil || string(b) != c.want {
			t.Errorf("got %s (%v), want %s", b, err, c.want)
		}
		var back fleet.Time
		if err := json.Unmarshal(b, &back); err != nil || !back.Equal(c.in.Time) {
			t.Errorf("got %s back (%v), want %s", back, err, c.in)
		}
	}
}

func TestAddMachine(t *testing.T) {
	t.Parallel()
	r := fleet.NewRepo(storetest.New())
	m, err := r.AddMachine(t.Context(), spec(1), now)
	if err != nil {
		t.Fatal(err)
	}
	if m.MACs[0] != "52:54:00:00:00:0b" || !strings.HasPrefix(m.NodeID, "node-") {
		t.Errorf("got MAC %q and node %q, want the lower-case colon form and a node id", m.MACs[0], m.NodeID)
	}
	if p, err := r.BMCPassword(t.Context(), "m1"); err != nil || string(p) != "pw" {
		t.Errorf("got %v, want the password kept", err)
	}
	if got, err := r.ByNode(t.Context(), m.NodeID); err != nil || got.Name != "m1" {
		t.Errorf("got %q (%v) by node, want m1", got.Name, err)
	}
	if got, err := r.ByMAC(t.Context(), []string{"aa:aa:aa:aa:aa:aa", "52:54:00:00:00:0b"}); err != nil || got.Name != "m1" {
		t.Errorf("got %q (%v) by MAC, want m1", got.Name, err)
	}
	if _, err := r.ByMAC(t.Context(), nil); !errors.Is(err, fleet.ErrUnknown) {
		t.Errorf("got %v for no MAC, want ErrUnknown", err)
	}
}

func TestAddMachineRefusals(t *testing.T) {
	t.Parallel()
	r := fleet.NewRepo(storetest.New())
	first := spec(1)
	first.UUID = "F47AC10B-58CC-4372-A567-0E02B2C3D479"
	if _, err := r.AddMachine(t.Context(), first, now); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*fleet.Spec){
		`machine "m1" already has this name`: func(s *fleet.Spec) { s.Name = "m1" },
		`already has MAC 52:54:00:00:00:0b`:  func(s *fleet.Spec) { s.MACs = []string{"52:54:00:00:00:0B"} },
		`already has disk serial DISK0001`:   func(s *fleet.Spec) { s.DiskSerials = []string{"DISK0001"} },
		`want a name of 1 to`:                func(s *fleet.Spec) { s.Name = "Not/a name" },
		`is not a MAC of 6 bytes`:            func(s *fleet.Spec) { s.MACs = []string{"00:00:5e:00:53:01:02:03"} },
		`want 1 to 16 MACs`:                  func(s *fleet.Spec) { s.MACs = nil },
		`never by /dev name`:                 func(s *fleet.Spec) { s.DiskSerials = nil },
		`"/dev/sda" is not a disk's serial`:  func(s *fleet.Spec) { s.DiskSerials = []string{"/dev/sda"} },
		`want https://HOST without a user`:   func(s *fleet.Spec) { s.BMCURL = "http://10.0.0.1" },
		`without a user, got`:                func(s *fleet.Spec) { s.BMCURL = "https://a:b@10.0.0.1" },
		`password of 1 to`:                   func(s *fleet.Spec) { s.BMCPassword = nil },
		`certificate digest: want 32`:        func(s *fleet.Spec) { s.BMCCertificateSHA256 = []byte{1} },
		`uuid "zzz"`:                         func(s *fleet.Spec) { s.UUID = "zzz" },
	} {
		s := spec(2)
		spoil(&s)
		_, err := r.AddMachine(t.Context(), s, now)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error that says %q", err, want)
		}
		if err != nil && strings.Contains(err.Error(), "pw") {
			t.Errorf("got the password in %q", err)
		}
	}
}

func TestSecretDoesNotPrint(t *testing.T) {
	t.Parallel()
	s := spec(1)
	s.BMCPassword = fleet.Secret("hunter2")
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{fmt.Sprint(s), fmt.Sprintf("%+v %#v %s %v %x", s, s, s.BMCPassword, s.BMCPassword, s.BMCPassword), string(b)} {
		if strings.Contains(out, "hunter2") || strings.Contains(out, "68756e74657232") {
			t.Errorf("got the secret in %q", out)
		}
	}
}

// The shown JSON has these keys and no others: programs depend on it.
func TestShownKeys(t *testing.T) {
	t.Parallel()
	rec := fleet.Record{Name: "m1", NodeID: "node-1"}
	run := &fleet.Run{Workflow: fleet.Workflow{ID: "wf-1", State: fleet.WorkflowRunning, Steps: []fleet.Step{{Name: "power-on", State: fleet.StepRunning,
		Waiting: &fleet.Waiting{For: "x"}, Commands: []fleet.Command{{ID: "c", Progress: &fleet.Progress{}}}}}}}
	b, err := json.Marshal(fleet.View(&rec, run))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"name":"m1","node_id":"node-1","state":"provisioning","macs":[],"uuid":"","disk_serials":[],"bmc":{"url":"","user":""},"firmware":"","place":"","added":null,"image":"",` +
		`"waiting":{"for":"x","since":null,"until":null,"next":""},"failure":null,"cancel":null,"protected":null,"disk_state":[],"node_key_id":"","connected":null,"hardware":null,` +
		`"workflow":{"id":"wf-1","generation":0,"image":"","manifest_sha256":"","state":"running","pause_after":[],"started":null,"ended":null,` +
		`"steps":[{"name":"power-on","state":"running","why":"","start":null,"end":null,"waiting":{"for":"x","since":null,"until":null,"next":""},` +
		`"commands":[{"id":"c","kind":"","key_id":"","issued":null,"ended":null,"state":"","message":"","attested":false,` +
		`"progress":{"what":"","done":0,"total":0,"unit":""}}]}],"trace":"c62fc074d413de11df412abf904d3272"},"workflows":0,"alarms":[]}`
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
	if got := fleet.View(&rec, nil); got.State != fleet.MachineNew || got.Workflow != nil {
		t.Errorf("got %s with workflow %v, want new without", got.State, got.Workflow)
	}
}

func TestUpdateUnderContention(t *testing.T) {
	t.Parallel()
	r := fleet.NewRepo(storetest.New())
	if _, err := r.AddMachine(t.Context(), spec(1), now); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := r.Update(context.Background(), "m1", func(m *fleet.Record) error { m.Workflows++; return nil }); err != nil {
				t.Errorf("update: %v", err)
			}
		})
	}
	wg.Wait()
	if m, err := r.Machine(t.Context(), "m1"); err != nil || m.Workflows != 8 {
		t.Errorf("got %d (%v), want every one of 8 changes", m.Workflows, err)
	}
	stop := errors.New("stop")
	if _, err := r.Update(t.Context(), "m1", func(m *fleet.Record) error { m.Workflows = 99; return stop }); !errors.Is(err, stop) {
		t.Errorf("got %v, want the change's own error", err)
	}
	if m, _ := r.Machine(t.Context(), "m1"); m.Workflows != 8 {
		t.Errorf("got %d after a refused change, want 8", m.Workflows)
	}
	if _, err := r.Update(t.Context(), "none", func(*fleet.Record) error { return nil }); !errors.Is(err, fleet.ErrUnknown) {
		t.Errorf("got %v, want ErrUnknown", err)
	}
}

func TestEventRing(t *testing.T) {
	t.Parallel()
	s := storetest.New()
	r := fleet.NewRepo(s)
	for i := range fleet.MaxEvents + 10 {
		if err := r.Emit(t.Context(), fleet.Event{Machine: fmt.Sprintf("m%d", i%2), Kind: "k", Fields: map[string]string{"n": fmt.Sprint(i)}}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := r.Events(t.Context(), "", 0)
	if err != nil || len(all) != fleet.MaxEvents || all[0].Seq != 11 || all[0].Fields["n"] != "10" {
		t.Fatalf("got %d events from seq %d (%v), want %d from 11", len(all), all[0].Seq, err, fleet.MaxEvents)
	}
	one, err := r.Events(t.Context(), "m1", 3)
	if err != nil || len(one) != 3 || one[2].Seq != fleet.MaxEvents+10 {
		t.Errorf("got %v (%v), want the newest 3 of m1", one, err)
	}
	// Another process goes on counting where this one stopped.
	if err := fleet.NewRepo(s).Emit(t.Context(), fleet.Event{Kind: "later"}); err != nil {
		t.Fatal(err)
	}
	last, err := r.Events(t.Context(), "", 1)
	if err != nil || last[0].Seq != fleet.MaxEvents+11 || last[0].Kind != "later" {
		t.Errorf("got %+v (%v), want the next number", last, err)
	}
}

func TestAlarmsAreBounded(t *testing.T) {
	t.Parallel()
	var m fleet.Record
	m.Alarm(now, "same")
	m.Alarm(now.Add(time.Minute), "same")
	if len(m.Alarms) != 1 {
		t.Errorf("got %d alarms for one cause, want 1", len(m.Alarms))
	}
	for i := range 100 {
		m.Alarm(now, fmt.Sprint(i))
		m.Revoke(fmt.Sprint(i))
	}
	if len(m.Alarms) != fleet.MaxAlarms || m.Alarms[fleet.MaxAlarms-1].Text != "99" || len(m.RevokedKeys) != fleet.MaxRevoked {
		t.Errorf("got %d alarms and %d keys, want the newest %d and %d", len(m.Alarms), len(m.RevokedKeys), fleet.MaxAlarms, fleet.MaxRevoked)
	}
}

func TestClip(t *testing.T) {
	t.Parallel()
	if got := fleet.Clip("a\nb\x1b[31m\u009b\xff"); strings.ContainsAny(got, "\n\x1b\u009b") || !utf8.ValidString(got) {
		t.Errorf("got %q, want no control characters and valid UTF-8", got)
	}
	if got := fleet.Clip(strings.Repeat("ä", fleet.MaxText)); len(got) != fleet.MaxText {
		t.Errorf("got %d bytes, want %d", len(got), fleet.MaxText)
	}
}

func TestCommandStatesOnlyGoForward(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, to fleet.CommandState
		want     bool
	}{
		{fleet.CommandPending, fleet.CommandSucceeded, true},
		{fleet.CommandSent, fleet.CommandAcked, true},
		{fleet.CommandRunning, fleet.CommandRunning, true},
		{fleet.CommandRunning, fleet.CommandAcked, false},
		{fleet.CommandFailed, fleet.CommandSucceeded, false},
		{fleet.CommandSucceeded, fleet.CommandSucceeded, false},
	} {
		if got := c.from.Before(c.to); got != c.want {
			t.Errorf("%s to %s: got %t, want %t", c.from, c.to, got, c.want)
		}
	}
}
