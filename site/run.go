package site

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"firstlight/gateway-client/envelope"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/gateway-client/session"
	"firstlight/site/internal/discovery"
	"firstlight/site/internal/httpboot"
	"firstlight/site/internal/lease"
	"firstlight/site/internal/netif"
	"firstlight/site/internal/power"
	"firstlight/site/internal/proxydhcp"
	"firstlight/site/internal/tftp"
)

// renewPause is how long an agent goes on with an ageing identity before it asks for a new one again.
const renewPause = 10 * time.Minute

// running is everything that one Run has open.
type running struct {
	a         *Agent
	host      host
	bootID    string
	firmware  *os.Root
	ramdisk   *os.Root
	blobs     *os.Root
	leases    *lease.Table
	policies  *policies
	dhcp, pxe *net.UDPConn
	tftp      *netif.Packets
	http      net.Listener
	boots     *boots
	close     []func() error
}

// Run joins if it must, then keeps the session and serves boots until ctx ends (nil), the gateway refuses this agent for good, or
// a service cannot go on. All that can be wrong with the configuration is found before the join token is asked for.
func (a *Agent) Run(ctx context.Context) error {
	r := &running{a: a}
	defer r.end()
	err := r.open(ctx)
	if err == nil {
		err = r.run(ctx)
	}
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("site agent: %w", err)
	}
	return nil
}

func (r *running) end() {
	for _, f := range r.close {
		f()
	}
}

func (r *running) open(ctx context.Context) error {
	cfg := r.a.cfg
	nic, err := netif.Lookup(cfg.Interface, cfg.Address)
	if err != nil {
		return err
	}
	r.host = host{dmi: os.DirFS("/sys/class/dmi/id"), nic: nic}
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return fmt.Errorf("boot id: %w", err)
	}
	r.bootID = strings.TrimSpace(string(id))
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	if r.leases, err = lease.Load(filepath.Join(cfg.StateDir, "leases.json"), cfg.Now); err != nil {
		return err
	}
	for _, d := range []struct {
		root **os.Root
		path string
	}{{&r.firmware, cfg.FirmwareDir}, {&r.ramdisk, cfg.RAMDiskDir}, {&r.blobs, cfg.BlobDir}} {
		if *d.root, err = os.OpenRoot(d.path); err != nil {
			return fmt.Errorf("open directory: %w", err)
		}
		r.close = append(r.close, (*d.root).Close)
	}
	return r.listen(ctx)
}

func (r *running) listen(ctx context.Context) error {
	cfg, p := r.a.cfg, r.a.ports
	for _, s := range []struct {
		conn **net.UDPConn
		at   netip.AddrPort
	}{
		// Broadcasts only reach a socket that is bound to no address.
		{&r.dhcp, netip.AddrPortFrom(netip.IPv4Unspecified(), p.dhcp)},
		{&r.pxe, netip.AddrPortFrom(netip.IPv4Unspecified(), p.pxe)},
	} {
		var err error
		if *s.conn, err = netif.ListenUDP(ctx, cfg.Interface, s.at); err != nil {
			return err
		}
		r.close = append(r.close, (*s.conn).Close)
	}
	var err error
	if r.tftp, err = netif.ListenAll(ctx, cfg.Interface, p.tftp); err != nil {
		return err
	}
	r.close = append(r.close, r.tftp.Close)
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.HTTPListen)
	if err != nil {
		return fmt.Errorf("listen for boot http: %w", err)
	}
	r.http = l
	r.close = append(r.close, l.Close)
	return nil
}

func (r *running) run(ctx context.Context) error {
	cfg := r.a.cfg
	place := discovery.Site{TrustDomain: cfg.TrustDomain, SiteID: cfg.SiteID, HTTP: cfg.HTTPAdvertise, KernelArgs: cfg.KernelArgs}
	r.boots = &boots{site: place, leases: r.leases, firmware: r.firmware, segment: r.host.nic.Prefix, events: &events{}, now: cfg.Now, log: cfg.Log}
	r.policies = &policies{site: place, leases: r.leases, path: filepath.Join(cfg.StateDir, policyFile), log: cfg.Log}
	if err := r.policies.load(); err != nil {
		return err
	}
	id, err := r.a.identity(ctx, r.host.claims())
	if err != nil {
		return err
	}
	first, err := r.session(id)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.keep(ctx, id, first) })
	proxy := proxydhcp.New(proxydhcp.Config{Address: cfg.Address, Index: r.host.nic.Index, Offers: r.a.ports.offers, Boots: r.boots, Meter: cfg.Meter.DHCP, Log: cfg.Log})
	g.Go(func() error { return proxy.Serve(ctx, r.dhcp, proxydhcp.PortDHCP) })
	g.Go(func() error { return proxy.Serve(ctx, r.pxe, proxydhcp.PortPXE) })
	files := tftp.New(tftp.Config{Root: r.firmware, Interface: cfg.Interface, MTU: r.host.nic.MTU, Timeout: r.a.ports.tftpTimeout, Events: meteredTFTP{tftpEvents{r.boots}, cfg.Meter}, Log: cfg.Log})
	g.Go(func() error { return files.Serve(ctx, r.tftp) })
	g.Go(func() error {
		return httpboot.Serve(ctx, r.http, httpboot.Config{Firmware: r.firmware, RAMDisk: r.ramdisk, Blobs: r.blobs, Boots: r.boots, Meter: cfg.Meter.HTTP, Log: cfg.Log})
	})
	cfg.Log.Info("site agent serves boots", "interface", cfg.Interface, "address", cfg.Address, "http", cfg.HTTPAdvertise)
	return g.Wait()
}

// session makes the session agent of an identity, and the signer of assertions with it.
func (r *running) session(id *session.Identity) (*session.Agent, error) {
	cfg := r.a.cfg
	commands := &leaseCommands{site: r.boots.site, leases: r.leases, ramdisk: r.ramdisk}
	control := commonv1.Lane_LANE_CONTROL
	agent, err := session.New(session.Config{
		Link: cfg.Link, Identity: id, JoinSigningKey: cfg.JoinSigningKey, BootID: r.bootID,
		JournalPath: filepath.Join(cfg.StateDir, "journal.db"), Hardware: r.host.claims(), Version: cfg.Version, Inventory: r.host.inventory,
		// Each of them brings about a state, so one that a crash cut off is simply done again.
		Handlers: map[string]session.Handler{
			"boot.prepareRamdisk": {Lane: control, Repeatable: true, Run: commands.prepare},
			"boot.cleanUp":        {Lane: control, Repeatable: true, Run: commands.cleanUp},
			"boot.policy":         {Lane: control, Repeatable: true, Run: r.policies.set},
			"bmc.power":           {Lane: control, Repeatable: true, Run: power.Power(cfg.OpenBMC)},
			"bmc.bootOverride":    {Lane: control, Repeatable: true, Run: power.BootOverride(cfg.OpenBMC)},
		},
		Now: cfg.Now, Log: cfg.Log,
	})
	if err != nil {
		return nil, err
	}
	r.boots.signer.Store(&envelope.Signer{Key: id.Key, Chain: id.Chain})
	r.boots.events.agent.Store(agent)
	return agent, nil
}

// keep runs one session agent after another: each until its certificate is old, then a new identity takes over.
func (r *running) keep(ctx context.Context, id *session.Identity, agent *session.Agent) error {
	until := renewAt(id)
	for {
		if err := runUntil(ctx, agent, until.Sub(r.a.cfg.Now())); err != nil || ctx.Err() != nil {
			return err
		}
		fresh, err := r.a.identity(ctx, r.host.claims())
		switch {
		case err == nil:
			id, until = fresh, renewAt(fresh)
			// A certificate that is old at birth, by a wrong clock or a far back-dated start, must not make a loop of joins.
			if soonest := r.a.cfg.Now().Add(renewPause); until.Before(soonest) {
				until = soonest
			}
		case ctx.Err() != nil:
			return nil
		case r.a.cfg.Now().After(id.Chain[0].NotAfter):
			return fmt.Errorf("renew: %w", err)
		default:
			r.a.cfg.Log.Warn("certificate not renewed", "until", id.Chain[0].NotAfter, "error", err)
			until = r.a.cfg.Now().Add(renewPause)
		}
		if agent, err = r.session(id); err != nil {
			return err
		}
	}
}

// runUntil runs the agent for at most d.
func runUntil(ctx context.Context, agent *session.Agent, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	err := agent.Run(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}
