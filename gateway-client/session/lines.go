package session

import (
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
)

// Lines is what an agent says to people, on its way to the gateway: at most MaxLines, the oldest of which go first and are counted.
// It outlives sessions, so what was said before the first is sent with it. The zero value is empty; all methods may be called from
// many goroutines and never wait.
type Lines struct {
	mu      sync.Mutex
	waiting []*agentv1.LogLine
	dropped uint64
}

// Add queues one line. Longer than MaxLineBytes, it is cut.
func (l *Lines) Add(now time.Time, text string) {
	line := &agentv1.LogLine{Time: timestamppb.New(now), Text: toValid(text[:min(len(text), MaxLineBytes)])}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, line)
	l.bound()
}

// bound drops what is too much; the mutex is held.
func (l *Lines) bound() {
	if n := len(l.waiting) - MaxLines; n > 0 {
		l.waiting, l.dropped = slices.Delete(l.waiting, 0, n), l.dropped+uint64(n)
	}
}

// take returns the next lines to send, nil for none.
func (l *Lines) take() *agentv1.LogBatch {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(len(l.waiting), LinesPerBatch)
	if n == 0 {
		return nil
	}
	b := &agentv1.LogBatch{Lines: slices.Clone(l.waiting[:n]), Dropped: l.dropped}
	l.waiting, l.dropped = slices.Delete(l.waiting, 0, n), 0
	return b
}

// back returns lines that were not sent.
func (l *Lines) back(b *agentv1.LogBatch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting, l.dropped = append(b.Lines, l.waiting...), l.dropped+b.Dropped
	l.bound()
}

// log sends what was said since the last second.
func (c *conn) log() error {
	b := c.a.cfg.Lines.take()
	if b == nil {
		return nil
	}
	err := c.stream.Send(&agentv1.AgentFrame{Frame: &agentv1.AgentFrame_Log{Log: b}})
	if err != nil {
		c.a.cfg.Lines.back(b)
	}
	return err
}
