package nodeconf

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func sample(t testing.TB) *Config {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &Config{GatewayURL: "https://10.77.0.2:8443", ServerName: "gw.site-a.firstlight.test", Node: "m-1", TrustDomain: "firstlight.test",
		Site: "site-a", Workflow: "wf-1", Pins: [][]byte{bytes.Repeat([]byte{7}, 32)}, JoinSigning: &k.PublicKey, JoinEncryption: &k.PublicKey,
		JoinSecret: Secret("a secret of this deploy")}
}

func TestRoundTrip(t *testing.T) {
	want := sample(t)
	b, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	want.JoinSecret = nil
	b, err = want.Encode()
	if err != nil || bytes.Contains(b, []byte("join_secret =")) {
		t.Errorf("a used secret is still written: %s (%v)", b, err)
	}
}

func TestSecretNeverPrints(t *testing.T) {
	c := sample(t)
	if s := fmt.Sprintf("%v %+v %#v %s", c, c, c.JoinSecret, c.JoinSecret); strings.Contains(s, "a secret of") || strings.Contains(s, "97 32 115") {
		t.Errorf("printed: %s", s)
	}
	if _, err := Decode([]byte("join_secret = \"c2VjcmV0\" x")); err == nil || strings.Contains(err.Error(), "c2VjcmV0") {
		t.Errorf("got %v, want an error without the line's text", err)
	}
}

func FuzzDecode(f *testing.F) {
	b, err := sample(f).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("node_id = 3"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Decode(b)
		if err != nil {
			return
		}
		if _, err := c.Encode(); err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
	})
}
