// Package storetest is the store's in-memory twin and the suite that it and every implementation must pass.
//
// It is for tests, in appliance only.
package storetest

import (
	"bytes"
	"context"
	"fmt"
	"sort"
	"strings"
	"sync"

	"firstlight/appliance/internal/store"
)

// watchBuffer is how many changes a slow watcher may lag behind before its channel is closed.
const watchBuffer = 4096

// Memory is a store.Store that forgets. Its zero value is not usable: New.
type Memory struct {
	mu       sync.Mutex
	rev      int64
	entries  map[string]store.Entry
	watchers map[*watcher]struct{}
	closed   bool
	// fail, when set, is asked before each write and its error returned instead.
	fail func(key string) error
}

type watcher struct {
	prefix string
	out    chan store.Entry
}

// New returns an empty store.
func New() *Memory {
	return &Memory{entries: map[string]store.Entry{}, watchers: map[*watcher]struct{}{}, rev: 1}
}

// FailWrites lets a test refuse writes: f is asked for each Put and Delete, a nil f ends it. f must not call the store.
func (m *Memory) FailWrites(f func(key string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = f
}

// Close ends the store; watch channels close and later calls return store.ErrClosed.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for w := range m.watchers {
		m.drop(w)
	}
	return nil
}

// Get implements store.Store.
func (m *Memory) Get(ctx context.Context, key string) (store.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(ctx); err != nil {
		return store.Entry{}, err
	}
	e, ok := m.entries[key]
	if !ok {
		return store.Entry{}, fmt.Errorf("read %q: %w", key, store.ErrNotFound)
	}
	return copyOf(e), nil
}

// Put implements store.Store.
func (m *Memory) Put(ctx context.Context, key string, value []byte, rev int64) (int64, error) {
	if err := store.Check(key, value); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.writable(ctx, key); err != nil {
		return 0, err
	}
	if m.entries[key].Rev != rev {
		return 0, fmt.Errorf("write %q: %w", key, store.ErrConflict)
	}
	m.rev++
	e := store.Entry{Key: key, Value: bytes.Clone(value), Rev: m.rev}
	m.entries[key] = e
	m.tell(e)
	return m.rev, nil
}

// Delete implements store.Store.
func (m *Memory) Delete(ctx context.Context, key string, rev int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.writable(ctx, key); err != nil {
		return err
	}
	switch e, ok := m.entries[key]; {
	case !ok:
		return fmt.Errorf("delete %q: %w", key, store.ErrNotFound)
	case e.Rev != rev:
		return fmt.Errorf("delete %q: %w", key, store.ErrConflict)
	}
	m.rev++
	delete(m.entries, key)
	m.tell(store.Entry{Key: key, Rev: m.rev, Deleted: true})
	return nil
}

// List implements store.Store.
func (m *Memory) List(ctx context.Context, prefix string) ([]store.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(ctx); err != nil {
		return nil, err
	}
	out := []store.Entry{}
	for k, e := range m.entries {
		if strings.HasPrefix(k, prefix) {
			out = append(out, copyOf(e))
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Key < out[j].Key })
	return out, nil
}

// Watch implements store.Store.
func (m *Memory) Watch(ctx context.Context, prefix string) (<-chan store.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(ctx); err != nil {
		return nil, err
	}
	w := &watcher{prefix: prefix, out: make(chan store.Entry, watchBuffer)}
	m.watchers[w] = struct{}{}
	context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.drop(w)
	})
	return w.out, nil
}

func (m *Memory) tell(e store.Entry) {
	for w := range m.watchers {
		if !strings.HasPrefix(e.Key, w.prefix) {
			continue
		}
		select {
		case w.out <- copyOf(e):
		default:
			m.drop(w)
		}
	}
}

// drop closes a watcher once; mu is held.
func (m *Memory) drop(w *watcher) {
	if _, ok := m.watchers[w]; ok {
		delete(m.watchers, w)
		close(w.out)
	}
}

func (m *Memory) usable(ctx context.Context) error {
	if m.closed {
		return store.ErrClosed
	}
	return ctx.Err()
}

func (m *Memory) writable(ctx context.Context, key string) error {
	if err := m.usable(ctx); err != nil {
		return err
	}
	if m.fail != nil {
		return m.fail(key)
	}
	return nil
}

func copyOf(e store.Entry) store.Entry {
	e.Value = bytes.Clone(e.Value)
	return e
}
