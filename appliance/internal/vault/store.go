package vault

import (
	"context"
	"strings"

	"firstlight/appliance/internal/store"
)

// Sealed wraps a store so that values of keys under prefix are encrypted at rest, each bound to its key. Keys stay readable.
func (v *Vault) Sealed(s store.Store, prefix string) store.Store {
	return &sealed{Store: s, vault: v, prefix: prefix}
}

type sealed struct {
	store.Store
	vault  *Vault
	prefix string
}

func (s *sealed) covers(key string) bool { return strings.HasPrefix(key, s.prefix) }

func (s *sealed) open(e store.Entry) (store.Entry, error) {
	if !s.covers(e.Key) || e.Deleted {
		return e, nil
	}
	plain, err := s.vault.Open(e.Key, e.Value)
	if err != nil {
		return store.Entry{}, err
	}
	e.Value = plain.Reveal()
	return e, nil
}

// Get implements store.Store.
func (s *sealed) Get(ctx context.Context, key string) (store.Entry, error) {
	e, err := s.Store.Get(ctx, key)
	if err != nil {
		return e, err
	}
	return s.open(e)
}

// Put implements store.Store.
func (s *sealed) Put(ctx context.Context, key string, value []byte, rev int64) (int64, error) {
	if s.covers(key) {
		var err error
		if value, err = s.vault.Seal(key, NewSecret(value)); err != nil {
			return 0, err
		}
	}
	return s.Store.Put(ctx, key, value, rev)
}

// List implements store.Store.
func (s *sealed) List(ctx context.Context, prefix string) ([]store.Entry, error) {
	entries, err := s.Store.List(ctx, prefix)
	if err != nil {
		return nil, err
	}
	for i := range entries {
		if entries[i], err = s.open(entries[i]); err != nil {
			return nil, err
		}
	}
	return entries, nil
}

// Watch implements store.Store. The channel closes at a value that does not open: then List says why.
func (s *sealed) Watch(ctx context.Context, prefix string) (<-chan store.Entry, error) {
	if !s.covers(prefix) && !strings.HasPrefix(s.prefix, prefix) {
		return s.Store.Watch(ctx, prefix)
	}
	ctx, cancel := context.WithCancel(ctx)
	in, err := s.Store.Watch(ctx, prefix)
	if err != nil {
		cancel()
		return nil, err
	}
	out := make(chan store.Entry)
	go func() {
		defer close(out)
		defer cancel()
		for e := range in {
			e, err := s.open(e)
			if err != nil {
				return
			}
			select {
			case out <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}
