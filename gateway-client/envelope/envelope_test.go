package envelope

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// blob is hexadecimal in vectors.json.
type blob []byte

func (b *blob) UnmarshalText(t []byte) (err error) {
	*b, err = hex.DecodeString(string(t))
	return err
}

// vectors are what testdata/make.py, which shares no code with us, signed.
type vectors struct {
	Root    blob
	Within  time.Time
	Vectors []vector
}

type vector struct {
	Purpose     Purpose
	Parts       []blob
	InputSHA256 blob `json:"input_sha256"`
	Key         blob
	Kid         string
	Signature   blob
	Chain       []blob
	// Refused are the good one with one thing changed.
	Refused []struct {
		Change    string
		Parts     []blob
		Signature blob
	}
}

// sig is the signature value as it travels with the vector's key.
func (v vector) sig(value blob) *commonv1.Signature {
	sig := &commonv1.Signature{Value: value, Kid: v.Kid}
	for _, c := range v.Chain {
		sig.Chain = append(sig.Chain, c)
	}
	return sig
}

func (v vector) key(tb testing.TB) *ecdsa.PublicKey {
	tb.Helper()
	k, err := x509.ParsePKIXPublicKey(v.Key)
	if err != nil {
		tb.Fatal(err)
	}
	return k.(*ecdsa.PublicKey)
}

func slice(bs []blob) (out [][]byte) {
	for _, b := range bs {
		out = append(out, b)
	}
	return out
}

func load(tb testing.TB) vectors {
	tb.Helper()
	raw, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		tb.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(raw, &v); err != nil {
		tb.Fatal(err)
	}
	return v
}

func TestVectors_ofAnotherProgram(t *testing.T) {
	t.Parallel()
	all := load(t)
	roots, err := ParseRoots([][]byte{all.Root})
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range all.Vectors {
		parts, key, sig := slice(v.Parts), v.key(t), v.sig(v.Signature)
		sum := sha256.Sum256(Input(v.Purpose, parts...))
		if string(sum[:]) != string(v.InputSHA256) {
			t.Errorf("vector %d: got input %x, want %x", i, sum, []byte(v.InputSHA256))
		}
		if kid, err := KeyID(key); err != nil || kid != v.Kid {
			t.Errorf("vector %d: got kid %q, %v, want %q", i, kid, err, v.Kid)
		}
		if err := VerifyKey(key, sig, v.Purpose, parts...); err != nil {
			t.Errorf("vector %d: %v", i, err)
		}
		if err := VerifyKey(key, sig, v.Purpose+"x", parts...); !errors.Is(err, ErrSignature) {
			t.Errorf("vector %d under another purpose: got %v, want ErrSignature", i, err)
		}
		if err := VerifyKey(key, sig, v.Purpose, append(parts, nil)...); !errors.Is(err, ErrSignature) {
			t.Errorf("vector %d with another part: got %v, want ErrSignature", i, err)
		}
		if len(sig.Chain) == 0 {
			continue
		}
		if leaf, err := roots.Verify(all.Within, sig, v.Purpose, parts...); err != nil || !key.Equal(leaf.PublicKey) {
			t.Errorf("vector %d by its chain: %v", i, err)
		}
		for name, now := range map[string]time.Time{"before": all.Within.AddDate(-1, 0, 0), "after": all.Within.AddDate(1, 0, 0)} {
			if _, err := roots.Verify(now, sig, v.Purpose, parts...); !errors.Is(err, ErrUntrusted) {
				t.Errorf("vector %d %s its certificate's life: got %v, want ErrUntrusted", i, name, err)
			}
		}
	}
}

// TestVectors_refused: each good signature with one thing changed verifies neither under its key nor by its chain.
func TestVectors_refused(t *testing.T) {
	t.Parallel()
	all := load(t)
	roots, err := ParseRoots([][]byte{all.Root})
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range all.Vectors {
		changes := map[string]bool{}
		for _, r := range v.Refused {
			changes[r.Change] = true
			if err := VerifyKey(v.key(t), v.sig(r.Signature), v.Purpose, slice(r.Parts)...); !errors.Is(err, ErrSignature) {
				t.Errorf("vector %d, %s, with another %s: got %v, want ErrSignature", i, v.Purpose, r.Change, err)
			}
			if len(v.Chain) == 0 {
				continue
			}
			if _, err := roots.Verify(all.Within, v.sig(r.Signature), v.Purpose, slice(r.Parts)...); !errors.Is(err, ErrSignature) {
				t.Errorf("vector %d, %s, with another %s, by its chain: got %v, want ErrSignature", i, v.Purpose, r.Change, err)
			}
		}
		for _, want := range []string{"bit", "purpose", "order", "length"} {
			if !changes[want] {
				t.Errorf("vector %d, %s: got no refused signature with another %s", i, v.Purpose, want)
			}
		}
	}
}

// TestVectors_everyPurpose: the vectors have every purpose with as many parts as its documentation lists, and no other purpose.
func TestVectors_everyPurpose(t *testing.T) {
	t.Parallel()
	want := map[Purpose]int{Command: 1, DesiredState: 1, JoinResponse: 1, TrustBundle: 1, AttestedReport: 1, CommandUpdate: 3, SecretRequest: 6,
		WorkloadToken: 4, RenewPoP: 3, X509PoP: 3, DiscoveryAssertion: 1, BatchApproval: 5, ApproverSet: 3, ImageManifest: 1}
	got := map[Purpose]int{}
	for _, v := range load(t).Vectors {
		got[v.Purpose] = len(v.Parts)
	}
	if !maps.Equal(got, want) {
		t.Errorf("got purposes %v, want %v", got, want)
	}
}

func TestInput_isTheSpecificationsLayout(t *testing.T) {
	t.Parallel()
	got := string(Input("p", []byte("ab"), nil))
	if want := "bettercompute.v1/p\x00\x00\x00\x00\x02ab\x00\x00\x00\x00"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if string(Input("p", []byte("ab"), []byte("c"))) == string(Input("p", []byte("a"), []byte("bc"))) {
		t.Error("two ways to cut the same bytes are one input")
	}
}

// signer is a key whose certificate, signed by the root that comes with it, may have any URIs.
func signer(t *testing.T, from func(*x509.Certificate)) (Signer, Roots) {
	t.Helper()
	now := time.Now()
	tmpl := func(n string) *x509.Certificate {
		return &x509.Certificate{Subject: subject(n), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour), BasicConstraintsValid: true}
	}
	root, leaf := tmpl("root"), tmpl("leaf")
	root.IsCA = true
	from(leaf)
	rk, lk := key(t, elliptic.P256()), key(t, elliptic.P256())
	rc, lc := issue(t, root, root, &rk.PublicKey, rk), issue(t, leaf, root, &lk.PublicKey, rk)
	return Signer{Key: lk, Chain: []*x509.Certificate{lc}}, Roots{Certs: []*x509.Certificate{rc}}
}

func key(t *testing.T, c elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(c, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func issue(t *testing.T, c, parent *x509.Certificate, pub any, by *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, parent, pub, by)
	if err != nil {
		t.Fatal(err)
	}
	out, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestVerify_refusals(t *testing.T) {
	t.Parallel()
	now, body := time.Now(), []byte("body")
	s, roots := signer(t, func(c *x509.Certificate) { c.URIs = uris(t, "urn:bc:sign:command") })
	_, others := signer(t, func(*x509.Certificate) {})
	good, err := s.Sign(Command, body)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := roots.Verify(now, good, Command, body); err != nil {
		t.Fatal(err)
	}
	with := func(f func(*commonv1.Signature)) *commonv1.Signature {
		c := proto.CloneOf(good)
		f(c)
		return c
	}
	manifest, err := s.Sign(ImageManifest, body)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		roots Roots
		sig   *commonv1.Signature
		p     Purpose
		want  error
	}{
		{"no signature", roots, nil, Command, ErrUntrusted},
		{"no chain", roots, with(func(s *commonv1.Signature) { s.Chain = nil }), Command, ErrUntrusted},
		{"long chain", roots, with(func(s *commonv1.Signature) {
			s.Chain = [][]byte{s.Chain[0], s.Chain[0], s.Chain[0], s.Chain[0], s.Chain[0]}
		}), Command, ErrUntrusted},
		{"chain that is none", roots, with(func(s *commonv1.Signature) { s.Chain[0] = []byte("x") }), Command, ErrUntrusted},
		{"no roots", Roots{}, good, Command, ErrUntrusted},
		{"others' roots", others, good, Command, ErrUntrusted},
		{"purpose that the certificate does not allow", roots, manifest, ImageManifest, ErrUntrusted},
		{"purpose of another signature", Roots{Certs: roots.Certs, AnyPurpose: true}, good, ImageManifest, ErrSignature},
		{"altered value", roots, with(func(s *commonv1.Signature) { s.Value[10] ^= 1 }), Command, ErrSignature},
		{"DER instead of raw", roots, with(func(s *commonv1.Signature) { s.Value = append(s.Value, 0) }), Command, ErrSignature},
		{"another's kid", roots, with(func(s *commonv1.Signature) { s.Kid = "x" }), Command, ErrSignature},
	} {
		if _, err := c.roots.Verify(now, c.sig, c.p, body); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
	if _, err := (Roots{Certs: roots.Certs, AnyPurpose: true}).Verify(now, manifest, ImageManifest, body); err != nil {
		t.Errorf("any purpose: %v", err)
	}
}

func TestSign_P256Only(t *testing.T) {
	t.Parallel()
	if sig, err := (Signer{Key: key(t, elliptic.P384())}).Sign(Command); err == nil || !strings.Contains(err.Error(), "P-256") {
		t.Errorf("got %v, %v, want a refusal", sig, err)
	}
}

// FuzzVerify: whatever arrives as a signature neither panics nor verifies, unless it is the one that was made.
func FuzzVerify(f *testing.F) {
	v := load(f)
	roots, err := ParseRoots([][]byte{v.Root})
	if err != nil {
		f.Fatal(err)
	}
	known := map[string]bool{}
	for _, x := range v.Vectors {
		var chain []byte
		if len(x.Chain) > 0 {
			chain = x.Chain[0]
		}
		f.Add([]byte(x.Signature), x.Kid, chain, string(x.Purpose), []byte(x.Parts[0]))
		for _, r := range x.Refused {
			f.Add([]byte(r.Signature), x.Kid, chain, string(x.Purpose), []byte(r.Parts[0]))
		}
		if len(x.Parts) == 1 && len(x.Chain) == 1 {
			known[string(x.Purpose)+"\x00"+string(x.Parts[0])] = true
		}
	}
	f.Fuzz(func(t *testing.T, value []byte, kid string, chain []byte, purpose string, part []byte) {
		sig := &commonv1.Signature{Value: value, Kid: kid, Chain: [][]byte{chain}}
		if _, err := roots.Verify(v.Within, sig, Purpose(purpose), part); err == nil && !known[purpose+"\x00"+string(part)] {
			t.Errorf("purpose %q, part %q verify, which nobody signed", purpose, part)
		}
	})
}
