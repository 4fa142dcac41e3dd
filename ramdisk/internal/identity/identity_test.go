package identity

import (
	"crypto/x509"
	"errors"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"crypto/rand"

	"firstlight/gateway-client/ident"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/gateway-client/session"
)

func TestSameIdentityAfterReopen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(); !errors.Is(err, ErrNone) {
		t.Fatalf("empty folder: got %v, want ErrNone", err)
	}
	key, err := s.Key()
	if err != nil {
		t.Fatal(err)
	}
	uri, err := ident.Identity{TrustDomain: "fl.test", Site: "a", Node: "m-1"}.URI()
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), URIs: []*url.URL{uri, ident.RoleURI(commonv1.AgentRole_AGENT_ROLE_NODE)}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Save(&session.Identity{Chain: []*x509.Certificate{cert}, Trust: &commonv1.TrustBundle{Version: 3}}); err != nil {
		t.Fatal(err)
	}
	again, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	id, err := again.Load()
	if err != nil {
		t.Fatal(err)
	}
	if id.NodeID != "m-1" || id.Role != commonv1.AgentRole_AGENT_ROLE_NODE || id.Trust.Version != 3 || !id.Key.Equal(key) {
		t.Errorf("got %+v, want the same node with the same key", id)
	}
	for _, f := range []string{keyFile, chainFile} {
		st, err := os.Stat(filepath.Join(dir, f))
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v (%v), want 0600", f, st.Mode(), err)
		}
	}
	if err := os.Remove(filepath.Join(dir, keyFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Load(); err == nil {
		t.Error("a certificate for a lost key was taken for an identity")
	}
}
