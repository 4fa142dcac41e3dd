// Package store is the one place where the control plane keeps what must survive: keys, values, revisions, compare-and-swap, watch.
//
// It is for appliance and its internal packages. It is not for large data (images, inventory sections): that is content-addressed
// on disk and only its digest is here. Values are opaque bytes; whoever owns a prefix owns its encoding.
//
// [Open] is the implementation (an embedded etcd member); storetest has the in-memory twin and the suite that both pass.
package store

import (
	"context"
	"errors"
	"fmt"
)

// Bounds of what one entry may be.
const (
	// MaxKey bounds a key in bytes.
	MaxKey = 512
	// MaxValue bounds a value in bytes; it is below etcd's request limit of 1.5 MiB.
	MaxValue = 1 << 20
)

var (
	// ErrNotFound: the key is not there.
	ErrNotFound = errors.New("not found")
	// ErrConflict: the key has another revision than the caller expects. Read again, decide again.
	ErrConflict = errors.New("changed meanwhile")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store is closed")
)

// Store is safe for use from many goroutines. A nil error of Put or Delete means durable.
type Store interface {
	// Get returns the newest entry of key, or ErrNotFound.
	Get(ctx context.Context, key string) (Entry, error)
	// Put writes value if key still has revision rev, and returns the new revision. Revision 0 means that key must not exist.
	// Otherwise ErrConflict and nothing is written.
	Put(ctx context.Context, key string, value []byte, rev int64) (int64, error)
	// Delete removes key if it still has revision rev. ErrNotFound when it does not exist, ErrConflict at another revision.
	Delete(ctx context.Context, key string, rev int64) error
	// List returns all entries whose key starts with prefix, ascending by key, from one moment.
	List(ctx context.Context, prefix string) ([]Entry, error)
	// Watch sends every change under prefix that happens after it returned, in order. The channel is closed when ctx ends, when the
	// store closes, or when changes were lost: then watch again and list. To miss nothing, watch first, then list.
	Watch(ctx context.Context, prefix string) (<-chan Entry, error)
}

// Entry is one key at one revision. Revisions grow over the whole store, so they also order entries of different keys.
type Entry struct {
	Key   string
	Value []byte
	// Rev is the revision of the last change, or of the deletion.
	Rev int64
	// Deleted is only ever true in what Watch sends; Value is nil then.
	Deleted bool
}

// Check says whether key and value are within bounds. Implementations call it before they write.
func Check(key string, value []byte) error {
	switch {
	case key == "" || len(key) > MaxKey:
		return fmt.Errorf("store key of %d bytes: want 1 to %d", len(key), MaxKey)
	case len(value) > MaxValue:
		return fmt.Errorf("store value of %q: %d bytes, want at most %d", key, len(value), MaxValue)
	}
	return nil
}
