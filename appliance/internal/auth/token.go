package auth

import (
	"context"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"firstlight/appliance/internal/store"
)

// Bounds of tokens.
const (
	// MaxTokens bounds the tokens kept.
	MaxTokens = 500
	// TokenLife is what a token lasts when nobody says otherwise, MaxTokenLife and MinTokenLife what one may.
	TokenLife    = 90 * 24 * time.Hour
	MaxTokenLife = 2 * 365 * 24 * time.Hour
	MinTokenLife = time.Minute
	// usedEvery is how exactly it is kept when a token was last used.
	usedEvery = time.Hour
)

// tokenPrefix lets programs that look for leaked secrets know ours: flt_NAME_SECRET.
const tokenPrefix = "flt_"

// Token is a name under which a program may use the API.
type Token struct {
	Name string `json:"name"`
	Role Role   `json:"role"`
	// By is who made it.
	By      string    `json:"by"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
	// Used is when it was last used, to the hour; zero is never.
	Used time.Time `json:"used,omitzero"`
}

// tokenRecord is a token in the store.
type tokenRecord struct {
	Token
	// SHA256 of the secret part, hex.
	SHA256 string `json:"sha256"`
}

// MintToken makes a token that ends after life. Its value is shown this once and kept nowhere.
func (a *Accounts) MintToken(ctx context.Context, name string, role Role, life time.Duration, by string) (Secret, Token, error) {
	if err := checkName("token", name); err != nil {
		return Secret{}, Token{}, err
	}
	if _, err := ParseRole(string(role)); err != nil {
		return Secret{}, Token{}, err
	}
	if life < MinTokenLife || life > MaxTokenLife {
		return Secret{}, Token{}, fmt.Errorf("token life %v: %w: want %v to %v", life, ErrInvalid, MinTokenLife, MaxTokenLife)
	}
	all, err := a.cfg.Store.List(ctx, tokensPrefix)
	if err != nil {
		return Secret{}, Token{}, fmt.Errorf("list tokens: %w", err)
	}
	if len(all) >= MaxTokens {
		return Secret{}, Token{}, fmt.Errorf("token %q: %w: %d are there", name, ErrFull, MaxTokens)
	}
	secret, now := newSecret().Reveal(), a.cfg.Now().UTC()
	hash := sum(secret)
	r := tokenRecord{Token: Token{Name: name, Role: role, By: by, Created: now, Expires: now.Add(life)}, SHA256: hex.EncodeToString(hash[:])}
	b, err := json.Marshal(r)
	if err != nil {
		return Secret{}, Token{}, fmt.Errorf("encode token: %w", err)
	}
	if _, err = a.cfg.Store.Put(ctx, tokensPrefix+name, b, 0); errors.Is(err, store.ErrConflict) {
		err = ErrTaken
	}
	if err != nil {
		return Secret{}, Token{}, fmt.Errorf("token %q: %w", name, err)
	}
	return NewSecret(tokenPrefix + name + "_" + secret), r.Token, nil
}

// TokenPrincipal says who has a token, or ErrDenied.
func (a *Accounts) TokenPrincipal(ctx context.Context, value Secret) (Principal, error) {
	denied := fmt.Errorf("token: %w", ErrDenied)
	rest, ours := strings.CutPrefix(value.Reveal(), tokenPrefix)
	name, secret, ok := strings.Cut(rest, "_")
	if !ours || !ok || checkName("token", name) != nil {
		return Principal{}, denied
	}
	e, err := a.cfg.Store.Get(ctx, tokensPrefix+name)
	if errors.Is(err, store.ErrNotFound) {
		return Principal{}, denied
	}
	if err != nil {
		return Principal{}, fmt.Errorf("read token: %w", err)
	}
	var r tokenRecord
	if err := json.Unmarshal(e.Value, &r); err != nil {
		return Principal{}, fmt.Errorf("decode token %q: %w", name, err)
	}
	got, now := sum(secret), a.cfg.Now().UTC()
	if subtle.ConstantTimeCompare([]byte(hex.EncodeToString(got[:])), []byte(r.SHA256)) != 1 || now.After(r.Expires) {
		return Principal{}, denied
	}
	if now.Sub(r.Used) >= usedEvery {
		a.noteUse(ctx, e, r, now)
	}
	return Principal{Kind: KindToken, Name: name, Role: r.Role}, nil
}

// noteUse writes when a token was used; that it could not is no reason to refuse it.
func (a *Accounts) noteUse(ctx context.Context, e store.Entry, r tokenRecord, now time.Time) {
	r.Used = now
	b, err := json.Marshal(r)
	if err == nil {
		_, err = a.cfg.Store.Put(ctx, e.Key, b, e.Rev)
	}
	if gone(err) != nil {
		a.cfg.Log.Warn("note use of token", "token", r.Name, "error", err)
	}
}

// Tokens returns all tokens by name, also those that are over.
func (a *Accounts) Tokens(ctx context.Context) ([]Token, error) {
	all, err := a.cfg.Store.List(ctx, tokensPrefix)
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	out := make([]Token, len(all))
	for i, e := range all {
		var r tokenRecord
		if err := json.Unmarshal(e.Value, &r); err != nil {
			return nil, fmt.Errorf("decode %s: %w", e.Key, err)
		}
		out[i] = r.Token
	}
	return out, nil
}

// RevokeToken ends a token at once.
func (a *Accounts) RevokeToken(ctx context.Context, name string) error {
	err := checkName("token", name)
	if err != nil {
		return fmt.Errorf("token %.64q: %w", name, ErrUnknown)
	}
	return a.update(ctx, tokensPrefix+name, func(old []byte) ([]byte, error) {
		if old == nil {
			return nil, fmt.Errorf("token %q: %w", name, ErrUnknown)
		}
		return nil, nil
	})
}
