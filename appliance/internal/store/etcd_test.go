package store_test

import (
	"errors"
	"testing"

	"firstlight/appliance/internal/store"
	"firstlight/appliance/internal/store/storetest"
)

func TestEtcd(t *testing.T) {
	dir := t.TempDir()
	s, err := store.Open(t.Context(), store.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	storetest.Run(t, s)
	changes, err := s.Watch(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	before, err := s.Get(t.Context(), "list/a")
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Space(); got.Used <= 0 || got.File < got.Used || got.Quota < got.File || got.Alarm != "" {
		t.Errorf("space: got %+v, want a file larger than what is used of it, below its quota, without alarm", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := s.Space(); got != (store.Space{}) {
		t.Errorf("space after Close: got %+v, want nothing", got)
	}
	for range changes {
		t.Error("watch: got a change after Close, want a closed channel")
	}
	if _, err := s.Get(t.Context(), "list/a"); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Get after Close: got %v, want ErrClosed", err)
	}

	again, err := store.Open(t.Context(), store.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	after, err := again.Get(t.Context(), "list/a")
	if err != nil || string(after.Value) != string(before.Value) || after.Rev != before.Rev {
		t.Errorf("after a restart: got %+v, %v, want %+v", after, err, before)
	}
}
