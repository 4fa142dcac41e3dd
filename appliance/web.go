package appliance

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/config"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/pki"
	"firstlight/appliance/internal/vault"
	"firstlight/appliance/internal/web"
)

// Bounds of the listener for people and programs that are not on this host. What handlers read and how long they take is theirs; how
// slowly a client may send and read is usualPace.
const (
	// maxConns bounds the connections; more wait to be taken. maxOfOne bounds those of one address; more are closed.
	maxConns = 1024
	maxOfOne = 256
	// maxHeader bounds a request's header in bytes.
	maxHeader     = 32 << 10
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	// maxAddresses bounds the host's own addresses in the certificate.
	maxAddresses = 64
)

// webServer is the page and the API over TCP.
type webServer struct {
	listener net.Listener
	http     *http.Server
	hosts    hosts
	// certificate is nil for plain HTTP.
	certificate *tls.Certificate
}

// openWebServer listens. remote answers what is under /v1/ and /metrics, page the rest; a nil page is none.
func openWebServer(w config.Web, cert *tls.Certificate, remote, page http.Handler, log *slog.Logger) (*webServer, error) {
	l, err := net.Listen("tcp", w.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for the page: %w", err)
	}
	if page == nil {
		page = http.HandlerFunc(noPage)
	}
	s := &webServer{listener: netutil.LimitListener(newShares(l, maxOfOne), maxConns), certificate: cert, hosts: hosts{names: w.Names}}
	if cert != nil {
		s.hosts.leaf = cert.Leaf
	}
	mux := http.NewServeMux()
	mux.Handle("/v1/", remote)
	mux.Handle("/metrics", remote)
	mux.Handle("/", page)
	s.http = &http.Server{
		Handler: usualPace.keep(s.hosts.guard(mux)), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug), // strangers cause these: scanners, closed tabs
	}
	if cert != nil {
		s.http.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*cert}}
	}
	return s, nil
}

// openWeb makes the listener for the page and the API.
func (p *parts) openWeb(ctx context.Context) error {
	f := p.cfg.File
	if !f.Web.Enabled() {
		return nil
	}
	cert, err := webCertificate(f, p.box, p.cfg.Now)
	if err != nil {
		return err
	}
	page, err := web.New(web.Config{API: api.InProcess(p.api.Handler()), Accounts: p.accounts, Site: f.SiteID, Version: p.cfg.Version, TLS: cert != nil,
		Now: p.cfg.Now, Log: p.log("page")})
	if err != nil {
		return err
	}
	if p.web, err = openWebServer(f.Web, cert, p.api.Remote(), page, p.log("web")); err != nil {
		return err
	}
	return p.announce(ctx)
}

// announce tells the console where the page is; the one-time code is made here and nowhere else.
func (p *parts) announce(ctx context.Context) error {
	code, err := p.accounts.SetupCode(ctx)
	if err != nil && !errors.Is(err, auth.ErrSetUp) {
		return err
	}
	p.web.announce(p.cfg.Console, code.Reveal())
	return nil
}

// stopPeople lets what people asked for end until ctx does. Streams of the page end because those of the API do.
func (p *parts) stopPeople(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { p.api.Stop(ctx) })
	if p.web != nil {
		wg.Go(func() { p.web.stop(ctx) })
	}
	wg.Wait()
}

func (s *webServer) serve() error {
	var err error
	if s.certificate != nil {
		err = s.http.ServeTLS(s.listener, "", "")
	} else {
		err = s.http.Serve(s.listener)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve the page: %w", err)
}

// stop lets running requests end until ctx does, then cuts them.
func (s *webServer) stop(ctx context.Context) {
	if s.http.Shutdown(ctx) != nil {
		s.http.Close()
	}
}

// url is where people find the page.
func (s *webServer) url() string {
	scheme, usual := "https", "443"
	if s.certificate == nil {
		scheme, usual = "http", "80"
	}
	address := s.listener.Addr().(*net.TCPAddr).AddrPort()
	host := address.Addr().Unmap()
	if own := hostAddresses(host.Is4()); host.IsUnspecified() && len(own) > 0 {
		host = own[0]
	}
	name, port := host.String(), fmt.Sprint(address.Port())
	if len(s.hosts.names) > 0 {
		name = s.hosts.names[0]
	}
	if port == usual {
		if strings.Contains(name, ":") {
			name = "[" + name + "]"
		}
		return scheme + "://" + name + "/"
	}
	return scheme + "://" + net.JoinHostPort(name, port) + "/"
}

// announce tells whoever started the appliance where the page is, by what to know it, and, while there is no administrator, the
// one-time code. It goes to the console and to no log.
func (s *webServer) announce(console io.Writer, code string) {
	var b strings.Builder
	fmt.Fprintf(&b, "firstlight: page %s\n", s.url())
	if s.certificate != nil {
		fmt.Fprintf(&b, "firstlight: certificate SHA-256 %s\n", fingerprint(s.certificate))
	}
	if code != "" {
		fmt.Fprintf(&b, "firstlight: one-time code %s makes the first administrator at %ssetup\n", code, s.url())
	}
	io.WriteString(console, b.String())
}

// fingerprint is the SHA-256 as browsers show it.
func fingerprint(c *tls.Certificate) string {
	sum := sha256.Sum256(c.Certificate[0])
	pairs := make([]string, len(sum))
	for i, b := range sum {
		pairs[i] = fmt.Sprintf("%02X", b)
	}
	return strings.Join(pairs, ":")
}

// hosts are what the page is called by. A page of somebody else whose name was made to lead here is not one of them, so a browser that
// it drives gets nothing (DNS rebinding).
type hosts struct {
	names []string
	// leaf is for all that its certificate is for; nil for plain HTTP.
	leaf *x509.Certificate
}

// allows says whether a request that came to the address local may ask for host, which may have a port.
func (h hosts) allows(host string, local netip.Addr) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if a, err := netip.ParseAddr(host); err == nil && local.IsValid() && a.Unmap() == local.Unmap() {
		return true
	}
	return slices.Contains(h.names, host) || host == "localhost" && local.IsLoopback() ||
		host != "" && h.leaf != nil && h.leaf.VerifyHostname(host) == nil
}

func (h hosts) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var local netip.Addr
		if a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
			local = a.AddrPort().Addr()
		}
		if !h.allows(r.Host, local) {
			refuse(w, http.StatusMisdirectedRequest, fault.New(fault.Denied, "open", fmt.Sprintf("%.128q", r.Host),
				errors.New("the appliance is not called by this name"), "use the address that it printed at its start, or add the name to web.names in its configuration"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func noPage(w http.ResponseWriter, r *http.Request) {
	refuse(w, http.StatusNotFound, fault.New(fault.NotFound, "open", fmt.Sprintf("%.128q", r.URL.Path),
		errors.New("this appliance has no page"), "use the firstlight command, or the API under /v1/"))
}

// refuse answers as the API does.
func refuse(w http.ResponseWriter, code int, f *fault.Error) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(map[string]*fault.Error{"error": f})
}

// webCertificate is what browsers are shown: what the configuration names, or one that the appliance keeps in dir. nil is plain HTTP.
func webCertificate(f *config.Config, v *vault.Vault, now func() time.Time) (*tls.Certificate, error) {
	w := f.Web
	if w.InsecureLoopback {
		return nil, nil
	}
	if w.Certificate != "" {
		c, err := tls.LoadX509KeyPair(w.Certificate, w.Key)
		if err != nil {
			return nil, fmt.Errorf("read the page's certificate %s: %w", w.Certificate, err)
		}
		return &c, nil
	}
	names, ips := calledBy(w)
	c, err := pki.OpenWeb(filepath.Join(f.DataDir, "web"), pki.WebConfig{SiteID: f.SiteID, Names: names, IPs: ips, Vault: v, Now: now})
	if err != nil {
		return nil, err
	}
	return &c, nil
}

// calledBy lists the names and addresses by which people on the network or on this host call the page.
func calledBy(w config.Web) (names []string, ips []net.IP) {
	listen := netip.MustParseAddrPort(w.Listen).Addr() // config checked it
	addresses := []netip.Addr{listen}
	if listen.IsUnspecified() {
		addresses = append(hostAddresses(listen.Is4()), netip.MustParseAddr("127.0.0.1"))
		if listen.Is6() {
			addresses = append(addresses, netip.IPv6Loopback())
		}
	}
	if addresses[len(addresses)-1].IsLoopback() {
		names = append(names, "localhost")
	}
	for _, n := range w.Names {
		if a, err := netip.ParseAddr(n); err == nil {
			addresses = append(addresses, a)
		} else {
			names = append(names, n)
		}
	}
	for _, a := range addresses {
		ips = append(ips, net.IP(a.Unmap().AsSlice()))
	}
	return names, ips
}

// hostAddresses are the addresses by which others reach this host, in the system's order; v4 leaves those of IPv6 out.
func hostAddresses(v4 bool) []netip.Addr {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var out []netip.Addr
	for _, a := range all {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		ip, ok := netip.AddrFromSlice(n.IP)
		if ip = ip.Unmap(); ok && ip.IsGlobalUnicast() && (ip.Is4() || !v4) && len(out) < maxAddresses {
			out = append(out, ip)
		}
	}
	return out
}
