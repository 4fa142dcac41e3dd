package site

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	"firstlight/gateway-client/session"
	"firstlight/site/internal/lease"
)

const (
	// eventsPerSecond and eventBurst bound the events of one lease, or of one known machine without a lease: anybody on the segment
	// can cause them. All others share one allowance.
	eventsPerSecond, eventBurst = 1, 60
	// reportsPerSecond and reportBurst bound the reports of one lease, and apart from them those that others make in its name.
	reportsPerSecond, reportBurst = 0.1, 5
)

// subject is what an event is about; each part may be empty. Allowance is whose share of the events it takes.
type subject struct{ node, workflow, lease, allowance string }

// of returns a lease as subject. One that any request of an unknown machine opens has no allowance of its own before its script
// is fetched.
func of(l lease.Lease) subject {
	s := subject{node: l.NodeID, workflow: l.WorkflowID, lease: l.ID}
	if !l.Discovery || l.State != lease.Open {
		s.allowance = l.ID
	}
	return s
}

// events sends what happened to the gateway, through whatever session agent is the present one.
type events struct {
	agent   atomic.Pointer[session.Agent]
	all     limiters
	reports limiters
	seldom  seldom
}

// emit sends one event and says whether it was let through.
func (e *events) emit(s subject, kind, message string, fields map[string]string) bool {
	return e.emitWhat(s, kind, func() (string, map[string]string) { return message, fields })
}

// emitWhat is emit for what happens so often that most of it is not let through: what is said is made only then.
func (e *events) emitWhat(s subject, kind string, what func() (message string, fields map[string]string)) bool {
	agent := e.agent.Load()
	if agent == nil || !e.all.allow(s.allowance, eventsPerSecond, eventBurst) {
		return false
	}
	message, fields := what()
	if s.lease != "" {
		fields["lease"] = s.lease
	}
	agent.Emit(&agentv1.Event{Kind: kind, NodeId: s.node, WorkflowId: s.workflow, Fields: fields, Message: message})
	return true
}

// seldom lets each key through once in a while. Where too many keys are known, it forgets them all.
type seldom struct {
	mu sync.Mutex
	m  map[string]time.Time
}

func (s *seldom) allow(key string, now time.Time, every time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.m[key]; ok && now.Before(last.Add(every)) {
		return false
	}
	if s.m == nil || len(s.m) >= lease.MaxLeases {
		s.m = map[string]time.Time{}
	}
	s.m[key] = now
	return true
}

// limiters is one rate limiter for each key.
type limiters struct {
	mu sync.Mutex
	m  map[string]*rate.Limiter
}

func (l *limiters) allow(key string, perSecond rate.Limit, burst int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.m == nil || len(l.m) > lease.MaxLeases {
		l.m = map[string]*rate.Limiter{}
	}
	one, ok := l.m[key]
	if !ok {
		one = rate.NewLimiter(perSecond, burst)
		l.m[key] = one
	}
	return one.Allow()
}
