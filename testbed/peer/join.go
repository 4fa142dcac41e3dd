package peer

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net"
	"time"

	"github.com/BurntSushi/toml"

	"firstlight/gateway-client/ident"
	"firstlight/gateway-client/link"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/gateway-client/sealed"
	"firstlight/gateway-client/session"
)

const joinLimit = time.Minute

// Seed is what a deployed system needs to join, as it lies on a machine's configuration partition.
type Seed struct {
	GatewayURL        string   `toml:"gateway_url"`
	GatewayServerName string   `toml:"gateway_server_name"`
	NodeID            string   `toml:"node_id"`
	Pins              []string `toml:"serving_ca_spki_sha256"`
	JoinSigningKey    string   `toml:"join_signing_key"`
	JoinEncryptionKey string   `toml:"join_encryption_key"`
	JoinSecret        secret   `toml:"join_secret"`
}

// secret does not print.
type secret string

func (secret) String() string   { return "[secret]" }
func (secret) GoString() string { return "[secret]" }

// ParseSeed reads config.toml.
func ParseSeed(text []byte) (*Seed, error) {
	var s Seed
	if err := toml.Unmarshal(text, &s); err != nil {
		// The parser's error would quote the line, and with it the secret.
		return nil, fmt.Errorf("read config.toml: not TOML (%d bytes)", len(text))
	}
	if s.JoinSecret == "" || s.GatewayURL == "" || s.NodeID == "" {
		return nil, fmt.Errorf("read config.toml: join_secret, gateway_url or node_id is missing")
	}
	return &s, nil
}

// JoinDiscovery joins as the RAM disk of the machine that the boot was made for, with a key of the peer's own.
func (h Host) JoinDiscovery(ctx context.Context, b *Boot, claims *commonv1.HardwareClaims) (*session.Identity, error) {
	signing, err := parsePublic(b.Anchors.JoinSigningKey)
	if err != nil {
		return nil, fmt.Errorf("join signing key: %w", err)
	}
	cfg := link.Config{URL: b.Anchors.GatewayUrl, ServerName: b.Anchors.GatewayServerName, SPKIPins: b.Anchors.ServingCaSpkiSha256}
	return h.join(ctx, cfg, session.JoinParams{JoinSigningKey: signing, Role: commonv1.AgentRole_AGENT_ROLE_RAMDISK, Attestor: "discovery", Hardware: claims,
		Evidence: func([]byte) ([]byte, error) { return b.Assertion, nil }})
}

// JoinProvisioned joins as the node whose seed it is, with a key of the peer's own.
func (h Host) JoinProvisioned(ctx context.Context, s *Seed, claims *commonv1.HardwareClaims) (*session.Identity, error) {
	value, err := base64.StdEncoding.DecodeString(string(s.JoinSecret))
	if err != nil {
		return nil, fmt.Errorf("join secret of config.toml is not base64")
	}
	signing, err := decodePublic(s.JoinSigningKey)
	if err != nil {
		return nil, fmt.Errorf("join signing key: %w", err)
	}
	encryption, err := decodePublic(s.JoinEncryptionKey)
	if err != nil {
		return nil, fmt.Errorf("join encryption key: %w", err)
	}
	cfg := link.Config{URL: s.GatewayURL, ServerName: s.GatewayServerName}
	for _, p := range s.Pins {
		pin, err := hex.DecodeString(p)
		if err != nil {
			return nil, fmt.Errorf("pin %q of config.toml: %w", p, err)
		}
		cfg.SPKIPins = append(cfg.SPKIPins, pin)
	}
	return h.join(ctx, cfg, session.JoinParams{JoinSigningKey: signing, Role: commonv1.AgentRole_AGENT_ROLE_NODE, Attestor: "provisioned", Hardware: claims,
		NodeID: ident.NodeID(s.NodeID),
		Evidence: func(csr []byte) ([]byte, error) {
			jwe, err := sealed.Seal(encryption, sealed.TypJoin, sealed.JoinClaims{Secret: value, CSRSHA256: csr})
			return []byte(jwe), err
		}})
}

func (h Host) join(ctx context.Context, cfg link.Config, p session.JoinParams) (*session.Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	cfg.DialContext = func(ctx context.Context, address string) (net.Conn, error) { return h.Dial(ctx, "tcp", address) }
	p.Link, p.Key, p.Version = cfg, key, "testbed peer"
	return session.Join(ctx, p)
}

func decodePublic(text string) (*ecdsa.PublicKey, error) {
	der, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, err
	}
	return parsePublic(der)
}

func parsePublic(der []byte) (*ecdsa.PublicKey, error) {
	parsed, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(*ecdsa.PublicKey)
	if !ok {
		return nil, fmt.Errorf("key is %T, want ECDSA", parsed)
	}
	return key, nil
}
