package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/roster"
)

const (
	// beatEvery is how often a stream says that it lives.
	beatEvery = 15 * time.Second
	// sendTimeout bounds one write to a stream: who does not read is cut off.
	sendTimeout = 30 * time.Second
)

// events of a stream (HTML, section 9.2), each with one line of JSON.
type sse struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

func newSSE(w http.ResponseWriter) *sse {
	head(w, "text/event-stream")
	w.WriteHeader(http.StatusOK)
	return &sse{w, http.NewResponseController(w)}
}

func (x *sse) send(id int64, kind string, v any) error {
	body, err := encode(v)
	if err != nil {
		return err
	}
	if err := x.rc.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	// encode ends the line; the empty one after it ends the event.
	if _, err := fmt.Fprintf(x.w, "id: %d\nevent: %s\ndata: %s\n", id, kind, body); err != nil {
		return err
	}
	return x.rc.Flush()
}

// watch follows the fleet, or one machine of it.
func (s *Server) watch(w http.ResponseWriter, r *http.Request) error {
	const op = "watch machines"
	after, err := s.after(r, op)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()
	changes, err := s.cfg.Roster.Watch(ctx, r.URL.Query().Get("machine"), after)
	if err != nil {
		return fault.New(fault.Unavailable, op, "", err, "wait for others to end and try again")
	}
	out := newSSE(w)
	if out.send(after, ChangeBeat, Change{ID: after, Kind: ChangeBeat}) != nil {
		return nil
	}
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for {
		select {
		case c, ok := <-changes:
			if !ok {
				return nil
			}
			after = c.Rev
			x, ok := s.change(c)
			if ok && out.send(x.ID, x.Kind, x) != nil {
				return nil
			}
		case <-beat.C:
			if out.send(after, ChangeBeat, Change{ID: after, Kind: ChangeBeat}) != nil {
				return nil
			}
		}
	}
}

// after is where a stream goes on: what the browser says, or the query, or now.
func (s *Server) after(r *http.Request, op string) (int64, error) {
	text := r.Header.Get(lastHeader)
	if text == "" {
		text = r.URL.Query().Get("after")
	}
	if text == "" {
		return s.cfg.Roster.Rev(), nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, fault.New(fault.Usage, op, "", fmt.Errorf("%.64q is no change's id", text), "leave it out to watch from now on")
	}
	return n, nil
}

// change is what is told of a change; false for a machine that is gone meanwhile, which its own change says.
func (s *Server) change(c roster.Change) (Change, bool) {
	x := Change{ID: c.Rev, Name: c.Name}
	switch c.Kind {
	case roster.Machine:
		row, ok := s.cfg.Roster.Row(c.Name)
		if !ok {
			return x, false
		}
		out := rowOf(row)
		x.Kind, x.Row = ChangeMachine, &out
	case roster.Gone:
		x.Kind = ChangeGone
	case roster.Event:
		x.Kind, x.Event = ChangeEvent, c.Event
	case roster.Reset:
		x.Kind = ChangeReset
	default:
		return x, false
	}
	return x, true
}

// log answers with a machine's log, and with ?follow=true goes on with it.
func (s *Server) log(w http.ResponseWriter, r *http.Request) error {
	follow := r.URL.Query().Get("follow") == "true"
	if !follow {
		lines, err := s.logLines(r)
		if err == nil {
			answer(w, http.StatusOK, lines)
		}
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()
	// Watch first, then read: what comes in between is seen twice and told once.
	changes, err := s.cfg.Roster.Watch(ctx, r.PathValue("name"), 0)
	if err != nil {
		return fault.New(fault.Unavailable, "follow log", r.PathValue("name"), err, "wait for others to end and try again")
	}
	speech, err := s.followSaid(ctx, "follow log", r.PathValue("name"))
	if err != nil {
		return err
	}
	lines, err := s.logLines(r)
	if err != nil {
		return err
	}
	out := newSSE(w)
	var last, lastSaid uint64
	for _, line := range lines {
		if line.Kind == KindSaid {
			lastSaid = line.Seq
		} else {
			last = line.Seq
		}
		if out.send(int64(line.Seq), "line", line) != nil {
			return nil
		}
	}
	if out.rc.Flush() != nil {
		return nil
	}
	for {
		var line LogLine
		select {
		case c, ok := <-changes:
			if !ok {
				return nil
			}
			if c.Kind != roster.Event || !said(c.Event) || c.Event.Seq <= last {
				continue
			}
			line = lineOf(c.Event)
			last = line.Seq
		case l, ok := <-speech:
			if !ok {
				return nil
			}
			if l.Seq <= lastSaid {
				continue
			}
			line = saidLine(l)
		}
		if out.send(int64(line.Seq), "line", line) != nil {
			return nil
		}
	}
}
