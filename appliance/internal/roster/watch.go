package roster

import (
	"context"

	"firstlight/appliance/internal/fleet"
)

// Kind of a change.
type Kind int

// The kinds.
const (
	// Machine: it is new or changed.
	Machine Kind = iota + 1
	// Gone: there is no such machine any more.
	Gone
	// Event: something happened.
	Event
	// Reset: what happened before is not known any more: read everything again.
	Reset
)

// Change is one change of the fleet, in short: the machine is asked for when it is shown, so that a burst costs one look.
type Change struct {
	Rev   int64
	Kind  Kind
	Name  string
	Event *fleet.Event
}

type watcher struct {
	machine string
	out     chan Change
}

// Watch sends every change after rev (0: from now on) of one machine, or of all when machine is empty. What is not kept any more
// comes as one Reset. The channel is closed when ctx ends, when the roster ends, or when the reader is too slow: then watch again.
func (r *Roster) Watch(ctx context.Context, machine string, rev int64) (<-chan Change, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.watchers) >= maxWatchers {
		return nil, ErrTooMany
	}
	missed := r.since(machine, rev)
	w := &watcher{machine: machine, out: make(chan Change, watcherBuffer+len(missed))}
	for _, c := range missed {
		w.out <- c
	}
	r.watchers[w] = struct{}{}
	context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.drop(w)
	})
	return w.out, nil
}

// since is what a watcher missed; the lock is held.
func (r *Roster) since(machine string, rev int64) []Change {
	if rev == 0 || rev == r.rev {
		return nil
	}
	floor := r.rev - int64(len(r.history))
	if rev > r.rev || rev < floor {
		return []Change{{Rev: r.rev, Kind: Reset}}
	}
	var out []Change
	for _, c := range r.history[rev-floor:] {
		if c.about(machine) {
			out = append(out, c)
		}
	}
	return out
}

func (c Change) about(machine string) bool {
	return machine == "" || c.Name == machine || c.Kind == Reset
}

// tell numbers a change, keeps it, and sends it to whoever watches; the lock is held.
func (r *Roster) tell(c Change) {
	r.rev++
	c.Rev = r.rev
	if len(r.history) >= 2*historySize {
		r.history = append(r.history[:0], r.history[historySize:]...)
	}
	r.history = append(r.history, c)
	for w := range r.watchers {
		if !c.about(w.machine) {
			continue
		}
		select {
		case w.out <- c:
		default:
			r.drop(w)
		}
	}
}

// drop closes a watcher once; the lock is held.
func (r *Roster) drop(w *watcher) {
	if _, ok := r.watchers[w]; ok {
		delete(r.watchers, w)
		close(w.out)
	}
}

// Rev is the number of the newest change.
func (r *Roster) Rev() int64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.rev
}
