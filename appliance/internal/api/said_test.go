package api

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/machinelog"
)

// The log of a machine is what its agents reported and what they said, in the order of their times, and goes on with both.
func TestLogHasWhatAgentsSaid(t *testing.T) {
	t.Parallel()
	logs, err := machinelog.Open(t.TempDir(), func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { logs.Close() })
	l := ready(t, func(l *lab) { l.config.Logs = logs })
	repo := fleet.NewRepo(l.store)
	m, err := repo.Machine(t.Context(), "m1")
	if err != nil {
		t.Fatal(err)
	}
	emit := func(at time.Time, text string) {
		if err := repo.Emit(t.Context(), fleet.Event{Time: fleet.At(at), Machine: "m1", Source: "site-agent", Kind: "boot.tftp.served", Message: text}); err != nil {
			t.Error(err)
		}
	}
	say := func(at time.Time, text string) {
		if err := logs.Append(m.NodeID, "ramdisk", 0, []machinelog.Line{{Time: at, Text: text}}); err != nil {
			t.Error(err)
		}
	}
	say(now.Add(time.Hour), "said by a wrong clock")
	say(now.Add(2*time.Second), "said first")
	emit(now.Add(time.Second), "event first")
	emit(now.Add(3*time.Second), "event second")
	if err := logs.Append("another", "ramdisk", 0, []machinelog.Line{{Text: "another's"}}); err != nil {
		t.Fatal(err)
	}
	lines, err := l.client.Log(t.Context(), "m1", 10)
	if err != nil || len(lines) != 4 || lines[1].Text != "said by a wrong clock" || lines[2].Text != "said first" || lines[2].Kind != KindSaid || lines[2].Source != "ramdisk" {
		t.Fatalf("got %+v, %v, want four lines, the agent's between the events in the order in which it said them", lines, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	enough := errors.New("enough")
	var got []string
	err = l.client.FollowLog(ctx, "m1", 2, func(line LogLine) error {
		switch got = append(got, line.Text); len(got) {
		case 2:
			say(now, "said second")
		case 3:
			emit(now, "event third")
		case 4:
			return enough
		}
		return nil
	})
	if want := []string{"said first", "event second", "said second", "event third"}; !errors.Is(err, enough) || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}
