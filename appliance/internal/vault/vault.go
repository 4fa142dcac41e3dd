// Package vault encrypts the few secrets that the control plane must be able to read again, such as BMC passwords and a deploy's
// join secret, before they go into the store.
//
// It is for appliance and its internal packages. It protects a copy of the store, not a machine whose root is an attacker: the key
// lies beside the data, in a file of its own with mode 0600. What needs only comparing is kept as a hash, not here.
package vault

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
)

// ErrDamaged: the sealed value was altered, belongs elsewhere or was sealed with another key.
var ErrDamaged = errors.New("sealed value does not open")

const (
	keySize = 32
	// version of the sealed form: version || 12-byte nonce || AES-256-GCM.
	version = 1
	// MaxSecret bounds a secret in bytes.
	MaxSecret = 4 << 10
)

// Secret is a value that prints as "[secret]" wherever it ends up; Reveal is the one way to the bytes.
type Secret struct{ b []byte }

// NewSecret takes a copy of b.
func NewSecret(b []byte) Secret { return Secret{b: append([]byte(nil), b...)} }

// Reveal returns the bytes.
func (s Secret) Reveal() []byte { return s.b }

// String hides the secret.
func (Secret) String() string { return "[secret]" }

// GoString hides the secret.
func (Secret) GoString() string { return "[secret]" }

// MarshalJSON hides the secret.
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"[secret]"`), nil }

// LogValue hides the secret.
func (Secret) LogValue() slog.Value { return slog.StringValue("[secret]") }

// Vault is safe for use from many goroutines.
type Vault struct{ aead cipher.AEAD }

// Open reads the key file at path, or makes it with a fresh key when it does not exist.
func Open(path string) (*Vault, error) {
	key, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		key, err = create(path)
	}
	if err != nil {
		return nil, fmt.Errorf("open vault key: %w", err)
	}
	if len(key) != keySize {
		return nil, fmt.Errorf("open vault key %s: %d bytes, want %d", path, len(key), keySize)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("open vault key: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("open vault key: %w", err)
	}
	return &Vault{aead: aead}, nil
}

func create(path string) ([]byte, error) {
	key := make([]byte, keySize)
	rand.Read(key)
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new*") // mode 0600
	if err != nil {
		return nil, err
	}
	_, err = f.Write(key)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return nil, err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	return key, errors.Join(d.Sync(), d.Close())
}

// Seal encrypts s for one place: only Open with the same place (such as "bmc/m1") gives it back.
func (v *Vault) Seal(place string, s Secret) ([]byte, error) {
	if len(s.b) > MaxSecret {
		return nil, fmt.Errorf("seal %s: secret of %d bytes, want at most %d", place, len(s.b), MaxSecret)
	}
	out := make([]byte, 1+v.aead.NonceSize(), 1+v.aead.NonceSize()+len(s.b)+v.aead.Overhead())
	out[0] = version
	if _, err := io.ReadFull(rand.Reader, out[1:]); err != nil {
		return nil, fmt.Errorf("seal %s: %w", place, err)
	}
	return v.aead.Seal(out, out[1:], s.b, []byte(place)), nil
}

// Open decrypts what Seal made for the same place, or returns ErrDamaged.
func (v *Vault) Open(place string, sealed []byte) (Secret, error) {
	n := 1 + v.aead.NonceSize()
	if len(sealed) < n || sealed[0] != version {
		return Secret{}, fmt.Errorf("open %s: %w", place, ErrDamaged)
	}
	plain, err := v.aead.Open(nil, sealed[1:n], sealed[n:], []byte(place))
	if err != nil {
		return Secret{}, fmt.Errorf("open %s: %w", place, ErrDamaged)
	}
	return Secret{b: plain}, nil
}
