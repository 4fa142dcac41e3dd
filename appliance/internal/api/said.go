package api

import (
	"context"
	"slices"

	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/machinelog"
)

// Logs keeps what machines' own agents say: machinelog.Logs. A machine that never said anything has no lines.
type Logs interface {
	Tail(node string, n int) ([]machinelog.Line, error)
	Follow(ctx context.Context, node string, n int) ([]machinelog.Line, <-chan machinelog.Line, error)
}

// KindSaid is the kind of a LogLine that is no event, but a line that the machine's agent said. Its Seq counts these lines alone.
const KindSaid = "said"

func saidLine(l machinelog.Line) LogLine {
	return LogLine{Seq: l.Seq, Time: fleet.At(l.Time), Source: l.Source, Kind: KindSaid, Text: l.Text, Fields: map[string]string{}}
}

// withSaid adds to the lines of a machine's log what its agent said, by time. Lines keep the order in which they were said: a machine's
// clock may be ahead until it is set, and then its first lines move before the next one.
func (s *Server) withSaid(op, name, node string, lines []LogLine, limit int) ([]LogLine, error) {
	if s.cfg.Logs == nil || node == "" {
		return lines, nil
	}
	said, err := s.cfg.Logs.Tail(node, limit)
	if err != nil {
		return nil, fault.Of(err, op, name)
	}
	spoken := make([]LogLine, len(said))
	for i := len(said) - 1; i >= 0; i-- {
		spoken[i] = saidLine(said[i])
		if i+1 < len(said) && spoken[i].Time.After(spoken[i+1].Time.Time) {
			spoken[i].Time = spoken[i+1].Time
		}
	}
	lines = append(lines, spoken...)
	slices.SortStableFunc(lines, func(a, b LogLine) int { return a.Time.Compare(b.Time.Time) })
	return lines, nil
}

// followSaid sends what a machine's agent says from now on; a nil channel where nobody keeps that.
func (s *Server) followSaid(ctx context.Context, op, name string) (<-chan machinelog.Line, error) {
	if s.cfg.Logs == nil {
		return nil, nil
	}
	m, err := s.show(ctx, op, name)
	if err != nil {
		return nil, err
	}
	_, lines, err := s.cfg.Logs.Follow(ctx, m.NodeID, 0)
	if err != nil {
		return nil, fault.New(fault.Unavailable, op, name, err, "wait for others to end and try again")
	}
	return lines, nil
}
