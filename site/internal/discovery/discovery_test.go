package discovery_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"flag"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/u-root/u-root/pkg/cpio"
	"google.golang.org/protobuf/proto"

	"firstlight/gateway-client/envelope"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
	"firstlight/site/internal/discovery"
	"firstlight/site/internal/lease"
)

var update = flag.Bool("update", false, "write the golden files")

var (
	site = discovery.Site{TrustDomain: "firstlight.test", SiteID: "site-a", HTTP: "10.77.0.2:8080", KernelArgs: []string{"console=ttyS0"}}
	boot = lease.Lease{ID: "lease-1", Token: "token", NodeID: "node-1", WorkflowID: "wf-1", Machine: "rack1-u7", KernelArgs: []string{"quiet"},
		MACs: []string{"52:54:00:77:00:01", "52:54:00:77:00:02"}, BootMAC: "52:54:00:77:00:02", SystemUUID: "12345678-1234-5678-9abc-def012345678"}
	now = time.Date(2026, 9, 1, 10, 0, 0, 0, time.UTC)
)

func TestScript(t *testing.T) {
	got, err := site.Script(boot)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "script.ipxe")
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestIPXE02_LeaseTextCannotBecomeScript(t *testing.T) {
	for _, edit := range []func(*lease.Lease){
		func(l *lease.Lease) { l.Machine = "a${net0/mac}" },
		func(l *lease.Lease) { l.Machine = "x\nshell" },
		func(l *lease.Lease) { l.KernelArgs = []string{"x || shell"} },
	} {
		l := boot
		edit(&l)
		if s, err := site.Script(l); err == nil {
			t.Errorf("got script %q, want an error", s)
		}
	}
}

func TestSiteOverlayIsReproducible(t *testing.T) {
	first, err := discovery.SiteOverlay([]byte("anchors"))
	if err != nil {
		t.Fatal(err)
	}
	second, _ := discovery.SiteOverlay([]byte("anchors"))
	if !bytes.Equal(first, second) || len(first)%512 != 0 {
		t.Errorf("got %d bytes, equal %v, want the same bytes, a multiple of 512", len(first), bytes.Equal(first, second))
	}
	names, content := unpack(t, first)
	if want := []string{"etc", "etc/firstlight", "etc/firstlight/trust.binpb"}; !reflect.DeepEqual(names, want) || string(content) != "anchors" {
		t.Errorf("got %v with %q, want %v", names, content, want)
	}
}

func unpack(t *testing.T, b []byte) (names []string, last []byte) {
	t.Helper()
	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(bytes.NewReader(b)))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if r.Name == cpio.Trailer {
			continue
		}
		if r.MTime != 0 || r.UID != 0 || r.GID != 0 {
			t.Errorf("%s: got time %d, owner %d:%d, want zeros", r.Name, r.MTime, r.UID, r.GID)
		}
		names = append(names, r.Name)
		last = nil
		if r.ReaderAt != nil {
			if last, err = io.ReadAll(io.NewSectionReader(r, 0, int64(r.FileSize))); err != nil {
				t.Fatal(err)
			}
		}
	}
	return names, last
}

func TestBootOverlayCarriesSignedAssertion(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	b, end, err := site.BootOverlay(boot, envelope.Signer{Key: key}, now)
	if err != nil {
		t.Fatal(err)
	}
	_, content := unpack(t, b)
	var signed sitev1.SignedDiscoveryAssertion
	if err := proto.Unmarshal(content, &signed); err != nil {
		t.Fatal(err)
	}
	if err := envelope.VerifyKey(&key.PublicKey, signed.Signature, envelope.DiscoveryAssertion, signed.Body); err != nil {
		t.Error(err)
	}
	var got sitev1.DiscoveryAssertion
	if err := proto.Unmarshal(signed.Body, &got); err != nil {
		t.Fatal(err)
	}
	if got.NodeId != "node-1" || got.LeaseId != "lease-1" || got.WorkflowId != "wf-1" || got.TrustDomain != "firstlight.test" || got.SiteId != "site-a" ||
		got.SystemUuid != boot.SystemUUID || got.ReportUrl != "http://10.77.0.2:8080/b/token/report" || got.AssertionId == "" {
		t.Errorf("got %v", &got)
	}
	if want := []string{"52:54:00:77:00:02", "52:54:00:77:00:01"}; !reflect.DeepEqual(got.Macs, want) {
		t.Errorf("got MACs %v, want the booted one first: %v", got.Macs, want)
	}
	if !got.IssuedAt.AsTime().Equal(now) || !got.NotAfter.AsTime().Equal(end) || end.Sub(now) != discovery.Lifetime {
		t.Errorf("got %s to %s, want %s after %s", got.IssuedAt.AsTime(), got.NotAfter.AsTime(), discovery.Lifetime, now)
	}
}
