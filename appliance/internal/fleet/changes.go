package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"firstlight/appliance/internal/store"
)

// Change is one entry of the store as it is after a change: a machine's record, a workflow, or an event.
type Change struct {
	// Rev orders the changes of one entry.
	Rev int64
	// Machine names the record that changed; Record is nil when it is gone.
	Machine string
	Record  *Record
	// RunID names the workflow that changed; Run is nil when it is gone, and else an outline: what View needs of it, without its
	// plan, facts and journal.
	RunID string
	Run   *Run
	// Event is a new event.
	Event *Event
}

// outline is what View needs of a stored Run.
type outline struct {
	Workflow
	Machine string      `json:"machine"`
	NodeID  string      `json:"node_id"`
	By      string      `json:"by"`
	Failure *Failure    `json:"failure"`
	Cancel  *Cancel     `json:"cancel"`
	Stopped *Stop       `json:"stopped"`
	Disks   []DiskState `json:"disks"`
	Closed  bool        `json:"closed"`
}

// Snapshot returns all machines and workflows, as changes. Events are not among them.
func (r *Repo) Snapshot(ctx context.Context) ([]Change, error) {
	var out []Change
	for _, prefix := range []string{machinesPrefix, workflowsPrefix} {
		es, err := r.store.List(ctx, prefix)
		if err != nil {
			return nil, err
		}
		for _, e := range es {
			c, err := changeOf(e)
			if err != nil {
				return nil, err
			}
			out = append(out, c)
		}
	}
	return out, nil
}

// Changes sends every change of machines, workflows and events that happens after it returned; those of one entry are in order. The
// channel is closed when ctx ends or when changes were lost: then ask again, and for a Snapshot. What does not decode is told to
// broken, whose calls come from one goroutine.
func (r *Repo) Changes(ctx context.Context, broken func(error)) (<-chan Change, error) {
	ctx, cancel := context.WithCancel(ctx)
	var in [3]<-chan store.Entry
	for i, prefix := range []string{machinesPrefix, workflowsPrefix, eventsPrefix} {
		var err error
		if in[i], err = r.store.Watch(ctx, prefix); err != nil {
			cancel()
			return nil, err
		}
	}
	out := make(chan Change)
	go func() {
		defer close(out)
		defer cancel()
		for {
			var e store.Entry
			var ok bool
			select {
			case e, ok = <-in[0]:
			case e, ok = <-in[1]:
			case e, ok = <-in[2]:
			}
			if !ok {
				return
			}
			c, err := changeOf(e)
			if err != nil {
				broken(err)
				continue
			}
			select {
			case out <- c:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// MachineChange returns a machine and its newest workflow as they are now, as changes. Both are gone for one that is not known.
func (r *Repo) MachineChange(ctx context.Context, name string) ([]Change, error) {
	rec, rev, err := load[Record](ctx, r.store, machinesPrefix+name)
	if err != nil {
		return nil, err
	}
	out := []Change{{Rev: rev, Machine: name, Record: &rec}}
	if rec.Workflow == "" {
		return out, nil
	}
	e, err := r.store.Get(ctx, workflowsPrefix+rec.Workflow)
	if err != nil {
		return nil, err
	}
	c, err := changeOf(e)
	return append(out, c), err
}

func changeOf(e store.Entry) (Change, error) {
	c := Change{Rev: e.Rev}
	var err error
	switch prefix, rest, _ := strings.Cut(e.Key, "/"); prefix + "/" {
	case machinesPrefix:
		if c.Machine = rest; !e.Deleted {
			c.Record = &Record{}
			err = json.Unmarshal(e.Value, c.Record)
		}
	case workflowsPrefix:
		if c.RunID = rest; !e.Deleted {
			var o outline
			err = json.Unmarshal(e.Value, &o)
			c.Run = &Run{Workflow: o.Workflow, Machine: o.Machine, NodeID: o.NodeID, By: o.By, Failure: o.Failure, Cancel: o.Cancel,
				Stopped: o.Stopped, Disks: o.Disks, Closed: o.Closed}
		}
	case eventsPrefix:
		if !e.Deleted {
			c.Event = &Event{}
			err = json.Unmarshal(e.Value, c.Event)
		}
	}
	if err != nil {
		return c, fmt.Errorf("decode %s: %w", e.Key, err)
	}
	return c, nil
}
