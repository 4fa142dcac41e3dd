package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"firstlight/appliance/internal/store"
)

// patience bounds each wait for a change.
const patience = 20 * time.Second

// Run holds an implementation to the contract of store.Store. s may already hold foreign keys; the suite keeps to prefixes of its
// own, so it runs once on one store.
func Run(t *testing.T, s store.Store) {
	ctx := t.Context()
	t.Run("missing key", func(t *testing.T) {
		if _, err := s.Get(ctx, "missing/a"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("Get: got %v, want ErrNotFound", err)
		}
		if err := s.Delete(ctx, "missing/a", 0); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("Delete at revision 0: got %v, want ErrNotFound", err)
		}
		if err := s.Delete(ctx, "missing/a", 5); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("Delete: got %v, want ErrNotFound", err)
		}
		if _, err := s.Put(ctx, "missing/a", []byte("x"), 1); !errors.Is(err, store.ErrConflict) {
			t.Errorf("Put at revision 1: got %v, want ErrConflict", err)
		}
	})
	t.Run("compare and swap", func(t *testing.T) { testSwap(t, s) })
	t.Run("one winner", func(t *testing.T) { testOneWinner(t, s) })
	t.Run("list", func(t *testing.T) { testList(t, s) })
	t.Run("many entries", func(t *testing.T) { testManyList(t, s) })
	t.Run("watch", func(t *testing.T) { testWatch(t, s) })
	t.Run("bounds", func(t *testing.T) {
		if _, err := s.Put(ctx, "", []byte("x"), 0); err == nil {
			t.Error("Put of an empty key: got nil, want an error")
		}
		if _, err := s.Put(ctx, "bounds/a", make([]byte, store.MaxValue+1), 0); err == nil {
			t.Error("Put of a value over MaxValue: got nil, want an error")
		}
		if _, err := s.Put(ctx, "bounds/b", make([]byte, store.MaxValue), 0); err != nil {
			t.Errorf("Put of MaxValue bytes: %v", err)
		}
	})
	t.Run("ended context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := s.Put(ctx, "ended/a", []byte("x"), 0); err == nil {
			t.Error("Put: got nil, want an error")
		}
	})
}

func testSwap(t *testing.T, s store.Store) {
	ctx := t.Context()
	one, err := s.Put(ctx, "swap/a", []byte("one"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(ctx, "swap/a", []byte("again"), 0); !errors.Is(err, store.ErrConflict) {
		t.Errorf("second create: got %v, want ErrConflict", err)
	}
	two, err := s.Put(ctx, "swap/a", []byte("two"), one)
	if err != nil || two <= one {
		t.Fatalf("update: got revision %d, %v, want one above %d", two, err, one)
	}
	if _, err := s.Put(ctx, "swap/a", []byte("late"), one); !errors.Is(err, store.ErrConflict) {
		t.Errorf("update at the old revision: got %v, want ErrConflict", err)
	}
	e, err := s.Get(ctx, "swap/a")
	if err != nil || string(e.Value) != "two" || e.Rev != two || e.Key != "swap/a" || e.Deleted {
		t.Errorf("Get: got %+v, %v, want two at revision %d", e, err, two)
	}
	if err := s.Delete(ctx, "swap/a", one); !errors.Is(err, store.ErrConflict) {
		t.Errorf("Delete at the old revision: got %v, want ErrConflict", err)
	}
	if err := s.Delete(ctx, "swap/a", two); err != nil {
		t.Errorf("Delete: %v", err)
	}
	if _, err := s.Get(ctx, "swap/a"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Get after Delete: got %v, want ErrNotFound", err)
	}
	if rev, err := s.Put(ctx, "swap/a", nil, 0); err != nil || rev <= two {
		t.Errorf("create again: got revision %d, %v, want one above %d", rev, err, two)
	}
}

func testOneWinner(t *testing.T, s store.Store) {
	const contenders = 8
	rev, err := s.Put(t.Context(), "winner/a", []byte("start"), 0)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	errs := make(chan error, contenders)
	for i := range contenders {
		wg.Go(func() {
			_, err := s.Put(t.Context(), "winner/a", fmt.Append(nil, i), rev)
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	won := 0
	for err := range errs {
		switch {
		case err == nil:
			won++
		case !errors.Is(err, store.ErrConflict):
			t.Errorf("loser: got %v, want ErrConflict", err)
		}
	}
	if won != 1 {
		t.Errorf("got %d winners, want 1", won)
	}
}

func testList(t *testing.T, s store.Store) {
	ctx := t.Context()
	for _, k := range []string{"list/b", "list/a", "list/c/d", "listed", "lisu"} {
		if _, err := s.Put(ctx, k, []byte(k), 0); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.List(ctx, "list/")
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, e := range got {
		keys = append(keys, e.Key)
		if string(e.Value) != e.Key || e.Rev == 0 {
			t.Errorf("entry %q: got value %q at revision %d", e.Key, e.Value, e.Rev)
		}
	}
	if want := "[list/a list/b list/c/d]"; fmt.Sprint(keys) != want {
		t.Errorf("keys: got %v, want %v", keys, want)
	}
	if got, err := s.List(ctx, "nothing/"); err != nil || len(got) != 0 {
		t.Errorf("List of nothing: got %v, %v", got, err)
	}
}

// testManyList holds that a list is whole and of one moment, however many requests an implementation makes of it.
func testManyList(t *testing.T, s store.Store) {
	const many, writers = 2500, 8
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := w; i < many; i += writers {
				if _, err := s.Put(t.Context(), fmt.Sprintf("many/%05d", i), []byte{1}, 0); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	got, err := s.List(t.Context(), "many/")
	if err != nil || len(got) != many {
		t.Fatalf("got %d entries, %v, want %d", len(got), err, many)
	}
	for i, e := range got {
		if want := fmt.Sprintf("many/%05d", i); e.Key != want {
			t.Fatalf("entry %d: got %s, want %s", i, e.Key, want)
		}
	}
	all, err := s.List(t.Context(), "")
	if err != nil || len(all) < many {
		t.Errorf("everything: got %d entries, %v, want at least %d", len(all), err, many)
	}
}

func testWatch(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := s.Put(ctx, "watch/before", nil, 0); err != nil {
		t.Fatal(err)
	}
	changes, err := s.Watch(ctx, "watch/")
	if err != nil {
		t.Fatal(err)
	}
	one, err := s.Put(ctx, "watch/a", []byte("one"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(ctx, "watched", []byte("other prefix"), 0); err != nil {
		t.Fatal(err)
	}
	two, err := s.Put(ctx, "watch/a", []byte("two"), one)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(ctx, "watch/a", two); err != nil {
		t.Fatal(err)
	}
	want := []store.Entry{
		{Key: "watch/a", Value: []byte("one"), Rev: one},
		{Key: "watch/a", Value: []byte("two"), Rev: two},
		{Key: "watch/a", Deleted: true},
	}
	for _, w := range want {
		got, ok := next(t, changes)
		if !ok {
			t.Fatal("channel closed, want a change")
		}
		if got.Key != w.Key || string(got.Value) != string(w.Value) || got.Deleted != w.Deleted || (w.Rev != 0 && got.Rev != w.Rev) {
			t.Errorf("change: got %+v, want %+v", got, w)
		}
	}
	cancel()
	if e, ok := next(t, changes); ok {
		t.Errorf("after the context ended: got %+v, want a closed channel", e)
	}
}

func next(t *testing.T, changes <-chan store.Entry) (store.Entry, bool) {
	t.Helper()
	select {
	case e, ok := <-changes:
		return e, ok
	case <-time.After(patience):
		t.Fatalf("no change within %v", patience)
		return store.Entry{}, false
	}
}
