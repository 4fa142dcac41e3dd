// Package sealed encrypts small values to one P-256 key, as compact JWE (ECDH-ES+A256KW, A256GCM) of JSON claims.
//
// It is for evidence of a join (to the JoinService key) and for secrets (to a key that is used once): a gateway in between
// sees ciphertext only. It authenticates nobody: whoever has the public key can seal. Rank 1, used by both halves.
package sealed

import (
	"crypto/ecdsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Types of what is sealed, in the header "typ": one is never taken for the other.
const (
	TypJoin   = "bcjoin+jwe"
	TypSecret = "bcsecret+jwe"
)

// MaxBytes bounds a compact JWE.
const MaxBytes = 64 << 10

// JoinClaims is the evidence of the attestors join-token and provisioned, bound to one CSR.
type JoinClaims struct {
	Secret    []byte `json:"secret"`
	CSRSHA256 []byte `json:"csr_sha256"`
}

// String hides the secret.
func (JoinClaims) String() string { return "[secret]" }

// GoString hides the secret.
func (JoinClaims) GoString() string { return "[secret]" }

// SecretClaims is one secret, bound to the request that it answers.
type SecretClaims struct {
	Ref       string    `json:"ref"`
	RequestID string    `json:"request_id"`
	Value     []byte    `json:"value"`
	Expires   time.Time `json:"expires"`
}

// String hides the secret.
func (SecretClaims) String() string { return "[secret]" }

// GoString hides the secret.
func (SecretClaims) GoString() string { return "[secret]" }

// ErrSealed is wrapped by every refusal of Open.
var ErrSealed = errors.New("sealed value refused")

// header is what Open accepts, exactly.
type header struct {
	Typ string `json:"typ"`
	Alg string `json:"alg"`
	Enc string `json:"enc"`
	Zip string `json:"zip"`
}

// Seal encrypts claims, as JSON, to the holder of to.
func Seal(to *ecdsa.PublicKey, typ string, claims any) (string, error) {
	plain, err := json.Marshal(claims)
	if err != nil {
		return "", fmt.Errorf("seal %s: %w", typ, err)
	}
	enc, err := jose.NewEncrypter(jose.A256GCM, jose.Recipient{Algorithm: jose.ECDH_ES_A256KW, Key: to},
		(&jose.EncrypterOptions{}).WithType(jose.ContentType(typ)))
	if err != nil {
		return "", fmt.Errorf("seal %s: %w", typ, err)
	}
	obj, err := enc.Encrypt(plain)
	if err != nil {
		return "", fmt.Errorf("seal %s: %w", typ, err)
	}
	out, err := obj.CompactSerialize()
	if err != nil {
		return "", fmt.Errorf("seal %s: %w", typ, err)
	}
	if len(out) > MaxBytes {
		return "", fmt.Errorf("seal %s: %d bytes, want at most %d", typ, len(out), MaxBytes)
	}
	return out, nil
}

// Open decrypts what was sealed to key under typ and reads its claims into into. It refuses another typ, alg or enc,
// compression, and more than MaxBytes; an error never carries the plain text.
func Open(key *ecdsa.PrivateKey, typ, compact string, into any) error {
	if len(compact) > MaxBytes {
		return fmt.Errorf("open %s: %w: %d bytes, want at most %d", typ, ErrSealed, len(compact), MaxBytes)
	}
	head, _, _ := strings.Cut(compact, ".")
	raw, err := base64.RawURLEncoding.DecodeString(head)
	if err != nil {
		return fmt.Errorf("open %s: %w: header is not base64url", typ, ErrSealed)
	}
	var h header
	if err := json.Unmarshal(raw, &h); err != nil {
		return fmt.Errorf("open %s: %w: header is not JSON", typ, ErrSealed)
	}
	if h != (header{Typ: typ, Alg: string(jose.ECDH_ES_A256KW), Enc: string(jose.A256GCM)}) {
		return fmt.Errorf("open %s: %w: header says typ %q, alg %q, enc %q, zip %q", typ, ErrSealed, h.Typ, h.Alg, h.Enc, h.Zip)
	}
	obj, err := jose.ParseEncryptedCompact(compact, []jose.KeyAlgorithm{jose.ECDH_ES_A256KW}, []jose.ContentEncryption{jose.A256GCM})
	if err != nil {
		return fmt.Errorf("open %s: %w: %w", typ, ErrSealed, err)
	}
	plain, err := obj.Decrypt(key)
	if err != nil {
		return fmt.Errorf("open %s: %w: it is not for this key, or it was altered", typ, ErrSealed)
	}
	if err := json.Unmarshal(plain, into); err != nil {
		return fmt.Errorf("open %s: %w: claims are not as expected", typ, ErrSealed)
	}
	return nil
}
