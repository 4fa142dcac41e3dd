package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Digest is a SHA-256. Its text is 64 lower-case hex digits.
type Digest [sha256.Size]byte

// DigestOf returns the SHA-256 of b.
func DigestOf(b []byte) Digest { return sha256.Sum256(b) }

// ParseDigest reads the text of a digest.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	if err := d.UnmarshalText([]byte(s)); err != nil {
		return Digest{}, err
	}
	return d, nil
}

// String returns the digest's text.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// IsZero says whether the digest was never set.
func (d Digest) IsZero() bool { return d == Digest{} }

// MarshalText implements encoding.TextMarshaler.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. Upper-case digits are refused: a digest has one spelling.
func (d *Digest) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(d)) {
		return fmt.Errorf("digest of %d characters, want %d", len(text), hex.EncodedLen(len(d)))
	}
	for _, c := range text {
		if c >= 'A' && c <= 'F' {
			return fmt.Errorf("digest %q is not lower-case", text)
		}
	}
	if _, err := hex.Decode(d[:], text); err != nil {
		return fmt.Errorf("digest %q: %w", text, err)
	}
	return nil
}
