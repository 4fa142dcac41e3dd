package appliance

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/config"
	"firstlight/gateway-client/ident"
	"firstlight/gateway-client/link"
	"firstlight/site"
)

// joinFile keeps what a site agent of its own process was told when it joined, but for the token.
const joinFile = "join.json"

// maxJoin bounds that file and a token's, in bytes.
const maxJoin = 64 << 10

// SiteConfig is what a site agent in a process of its own is made of.
type SiteConfig struct {
	File *config.Site
	// Token is what `firstlight join-token` printed; nil for an agent that joined before.
	Token io.Reader
	// Version is told to the gateway.
	Version string
	Log     *slog.Logger
}

// RunSite runs a site agent until ctx ends (nil) or it cannot go on. It joins with its token when it has no identity that is still good.
func RunSite(ctx context.Context, cfg SiteConfig) error {
	if err := os.MkdirAll(cfg.File.DataDir, 0o700); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	unlock, err := lock(filepath.Join(cfg.File.DataDir, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	join, err := cfg.join()
	if err != nil {
		return err
	}
	sc, err := cfg.site(join)
	if err != nil {
		return err
	}
	agent, err := site.New(sc)
	if err != nil {
		return err
	}
	return agent.Run(ctx)
}

// join reads the token and keeps the rest for later starts; without a token it reads what was kept.
func (c SiteConfig) join() (api.JoinToken, error) {
	path := filepath.Join(c.File.DataDir, joinFile)
	from := c.Token
	if from == nil {
		f, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			return api.JoinToken{}, errors.New("this site agent never joined: it needs a token of `firstlight join-token`")
		}
		if err != nil {
			return api.JoinToken{}, fmt.Errorf("read what this agent joined: %w", err)
		}
		defer f.Close()
		from = f
	}
	var t api.JoinToken
	data, err := io.ReadAll(io.LimitReader(from, maxJoin))
	if err == nil {
		err = json.Unmarshal(data, &t)
	}
	if err == nil && (t.NodeID == "" || t.Gateway == "" || c.Token != nil && len(t.Token) == 0) {
		err = errors.New("it is not what `firstlight join-token` prints")
	}
	if err != nil {
		return t, fmt.Errorf("read join token: %w", err)
	}
	if c.Token == nil {
		return t, nil
	}
	kept := t
	kept.Token = nil
	if data, err = json.Marshal(kept); err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		return t, fmt.Errorf("keep what this agent joins: %w", err)
	}
	return t, nil
}

func (c SiteConfig) site(t api.JoinToken) (site.Config, error) {
	signing, err := publicKey(t.JoinSigningKey)
	if err != nil {
		return site.Config{}, fmt.Errorf("join signing key: %w", err)
	}
	encryption, err := publicKey(t.JoinEncryptionKey)
	if err != nil {
		return site.Config{}, fmt.Errorf("join encryption key: %w", err)
	}
	var pins [][]byte
	for _, p := range t.SPKIPins {
		pin, err := hex.DecodeString(p)
		if err != nil {
			return site.Config{}, fmt.Errorf("pin %q: %w", p, err)
		}
		pins = append(pins, pin)
	}
	b := c.File.Boot
	return site.Config{
		Interface: b.Interface, Address: b.Address, HTTPListen: b.HTTPListen, HTTPAdvertise: b.HTTPAdvertise,
		FirmwareDir: b.FirmwareDir, RAMDiskDir: b.RAMDiskDir, BlobDir: c.File.BlobDir, KernelArgs: b.KernelArgs, StateDir: filepath.Join(c.File.DataDir, "site"),
		Link:           link.Config{URL: t.Gateway, ServerName: t.ServerName, SPKIPins: pins},
		JoinSigningKey: signing, JoinEncryptionKey: encryption,
		JoinToken: func() ([]byte, error) {
			if len(t.Token) == 0 {
				return nil, errors.New("its identity is too old to go on with: make a new token with `firstlight join-token` and join again")
			}
			return t.Token, nil
		},
		TrustDomain: t.TrustDomain, SiteID: t.SiteID, NodeID: ident.NodeID(t.NodeID), Version: c.Version, Now: time.Now, Log: c.Log,
	}, nil
}

func publicKey(der []byte) (*ecdsa.PublicKey, error) {
	key, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, err
	}
	ec, ok := key.(*ecdsa.PublicKey)
	if !ok {
		return nil, fmt.Errorf("it is a %T, want ECDSA", key)
	}
	return ec, nil
}
