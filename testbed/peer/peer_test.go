package peer

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/u-root/u-root/pkg/cpio"
	"google.golang.org/protobuf/proto"

	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
)

func archive(t *testing.T, name string, content []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := cpio.Newc.Writer(&buf)
	if err := w.WriteRecord(cpio.StaticFile(name, string(content), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := cpio.WriteTrailer(w); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestFetchBootFindsBothOverlays(t *testing.T) {
	t.Parallel()
	anchors, err := proto.Marshal(&sitev1.TrustAnchors{SiteId: "site-a"})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	site := httptest.NewServer(mux)
	defer site.Close()
	mux.HandleFunc("/b/x/script.ipxe", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "#!ipxe\nkernel --name kernel %[1]s/f/vmlinuz initrd=site || goto failed\ninitrd --name site %[1]s/b/x/site.cpio || goto failed\n"+
			"initrd --name boot %[1]s/b/x/boot.cpio || goto failed\n", site.URL)
	})
	mux.HandleFunc("/b/x/site.cpio", func(w http.ResponseWriter, _ *http.Request) { w.Write(archive(t, anchorsPath, anchors)) })
	mux.HandleFunc("/b/x/boot.cpio", func(w http.ResponseWriter, _ *http.Request) { w.Write(archive(t, assertionPath, []byte("signed"))) })
	h := Host{Dial: (&net.Dialer{}).DialContext}
	b, err := h.FetchBoot(context.Background(), site.URL+"/b/x/script.ipxe")
	if err != nil {
		t.Fatal(err)
	}
	if b.Anchors.SiteId != "site-a" || string(b.Assertion) != "signed" || b.BootURL != site.URL+"/b/x/boot.cpio" || len(b.Overlay) == 0 {
		t.Errorf("boot = %+v", b)
	}
	if _, err := h.FetchBoot(context.Background(), site.URL+"/b/y/script.ipxe"); err == nil {
		t.Error("a script that is not there is no error")
	}
}

func TestScriptURLTakesOnlyTheAnswerToItsQuestion(t *testing.T) {
	t.Parallel()
	mac := net.HardwareAddr{0x52, 0x54, 0, 1, 2, 3}
	ask, err := discover(mac)
	if err != nil {
		t.Fatal(err)
	}
	offer := func(file string, change func(*dhcpv4.DHCPv4)) []byte {
		m, err := dhcpv4.NewReplyFromRequest(ask, dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer))
		if err != nil {
			t.Fatal(err)
		}
		m.BootFileName = file
		change(m)
		return m.ToBytes()
	}
	const script = "http://10.77.0.2:8080/b/x/script.ipxe"
	same := func(*dhcpv4.DHCPv4) {}
	for name, c := range map[string]struct {
		packet []byte
		want   bool
	}{
		"in the header": {offer(script, same), true},
		"in option 67":  {offer("", func(m *dhcpv4.DHCPv4) { m.UpdateOption(dhcpv4.OptBootFileName(script)) }), true},
		"a program":     {offer("snponly.efi", same), false},
		"another xid":   {offer(script, func(m *dhcpv4.DHCPv4) { m.TransactionID[0] ^= 1 }), false},
		"another MAC":   {offer(script, func(m *dhcpv4.DHCPv4) { m.ClientHWAddr = net.HardwareAddr{1, 2, 3, 4, 5, 6} }), false},
		"our own ask":   {ask.ToBytes(), false},
	} {
		if got, ok := scriptURL(c.packet, ask); ok != c.want || ok && got != script {
			t.Errorf("%s: %q, %v; want %v", name, got, ok, c.want)
		}
	}
}

func TestSeedKeepsItsSecret(t *testing.T) {
	t.Parallel()
	const text = "gateway_url = \"https://10.77.0.2:8443\"\nnode_id = \"node-a\"\njoin_secret = \"c2VjcmV0dmFsdWU=\"\nserving_ca_spki_sha256 = [\"00\"]\nother = 1\n"
	s, err := ParseSeed([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if string(s.JoinSecret) != "c2VjcmV0dmFsdWU=" || len(s.Pins) != 1 {
		t.Error("the seed lost a field")
	}
	if out := fmt.Sprintf("%v %+v %#v", s, s, s); strings.Contains(out, "c2Vj") {
		t.Errorf("the secret prints: %s", out)
	}
	_, err = ParseSeed([]byte(text + "join_secret = \"c2VjcmV0dmFsdWU=\"\n"))
	if err == nil || strings.Contains(err.Error(), "c2Vj") {
		t.Errorf("error = %v, want one without the secret", err)
	}
	if _, err := ParseSeed([]byte("node_id = \"a\"")); err == nil {
		t.Error("a seed without a secret is taken")
	}
}

func FuzzScriptURL(f *testing.F) {
	ask, err := discover(net.HardwareAddr{0x52, 0x54, 0, 1, 2, 3})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(ask.ToBytes())
	f.Add([]byte{2, 1, 6})
	f.Fuzz(func(t *testing.T, b []byte) {
		if u, ok := scriptURL(b, ask); ok && !strings.HasPrefix(u, "http://") {
			t.Errorf("url = %q", u)
		}
	})
}

func FuzzFileOf(f *testing.F) {
	f.Add([]byte("070701"))
	f.Add(bytes.Repeat([]byte("0"), 512))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := fileOf(b, assertionPath); err == nil && len(got) > len(b) {
			t.Errorf("a file of %d bytes in an archive of %d", len(got), len(b))
		}
	})
}

func FuzzParseSeed(f *testing.F) {
	f.Add([]byte("join_secret = \"a\"\ngateway_url = \"b\"\nnode_id = \"c\"\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := ParseSeed(b); err == nil && s.JoinSecret == "" {
			t.Error("a seed without a secret")
		}
	})
}
