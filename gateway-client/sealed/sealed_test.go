package sealed

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// vectors are what testdata/make.py, without a JOSE library, sealed.
type vectors struct {
	Key          string
	Join, Secret string
	Refused      map[string]string
	key          *ecdsa.PrivateKey
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
	der, err := hex.DecodeString(v.Key)
	if err != nil {
		tb.Fatal(err)
	}
	k, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		tb.Fatal(err)
	}
	v.key = k.(*ecdsa.PrivateKey)
	return v
}

func TestOpen_ofAnotherProgram(t *testing.T) {
	t.Parallel()
	v := load(t)
	var j JoinClaims
	if err := Open(v.key, TypJoin, v.Join, &j); err != nil || string(j.Secret) != "open sesame" || len(j.CSRSHA256) != 32 || j.CSRSHA256[31] != 31 {
		t.Errorf("got %v, %v", []byte(j.Secret), err)
	}
	var s SecretClaims
	err := Open(v.key, TypSecret, v.Secret, &s)
	if want := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC); err != nil || s.Ref != "secret://bmc/m1" || s.RequestID != "sec-1" || string(s.Value) != "hunter2" || !s.Expires.Equal(want) {
		t.Errorf("got %q, %q, %s, %v", s.Ref, s.RequestID, s.Expires, err)
	}
	for name, compact := range v.Refused {
		var j JoinClaims
		if err := Open(v.key, TypJoin, compact, &j); !errors.Is(err, ErrSealed) {
			t.Errorf("%s: got %v, want ErrSealed", name, err)
		}
	}
}

func TestSeal_roundTrip(t *testing.T) {
	t.Parallel()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	want := JoinClaims{Secret: []byte("s"), CSRSHA256: []byte{1}}
	c, err := Seal(&k.PublicKey, TypJoin, want)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Seal(&k.PublicKey, TypJoin, want)
	if err != nil || again == c {
		t.Errorf("sealed twice to the same text (%v)", err)
	}
	var got JoinClaims
	if err := Open(k, TypJoin, c, &got); err != nil || !bytes.Equal(got.Secret, want.Secret) || !bytes.Equal(got.CSRSHA256, want.CSRSHA256) {
		t.Errorf("got %v", err)
	}
	if err := Open(k, TypSecret, c, &got); !errors.Is(err, ErrSealed) {
		t.Errorf("under another type: got %v, want ErrSealed", err)
	}
	big := JoinClaims{Secret: make([]byte, MaxBytes)}
	if _, err := Seal(&k.PublicKey, TypJoin, big); err == nil {
		t.Error("sealed more than Open takes")
	}
	if err := Open(k, TypJoin, strings.Repeat("A", MaxBytes+1), &got); !errors.Is(err, ErrSealed) {
		t.Errorf("too long: got %v, want ErrSealed", err)
	}
}

func TestClaims_neverPrint(t *testing.T) {
	t.Parallel()
	for _, v := range []any{JoinClaims{Secret: []byte("hunter2")}, &JoinClaims{Secret: []byte("hunter2")}, SecretClaims{Value: []byte("hunter2")}} {
		for _, verb := range []string{"%v", "%+v", "%s", "%#v"} {
			if s := fmt.Sprintf(verb, v); s != "[secret]" {
				t.Errorf("%s of %T: got %q, want [secret]", verb, v, s)
			}
		}
	}
}

func FuzzOpen(f *testing.F) {
	v := load(f)
	f.Add(v.Join)
	f.Add(v.Secret)
	for _, c := range v.Refused {
		f.Add(c)
	}
	f.Fuzz(func(t *testing.T, compact string) {
		var j JoinClaims
		err := Open(v.key, TypJoin, compact, &j)
		if err == nil && string(j.Secret) != "open sesame" && string(j.Secret) != "" {
			t.Errorf("%q opens to what nobody sealed", compact)
		}
		if err != nil && !errors.Is(err, ErrSealed) {
			t.Errorf("got %v, want ErrSealed", err)
		}
	})
}
