package storetest

import (
	"errors"
	"testing"

	"firstlight/appliance/internal/store"
)

func TestMemory(t *testing.T) { Run(t, New()) }

func TestMemoryClosed(t *testing.T) {
	m := New()
	changes, err := m.Watch(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	m.Close()
	if _, ok := next(t, changes); ok {
		t.Error("watch: got a change, want a closed channel")
	}
	if _, err := m.Get(t.Context(), "a"); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Get: got %v, want ErrClosed", err)
	}
}
