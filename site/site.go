// Package site is the agent of one site: it answers the network boots of the segment and drives the machines' management
// controllers, on the control plane's signed commands.
//
// It is an agent like any other: it joins with a one-time token, keeps its node key in its state directory and holds one
// session with the gateway. It serves a machine's boot only while a boot lease for that machine is open, never gives an address,
// and signs with its node key the assertion by which the machine's RAM disk joins. It decides nothing about machines.
//
// The appliance composes it (rank 3); it imports public packages of rank 1 and below and shares nothing with ramdisk beside
// the messages. Everything behind Config, New and Run is in internal/.
package site

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"firstlight/bmc"
	"firstlight/bmc/redfish"
	"firstlight/gateway-client/ident"
	"firstlight/gateway-client/link"
	"firstlight/ipxe"
)

// Config is what a site agent needs. It is read once, by New.
type Config struct {
	// Interface is the network interface of the boot segment; boot packets leave by it and by no other.
	Interface string
	// Address is the interface's IPv4 address that machines are told to use.
	Address netip.Addr
	// HTTPListen is host:port to listen on; HTTPAdvertise is the host:port that goes into addresses, with an address literal as
	// host because names may not resolve during a network boot.
	HTTPListen, HTTPAdvertise string
	// FirmwareDir holds what firmware loads by TFTP (snponly.efi, undionly.kpxe …); nothing outside it is served.
	FirmwareDir string
	// RAMDiskDir holds vmlinuz and ramdisk.cpio.zst.
	RAMDiskDir string
	// BlobDir holds content-addressed files, each named by its SHA-256 in lower-case hex.
	BlobDir string
	// KernelArgs are put on every RAM disk kernel's command line, one argument each.
	KernelArgs []string
	// StateDir is this agent's alone: key, certificate, journal, open leases.
	StateDir string
	// Link says where the gateway is; its Certificate is not used.
	Link link.Config
	// JoinSigningKey verifies what the JoinService says; the join token is sealed to JoinEncryptionKey.
	JoinSigningKey, JoinEncryptionKey *ecdsa.PublicKey
	// JoinToken is called only when StateDir holds no usable identity, and once for each join.
	JoinToken func() ([]byte, error)
	// TrustDomain and SiteID are what assertions say; NodeID is who this agent is.
	TrustDomain, SiteID string
	NodeID              ident.NodeID
	// OpenBMC connects to a management controller; nil is redfish.Open.
	OpenBMC func(ctx context.Context, cfg redfish.Config) (bmc.Controller, error)
	// Version is said to the gateway; empty is "dev".
	Version string
	// Meter is told what the boot services do; nil counts nothing.
	Meter Meter
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Log is where to tell; nil discards.
	Log *slog.Logger
}

// Agent is a site agent. Make it with New and run it once.
type Agent struct {
	cfg   Config
	ports ports
}

// ports are where the boot services listen, where offers go, and how patient they are: what a test on loopback needs otherwise.
type ports struct {
	dhcp, pxe, tftp uint16
	// offers is where an answer to a client without an address is sent.
	offers netip.AddrPort
	// tftpTimeout is tftp.Config's; zero for the usual one.
	tftpTimeout time.Duration
}

var standardPorts = ports{dhcp: 67, pxe: 4011, tftp: 69, offers: netip.MustParseAddrPort("255.255.255.255:68")}

// New checks the configuration; it opens nothing yet.
func New(cfg Config) (*Agent, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("site agent: %w", err)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Version == "" {
		cfg.Version = "dev"
	}
	if cfg.Meter == nil {
		cfg.Meter = noMeter{}
	}
	if cfg.OpenBMC == nil {
		cfg.OpenBMC = func(ctx context.Context, c redfish.Config) (bmc.Controller, error) { return redfish.Open(ctx, c) }
	}
	return &Agent{cfg: cfg, ports: standardPorts}, nil
}

func (c Config) check() error {
	for _, f := range []struct{ name, value string }{
		{"interface", c.Interface}, {"firmware directory", c.FirmwareDir}, {"RAM disk directory", c.RAMDiskDir},
		{"blob directory", c.BlobDir}, {"state directory", c.StateDir},
	} {
		if f.value == "" {
			return fmt.Errorf("%s is missing", f.name)
		}
	}
	if !c.Address.Is4() || c.Address.IsUnspecified() {
		return fmt.Errorf("address %q: want one IPv4 address", c.Address)
	}
	if _, _, err := net.SplitHostPort(c.HTTPListen); err != nil {
		return fmt.Errorf("http listen %q: %w", c.HTTPListen, err)
	}
	if _, err := netip.ParseAddrPort(c.HTTPAdvertise); err != nil {
		return fmt.Errorf("http advertise %q: want an address literal and a port", c.HTTPAdvertise)
	}
	for i, a := range c.KernelArgs {
		if err := ipxe.CheckText(fmt.Sprintf("kernel argument %d", i+1), a); err != nil {
			return err
		}
	}
	if c.JoinSigningKey == nil || c.JoinEncryptionKey == nil || c.JoinToken == nil {
		return errors.New("join keys or join token are missing")
	}
	for _, n := range []string{c.TrustDomain, c.SiteID, string(c.NodeID)} {
		if !ident.Valid(n) {
			return fmt.Errorf("name %q: want a trust domain, site and node id of letters, digits, '.', '-'", n)
		}
	}
	return nil
}
