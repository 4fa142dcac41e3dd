package site

import (
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"

	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	"firstlight/gateway-client/session"
	"firstlight/site/internal/lease"
)

const (
	// eventsPerSecond and eventBurst bound the events of one lease: anybody on the segment can cause them. Events that belong to
	// no lease share one allowance.
	eventsPerSecond, eventBurst = 1, 60
	// reportsPerSecond and reportBurst bound the reports of one lease.
	reportsPerSecond, reportBurst = 0.1, 5
)

// events sends what happened to the gateway, through whatever session agent is the present one.
type events struct {
	agent   atomic.Pointer[session.Agent]
	all     limiters
	reports limiters
}

// emit sends one event about a lease; the zero lease is none.
func (e *events) emit(l lease.Lease, kind, message string, fields map[string]string) {
	agent := e.agent.Load()
	if agent == nil || !e.all.allow(l.ID, eventsPerSecond, eventBurst) {
		return
	}
	if l.ID != "" {
		fields["lease"] = l.ID
	}
	agent.Emit(&agentv1.Event{Kind: kind, NodeId: l.NodeID, WorkflowId: l.WorkflowID, Fields: fields, Message: message})
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
