package session

import (
	"time"

	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
)

// owed sends results without an ack and events that this session has not said.
func (c *conn) owed() error {
	if err := c.sendAll(c.a.results(c)); err != nil {
		return err
	}
	for {
		events, err := c.a.journal.events(c.lastEvent)
		if err != nil {
			c.a.cfg.Log.Error("events", "err", err)
			return nil
		}
		if len(events) == 0 {
			return nil
		}
		if err := c.stream.Send(&agentv1.AgentFrame{Frame: &agentv1.AgentFrame_Events{
			Events: &agentv1.EventBatch{JournalId: c.a.journal.id, Events: events}}}); err != nil {
			return err
		}
		c.lastEvent = events[len(events)-1].Sequence
	}
}

// results are the updates that this session has not said yet, or said long ago.
func (a *Agent) results(c *conn) []*agentv1.AgentFrame {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now() // for intervals only: the machine's clock may jump
	var out []*agentv1.AgentFrame
	for _, u := range a.unacked {
		if u.conn == c && now.Sub(u.sent) < ResendAfter {
			continue
		}
		u.conn, u.sent = c, now
		out = append(out, &agentv1.AgentFrame{Frame: &agentv1.AgentFrame_Update{Update: u.update}})
	}
	return out
}

func (a *Agent) progressFrames() []*agentv1.AgentFrame {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []*agentv1.AgentFrame
	for id, h := range a.held {
		if h.progress == nil {
			continue
		}
		u, err := a.update(id, h.state, nil, "")
		if err != nil {
			continue
		}
		u.Progress, h.progress = h.progress, nil
		out = append(out, &agentv1.AgentFrame{Frame: &agentv1.AgentFrame_Update{Update: u}})
	}
	return out
}

// ack forgets what the gateway has stored; a self-terminating command goes on from here.
func (a *Agent) ack(ack *agentv1.Ack) {
	if ack.JournalId == a.journal.id && ack.EventSequence > 0 {
		if err := a.journal.eventsAcked(ack.EventSequence); err != nil {
			a.cfg.Log.Error("event ack", "err", err)
		}
	}
	for _, id := range ack.CommandIds {
		a.mu.Lock()
		u := a.unacked[id]
		if u == nil || u.sent.IsZero() {
			a.mu.Unlock()
			continue
		}
		delete(a.unacked, id)
		for i, r := range a.rejects {
			if r == id {
				a.rejects = append(a.rejects[:i:i], a.rejects[i+1:]...)
				break
			}
		}
		a.mu.Unlock()
		if err := a.journal.acked(id); err != nil {
			a.cfg.Log.Error("result ack", "err", err)
		}
		if u.after != nil {
			a.work.Go(func() {
				if err := u.after(); err != nil {
					a.cfg.Log.Error("after command", "id", id, "err", err)
					a.Emit(&agentv1.Event{Kind: "command.after.failed", Fields: map[string]string{"command_id": id}, Message: toValid(err.Error())})
				}
			})
		}
	}
}
