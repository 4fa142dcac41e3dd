// Package nodeconf reads and writes config.toml, which the deploy leaves on the machine's configuration partition for the node
// agent: where the gateway is, what to pin, who the node is, and the join secret of this deploy until it is used.
//
// It is for ramdisk (the deploy writes, the node agent reads and removes the secret). It is a codec: files are the caller's.
package nodeconf

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"

	"github.com/BurntSushi/toml"

	"firstlight/gateway-client/ident"
	"firstlight/ramdisk/internal/trust"
)

// File is the name on the configuration partition.
const File = "config.toml"

// Bounds.
const (
	MaxFile   = 64 << 10
	MaxPins   = 8
	MaxSecret = 4 << 10
)

// Secret never prints.
type Secret []byte

func (Secret) String() string   { return "[secret]" }
func (Secret) GoString() string { return "[secret]" }

// Config is what the node agent needs to join and to hold its session.
type Config struct {
	GatewayURL, ServerName      string
	Node                        ident.NodeID
	TrustDomain, Site, Workflow string
	Pins                        [][]byte
	JoinSigning, JoinEncryption *ecdsa.PublicKey
	// JoinSecret is nil once it was used.
	JoinSecret Secret
}

type file struct {
	GatewayURL        string   `toml:"gateway_url"`
	GatewayServerName string   `toml:"gateway_server_name"`
	NodeID            string   `toml:"node_id"`
	TrustDomain       string   `toml:"trust_domain"`
	SiteID            string   `toml:"site_id"`
	WorkflowID        string   `toml:"workflow_id"`
	Pins              []string `toml:"serving_ca_spki_sha256"`
	JoinSigningKey    string   `toml:"join_signing_key"`
	JoinEncryptionKey string   `toml:"join_encryption_key"`
	JoinSecret        string   `toml:"join_secret,omitempty"`
}

// Decode reads and checks a file. Keys that it does not know are ignored: a newer deploy may write more.
func Decode(b []byte) (*Config, error) {
	if len(b) > MaxFile {
		return nil, fmt.Errorf("read %s: %d bytes, want at most %d", File, len(b), MaxFile)
	}
	var f file
	if _, err := toml.Decode(string(b), &f); err != nil {
		// The parser's own text may quote the line, and that line may hold the secret.
		var p toml.ParseError
		if errors.As(err, &p) {
			return nil, fmt.Errorf("read %s: line %d is not valid", File, p.Position.Line)
		}
		return nil, fmt.Errorf("read %s: it is not valid TOML of the expected types", File)
	}
	c := &Config{GatewayURL: f.GatewayURL, ServerName: f.GatewayServerName, Node: ident.NodeID(f.NodeID), TrustDomain: f.TrustDomain,
		Site: f.SiteID, Workflow: f.WorkflowID}
	var err error
	for _, p := range f.Pins {
		pin, err := hex.DecodeString(p)
		if err != nil {
			return nil, fmt.Errorf("read %s: serving_ca_spki_sha256: not hexadecimal", File)
		}
		c.Pins = append(c.Pins, pin)
	}
	if c.JoinSigning, err = parseKey(f.JoinSigningKey); err != nil {
		return nil, fmt.Errorf("read %s: join_signing_key: %w", File, err)
	}
	if c.JoinEncryption, err = parseKey(f.JoinEncryptionKey); err != nil {
		return nil, fmt.Errorf("read %s: join_encryption_key: %w", File, err)
	}
	if f.JoinSecret != "" {
		if c.JoinSecret, err = base64.StdEncoding.DecodeString(f.JoinSecret); err != nil {
			return nil, fmt.Errorf("read %s: join_secret is not base64", File)
		}
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("read %s: %w", File, err)
	}
	return c, nil
}

// Encode writes a file.
func (c *Config) Encode() ([]byte, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("write %s: %w", File, err)
	}
	f := file{GatewayURL: c.GatewayURL, GatewayServerName: c.ServerName, NodeID: string(c.Node), TrustDomain: c.TrustDomain, SiteID: c.Site, WorkflowID: c.Workflow}
	for _, p := range c.Pins {
		f.Pins = append(f.Pins, hex.EncodeToString(p))
	}
	for _, k := range []struct {
		to  *string
		key *ecdsa.PublicKey
	}{{&f.JoinSigningKey, c.JoinSigning}, {&f.JoinEncryptionKey, c.JoinEncryption}} {
		der, err := x509.MarshalPKIXPublicKey(k.key)
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", File, err)
		}
		*k.to = base64.StdEncoding.EncodeToString(der)
	}
	f.JoinSecret = base64.StdEncoding.EncodeToString(c.JoinSecret)
	var b bytes.Buffer
	b.WriteString("# Written by Firstlight's deploy. The node agent removes join_secret once it has joined.\n")
	if err := toml.NewEncoder(&b).Encode(f); err != nil {
		return nil, fmt.Errorf("write %s: %w", File, err)
	}
	return b.Bytes(), nil
}

func (c *Config) check() error {
	u, err := url.Parse(c.GatewayURL)
	switch {
	case err != nil || u.Scheme != "https" || u.Host == "":
		return errors.New("gateway_url is not an https URL")
	case !ident.Valid(string(c.Node)) || !ident.Valid(c.TrustDomain) || !ident.Valid(c.Site):
		return errors.New("node_id, trust_domain or site_id is not a valid name")
	case len(c.Pins) == 0 || len(c.Pins) > MaxPins:
		return fmt.Errorf("serving_ca_spki_sha256 has %d pins, want 1 to %d", len(c.Pins), MaxPins)
	case c.JoinSigning == nil || c.JoinEncryption == nil:
		return errors.New("a join key is missing")
	case len(c.JoinSecret) > MaxSecret:
		return fmt.Errorf("join_secret is longer than %d bytes", MaxSecret)
	}
	for _, p := range c.Pins {
		if len(p) != sha256.Size {
			return fmt.Errorf("serving_ca_spki_sha256 has a pin of %d bytes, want %d", len(p), sha256.Size)
		}
	}
	return nil
}

func parseKey(s string) (*ecdsa.PublicKey, error) {
	der, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return nil, errors.New("not base64")
	}
	return trust.ParseKey(der)
}
