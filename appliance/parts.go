package appliance

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/control"
	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/images"
	"firstlight/appliance/internal/machinelog"
	"firstlight/appliance/internal/pki"
	"firstlight/appliance/internal/planner"
	"firstlight/appliance/internal/store"
	"firstlight/appliance/internal/telemetry"
	"firstlight/appliance/internal/vault"
	"firstlight/gateway-client/gatewayserver"
	"firstlight/gateway-client/ident"
	"firstlight/gateway-client/link"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
	"firstlight/site"
)

// How long minting the site agent's join token may take, and how long it is good: joining takes seconds.
const (
	inviteTimeout = 10 * time.Second
	inviteLife    = 10 * time.Minute
)

// secretsPrefix of the store's keys whose values are encrypted at rest.
const secretsPrefix = "secrets/"

// parts are the running parts, in the order in which they are made.
type parts struct {
	cfg     Config
	metrics *telemetry.Metrics
	// traces is nil where none are sent.
	traces   *telemetry.Traces
	store    *store.Etcd
	keys     *pki.Authority
	fleet    *fleet.Repo
	logs     *machinelog.Logs
	images   *images.Library
	listener net.Listener
	siteNode ident.NodeID
	executor *executor.Executor
	control  *control.Control
	gateway  *gatewayserver.Server
	socket   net.Listener
	api      *api.Server
	// web is nil where the configuration has no page.
	web *webServer
	box *vault.Vault
	people
	lastHealth lastHealth
	// site is nil where the configuration switches boot off.
	site *site.Agent
}

// open makes all parts; when one cannot be made, those before it are closed.
func (a *Appliance) open(ctx context.Context) (*parts, error) {
	p := &parts{cfg: a.cfg}
	for _, step := range []func(context.Context) error{p.openTelemetry, p.openData, p.openGateway, p.openSite, p.openPeople, p.openAPI, p.openWeb} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, p.close())
		}
	}
	return p, nil
}

// close closes what open made and run did not take over.
func (p *parts) close() error {
	var errs []error
	if p.web != nil {
		errs = append(errs, ignoreClosed(p.web.listener.Close()))
	}
	if p.socket != nil {
		errs = append(errs, ignoreClosed(p.socket.Close()))
	}
	if p.listener != nil {
		errs = append(errs, ignoreClosed(p.listener.Close()))
	}
	if p.logs != nil {
		errs = append(errs, p.logs.Close())
	}
	if p.store != nil {
		errs = append(errs, p.store.Close())
	}
	return errors.Join(errs...)
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (p *parts) openData(ctx context.Context) (err error) {
	f := p.cfg.File
	if p.box, err = vault.Open(filepath.Join(f.DataDir, "vault.key")); err != nil {
		return err
	}
	p.keys, err = pki.Open(filepath.Join(f.DataDir, "pki"), pki.Config{TrustDomain: f.TrustDomain, SiteID: f.SiteID,
		ServerName: f.Gateway.ServerName, IPs: servingIPs(f.Gateway.Listen, f.Gateway.Advertise), Vault: p.box, Now: p.cfg.Now})
	if err != nil {
		return err
	}
	if p.store, err = store.Open(ctx, store.Config{Dir: filepath.Join(f.DataDir, "etcd"), Log: p.log("store")}); err != nil {
		return err
	}
	p.metrics.Space(p.store.Space)
	kept := p.metrics.Store(p.store)
	if p.cfg.Observe != nil {
		kept = store.Observed(kept, func(key string, durable bool) { p.cfg.Observe(Write{Key: key, Durable: durable}) })
	}
	s := p.box.Sealed(kept, secretsPrefix)
	p.kept, p.fleet = s, fleet.NewRepo(s)
	if err := p.openLogs(); err != nil {
		return err
	}
	p.images, err = images.New(s, p.blobDir(), p.keys.Images(), p.cfg.Now)
	return err
}

func (p *parts) blobDir() string { return filepath.Join(p.cfg.File.DataDir, "blobs") }

// servingIPs are the addresses by which the gateway may be called besides its name.
func servingIPs(hosts ...string) []net.IP {
	var ips []net.IP
	for _, h := range hosts {
		a, err := netip.ParseAddrPort(h)
		if err == nil && !a.Addr().IsUnspecified() {
			ips = append(ips, net.IP(a.Addr().AsSlice()))
		}
	}
	return ips
}

// openGateway makes what decides about agents and the listener that they reach it by.
func (p *parts) openGateway(ctx context.Context) (err error) {
	f := p.cfg.File
	if p.listener, err = net.Listen("tcp", f.Gateway.Listen); err != nil {
		return fmt.Errorf("listen for agents: %w", err)
	}
	if p.siteNode, err = p.siteID(ctx); err != nil {
		return err
	}
	sessions := &control.Gateway{}
	p.executor, err = executor.New(executor.Config{
		Fleet: p.fleet, Sender: sessions, Signer: p.keys.Commands, Now: p.cfg.Now, Log: p.log("executor"),
		Site: planner.Site{NodeID: p.siteNode, HTTPBase: p.httpBase(), Anchors: p.anchors()},
	})
	if err != nil {
		return err
	}
	p.control, err = control.New(control.Config{
		Fleet: p.fleet, Workflows: p.executor, PKI: p.keys, Gateway: sessions, TrustDomain: f.TrustDomain, SiteID: f.SiteID,
		SectionDir: filepath.Join(f.DataDir, "sections"), Now: p.cfg.Now, Log: p.log("control"), SiteNode: p.siteNode,
		Boot: control.BootPolicy{Discovery: f.Boot.Discovery, ReplaceROM: f.Boot.ReplaceROMiPXE, Anchors: p.anchors()},
	})
	if err != nil {
		return err
	}
	p.gateway, err = gatewayserver.New(gatewayserver.Config{
		Certificate: p.keys.Serving(), NodeCAs: p.keys.NodeCAs, TrustDomain: f.TrustDomain,
		Services: p.metrics.Services(p.control), Control: p.metrics.Sessions(p.control), Logs: p.logged, Now: p.cfg.Now, Log: p.log("gateway"),
	})
	if err != nil {
		return err
	}
	sessions.Attach(p.gateway)
	return nil
}

// anchors are what booted machines trust.
func (p *parts) anchors() *sitev1.TrustAnchors {
	return p.keys.Anchors(p.gatewayURL(), p.cfg.File.Gateway.ServerName)
}

func (p *parts) log(part string) *slog.Logger { return p.cfg.Log.With("part", part) }

// siteID is the site agent's node id: made once, then always the same.
func (p *parts) siteID(ctx context.Context) (ident.NodeID, error) {
	agents, err := p.fleet.Agents(ctx)
	if err != nil {
		return "", err
	}
	role := ident.RoleWord(commonv1.AgentRole_AGENT_ROLE_SITE)
	for _, a := range agents {
		if a.Role == role {
			return ident.NodeID(a.NodeID), nil
		}
	}
	node := ident.New("site")
	_, err = p.fleet.UpdateAgent(ctx, node, func(a *fleet.Agent) error {
		a.NodeID, a.Role = node, role
		return nil
	})
	return ident.NodeID(node), err
}

// gatewayURL is where agents are sent.
func (p *parts) gatewayURL() string {
	host := p.cfg.File.Gateway.Advertise
	if host == "" {
		host = p.listener.Addr().String()
	}
	return "https://" + host
}

// httpBase is where machines fetch; empty when no site agent serves boots for this appliance.
func (p *parts) httpBase() string {
	if p.cfg.File.Boot.HTTPAdvertise == "" {
		return ""
	}
	return "http://" + p.cfg.File.Boot.HTTPAdvertise
}

// openSite makes the embedded site agent. It knows the appliance by what every agent knows, and reaches it over TLS.
func (p *parts) openSite(context.Context) error {
	b := p.cfg.File.Boot
	if !b.Enabled {
		return nil
	}
	signing, ok := p.keys.JoinSigner().Key.Public().(*ecdsa.PublicKey)
	if !ok {
		return errors.New("join signing key is not ECDSA")
	}
	state := filepath.Join(p.cfg.File.DataDir, "site")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return fmt.Errorf("make the site agent's directory: %w", err)
	}
	var err error
	p.site, err = site.New(site.Config{
		Interface: b.Interface, Address: b.Address, HTTPListen: b.HTTPListen, HTTPAdvertise: b.HTTPAdvertise,
		FirmwareDir: b.FirmwareDir, RAMDiskDir: b.RAMDiskDir, BlobDir: p.blobDir(), KernelArgs: b.KernelArgs, StateDir: state,
		Link:           link.Config{URL: "https://" + p.dialAddr(), ServerName: p.cfg.File.Gateway.ServerName, SPKIPins: p.keys.ServingPins()},
		JoinSigningKey: signing, JoinEncryptionKey: &p.keys.JoinKey().PublicKey,
		JoinToken:   p.inviteSite,
		TrustDomain: p.cfg.File.TrustDomain, SiteID: p.cfg.File.SiteID, NodeID: p.siteNode,
		Version: p.cfg.Version, Meter: p.metrics.Site(), Now: p.cfg.Now, Log: p.log("site"),
	})
	return err
}

// inviteSite mints the one-time token with which the site agent joins; its hash is in the store, the token nowhere.
func (p *parts) inviteSite() ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), inviteTimeout)
	defer cancel()
	return p.control.MintJoinToken(ctx, p.siteNode, commonv1.AgentRole_AGENT_ROLE_SITE, inviteLife)
}

// dialAddr is where the gateway listens, as this host reaches it.
func (p *parts) dialAddr() string {
	a, err := netip.ParseAddrPort(p.listener.Addr().String())
	if err != nil || !a.Addr().IsUnspecified() {
		return p.listener.Addr().String()
	}
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if a.Addr().Is6() && !a.Addr().Is4In6() {
		loopback = netip.IPv6Loopback()
	}
	return netip.AddrPortFrom(loopback, a.Port()).String()
}

func (p *parts) openAPI(context.Context) (err error) {
	p.api = api.NewServer(api.ServerConfig{Fleet: p.fleet, Roster: p.roster, Images: p.images, Workflows: p.executor, Store: p.kept,
		Accounts: p.accounts, MintJoin: p.mintJoin, Forget: p.forget, Owner: uint32(os.Getuid()), Version: p.cfg.Version,
		Metrics: p.metrics.Handler(p.log("telemetry")), Logs: p.logs, Health: p.health,
		Now: p.cfg.Now, Log: p.log("api")})
	p.socket, err = api.Listen(p.cfg.File.Socket)
	return err
}
