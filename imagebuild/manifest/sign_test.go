package manifest_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net/url"
	"testing"
	"time"

	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	"firstlight/imagebuild/manifest"
)

var now = time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)

// signer returns a key that may sign for the purpose, and the roots under which it is trusted.
func signer(t testing.TB, purpose envelope.Purpose) (envelope.Signer, envelope.Roots) {
	t.Helper()
	certificate := func(serial int64, ca bool, uris []*url.URL, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		tmpl := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "test"}, NotBefore: now.Add(-time.Hour),
			NotAfter: now.Add(time.Hour), IsCA: ca, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature, URIs: uris}
		if ca {
			tmpl.KeyUsage = x509.KeyUsageCertSign
			parent, parentKey = tmpl, key
		}
		der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, parentKey)
		if err != nil {
			t.Fatal(err)
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return c, key
	}
	root, rootKey := certificate(1, true, nil, nil, nil)
	leaf, leafKey := certificate(2, false, []*url.URL{ident.SignURI(string(purpose))}, root, rootKey)
	return envelope.Signer{Key: leafKey, Chain: []*x509.Certificate{leaf}}, envelope.Roots{Certs: []*x509.Certificate{root}}
}

func TestSignOpen(t *testing.T) {
	t.Parallel()
	s, roots := signer(t, envelope.ImageManifest)
	body, err := sample().Encode()
	if err != nil {
		t.Fatal(err)
	}
	signed, err := manifest.Sign(body, s)
	if err != nil {
		t.Fatal(err)
	}
	m, err := manifest.Open(signed, roots, now)
	if err != nil {
		t.Fatal(err)
	}
	if m.Name != "demo-1" {
		t.Errorf("name: got %q, want demo-1", m.Name)
	}
	at := bytes.Index(signed, []byte("demo-1"))
	changed := bytes.Clone(signed)
	changed[at]++
	if _, err := manifest.Open(changed, roots, now); !errors.Is(err, envelope.ErrSignature) {
		t.Errorf("one byte of the body changed: got error %v, want ErrSignature", err)
	}
	if _, err := manifest.Open(signed, envelope.Roots{}, now); !errors.Is(err, envelope.ErrUntrusted) {
		t.Errorf("no roots: got error %v, want ErrUntrusted", err)
	}
	if _, err := manifest.Open(signed, roots, now.Add(2*time.Hour)); !errors.Is(err, envelope.ErrUntrusted) {
		t.Errorf("after the certificate's end: got error %v, want ErrUntrusted", err)
	}
	if _, err := manifest.Open([]byte("\xff"), roots, now); !errors.Is(err, manifest.ErrInvalid) {
		t.Errorf("no message: got error %v, want ErrInvalid", err)
	}
	if _, err := manifest.Open(make([]byte, manifest.MaxSigned+1), roots, now); !errors.Is(err, manifest.ErrInvalid) {
		t.Errorf("too long: got error %v, want ErrInvalid", err)
	}
}

// TestOpenOtherPurpose: a worker's key signs commands, never images.
func TestOpenOtherPurpose(t *testing.T) {
	t.Parallel()
	s, roots := signer(t, envelope.Command)
	body, err := sample().Encode()
	if err != nil {
		t.Fatal(err)
	}
	signed, err := manifest.Sign(body, s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := manifest.Open(signed, roots, now); !errors.Is(err, envelope.ErrUntrusted) {
		t.Errorf("signed by a command key: got error %v, want ErrUntrusted", err)
	}
}

func TestSignRefusesInvalidBody(t *testing.T) {
	t.Parallel()
	s, _ := signer(t, envelope.ImageManifest)
	if _, err := manifest.Sign([]byte("{}"), s); !errors.Is(err, manifest.ErrInvalid) {
		t.Errorf("got error %v, want ErrInvalid", err)
	}
}

// TestVectors reads what a second program wrote and signed (testdata/vectors/README.md).
func TestVectors(t *testing.T) {
	t.Parallel()
	block, _ := pem.Decode(vector(t, "root.pem"))
	root, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	m, err := manifest.Open(vector(t, "signed.binpb"), envelope.Roots{Certs: []*x509.Certificate{root}}, root.NotBefore.AddDate(1, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	body, err := m.Encode()
	if err != nil || !bytes.Equal(body, vector(t, "body.json")) {
		t.Errorf("body: got %s (error %v), want the vector's", body, err)
	}
	if p, ok := m.Partition(manifest.RoleConfig); !ok || p.Label != "firstlight-config" || p.Start != 2<<20 {
		t.Errorf("configuration partition: got %+v", p)
	}
}

// TestRealImage reads the manifest that imagebuild pack wrote for a demo system.
func TestRealImage(t *testing.T) {
	t.Parallel()
	m, err := manifest.Decode(vector(t, "demo.json"))
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := m.Partition(manifest.RoleConfig); !ok || p.Number != 2 || len(m.Partitions) != 4 || m.DataSize() == 0 || len(m.Inputs) < 10 {
		t.Errorf("got %d partitions, %d bytes of data, %d inputs, configuration partition %+v", len(m.Partitions), m.DataSize(), len(m.Inputs), p)
	}
}

func FuzzOpen(f *testing.F) {
	signed := vector(f, "signed.binpb")
	block, _ := pem.Decode(vector(f, "root.pem"))
	root, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		f.Fatal(err)
	}
	roots, at := envelope.Roots{Certs: []*x509.Certificate{root}}, root.NotBefore.AddDate(1, 0, 0)
	f.Add(signed)
	f.Add(signed[:len(signed)/2])
	stranger, _ := signer(f, envelope.ImageManifest)
	demo, err := manifest.Sign(vector(f, "demo.json"), stranger)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(demo)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := manifest.Open(b, roots, at)
		if err == nil && m.Name != "vector-1" {
			t.Errorf("accepted a manifest that was never signed: %+v", m)
		}
	})
}
