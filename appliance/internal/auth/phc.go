package auth

import (
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/crypto/argon2"
)

// Cost is what one guess at a password costs (RFC 9106, section 3.1).
type Cost struct {
	// MemoryKiB is m, Passes is t, Lanes is p.
	MemoryKiB, Passes uint32
	Lanes             uint8
}

// DefaultCost is the second choice that RFC 9106, section 4, recommends: 64 MiB. Two run at a time (hasher), so it is 128 MiB.
var DefaultCost = Cost{MemoryKiB: 64 << 10, Passes: 3, Lanes: 4}

// Bounds of what a stored hash may ask for, and of its parts in bytes.
const (
	maxMemoryKiB = 256 << 10
	maxPasses    = 16
	maxLanes     = 16
	minSalt      = 8
	maxSalt      = 64
	minHash      = 16
	maxHash      = 64
	maxPHC       = 256

	newSalt = 16
	newHash = 32
)

// check is RFC 9106, section 3.1, and our upper bounds.
func (c Cost) check() error {
	switch {
	case c.Lanes < 1 || c.Lanes > maxLanes:
		return fmt.Errorf("argon2id: %d lanes, want 1 to %d", c.Lanes, maxLanes)
	case c.Passes < 1 || c.Passes > maxPasses:
		return fmt.Errorf("argon2id: %d passes, want 1 to %d", c.Passes, maxPasses)
	case c.MemoryKiB < 8*uint32(c.Lanes) || c.MemoryKiB > maxMemoryKiB:
		return fmt.Errorf("argon2id: %d KiB of memory, want %d to %d", c.MemoryKiB, 8*uint32(c.Lanes), maxMemoryKiB)
	}
	return nil
}

// phc is a password's hash with all that is needed to check one, as "$argon2id$v=19$m=65536,t=3,p=4$SALT$HASH".
type phc struct {
	cost       Cost
	salt, hash []byte
}

// b64 refuses bits that mean nothing, so that a hash has one spelling.
var b64 = base64.RawStdEncoding.Strict()

func (p phc) encode() string {
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, p.cost.MemoryKiB, p.cost.Passes, p.cost.Lanes,
		b64.EncodeToString(p.salt), b64.EncodeToString(p.hash))
}

// parsePHC reads what encode wrote, and nothing else.
func parsePHC(s string) (phc, error) {
	if len(s) > maxPHC {
		return phc{}, fmt.Errorf("password hash of %d bytes, want at most %d", len(s), maxPHC)
	}
	f := strings.Split(s, "$")
	if len(f) != 6 || f[0] != "" || f[1] != "argon2id" || f[2] != "v="+strconv.Itoa(argon2.Version) {
		return phc{}, errors.New("password hash is not argon2id of version 19")
	}
	var p phc
	var err error
	if p.cost, err = parseCost(f[3]); err != nil {
		return phc{}, err
	}
	if p.salt, err = part(f[4], "salt", minSalt, maxSalt); err != nil {
		return phc{}, err
	}
	if p.hash, err = part(f[5], "hash", minHash, maxHash); err != nil {
		return phc{}, err
	}
	if p.encode() != s {
		return phc{}, errors.New("password hash is not in its one spelling")
	}
	return p, nil
}

func parseCost(s string) (Cost, error) {
	f := strings.Split(s, ",")
	if len(f) != 3 {
		return Cost{}, errors.New("password hash: want m=, t= and p=")
	}
	var n [3]uint64
	for i, want := range []struct {
		key  string
		bits int
	}{{"m=", 32}, {"t=", 32}, {"p=", 8}} {
		digits, ok := strings.CutPrefix(f[i], want.key)
		if !ok {
			return Cost{}, fmt.Errorf("password hash: want %s", want.key)
		}
		var err error
		if n[i], err = strconv.ParseUint(digits, 10, want.bits); err != nil {
			return Cost{}, fmt.Errorf("password hash: %s is no number", want.key)
		}
	}
	c := Cost{MemoryKiB: uint32(n[0]), Passes: uint32(n[1]), Lanes: uint8(n[2])}
	return c, c.check()
}

func part(s, what string, least, most int) ([]byte, error) {
	b, err := b64.DecodeString(s)
	if err != nil || len(b) < least || len(b) > most {
		return nil, fmt.Errorf("password hash: %s is not %d to %d bytes of base64", what, least, most)
	}
	return b, nil
}

// matches computes the hash of password; how long it takes depends on the cost alone.
func (p phc) matches(password Secret) bool {
	got := argon2.IDKey([]byte(password.Reveal()), p.salt, p.cost.Passes, p.cost.MemoryKiB, p.cost.Lanes, uint32(len(p.hash)))
	return subtle.ConstantTimeCompare(got, p.hash) == 1
}
