package vault

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func open(t *testing.T, path string) *Vault {
	t.Helper()
	v, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestSealOpens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vault.key")
	sealed, err := open(t, path).Seal("bmc/m1", NewSecret([]byte("hunter2")))
	if err != nil {
		t.Fatal(err)
	}
	again := open(t, path)
	if got, err := again.Open("bmc/m1", sealed); err != nil || string(got.Reveal()) != "hunter2" {
		t.Errorf("got %q, %v, want hunter2 after a restart", got.Reveal(), err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("key file: got mode %v, want 0600", info.Mode().Perm())
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	v := open(t, filepath.Join(dir, "a.key"))
	sealed, err := v.Seal("bmc/m1", NewSecret([]byte("hunter2")))
	if err != nil {
		t.Fatal(err)
	}
	flipped := append([]byte(nil), sealed...)
	flipped[len(flipped)-1] ^= 1
	for name, try := range map[string]func() (Secret, error){
		"other place": func() (Secret, error) { return v.Open("bmc/m2", sealed) },
		"other key":   func() (Secret, error) { return open(t, filepath.Join(dir, "b.key")).Open("bmc/m1", sealed) },
		"one bit":     func() (Secret, error) { return v.Open("bmc/m1", flipped) },
		"short":       func() (Secret, error) { return v.Open("bmc/m1", sealed[:5]) },
		"empty":       func() (Secret, error) { return v.Open("bmc/m1", nil) },
	} {
		if got, err := try(); !errors.Is(err, ErrDamaged) || got.Reveal() != nil {
			t.Errorf("%s: got %v, want ErrDamaged", name, err)
		}
	}
}

func TestOpenRefusesAShortKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vault.key")
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil {
		t.Error("got nil, want an error")
	}
}

func TestSecretDoesNotPrint(t *testing.T) {
	s := NewSecret([]byte("hunter2"))
	in := struct{ S Secret }{s}
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range []string{fmt.Sprint(s), fmt.Sprintf("%s %+v %#v", s, in, in), string(b), s.LogValue().String()} {
		if got == "" || strings.Contains(got, "hunter2") {
			t.Errorf("got %q, want no secret", got)
		}
	}
}

func FuzzOpen(f *testing.F) {
	v, err := Open(filepath.Join(f.TempDir(), "vault.key"))
	if err != nil {
		f.Fatal(err)
	}
	good, err := v.Seal("a", NewSecret([]byte("x")))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte{version})
	f.Fuzz(func(t *testing.T, sealed []byte) {
		if s, err := v.Open("a", sealed); err == nil && string(s.Reveal()) != "x" {
			t.Errorf("got %q from bytes that were never sealed", s.Reveal())
		}
	})
}
