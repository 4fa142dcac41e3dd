package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"firstlight/appliance/internal/store"
)

// Bounds of the event ring.
const (
	// MaxEvents bounds the events kept; the oldest go first.
	MaxEvents = 5000
	// maxFields bounds the fields of one event.
	maxFields = 16
)

// eventRing knows the events' keys, oldest first, so that adding one needs no listing.
type eventRing struct {
	mu     sync.Mutex
	loaded bool
	next   uint64
	keys   []ringKey
}

type ringKey struct {
	key string
	rev int64
}

// Emit stores an event, cuts what is too long, and gives it the next number. Beyond MaxEvents the oldest is dropped.
func (r *Repo) Emit(ctx context.Context, e Event) error {
	ring := &r.events
	ring.mu.Lock()
	defer ring.mu.Unlock()
	if err := r.loadRing(ctx); err != nil {
		return err
	}
	fields := make(map[string]string, len(e.Fields))
	for i, k := range slices.Sorted(maps.Keys(e.Fields)) {
		if i == maxFields {
			break
		}
		fields[Clip(k)] = Clip(e.Fields[k])
	}
	e.Seq, e.Fields, e.Message, e.Kind = ring.next, fields, Clip(e.Message), Clip(e.Kind)
	b, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	key := fmt.Sprintf("%s%016x", eventsPrefix, e.Seq)
	rev, err := r.store.Put(ctx, key, b, 0)
	if err != nil {
		return fmt.Errorf("store event: %w", err)
	}
	ring.next++
	ring.keys = append(ring.keys, ringKey{key, rev})
	for len(ring.keys) > MaxEvents {
		old := ring.keys[0]
		if err := r.store.Delete(ctx, old.key, old.rev); err != nil && !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("drop event: %w", err)
		}
		ring.keys = ring.keys[1:]
	}
	return nil
}

// loadRing reads the keys once; the ring's mutex is held.
func (r *Repo) loadRing(ctx context.Context) error {
	if r.events.loaded {
		return nil
	}
	es, err := r.store.List(ctx, eventsPrefix)
	if err != nil {
		return fmt.Errorf("list events: %w", err)
	}
	r.events.keys, r.events.next = nil, 1
	for _, e := range es {
		var v Event
		if err := json.Unmarshal(e.Value, &v); err != nil {
			return fmt.Errorf("decode %s: %w", e.Key, err)
		}
		r.events.keys = append(r.events.keys, ringKey{e.Key, e.Rev})
		r.events.next = v.Seq + 1
	}
	r.events.loaded = true
	return nil
}

// Events returns the newest events, oldest of them first: of one machine, or of all when machine is empty; at most limit, all
// when limit is 0.
func (r *Repo) Events(ctx context.Context, machine string, limit int) ([]Event, error) {
	all, err := list[Event](ctx, r.store, eventsPrefix)
	if err != nil {
		return nil, err
	}
	if machine != "" {
		all = slices.DeleteFunc(all, func(e Event) bool { return e.Machine != machine })
	}
	if limit > 0 && len(all) > limit {
		all = all[len(all)-limit:]
	}
	return all, nil
}
