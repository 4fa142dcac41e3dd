package pki

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"firstlight/appliance/internal/vault"
)

func openVault(t *testing.T) *vault.Vault {
	t.Helper()
	v, err := vault.Open(filepath.Join(t.TempDir(), "vault.key"))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// readable lists the key files in dir that hold a key in the clear, or that others may read.
func readable(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.key*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("key files in %s: %v, %v", dir, files, err)
	}
	var out []string
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(data)
		if block == nil {
			t.Fatalf("%s holds no PEM block", f)
		}
		if _, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil || block.Type != sealedType || info.Mode().Perm() != 0o600 {
			out = append(out, filepath.Base(f))
		}
	}
	return out
}

func TestKeysAreSealedAtRest(t *testing.T) {
	t.Parallel()
	dir, cfg := filepath.Join(t.TempDir(), "pki"), config(issued)
	cfg.Vault = openVault(t)
	first := open(t, dir, cfg)
	if got := readable(t, dir); got != nil {
		t.Errorf("in the clear: %v", got)
	}
	second := open(t, dir, cfg)
	for _, k := range kinds {
		if !first.held[k.name].key.Equal(second.held[k.name].key) {
			t.Errorf("%s: another key after a restart", k.name)
		}
	}
	for name, v := range map[string]*vault.Vault{"another vault": openVault(t), "no vault": nil} {
		before, err := os.ReadFile(filepath.Join(dir, "serving-ca.key"))
		if err != nil {
			t.Fatal(err)
		}
		wrong := cfg
		wrong.Vault = v
		if _, err := Open(dir, wrong); err == nil || !strings.Contains(err.Error(), "serving-ca.key") || !strings.Contains(err.Error(), "vault") {
			t.Errorf("%s: got %v, want an error that names the file and the vault", name, err)
		}
		if after, err := os.ReadFile(filepath.Join(dir, "serving-ca.key")); err != nil || !bytes.Equal(before, after) {
			t.Errorf("%s: the file was touched, %v", name, err)
		}
	}
}

// What an older appliance left in the clear, and what a person put there, is sealed at the next start, and is the same key.
func TestKeysInTheClearAreSealed(t *testing.T) {
	t.Parallel()
	dir, cfg := filepath.Join(t.TempDir(), "pki"), config(issued)
	old := open(t, dir, cfg)
	if got := readable(t, dir); len(got) != len(kinds) {
		t.Fatalf("in the clear before: %v, want all", got)
	}
	cfg.Vault = openVault(t)
	sealed := open(t, dir, cfg)
	if got := readable(t, dir); got != nil {
		t.Errorf("in the clear: %v", got)
	}
	for _, a := range []*Authority{sealed, open(t, dir, cfg)} {
		for _, k := range kinds {
			if !old.held[k.name].key.Equal(a.held[k.name].key) || !old.held[k.name].chain[0].Equal(a.held[k.name].chain[0]) {
				t.Errorf("%s: another key or certificate", k.name)
			}
		}
	}
}

// Sealing goes on where it was cut: each file is the old one or the new one.
func TestSealingIsTakenUpAgain(t *testing.T) {
	t.Parallel()
	dir, cfg := filepath.Join(t.TempDir(), "pki"), config(issued)
	old := open(t, dir, cfg)
	cfg.Vault = openVault(t)
	if err := writeKey(dir, nodeCA, old.held[nodeCA].key, cfg.Vault); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "command-root.key.new"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := open(t, dir, cfg)
	if got := readable(t, dir); got != nil {
		t.Errorf("in the clear: %v", got)
	}
	for _, k := range kinds {
		if !old.held[k.name].key.Equal(a.held[k.name].key) {
			t.Errorf("%s: another key", k.name)
		}
	}
}

// A sealed key opens only under its own name.
func TestSealedKeysCannotChangePlaces(t *testing.T) {
	t.Parallel()
	dir, cfg := filepath.Join(t.TempDir(), "pki"), config(issued)
	cfg.Vault = openVault(t)
	open(t, dir, cfg)
	data, err := os.ReadFile(filepath.Join(dir, "worker.key"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "command-root.key"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, cfg); !errors.Is(err, vault.ErrDamaged) || !strings.Contains(err.Error(), "command-root.key") {
		t.Errorf("got %v, want ErrDamaged about command-root.key", err)
	}
}

// A key and a certificate that somebody else put there are taken as they are, and sealed.
func TestForeignKeyIsSealed(t *testing.T) {
	t.Parallel()
	dir, cfg := filepath.Join(t.TempDir(), "pki"), config(issued)
	cfg.Vault = openVault(t)
	open(t, dir, cfg)
	foreign := open(t, filepath.Join(t.TempDir(), "pki"), config(issued))
	if err := errors.Join(writeKey(dir, worker, foreign.held[worker].key, nil), writeChain(dir, worker, foreign.held[worker].chain)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		a := open(t, dir, cfg)
		if !a.held[worker].key.Equal(foreign.held[worker].key) || !a.held[worker].chain[0].Equal(foreign.held[worker].chain[0]) {
			t.Error("want the foreign worker key and certificate")
		}
		if got := readable(t, dir); got != nil {
			t.Errorf("in the clear: %v", got)
		}
	}
}
