package jointoken

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"firstlight/appliance/internal/store"
	"firstlight/appliance/internal/store/storetest"
)

var minted = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func mint(t *testing.T, s store.Store) []byte {
	t.Helper()
	token, err := Mint(t.Context(), s, "site-1", "site", time.Hour, minted)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestRedeemOnce(t *testing.T) {
	s := storetest.New()
	token := mint(t, s)
	first, err := Redeem(t.Context(), s, token, []byte("csr one"), minted)
	if err != nil || first.NodeID != "site-1" || first.Role != "site" {
		t.Fatalf("first: got %+v, %v, want site-1 as site", first, err)
	}
	// The same agent asks again because the answer was lost, even after the token's time.
	if again, err := Redeem(t.Context(), s, token, []byte("csr one"), minted.Add(2*time.Hour)); err != nil || again != first {
		t.Errorf("same CSR again: got %+v, %v, want %+v", again, err, first)
	}
	if _, err := Redeem(t.Context(), s, token, []byte("csr two"), minted); !errors.Is(err, ErrUsed) {
		t.Errorf("another CSR: got %v, want ErrUsed", err)
	}
}

func TestRedeemRefuses(t *testing.T) {
	s := storetest.New()
	token := mint(t, s)
	if _, err := Redeem(t.Context(), s, []byte("guess"), []byte("csr"), minted); !errors.Is(err, ErrUnknown) {
		t.Errorf("guess: got %v, want ErrUnknown", err)
	}
	if _, err := Redeem(t.Context(), s, token, []byte("csr"), minted.Add(time.Hour)); !errors.Is(err, ErrExpired) {
		t.Errorf("late: got %v, want ErrExpired", err)
	}
}

// raced lets another redeemer win between read and write.
type raced struct {
	store.Store
	race func()
}

func (r raced) Put(ctx context.Context, key string, value []byte, rev int64) (int64, error) {
	r.race()
	return r.Store.Put(ctx, key, value, rev)
}

func TestRedeemHasOneWinner(t *testing.T) {
	s := storetest.New()
	token := mint(t, s)
	_, err := Redeem(t.Context(), raced{s, func() {
		if _, err := Redeem(t.Context(), s, token, []byte("faster"), minted); err != nil {
			t.Error(err)
		}
	}}, token, []byte("slower"), minted)
	if !errors.Is(err, ErrUsed) {
		t.Errorf("got %v, want ErrUsed", err)
	}
}

func TestStoreNeverHoldsTheToken(t *testing.T) {
	s := storetest.New()
	token := mint(t, s)
	entries, err := s.List(t.Context(), "")
	if err != nil || len(entries) != 1 {
		t.Fatalf("got %d entries, %v, want 1", len(entries), err)
	}
	if bytes.Contains(entries[0].Value, token) || strings.Contains(entries[0].Key, string(token)) {
		t.Error("the token is in the store")
	}
}

func TestSweep(t *testing.T) {
	s := storetest.New()
	mint(t, s)
	for _, tc := range []struct {
		before time.Time
		left   int
	}{{minted, 1}, {minted.Add(2 * time.Hour), 0}} {
		if err := Sweep(t.Context(), s, tc.before); err != nil {
			t.Fatal(err)
		}
		entries, err := s.List(t.Context(), Prefix)
		if err != nil || len(entries) != tc.left {
			t.Errorf("before %v: got %d tokens, %v, want %d", tc.before, len(entries), err, tc.left)
		}
	}
}
