package vault

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"

	"firstlight/appliance/internal/store/storetest"
)

func TestSealedIsAStore(t *testing.T) {
	for _, prefix := range []string{"swap/", "watch/", "list/", "winner/"} {
		t.Run(prefix, func(t *testing.T) {
			v := open(t, filepath.Join(t.TempDir(), "vault.key"))
			storetest.Run(t, v.Sealed(storetest.New(), prefix))
		})
	}
}

func TestSealedEncryptsAtRest(t *testing.T) {
	inner := storetest.New()
	s := open(t, filepath.Join(t.TempDir(), "vault.key")).Sealed(inner, "secrets/")
	rev, err := s.Put(t.Context(), "secrets/bmc/m1", []byte("hunter2"), 0)
	if err != nil {
		t.Fatal(err)
	}
	rest, err := inner.Get(t.Context(), "secrets/bmc/m1")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(rest.Value, []byte("hunter2")) {
		t.Error("the value is readable at rest")
	}
	if got, err := s.Get(t.Context(), "secrets/bmc/m1"); err != nil || string(got.Value) != "hunter2" || got.Rev != rev {
		t.Errorf("got %q at %d, %v, want hunter2 at %d", got.Value, got.Rev, err, rev)
	}
	if _, err := s.Put(t.Context(), "machines/m1", []byte("{}"), 0); err != nil {
		t.Fatal(err)
	}
	if got, err := inner.Get(t.Context(), "machines/m1"); err != nil || string(got.Value) != "{}" {
		t.Errorf("another prefix: got %q, %v, want it as it was", got.Value, err)
	}
	// A value moved to another key was not put there by us.
	if _, err := inner.Put(t.Context(), "secrets/bmc/m2", rest.Value, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), "secrets/bmc/m2"); !errors.Is(err, ErrDamaged) {
		t.Errorf("moved value: got %v, want ErrDamaged", err)
	}
	if _, err := s.List(t.Context(), "secrets/"); !errors.Is(err, ErrDamaged) {
		t.Errorf("list with a moved value: got %v, want ErrDamaged", err)
	}
}
