// Package config reads the file that `firstlight serve` is started with.
//
// It is for appliance. It checks everything that can be checked without touching the network, so that a mistake is one line at
// start and not a failed boot later. README.md of appliance lists the keys.
package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/BurntSushi/toml"

	"firstlight/gateway-client/ident"
)

// DefaultSocket is where the API listens unless the configuration or FIRSTLIGHT_SOCKET say otherwise.
const DefaultSocket = "/run/firstlight/firstlight.sock"

// Bounds.
const (
	maxFile = 64 << 10
	// maxSocketPath is what fits in sockaddr_un (unix(7)) with its terminating zero.
	maxSocketPath = 107
	maxKernelArgs = 32
)

// Config is the whole file.
type Config struct {
	// DataDir holds everything that the appliance keeps. Relative paths count from the file's directory.
	DataDir string `toml:"data_dir"`
	// Socket is the API's unix socket.
	Socket      string    `toml:"socket"`
	SiteID      string    `toml:"site_id"`
	TrustDomain string    `toml:"trust_domain"`
	Gateway     Gateway   `toml:"gateway"`
	Boot        Boot      `toml:"boot"`
	Telemetry   Telemetry `toml:"telemetry"`
	// Web is empty where the file has no such section.
	Web Web `toml:"web"`
}

// Telemetry is what is told to others; nothing is unless the file says so.
type Telemetry struct {
	// OTLPEndpoint is the base URL of a receiver of traces by OTLP/HTTP, such as "http://otel.example:4318"; empty is none.
	OTLPEndpoint string `toml:"otlp_endpoint"`
}

// Gateway is where agents connect.
type Gateway struct {
	// Listen is the address and port of the TLS listener; port 0 takes any free one.
	Listen string `toml:"listen"`
	// Advertise is the host and port that agents are told; empty means where it listens.
	Advertise string `toml:"advertise"`
	// ServerName is the DNS name in the gateway's certificate.
	ServerName string `toml:"server_name"`
}

// Boot is the embedded site agent.
type Boot struct {
	// Enabled is true unless the file says false: then this appliance serves no boots itself.
	Enabled   bool       `toml:"enabled"`
	Interface string     `toml:"interface"`
	Address   netip.Addr `toml:"address"`
	// HTTPListen and HTTPAdvertise are address and port of the boot files' HTTP server; the second goes into URLs.
	HTTPListen    string `toml:"http_listen"`
	HTTPAdvertise string `toml:"http_advertise"`
	FirmwareDir   string `toml:"firmware_dir"`
	RAMDiskDir    string `toml:"ramdisk_dir"`
	// KernelArgs are added to the RAM disk's kernel command line.
	KernelArgs []string `toml:"kernel_args"`
	// Discovery boots the RAM disk on machines that nobody enrolled, so that they appear with their inventory.
	Discovery bool `toml:"discovery"`
	// ReplaceROMiPXE lets a machine whose own ROM is iPXE load the site's iPXE first.
	ReplaceROMiPXE bool `toml:"replace_rom_ipxe"`
}

// Load reads and checks the file at path.
func Load(path string) (*Config, error) {
	text, base, err := read(path)
	if err != nil {
		return nil, err
	}
	c, err := Parse(text, base)
	if err != nil {
		return nil, fmt.Errorf("read configuration %s: %w", path, err)
	}
	return c, nil
}

// read returns a file's text, and the directory from which relative paths in it count.
func read(path string) (text, base string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", "", fmt.Errorf("read configuration: %w", err)
	}
	if info.Size() > maxFile {
		return "", "", fmt.Errorf("read configuration %s: %d bytes, want at most %d", path, info.Size(), maxFile)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", "", fmt.Errorf("read configuration: %w", err)
	}
	if base, err = filepath.Abs(filepath.Dir(path)); err != nil {
		return "", "", fmt.Errorf("read configuration %s: %w", path, err)
	}
	return string(data), base, nil
}

// Parse reads the text of a configuration; relative paths in it count from base.
func Parse(text, base string) (*Config, error) {
	c := &Config{Socket: DefaultSocket, Boot: Boot{Enabled: true}}
	meta, err := toml.Decode(text, c)
	if err != nil {
		return nil, err
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return nil, fmt.Errorf("unknown key %q", unknown[0])
	}
	for _, p := range []*string{&c.DataDir, &c.Socket, &c.Boot.FirmwareDir, &c.Boot.RAMDiskDir, &c.Web.Certificate, &c.Web.Key} {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(base, *p)
		}
	}
	if meta.IsDefined("web") {
		if err := c.Web.check(); err != nil {
			return nil, err
		}
	}
	return c, c.check()
}

func (c *Config) check() error {
	if c.DataDir == "" {
		return errors.New("data_dir is missing")
	}
	if len(c.Socket) > maxSocketPath {
		return fmt.Errorf("socket: path of %d bytes, the system allows %d", len(c.Socket), maxSocketPath)
	}
	for _, f := range []struct{ key, value string }{
		{"site_id", c.SiteID}, {"trust_domain", c.TrustDomain}, {"gateway.server_name", c.Gateway.ServerName},
	} {
		if !ident.Valid(f.value) {
			return fmt.Errorf("%s %q: want 1 to %d of a-z, 0-9, '.', '-'", f.key, f.value, ident.MaxLen)
		}
	}
	if _, err := netip.ParseAddrPort(c.Gateway.Listen); err != nil {
		return fmt.Errorf("gateway.listen: want ADDRESS:PORT, %w", err)
	}
	if c.Gateway.Advertise != "" {
		host, port, err := net.SplitHostPort(c.Gateway.Advertise)
		if err != nil || host == "" || port == "" || port == "0" {
			return fmt.Errorf("gateway.advertise %q: want HOST:PORT as agents reach it", c.Gateway.Advertise)
		}
	} else if a := netip.MustParseAddrPort(c.Gateway.Listen).Addr(); a.IsUnspecified() {
		return fmt.Errorf("gateway.advertise is missing: agents cannot reach %s", a)
	}
	if err := c.Telemetry.check(); err != nil {
		return err
	}
	if !c.Boot.Enabled {
		return nil
	}
	return c.Boot.check()
}

func (t *Telemetry) check() error {
	if t.OTLPEndpoint == "" {
		return nil
	}
	u, err := url.Parse(t.OTLPEndpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("telemetry.otlp_endpoint %q: want http://HOST:PORT or https://HOST:PORT of a receiver of OTLP/HTTP", t.OTLPEndpoint)
	}
	return nil
}

func (b *Boot) check() error {
	for _, f := range []struct{ key, value string }{
		{"boot.interface", b.Interface}, {"boot.firmware_dir", b.FirmwareDir}, {"boot.ramdisk_dir", b.RAMDiskDir},
	} {
		if f.value == "" {
			return fmt.Errorf("%s is missing (or set boot.enabled = false)", f.key)
		}
	}
	if !b.Address.Is4() || b.Address.IsUnspecified() {
		return fmt.Errorf("boot.address %q: want the interface's IPv4 address", b.Address)
	}
	for _, f := range []struct{ key, value string }{{"boot.http_listen", b.HTTPListen}, {"boot.http_advertise", b.HTTPAdvertise}} {
		if p, err := netip.ParseAddrPort(f.value); err != nil || p.Port() == 0 {
			return fmt.Errorf("%s %q: want ADDRESS:PORT", f.key, f.value)
		}
	}
	if len(b.KernelArgs) > maxKernelArgs {
		return fmt.Errorf("boot.kernel_args: %d words, want at most %d", len(b.KernelArgs), maxKernelArgs)
	}
	for _, a := range b.KernelArgs {
		if a == "" || strings.ContainsFunc(a, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return fmt.Errorf("boot.kernel_args: %q is not one printable word", a)
		}
	}
	return nil
}
