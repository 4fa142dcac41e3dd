// Package jointoken keeps the one-time tokens with which an agent that has no identity yet proves that somebody invited it.
//
// It is for appliance (which mints) and control (which redeems at Join). The store holds the token's SHA-256, never the token.
package jointoken

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"firstlight/appliance/internal/store"
	"firstlight/gateway-client/ident"
)

// Prefix of the keys.
const Prefix = "join-tokens/"

// Size of a token in bytes.
const Size = 32

var (
	// ErrUnknown: no such token was minted, or its time was over long ago.
	ErrUnknown = errors.New("join token is not known")
	// ErrExpired: the token was minted, and its time is over.
	ErrExpired = errors.New("join token has expired")
	// ErrUsed: another key joined with the token before. Worth an alarm: somebody copied it.
	ErrUsed = errors.New("join token was used before")
)

// Record is what the store knows of a token.
type Record struct {
	// NodeID and Role are what the token's holder becomes; the role is written as ident.RoleWord gives it.
	NodeID  ident.NodeID `json:"node_id"`
	Role    string       `json:"role"`
	Expires time.Time    `json:"expires"`
	// UsedBy is the SHA-256 (hex) of the CSR that redeemed it; empty until then.
	UsedBy string `json:"used_by,omitempty"`
}

// Mint makes a token that is valid for life from now and returns it; only its hash stays.
func Mint(ctx context.Context, s store.Store, node ident.NodeID, role string, life time.Duration, now time.Time) ([]byte, error) {
	token := make([]byte, Size)
	rand.Read(token)
	value, err := json.Marshal(Record{NodeID: node, Role: role, Expires: now.Add(life).UTC()})
	if err != nil {
		return nil, fmt.Errorf("mint join token: %w", err)
	}
	if _, err := s.Put(ctx, key(token), value, 0); err != nil {
		return nil, fmt.Errorf("mint join token: %w", err)
	}
	return token, nil
}

// Redeem binds the token to one CSR. The same CSR may come again, because an answer can be lost; another one is ErrUsed.
func Redeem(ctx context.Context, s store.Store, token, csrSHA256 []byte, now time.Time) (Record, error) {
	e, err := s.Get(ctx, key(token))
	if errors.Is(err, store.ErrNotFound) {
		return Record{}, ErrUnknown
	}
	if err != nil {
		return Record{}, fmt.Errorf("redeem join token: %w", err)
	}
	var r Record
	if err := json.Unmarshal(e.Value, &r); err != nil {
		return Record{}, fmt.Errorf("redeem join token: %w", err)
	}
	csr := hex.EncodeToString(csrSHA256)
	switch {
	case r.UsedBy == csr:
		return r, nil
	case r.UsedBy != "":
		return Record{}, ErrUsed
	case !now.Before(r.Expires):
		return Record{}, ErrExpired
	}
	r.UsedBy = csr
	value, err := json.Marshal(r)
	if err != nil {
		return Record{}, fmt.Errorf("redeem join token: %w", err)
	}
	switch _, err := s.Put(ctx, e.Key, value, e.Rev); {
	case errors.Is(err, store.ErrConflict):
		return Record{}, ErrUsed
	case err != nil:
		return Record{}, fmt.Errorf("redeem join token: %w", err)
	}
	return r, nil
}

// Sweep removes tokens whose time was over at the time before.
func Sweep(ctx context.Context, s store.Store, before time.Time) error {
	entries, err := s.List(ctx, Prefix)
	if err != nil {
		return fmt.Errorf("sweep join tokens: %w", err)
	}
	for _, e := range entries {
		var r Record
		if json.Unmarshal(e.Value, &r) == nil && r.Expires.After(before) {
			continue
		}
		if err := s.Delete(ctx, e.Key, e.Rev); err != nil && !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("sweep join tokens: %w", err)
		}
	}
	return nil
}

func key(token []byte) string {
	sum := sha256.Sum256(token)
	return Prefix + hex.EncodeToString(sum[:])
}
