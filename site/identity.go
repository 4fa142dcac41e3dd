package site

import (
	"context"
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
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"firstlight/gateway-client/ident"
	"firstlight/gateway-client/link"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/gateway-client/sealed"
	"firstlight/gateway-client/session"
	"firstlight/site/internal/statefile"
)

const (
	identityFile = "identity.pem"
	// maxIdentity bounds the identity file in bytes.
	maxIdentity = 1 << 20
	// joinPause and joinPauseMax bound the wait before a gateway that did not answer is asked again.
	joinPause, joinPauseMax = 500 * time.Millisecond, 10 * time.Second
)

// PEM types of the identity file.
const (
	pemKey   = "PRIVATE KEY"
	pemCert  = "CERTIFICATE"
	pemTrust = "FIRSTLIGHT TRUST BUNDLE"
)

// identity returns the one in the state directory, or joins for a new one where there is none that is still good for a while.
func (a *Agent) identity(ctx context.Context, hw *commonv1.HardwareClaims) (*session.Identity, error) {
	path := filepath.Join(a.cfg.StateDir, identityFile)
	id, err := loadIdentity(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("read identity %s: %w", path, err)
	case id.NodeID != a.cfg.NodeID || id.Trust.GetTrustDomain() != a.cfg.TrustDomain:
		return nil, fmt.Errorf("identity %s is node %s of %s, this agent is node %s of %s", path, id.NodeID, id.Trust.GetTrustDomain(), a.cfg.NodeID, a.cfg.TrustDomain)
	case a.cfg.Now().Before(renewAt(id)):
		return id, nil
	}
	return a.join(ctx, path, hw)
}

// renewAt is when an identity is too old to go on with: two thirds into its life.
func renewAt(id *session.Identity) time.Time {
	leaf := id.Chain[0]
	return leaf.NotAfter.Add(-leaf.NotAfter.Sub(leaf.NotBefore) / 3)
}

// join asks for an identity with a one-time token, and stores it. A gateway that does not answer is asked again until ctx ends.
func (a *Agent) join(ctx context.Context, path string, hw *commonv1.HardwareClaims) (*session.Identity, error) {
	token, err := a.cfg.JoinToken()
	if err != nil {
		return nil, fmt.Errorf("join token: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("node key: %w", err)
	}
	params := session.JoinParams{
		Link: a.cfg.Link, JoinSigningKey: a.cfg.JoinSigningKey, Key: key, Role: commonv1.AgentRole_AGENT_ROLE_SITE, Attestor: "join-token",
		Evidence: func(csrSHA256 []byte) ([]byte, error) {
			s, err := sealed.Seal(a.cfg.JoinEncryptionKey, sealed.TypJoin, sealed.JoinClaims{Secret: token, CSRSHA256: csrSHA256})
			return []byte(s), err
		},
		Hardware: hw, NodeID: a.cfg.NodeID, Version: a.cfg.Version, Now: a.cfg.Now,
	}
	for pause := joinPause; ; pause = min(2*pause, joinPauseMax) {
		id, err := session.Join(ctx, params)
		if err == nil {
			a.cfg.Log.Info("joined", "node", id.NodeID, "certificate_until", id.Chain[0].NotAfter)
			return id, storeIdentity(path, id)
		}
		if status.Code(err) != codes.Unavailable || errors.Is(err, link.ErrPin) || errors.Is(err, link.ErrClock) || ctx.Err() != nil {
			return nil, err
		}
		a.cfg.Log.Info("gateway does not answer yet", "gateway", a.cfg.Link.URL, "error", err)
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, err
		}
	}
}

func storeIdentity(path string, id *session.Identity) error {
	key, err := x509.MarshalPKCS8PrivateKey(id.Key)
	if err != nil {
		return fmt.Errorf("store identity: %w", err)
	}
	trust, err := proto.Marshal(id.Trust)
	if err != nil {
		return fmt.Errorf("store identity: %w", err)
	}
	b := pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: key})
	for _, c := range id.Chain {
		b = append(b, pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: c.Raw})...)
	}
	b = append(b, pem.EncodeToMemory(&pem.Block{Type: pemTrust, Bytes: trust})...)
	return statefile.Write(path, b)
}

func loadIdentity(path string) (*session.Identity, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxIdentity {
		return nil, fmt.Errorf("%d bytes, the most is %d", info.Size(), maxIdentity)
	}
	rest, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	id := &session.Identity{Role: commonv1.AgentRole_AGENT_ROLE_SITE}
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if err := addBlock(id, block); err != nil {
			return nil, err
		}
	}
	if id.Key == nil || len(id.Chain) == 0 || id.Trust == nil {
		return nil, errors.New("key, certificate or trust bundle is missing")
	}
	name, err := ident.FromCertificate(id.Chain[0])
	if err != nil {
		return nil, err
	}
	id.NodeID = name.Node
	return id, nil
}

func addBlock(id *session.Identity, block *pem.Block) error {
	switch block.Type {
	case pemKey:
		k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			return err
		}
		ec, ok := k.(*ecdsa.PrivateKey)
		if !ok {
			return errors.New("key is not ECDSA")
		}
		id.Key = ec
	case pemCert:
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return err
		}
		id.Chain = append(id.Chain, c)
	case pemTrust:
		id.Trust = new(commonv1.TrustBundle)
		return proto.Unmarshal(block.Bytes, id.Trust)
	}
	return nil
}
