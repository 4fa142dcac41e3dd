// Package ident holds the typed names of the protocol: trust domains, sites, nodes, roles, and how a certificate states them.
//
// It is for everybody (rank 0) and imports nothing of ours. It does not verify chains: whoever reads an identity
// from a certificate has verified that certificate first.
package ident

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/base32"
	"errors"
	"fmt"
	"net/url"
	"strings"

	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// MaxLen bounds each name in bytes.
const MaxLen = 63

// NodeID names one agent for good: a machine, or a site agent.
type NodeID string

// Identity is what a certificate's one SPIFFE URI SAN says: spiffe://<trust-domain>/site/<site-id>/node/<node-id>.
type Identity struct {
	TrustDomain string
	Site        string
	Node        NodeID
}

// roleURN is the prefix of the URI SAN that states the role. A "urn:bc:" URI is a statement about the key, never an identity.
const roleURN = "urn:bc:role:"

// SignURN is the prefix of the URI SAN by which a signing certificate states a purpose that its key may sign for.
const SignURN = "urn:bc:sign:"

var encoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// New returns a fresh random name: prefix, a hyphen and 80 random bits as 16 lower-case letters and digits.
func New(prefix string) string {
	var b [10]byte
	rand.Read(b[:])
	return prefix + "-" + encoding.EncodeToString(b[:])
}

// Valid says whether s can be a trust domain, site or node: 1 to MaxLen of a-z, 0-9, '.', '-', neither first nor last a '.' or '-'.
func Valid(s string) bool {
	if s == "" || len(s) > MaxLen {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case (c == '-' || c == '.') && i > 0 && i < len(s)-1:
		default:
			return false
		}
	}
	return true
}

// URI returns the SPIFFE id. The three parts must be Valid.
func (id Identity) URI() (*url.URL, error) {
	for _, p := range []string{id.TrustDomain, id.Site, string(id.Node)} {
		if !Valid(p) {
			return nil, fmt.Errorf("spiffe id: part %q is not a valid name", p)
		}
	}
	return &url.URL{Scheme: "spiffe", Host: id.TrustDomain, Path: "/site/" + id.Site + "/node/" + string(id.Node)}, nil
}

func (id Identity) String() string {
	return "spiffe://" + id.TrustDomain + "/site/" + id.Site + "/node/" + string(id.Node)
}

// Parse reads a SPIFFE id; anything beside the exact form is an error.
func Parse(u *url.URL) (Identity, error) {
	parts := strings.Split(u.Path, "/")
	if u.Scheme != "spiffe" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" ||
		len(parts) != 5 || parts[0] != "" || parts[1] != "site" || parts[3] != "node" {
		return Identity{}, fmt.Errorf("spiffe id %q: want spiffe://<trust-domain>/site/<site>/node/<node>", u)
	}
	id := Identity{TrustDomain: u.Host, Site: parts[2], Node: NodeID(parts[4])}
	back, err := id.URI()
	if err != nil {
		return Identity{}, err
	}
	if back.String() != u.String() {
		return Identity{}, fmt.Errorf("spiffe id %q is not in canonical form", u)
	}
	return id, nil
}

// FromCertificate returns the identity of a verified certificate: exactly one URI SAN is a SPIFFE id, every other one is a
// "urn:bc:" statement.
func FromCertificate(c *x509.Certificate) (Identity, error) {
	var found *url.URL
	for _, u := range c.URIs {
		switch {
		case u.Scheme == "urn" && strings.HasPrefix(u.String(), "urn:bc:"):
		case u.Scheme == "spiffe" && found == nil:
			found = u
		default:
			return Identity{}, fmt.Errorf("certificate %s: URI SAN %q is neither its one SPIFFE id nor a urn:bc: statement", c.SerialNumber, u)
		}
	}
	if found == nil {
		return Identity{}, fmt.Errorf("certificate %s has no SPIFFE id", c.SerialNumber)
	}
	return Parse(found)
}

// ErrNoRole is returned by RoleOf for a certificate that states no role, several, or one that is not known.
var ErrNoRole = errors.New("certificate states no single known role")

// RoleOf returns the one role that a verified certificate states.
func RoleOf(c *x509.Certificate) (commonv1.AgentRole, error) {
	role := commonv1.AgentRole_AGENT_ROLE_UNSPECIFIED
	for _, u := range c.URIs {
		word, ok := strings.CutPrefix(u.String(), roleURN)
		if !ok {
			continue
		}
		r, err := ParseRole(word)
		if err != nil || role != commonv1.AgentRole_AGENT_ROLE_UNSPECIFIED {
			return commonv1.AgentRole_AGENT_ROLE_UNSPECIFIED, ErrNoRole
		}
		role = r
	}
	if role == commonv1.AgentRole_AGENT_ROLE_UNSPECIFIED {
		return role, ErrNoRole
	}
	return role, nil
}

// RoleURI is the URI SAN that states the role.
func RoleURI(r commonv1.AgentRole) *url.URL {
	return &url.URL{Scheme: "urn", Opaque: strings.TrimPrefix(roleURN, "urn:") + RoleWord(r)}
}

// SignURI is the URI SAN that lets a key sign for a purpose.
func SignURI(purpose string) *url.URL {
	return &url.URL{Scheme: "urn", Opaque: strings.TrimPrefix(SignURN, "urn:") + purpose}
}

// RoleWord is the role as people and certificates write it: "node", "site", "ramdisk".
func RoleWord(r commonv1.AgentRole) string {
	switch r {
	case commonv1.AgentRole_AGENT_ROLE_NODE:
		return "node"
	case commonv1.AgentRole_AGENT_ROLE_SITE:
		return "site"
	case commonv1.AgentRole_AGENT_ROLE_RAMDISK:
		return "ramdisk"
	}
	return "unspecified"
}

// ParseRole is the inverse of RoleWord.
func ParseRole(s string) (commonv1.AgentRole, error) {
	switch s {
	case "node":
		return commonv1.AgentRole_AGENT_ROLE_NODE, nil
	case "site":
		return commonv1.AgentRole_AGENT_ROLE_SITE, nil
	case "ramdisk":
		return commonv1.AgentRole_AGENT_ROLE_RAMDISK, nil
	}
	return commonv1.AgentRole_AGENT_ROLE_UNSPECIFIED, fmt.Errorf("role %q: want node, site or ramdisk", s)
}
