package store_test

import (
	"errors"
	"slices"
	"testing"

	"firstlight/appliance/internal/store"
	"firstlight/appliance/internal/store/storetest"
)

func TestObserved(t *testing.T) {
	storetest.Run(t, store.Observed(storetest.New(), func(string, bool) {}))
	var got []string
	s := store.Observed(storetest.New(), func(key string, durable bool) {
		if durable {
			key += " durable"
		}
		got = append(got, key)
	})
	rev, err := s.Put(t.Context(), "a", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(t.Context(), "a", nil, 0); !errors.Is(err, store.ErrConflict) {
		t.Errorf("got %v, want a conflict", err)
	}
	if err := s.Delete(t.Context(), "a", rev); err != nil {
		t.Fatal(err)
	}
	if want := []string{"a", "a durable", "a", "a", "a durable"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q: a refused write is never durable", got, want)
	}
}
