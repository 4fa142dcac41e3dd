package pid1

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
)

// script is a Process whose children end as told.
type script struct {
	starts int
	ends   []struct {
		orphan bool
		how    string
	}
	fail error
}

func (s *script) Start() (int, error) {
	s.starts++
	return 100 + s.starts, s.fail
}

func (s *script) Wait() (int, string, error) {
	if len(s.ends) == 0 {
		return 100 + s.starts, "exit status 2", nil
	}
	e := s.ends[0]
	s.ends = s.ends[1:]
	if e.orphan {
		return 7, e.how, nil
	}
	return 100 + s.starts, e.how, nil
}

func TestAgentIsStartedAgainAndOrphansAreReaped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &script{}
		p.ends = append(p.ends, struct {
			orphan bool
			how    string
		}{true, "exit status 0"}, struct {
			orphan bool
			how    string
		}{false, "killed by aborted"})
		var said []string
		err := Supervise(context.Background(), p, func(f string, a ...any) { said = append(said, f) })
		if err == nil || !strings.Contains(err.Error(), "exit status 2") {
			t.Errorf("got %v, want the last end named", err)
		}
		if p.starts != MaxRestarts+1 || len(said) != MaxRestarts || len(p.ends) != 0 {
			t.Errorf("%d starts, %d lines, want %d and %d", p.starts, len(said), MaxRestarts+1, MaxRestarts)
		}
	})
}

func TestSuperviseEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		err := Supervise(ctx, &script{fail: errors.New("no memory")}, func(string, ...any) { cancel() })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
	})
}
