package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
)

// Secret is a password, code, token or session secret. However it is printed it says "[secret]", it cannot be compared with ==, and
// a printer that looks inside finds an address. The zero value is empty.
type Secret struct {
	reveal func() string
}

// NewSecret hides s.
func NewSecret(s string) Secret { return Secret{reveal: func() string { return s }} }

// Reveal returns it, for the one place where it has to go.
func (s Secret) Reveal() string {
	if s.reveal == nil {
		return ""
	}
	return s.reveal()
}

// Empty says that there is none.
func (s Secret) Empty() bool { return s.Reveal() == "" }

// Equal compares in a time that depends on neither value. An empty secret equals nothing.
func (s Secret) Equal(other string) bool {
	a, b := sha256.Sum256([]byte(s.Reveal())), sha256.Sum256([]byte(other))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1 && !s.Empty()
}

const hidden = "[secret]"

// Format hides it from every verb.
func (Secret) Format(f fmt.State, _ rune) { io.WriteString(f, hidden) }

// String hides it.
func (Secret) String() string { return hidden }

// MarshalText hides it.
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// LogValue hides it.
func (Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

// secretBytes is the strength of what we make: 256 bits.
const secretBytes = 32

// newSecret makes one that nobody guesses: 43 characters of base64url.
func newSecret() Secret {
	b := make([]byte, secretBytes)
	rand.Read(b) // never fails (crypto/rand)
	return NewSecret(base64.RawURLEncoding.EncodeToString(b))
}

// sum is what is kept of a secret that we made: guessing 256 bits needs no slow hash.
func sum(s string) [32]byte { return sha256.Sum256([]byte(s)) }
