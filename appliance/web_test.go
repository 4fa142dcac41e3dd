package appliance

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"firstlight/appliance/internal/config"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/pki"
)

// certificate makes one for the names and addresses.
func certificate(t *testing.T, names []string, ips ...net.IP) *tls.Certificate {
	t.Helper()
	c, err := pki.OpenWeb(filepath.Join(t.TempDir(), "web"), pki.WebConfig{SiteID: "site-a", Names: names, IPs: ips})
	if err != nil {
		t.Fatal(err)
	}
	return &c
}

// A page of somebody else whose name leads here gets nothing.
func TestHosts(t *testing.T) {
	t.Parallel()
	leaf := certificate(t, []string{"fl.example.org"}, net.IPv4(192, 0, 2, 1)).Leaf
	net10, loopback := netip.MustParseAddr("10.77.0.2"), netip.MustParseAddr("127.0.0.1")
	for _, tc := range []struct {
		hosts hosts
		host  string
		local netip.Addr
		want  bool
	}{
		{hosts{leaf: leaf}, "fl.example.org", net10, true},
		{hosts{leaf: leaf}, "FL.example.org.:8443", net10, true},
		{hosts{leaf: leaf}, "192.0.2.1:8443", net10, true},
		{hosts{leaf: leaf}, "10.77.0.2", net10, true},
		{hosts{leaf: leaf}, "10.77.0.2:8443", netip.MustParseAddr("::ffff:10.77.0.2"), true},
		{hosts{leaf: leaf}, "[fd00::2]:8443", netip.MustParseAddr("fd00::2"), true},
		{hosts{leaf: leaf}, "10.77.0.3", net10, false},
		{hosts{leaf: leaf}, "evil.example.org", net10, false},
		{hosts{leaf: leaf}, "fl.example.org.evil.example", net10, false},
		{hosts{leaf: leaf}, "localhost", net10, false},
		{hosts{leaf: leaf}, "", net10, false},
		{hosts{leaf: leaf}, ":8443", net10, false},
		{hosts{}, "localhost:8080", loopback, true},
		{hosts{}, "127.0.0.1:8080", loopback, true},
		{hosts{}, "127.0.0.1:8080", netip.Addr{}, false},
		{hosts{}, "rebound.example", loopback, false},
		{hosts{names: []string{"fl.example.org"}}, "fl.example.org", loopback, true},
	} {
		if got := tc.hosts.allows(tc.host, tc.local); got != tc.want {
			t.Errorf("%q at %v, names %v: got %v, want %v", tc.host, tc.local, tc.hosts.names, got, tc.want)
		}
	}
}

func TestCalledBy(t *testing.T) {
	t.Parallel()
	names, ips := calledBy(config.Web{Listen: "10.77.0.2:443", Names: []string{"fl.example.org", "192.0.2.1"}})
	if strings.Join(names, " ") != "fl.example.org" || len(ips) != 2 || !ips[0].Equal(net.IPv4(10, 77, 0, 2)) || !ips[1].Equal(net.IPv4(192, 0, 2, 1)) {
		t.Errorf("one address: got %v, %v", names, ips)
	}
	names, ips = calledBy(config.Web{Listen: "[::]:443"})
	if strings.Join(names, " ") != "localhost" || len(ips) != len(hostAddresses(false))+2 {
		t.Errorf("all addresses: got %v, %v", names, ips)
	}
	if names, ips = calledBy(config.Web{Listen: "0.0.0.0:443"}); strings.Join(names, " ") != "localhost" || len(ips) != len(hostAddresses(true))+1 {
		t.Errorf("all addresses of IPv4: got %v, %v", names, ips)
	}
}

func TestWebCertificateOfOneself(t *testing.T) {
	t.Parallel()
	f := &config.Config{DataDir: t.TempDir(), Web: config.Web{Listen: "127.0.0.1:0", Certificate: "nowhere.crt", Key: "nowhere.key"}}
	if _, err := webCertificate(f, nil, time.Now); err == nil || !strings.Contains(err.Error(), "nowhere.crt") {
		t.Errorf("got %v, want an error that names the file", err)
	}
	// The file forms that pki writes without a vault are what a person has: PEM, and a key in the clear.
	certificateDir := filepath.Join(t.TempDir(), "mine")
	made, err := pki.OpenWeb(certificateDir, pki.WebConfig{SiteID: "site-a", Names: []string{"fl.example.org"}})
	if err != nil {
		t.Fatal(err)
	}
	f.Web.Certificate, f.Web.Key = filepath.Join(certificateDir, "web.crt"), filepath.Join(certificateDir, "web.key")
	c, err := webCertificate(f, nil, time.Now)
	if err != nil || !c.Leaf.Equal(made.Leaf) {
		t.Errorf("got another certificate, or %v", err)
	}
	f.Web = config.Web{Listen: "127.0.0.1:0", InsecureLoopback: true}
	if c, err := webCertificate(f, nil, time.Now); c != nil || err != nil {
		t.Errorf("plain HTTP: got %v, %v", c, err)
	}
}

// web serves api and page until the test ends.
func serveWeb(t *testing.T, w config.Web, cert *tls.Certificate, page http.Handler) *webServer {
	t.Helper()
	api := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "api") })
	s, err := openWebServer(w, cert, api, page, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.serve() }()
	t.Cleanup(func() {
		s.stop(t.Context())
		if err := await(t, done); err != nil {
			t.Error(err)
		}
	})
	return s
}

// ask sends one request for host to the server; without a certificate in plain HTTP.
func ask(t *testing.T, s *webServer, method, path, host string, header http.Header) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.url()+strings.TrimPrefix(path, "/"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if host == "" {
		host = r.URL.Host
	}
	r.Host = host
	for k, v := range header {
		r.Header[k] = v
	}
	transport := &http.Transport{DisableKeepAlives: true}
	if s.certificate != nil {
		roots := x509.NewCertPool()
		roots.AddCert(s.certificate.Leaf)
		transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	}
	resp, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestWebServer(t *testing.T) {
	t.Parallel()
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "page") })
	for name, s := range map[string]*webServer{
		"TLS":   serveWeb(t, config.Web{Listen: "127.0.0.1:0"}, certificate(t, nil, net.IPv4(127, 0, 0, 1)), page),
		"plain": serveWeb(t, config.Web{Listen: "127.0.0.1:0", InsecureLoopback: true}, nil, page),
	} {
		for path, want := range map[string]string{"/": "page", "/machines/m1": "page", "/v1/machines": "api", "/metrics": "api"} {
			if code, body := ask(t, s, "GET", path, "", nil); code != http.StatusOK || body != want {
				t.Errorf("%s, %s: got %d %q, want %q", name, path, code, body, want)
			}
			code, body := ask(t, s, "GET", path, "rebound.example", nil)
			if f := refusalOf(t, body); code != http.StatusMisdirectedRequest || f.Kind != fault.Denied || !strings.Contains(f.Next, "web.names") {
				t.Errorf("%s, %s by another name: got %d %q", name, path, code, body)
			}
		}
	}
	without := serveWeb(t, config.Web{Listen: "127.0.0.1:0"}, nil, nil)
	code, body := ask(t, without, "GET", "/machines", "", nil)
	if f := refusalOf(t, body); code != http.StatusNotFound || f.Kind != fault.NotFound || f.Next == "" {
		t.Errorf("no page: got %d %q", code, body)
	}
}

func refusalOf(t *testing.T, body string) *fault.Error {
	t.Helper()
	var in struct {
		Error *fault.Error `json:"error"`
	}
	if err := json.Unmarshal([]byte(body), &in); err != nil || in.Error == nil {
		t.Fatalf("%q is no refusal: %v", body, err)
	}
	return in.Error
}

func TestAnnounce(t *testing.T) {
	t.Parallel()
	s := serveWeb(t, config.Web{Listen: "127.0.0.1:0", Names: []string{"fl.example.org"}}, certificate(t, []string{"fl.example.org"}), nil)
	var out bytes.Buffer
	s.announce(&out, "K7QF-2M9D")
	lines := strings.Split(out.String(), "\n")
	_, port, _ := net.SplitHostPort(s.listener.Addr().String())
	if len(lines) != 4 || lines[0] != "firstlight: page https://fl.example.org:"+port+"/" || len(lines[1]) != len("firstlight: certificate SHA-256 ")+95 ||
		lines[2] != "firstlight: one-time code K7QF-2M9D makes the first administrator at https://fl.example.org:"+port+"/setup" {
		t.Errorf("got %q", lines)
	}
	plain := serveWeb(t, config.Web{Listen: "127.0.0.1:0"}, nil, nil)
	out.Reset()
	plain.announce(&out, "")
	if got := out.String(); got != "firstlight: page http://"+plain.listener.Addr().String()+"/\n" {
		t.Errorf("got %q, want the address alone", got)
	}
}

// What cannot be listened on is said at the start.
func TestWebListenIsTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := openWebServer(config.Web{Listen: l.Addr().String()}, nil, nil, nil, slog.Default()); err == nil || !strings.Contains(err.Error(), "listen for the page") {
		t.Errorf("got %v", err)
	}
}
