package pki

import (
	"crypto/ecdsa"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func webConfig(t *testing.T, now time.Time) WebConfig {
	t.Helper()
	return WebConfig{SiteID: "site-a", Names: []string{"fl.example.org"}, IPs: []net.IP{net.IPv4(192, 0, 2, 1), net.IPv6loopback},
		Vault: openVault(t), Now: func() time.Time { return now }}
}

func TestWebCertificate(t *testing.T) {
	t.Parallel()
	dir, cfg := filepath.Join(t.TempDir(), "web"), webConfig(t, issued)
	first, err := OpenWeb(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fl.example.org", "192.0.2.1", "::1"} {
		if err := first.Leaf.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	if first.Leaf.IsCA || first.Leaf.VerifyHostname("evil.example.org") == nil || len(first.Certificate) != 1 {
		t.Error("the certificate is good for more than the page")
	}
	if got := readable(t, dir); got != nil {
		t.Errorf("in the clear: %v", got)
	}
	second, err := OpenWeb(dir, cfg)
	if err != nil || !second.Leaf.Equal(first.Leaf) {
		t.Errorf("another certificate after a restart, %v", err)
	}
	moved := cfg
	moved.IPs = append(moved.IPs, net.IPv4(192, 0, 2, 2))
	third, err := OpenWeb(dir, moved)
	if err != nil || third.Leaf.Equal(first.Leaf) || third.Leaf.VerifyHostname("192.0.2.2") != nil {
		t.Fatalf("another address: want a certificate for it, %v", err)
	}
	if !third.PrivateKey.(*ecdsa.PrivateKey).Equal(first.PrivateKey) {
		t.Error("another address: want the same key")
	}
	late := moved
	late.Now = func() time.Time { return issued.Add(leafLife - time.Hour) }
	if fourth, err := OpenWeb(dir, late); err != nil || !fourth.Leaf.NotAfter.After(third.Leaf.NotAfter) {
		t.Errorf("near its end: want a new certificate, %v", err)
	}
}

func TestWebCertificateRefuses(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "web")
	cfg := webConfig(t, time.Date(2000, 1, 1, 0, 0, 12, 0, time.UTC))
	if _, err := OpenWeb(dir, cfg); !errors.Is(err, ErrClock) {
		t.Errorf("wrong clock: got %v, want ErrClock", err)
	}
	cfg.Now = func() time.Time { return issued }
	if _, err := OpenWeb(dir, cfg); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "web.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenWeb(dir, cfg); err == nil || !strings.Contains(err.Error(), "web.key") {
		t.Errorf("got %v, want an error that names web.key", err)
	}
}
