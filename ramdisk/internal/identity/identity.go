// Package identity keeps who the agent is in a folder: its private key, its certificates and what it believes.
//
// It is for ramdisk: the RAM disk keeps it in memory, so that a restarted agent is the same one; a node keeps it on its disk, so that
// it is the same node after a reboot. The key is made before the first Join and never leaves the folder.
package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"firstlight/gateway-client/ident"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/gateway-client/session"
)

// ErrNone: the folder holds no identity yet.
var ErrNone = errors.New("no identity yet")

const (
	keyFile   = "node.key"
	chainFile = "node.crt"
	trustFile = "trust.binpb"
	clockFile = "last-heard"
	// maxFile bounds each file in bytes.
	maxFile = 256 << 10
	// maxChain bounds the certificates in node.crt.
	maxChain = 8
)

// Store is a folder.
type Store struct{ dir string }

// Open makes the folder when it is missing; only its owner may enter.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open identity folder: %w", err)
	}
	return &Store{dir}, nil
}

// Key returns the folder's private key, made on the first call.
func (s *Store) Key() (*ecdsa.PrivateKey, error) {
	b, err := s.read(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return s.newKey()
	}
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("read identity key %s: it is not PEM", s.path(keyFile))
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read identity key %s: it is not a PKCS #8 key", s.path(keyFile))
	}
	key, ok := k.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("read identity key %s: it is not ECDSA P-256", s.path(keyFile))
	}
	return key, nil
}

func (s *Store) newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make identity key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make identity key: %w", err)
	}
	return key, s.write(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// Save keeps an identity; the certificates come last, so that a cut leaves none rather than half of one.
func (s *Store) Save(id *session.Identity) error {
	b, err := proto.Marshal(id.Trust)
	if err != nil {
		return fmt.Errorf("save identity: %w", err)
	}
	if err := s.write(trustFile, b); err != nil {
		return err
	}
	var chain []byte
	for _, c := range id.Chain {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return s.write(chainFile, chain)
}

// Load returns the identity, or ErrNone.
func (s *Store) Load() (*session.Identity, error) {
	b, err := s.read(chainFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, err
	}
	id := &session.Identity{Trust: &commonv1.TrustBundle{}}
	for len(b) > 0 {
		var block *pem.Block
		if block, b = pem.Decode(b); block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil || len(id.Chain) == maxChain {
			return nil, fmt.Errorf("read identity %s: not 1 to %d certificates", s.path(chainFile), maxChain)
		}
		id.Chain = append(id.Chain, c)
	}
	if len(id.Chain) == 0 {
		return nil, fmt.Errorf("read identity %s: no certificate in it", s.path(chainFile))
	}
	if id.Key, err = s.Key(); err != nil {
		return nil, err
	}
	if !id.Key.PublicKey.Equal(id.Chain[0].PublicKey) {
		return nil, fmt.Errorf("read identity %s: the certificate is for another key", s.path(chainFile))
	}
	who, err := ident.FromCertificate(id.Chain[0])
	if err != nil {
		return nil, fmt.Errorf("read identity %s: %w", s.path(chainFile), err)
	}
	if id.Role, err = ident.RoleOf(id.Chain[0]); err != nil {
		return nil, fmt.Errorf("read identity %s: %w", s.path(chainFile), err)
	}
	id.NodeID = who.Node
	t, err := s.read(trustFile)
	if err != nil {
		return nil, err
	}
	if err := proto.Unmarshal(t, id.Trust); err != nil {
		return nil, fmt.Errorf("read identity %s: %w", s.path(trustFile), err)
	}
	return id, nil
}

// SaveClock keeps the newest time that the gateway said.
func (s *Store) SaveClock(t time.Time) error {
	if !t.After(s.Clock()) {
		return nil
	}
	return s.write(clockFile, []byte(t.UTC().Format(time.RFC3339)+"\n"))
}

// Clock returns the newest time that the gateway said; zero when it never did.
func (s *Store) Clock() time.Time {
	b, err := s.read(clockFile)
	if err != nil {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, strings.TrimSpace(string(b)))
	if err != nil {
		return time.Time{}
	}
	return t
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Store) read(name string) ([]byte, error) {
	b, err := os.ReadFile(s.path(name))
	if err != nil {
		return nil, fmt.Errorf("read identity: %w", err)
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("read identity %s: %d bytes, want at most %d", s.path(name), len(b), maxFile)
	}
	return b, nil
}

// write replaces a file as a whole: after a power cut there is the old one or the new one.
func (s *Store) write(name string, b []byte) error {
	return WriteFile(s.path(name), b)
}

// WriteFile writes a file of mode 0600 under a new name, syncs it and puts it in place.
func WriteFile(path string, b []byte) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if d, err := os.Open(filepath.Dir(path)); err == nil {
		d.Sync()
		d.Close()
	}
	return nil
}
