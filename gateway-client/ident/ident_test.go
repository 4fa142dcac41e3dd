package ident

import (
	"crypto/x509"
	"encoding/pem"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// certificate reads one that openssl made (testdata/make.sh).
func certificate(t *testing.T, name string) *x509.Certificate {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name+".pem"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(raw)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestFromCertificate_ofOpenSSL(t *testing.T) {
	t.Parallel()
	const none = commonv1.AgentRole_AGENT_ROLE_UNSPECIFIED
	want := Identity{TrustDomain: "dc1.firstlight.test", Site: "site-a", Node: "node-abc"}
	for _, c := range []struct {
		name string
		id   bool
		role commonv1.AgentRole
	}{
		{"good", true, commonv1.AgentRole_AGENT_ROLE_RAMDISK},
		{"role-first", true, commonv1.AgentRole_AGENT_ROLE_SITE},
		{"other-statement", true, commonv1.AgentRole_AGENT_ROLE_NODE},
		{"two-ids", false, commonv1.AgentRole_AGENT_ROLE_NODE},
		{"no-id", false, commonv1.AgentRole_AGENT_ROLE_NODE},
		{"foreign-uri", false, commonv1.AgentRole_AGENT_ROLE_NODE},
		{"no-role", true, none},
		{"two-roles", true, none},
		{"unknown-role", true, none},
		{"signer", false, none},
	} {
		cert := certificate(t, c.name)
		got, err := FromCertificate(cert)
		if (err == nil) != c.id || c.id && got != want {
			t.Errorf("%s: got %v, %v, want an identity: %t", c.name, got, err, c.id)
		}
		role, err := RoleOf(cert)
		if role != c.role || (err == nil) != (c.role != none) {
			t.Errorf("%s: got role %v, %v, want %v", c.name, role, err, c.role)
		}
	}
	if got, want := certificate(t, "signer").URIs[0].String(), SignURI("command").String(); got != want {
		t.Errorf("got %q, want %q", want, got)
	}
}

func TestURI_roundTrip(t *testing.T) {
	t.Parallel()
	id := Identity{TrustDomain: "a.b", Site: "s1", Node: "n-1"}
	u, err := id.URI()
	if err != nil || u.String() != "spiffe://a.b/site/s1/node/n-1" || id.String() != u.String() {
		t.Fatalf("got %v, %v", u, err)
	}
	back, err := Parse(u)
	if err != nil || back != id {
		t.Errorf("got %v, %v, want %v", back, err, id)
	}
	for _, bad := range []Identity{{}, {"A", "s", "n"}, {"a", "s/x", "n"}, {"a", "s", ""}, {"a", "s", "-n"}, {"a", "s", NodeID(strings.Repeat("n", MaxLen+1))}} {
		if u, err := bad.URI(); err == nil {
			t.Errorf("%+v: got %v, want an error", bad, u)
		}
	}
}

func TestParse_refuses(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"spiffe://a/site/s/node/n/", "spiffe://a/site/s/node/n?x", "spiffe://a/site/s/node/n#x", "spiffe://u@a/site/s/node/n",
		"spiffe://a:1/site/s/node/n", "spiffe://a/node/n/site/s", "https://a/site/s/node/n", "spiffe://a/site/s/node/%6e",
		"spiffe:a/site/s/node/n", "spiffe://A/site/s/node/n", "spiffe://a//site/s/node/n",
	} {
		u, err := url.Parse(s)
		if err != nil {
			continue
		}
		if id, err := Parse(u); err == nil {
			t.Errorf("%s: got %v, want an error", s, id)
		}
	}
}

func TestRole_words(t *testing.T) {
	t.Parallel()
	for v, name := range commonv1.AgentRole_name {
		r := commonv1.AgentRole(v)
		back, err := ParseRole(RoleWord(r))
		if (err == nil) != (v != 0) || back != r && v != 0 {
			t.Errorf("%s: got %v, %v", name, back, err)
		}
		if want := "urn:bc:role:" + RoleWord(r); RoleURI(r).String() != want {
			t.Errorf("got %s, want %s", RoleURI(r), want)
		}
	}
}

func TestNew_isValidAndFresh(t *testing.T) {
	t.Parallel()
	a, b := New("node"), New("node")
	if a == b || !Valid(a) || !strings.HasPrefix(a, "node-") || len(a) != len("node-")+16 {
		t.Errorf("got %q and %q", a, b)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"spiffe://a/site/s/node/n", "spiffe://a.b-c/site/s.1/node/n-2", "urn:bc:role:node", "spiffe://a/site/%73/node/n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := url.Parse(s)
		if err != nil {
			return
		}
		id, err := Parse(u)
		if err != nil {
			return
		}
		if back, err := id.URI(); err != nil || back.String() != u.String() {
			t.Errorf("%q: parsed as %v, which is written %v (%v)", s, id, back, err)
		}
	})
}
