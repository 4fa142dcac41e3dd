package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
)

// gather watches until each of the kinds has been seen, in any order and with others between, and returns the first of each. What
// happened before the watch may still come after its begin.
func gather(t *testing.T, c *Client, from WatchFrom, begun func(), kinds ...func(Change) bool) []Change {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	enough := errors.New("enough")
	out, seen := make([]Change, len(kinds)), make([]bool, len(kinds))
	err := c.Watch(ctx, from, func(x Change) error {
		if x.Kind == ChangeBeat {
			if begun != nil {
				begun()
				begun = nil
			}
			return nil
		}
		for i, is := range kinds {
			if !seen[i] && is(x) {
				out[i], seen[i] = x, true
			}
		}
		if !slices.Contains(seen, false) {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Fatalf("got %v with %v of the changes seen", err, seen)
	}
	return out
}

func anything(Change) bool { return true }

func TestWatch(t *testing.T) {
	t.Parallel()
	l := ready(t)
	inside, _ := l.as(anna(auth.RoleViewer))
	for name, c := range map[string]*Client{"over the socket": l.client, "in the process": inside} {
		page, err := c.Page(t.Context(), Query{})
		if err != nil {
			t.Fatal(err)
		}
		place := "rack " + name
		got := gather(t, c, WatchFrom{}, func() {
			if _, err := l.client.SetMachine(t.Context(), "m1", SetMachine{Place: &place}); err != nil {
				t.Error(err)
			}
		}, func(x Change) bool { return x.Kind == ChangeMachine && x.Row != nil && x.Row.Place == place },
			func(x Change) bool { return x.Kind == ChangeEvent && x.Event.Kind == "machine.changed" })
		if got[0].Name != "m1" || got[0].ID <= page.Rev || got[1].Name != "m1" || got[1].ID <= page.Rev {
			t.Errorf("%s: got %+v, want m1's, after %d", name, got, page.Rev)
		}
		// Whoever comes back sees what he missed, or that he must read everything again.
		if again := gather(t, c, WatchFrom{After: page.Rev}, nil, anything); again[0].ID != page.Rev+1 {
			t.Errorf("%s: got %+v, want the change after %d", name, again, page.Rev)
		}
		if lost := gather(t, c, WatchFrom{After: 1}, nil, anything); lost[0].Kind != ChangeReset {
			t.Errorf("%s: got %+v, want a reset", name, lost)
		}
	}
	err := inside.Watch(t.Context(), WatchFrom{After: -1}, func(Change) error { return nil })
	if fault.Of(err, "", "").Kind != fault.Usage {
		t.Errorf("got %v, want an id that is none refused", err)
	}
	if gone := gather(t, inside, WatchFrom{Machine: "m1"}, func() {
		if _, err := l.client.RemoveMachine(t.Context(), "m1", ""); err != nil {
			t.Error(err)
		}
	}, func(x Change) bool { return x.Kind == ChangeGone }); gone[0].Name != "m1" {
		t.Errorf("got %+v, want it gone", gone)
	}
}

// A quiet stream says that it lives, and a stream ends with the server.
func TestWatchBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		repo := fleet.NewRepo(newStore())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		l := &lab{roster: startRoster(t, ctx, repo)}
		l.server = NewServer(ServerConfig{Fleet: repo, Roster: l.roster, Now: time.Now, Log: discard})
		c, _ := l.as(anna(auth.RoleViewer))
		begin, beats := time.Now(), 0
		enough := errors.New("enough")
		err := c.Watch(t.Context(), WatchFrom{}, func(x Change) error {
			if beats++; x.Kind != ChangeBeat {
				t.Errorf("got %+v, want a beat", x)
			}
			if beats == 4 {
				return enough
			}
			return nil
		})
		if !errors.Is(err, enough) || time.Since(begin) != 3*beatEvery {
			t.Errorf("got %v after %v, want four beats in %v", err, time.Since(begin), 3*beatEvery)
		}
		done := make(chan error, 1)
		go func() { done <- c.Watch(t.Context(), WatchFrom{}, func(Change) error { return nil }) }()
		synctest.Wait()
		l.server.Stop(t.Context())
		if err := <-done; fault.Of(err, "", "").Kind != fault.Unavailable {
			t.Errorf("got %v, want the stream to end with the server", err)
		}
		cancel()
		l.roster.Wait()
	})
}

func TestTimeline(t *testing.T) {
	t.Parallel()
	l := ready(t)
	repo := fleet.NewRepo(l.store)
	run := &fleet.Run{Workflow: fleet.Workflow{ID: "wf-1", State: fleet.WorkflowFailed, Steps: []fleet.Step{
		{Name: "dhcp", State: fleet.StepDone, Start: fleet.At(now.Add(time.Second)), End: fleet.At(now.Add(2 * time.Second))},
		{Name: "wipe", State: fleet.StepFailed, Why: "drive is frozen", Start: fleet.At(now.Add(3 * time.Second)), End: fleet.At(now.Add(4 * time.Second))}}}, Machine: "m1"}
	if _, err := repo.SaveRun(t.Context(), run, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := repo.Update(t.Context(), "m1", func(m *fleet.Record) error {
		m.Workflow = "wf-1"
		m.Alarm(now.Add(5*time.Second), "a second machine")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := repo.Emit(t.Context(), fleet.Event{Time: fleet.At(now.Add(2500 * time.Millisecond)), Machine: "m1", Source: "site-1", Kind: "boot.script.served", Message: "script served"}); err != nil {
		t.Fatal(err)
	}
	// What is said of its steps once more is left out, of an older workflow's it is all that is left.
	if err := repo.Emit(t.Context(), fleet.Event{Time: fleet.At(now.Add(2 * time.Second)), Machine: "m1", Source: "control", Kind: "workflow.step", Workflow: "wf-1", Message: "step dhcp is done"}); err != nil {
		t.Fatal(err)
	}
	var got []string
	before := ""
	for {
		p, err := l.client.Timeline(t.Context(), "m1", 2, before)
		if err != nil || len(p.Entries) > 2 {
			t.Fatalf("got %+v, %v", p, err)
		}
		for _, e := range p.Entries {
			got = append(got, e.Of+" "+e.Kind+" "+e.State+": "+e.Text)
		}
		if before = p.Before; before == "" {
			break
		}
	}
	want := []string{"alarm alarm : a second machine", "step wipe failed: step wipe failed: drive is frozen", "step wipe running: step wipe began",
		"event boot.script.served : script served", "step dhcp done: step dhcp is done", "step dhcp running: step dhcp began"}
	if len(got) != 7 || !slices.Equal(got[:6], want) || !strings.HasPrefix(got[6], "event machine.added") {
		t.Errorf("got %q, want %q and how it was added", got, want)
	}
}

func TestLog(t *testing.T) {
	t.Parallel()
	l := ready(t)
	repo := fleet.NewRepo(l.store)
	say := func(i int) {
		if err := repo.Emit(t.Context(), fleet.Event{Time: fleet.At(now), Machine: "m1", Source: "node-1", Kind: "agent.log", Message: fmt.Sprintf("line %d", i)}); err != nil {
			t.Error(err)
		}
	}
	for i := range 3 {
		say(i)
	}
	lines, err := l.client.Log(t.Context(), "m1", 2)
	if err != nil || len(lines) != 2 || lines[1].Text != "line 2" || lines[1].Source != "node-1" {
		t.Fatalf("got %+v, %v, want the last two lines of the agent and nothing of control", lines, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	enough := errors.New("enough")
	var got []string
	err = l.client.FollowLog(ctx, "m1", 2, func(line LogLine) error {
		if got = append(got, line.Text); len(got) == 2 {
			say(3)
		}
		if len(got) == 3 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || !slices.Equal(got, []string{"line 1", "line 2", "line 3"}) {
		t.Errorf("got %q, %v, want what was there and what came", got, err)
	}
	if err := l.client.FollowLog(t.Context(), "m9", 1, func(LogLine) error { return nil }); fault.Of(err, "", "").Kind != fault.NotFound {
		t.Errorf("got %v, want not found", err)
	}
}

// The client in the process sees what the one on the wire would: status, head and a body that breaks off.
func TestInProcess(t *testing.T) {
	t.Parallel()
	broken := InProcess(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { panic("oops") }))
	if _, err := broken.Images(t.Context()); fault.Of(err, "", "").Kind != fault.Internal && fault.Of(err, "", "").Kind != fault.Unavailable {
		t.Errorf("got %v, want words for a handler that broke", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stuck := InProcess(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { cancel(); <-r.Context().Done() }))
	if _, err := stuck.Images(ctx); err == nil {
		t.Error("got an answer from a handler that waits for its end")
	}
	empty := InProcess(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	if _, err := empty.Images(t.Context()); fault.Of(err, "", "").Kind != fault.Internal {
		t.Errorf("got %v, want that nothing was answered", err)
	}
}
