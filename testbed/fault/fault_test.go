package fault

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"firstlight/gateway-client/envelope"
)

func listen(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

func TestProxyRefusesAndCountsIt(t *testing.T) {
	t.Parallel()
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "content") }))
	defer site.Close()
	asked := 0
	p := NewProxy(strings.TrimPrefix(site.URL, "http://"), (&net.Dialer{}).DialContext,
		Spoil{Match: func(string) bool { return false }, Refuse: func(path string) int {
			if asked++; path == "/blob/a" && asked == 1 {
				return http.StatusServiceUnavailable
			}
			return 0
		}})
	ln := listen(t)
	go p.Serve(ln)
	defer p.Close()
	for _, want := range []int{http.StatusServiceUnavailable, http.StatusOK} {
		r, err := http.Get("http://" + ln.Addr().String() + "/blob/a")
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != want {
			t.Errorf("status %d, want %d", r.StatusCode, want)
		}
	}
	if got := p.Spoiled(); len(got) != 1 || got[0] != "/blob/a" {
		t.Errorf("refused %q, want the one answer", got)
	}
}

func TestProxySpoilsOneKindOfAnswerOnly(t *testing.T) {
	t.Parallel()
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/blob/none" {
			http.NotFound(w, r)
			return
		}
		io.WriteString(w, "content of "+r.URL.Path)
	}))
	defer site.Close()
	p := NewProxy(strings.TrimPrefix(site.URL, "http://"), (&net.Dialer{}).DialContext,
		Spoil{Match: func(path string) bool { return strings.HasPrefix(path, "/blob/") }, Change: FlipByte})
	ln := listen(t)
	go p.Serve(ln)
	defer p.Close()
	get := func(path string) (int, string) {
		t.Helper()
		r, err := http.Get("http://" + ln.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(b)
	}
	if _, got := get("/f/vmlinuz"); got != "content of /f/vmlinuz" {
		t.Errorf("an answer that does not match came as %q", got)
	}
	want := "content of /blob/a"
	_, got := get("/blob/a")
	diff := 0
	for i := range want {
		if i < len(got) && got[i] != want[i] {
			diff++
		}
	}
	if len(got) != len(want) || diff != 1 {
		t.Errorf("spoiled answer %q differs from %q in %d bytes, want 1", got, want, diff)
	}
	if status, _ := get("/blob/none"); status != http.StatusNotFound {
		t.Errorf("status = %d, want %d", status, http.StatusNotFound)
	}
	if got := p.Spoiled(); len(got) != 1 || got[0] != "/blob/a" {
		t.Errorf("spoiled = %v, want [/blob/a]", got)
	}
}

func TestGatewayIsRefusedByPinAndPassesTheFriendOn(t *testing.T) {
	t.Parallel()
	real := listen(t)
	go func() {
		for {
			c, err := real.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); io.WriteString(c, "the real one") }()
		}
	}()
	run := func(friend string) (net.Listener, *Gateway) {
		g, err := NewGateway("gw.test", []net.IP{net.IPv4(127, 0, 0, 1)}, netip.MustParseAddr(friend), real.Addr().String(), (&net.Dialer{}).DialContext)
		if err != nil {
			t.Fatal(err)
		}
		ln := listen(t)
		go g.Serve(ln)
		return ln, g
	}

	ln, g := run("127.0.0.1")
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if b, _ := io.ReadAll(c); string(b) != "the real one" {
		t.Errorf("the friend got %q", b)
	}
	c.Close()
	g.Close()
	if len(g.Met()) != 0 {
		t.Errorf("meetings with a friend: %v", g.Met())
	}

	ln, g = run("192.0.2.1")
	_, err = tls.Dial("tcp", ln.Addr().String(), &tls.Config{ServerName: "gw.test", RootCAs: x509.NewCertPool()})
	if err == nil {
		t.Error("a client with its own roots took the rogue's certificate")
	}
	for range 1000 {
		if len(g.Met()) > 0 {
			break
		}
		<-time.After(5 * time.Millisecond)
	}
	g.Close()
	met := g.Met()
	if len(met) != 1 || met[0].Err == nil || met[0].Bytes != 0 {
		t.Errorf("meetings = %+v, want one that was refused before a byte was said", met)
	}
}

func TestStrangeWorkerIsRightButForItsRoot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := StrangeWorker(dir); err == nil {
		t.Error("a folder without worker.key is taken")
	}
	for _, n := range []string{"worker.key", "worker.crt"} {
		if err := os.WriteFile(filepath.Join(dir, n), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	kid, err := StrangeWorker(dir)
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(b)
		if block == nil {
			t.Fatalf("%s is not PEM", name)
		}
		return block.Bytes
	}
	key, err := x509.ParsePKCS8PrivateKey(read("worker.key"))
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(read("worker.crt"))
	if err != nil {
		t.Fatal(err)
	}
	signer := envelope.Signer{Key: key.(*ecdsa.PrivateKey), Chain: []*x509.Certificate{leaf}}
	sig, err := signer.Sign(envelope.Command, []byte("body"))
	if err != nil {
		t.Fatal(err)
	}
	if sig.Kid != kid {
		t.Errorf("key id = %q, returned %q", sig.Kid, kid)
	}
	// Under its own certificate as root everything is right: only trust is missing.
	if _, err := (envelope.Roots{Certs: []*x509.Certificate{leaf}}).Verify(time.Now(), sig, envelope.Command, []byte("body")); err != nil {
		t.Errorf("beside its root something else is wrong: %v", err)
	}
	if _, err := (envelope.Roots{}).Verify(time.Now(), sig, envelope.Command, []byte("body")); err == nil {
		t.Error("the stranger is trusted by nobody's roots")
	}
}

func TestRemoveFromESP(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"mformat", "mcopy", "mdel", "mtype"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s here (Debian's package mtools has it: make setup)", tool)
		}
	}
	ctx := context.Background()
	raw := filepath.Join(t.TempDir(), "os.raw")
	const start = 64 * sector
	disk := make([]byte, 4<<20)
	copy(disk, sampleTable(64))
	if err := os.WriteFile(raw, disk, 0o600); err != nil {
		t.Fatal(err)
	}
	at := raw + "@@32768"
	if _, err := mtools(ctx, "mformat", "-i", at, "-T", "4096", "-h", "16", "-s", "32", "::"); err != nil {
		t.Fatal(err)
	}
	src := filepath.Join(t.TempDir(), "vmlinuz")
	if err := os.WriteFile(src, []byte("kernel"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := mtools(ctx, "mcopy", "-i", at, src, "::/vmlinuz"); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadFAT(ctx, raw, start, "/vmlinuz"); err != nil || !bytes.Equal(got, []byte("kernel")) {
		t.Fatalf("read back %q, %v", got, err)
	}
	if err := RemoveFromESP(ctx, raw, "/vmlinuz"); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFAT(ctx, raw, start, "/vmlinuz"); err == nil {
		t.Error("the file is still there")
	}
	if err := RemoveFromESP(ctx, raw, "/vmlinuz"); err == nil {
		t.Error("removing what is not there is no error")
	}
}

func sampleTable(lba uint64) []byte {
	t := make([]byte, maxTable)
	copy(t[sector:], "EFI PART")
	copy(t[2*sector:], espType[:])
	binary.LittleEndian.PutUint64(t[2*sector+32:], lba)
	return t
}

func FuzzFindESP(f *testing.F) {
	f.Add(sampleTable(2048))
	f.Add(make([]byte, maxTable))
	f.Add([]byte("EFI PART"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if start, err := findESP(b); err == nil && start < 0 {
			t.Errorf("start = %d", start)
		}
	})
}
