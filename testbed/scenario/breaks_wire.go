package scenario

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/testbed/fault"
	"firstlight/testbed/judge"
	"firstlight/testbed/netlab"
	"firstlight/testbed/peer"
)

// Where the men in the middle stand.
var (
	peerHTTP    = fmt.Sprintf("%s:%d", netlab.PeerAddress, httpPort)
	peerGateway = fmt.Sprintf("%s:%d", netlab.PeerAddress, gatewayPort)
	siteHTTP    = fmt.Sprintf("%s:%d", netlab.SiteAddress, httpPort)
	siteGateway = fmt.Sprintf("%s:%d", netlab.SiteAddress, gatewayPort)
)

func (r *run) pkiDir() string { return filepath.Join(r.serve.DataDir, "pki") }

// proxy puts a man in the middle before the site's HTTP server: the appliance advertises his address.
func (r *run) proxy(s fault.Spoil) (*fault.Proxy, error) {
	ln, err := r.lab.Listen(netlab.Peer, "tcp", peerHTTP)
	if err != nil {
		return nil, fmt.Errorf("start proxy: %w", err)
	}
	p := fault.NewProxy(siteHTTP, r.lab.DialContext(netlab.Peer), s)
	go func() {
		if err := p.Serve(ln); err != nil {
			r.log.Error("proxy ended", "err", err)
		}
	}()
	r.onClose("proxy", p.Close)
	r.serve.Boot.HTTPAdvertise = peerHTTP
	return p, nil
}

func manifestBreak() breakKind {
	var p *fault.Proxy
	return breakKind{
		name: "manifest", what: "one byte of the signed manifest is another one on the wire", stage: "deploy", cause: regexp.MustCompile(`(?i)manifest`),
		setup: func(r *run) (err error) {
			chunks := map[string]bool{}
			for _, c := range r.image.Manifest.Chunks {
				chunks[c.Compressed.String()] = true
			}
			p, err = r.proxy(fault.Spoil{Change: fault.FlipByte,
				Match: func(u string) bool { return strings.HasPrefix(u, "/blob/") && !chunks[path.Base(u)] }})
			return err
		},
		judge: func(_ context.Context, r *run) []judge.Check {
			return []judge.Check{spoiled("manifest", p.Spoiled()), named("wipe: ", judge.NoTrace(r.disk().path, r.disk().pattern)),
				judge.AllZero("deploy: nothing was written", r.disk().path, 0, 0)}
		},
	}
}

func chunkBreak() breakKind {
	var p *fault.Proxy
	return breakKind{
		name: "chunk", what: "one byte of one chunk is another one on the wire", core: true, stage: "deploy", cause: regexp.MustCompile(`(?i)chunk`),
		setup: func(r *run) (err error) {
			chunks := r.image.Manifest.Chunks
			if len(chunks) == 0 {
				return errors.New("the image has no chunk to spoil")
			}
			// The last one, so that there is something on the disk that must not start.
			bad := chunks[len(chunks)-1].Compressed.String()
			p, err = r.proxy(fault.Spoil{Change: fault.FlipByte, Match: func(u string) bool { return u == "/blob/"+bad }})
			return err
		},
		judge: func(_ context.Context, r *run) []judge.Check {
			return []judge.Check{spoiled("chunk", p.Spoiled()), named("wipe: ", judge.NoTrace(r.disk().path, r.disk().pattern)),
				judge.AllZero("deploy: the disk's start is cleared", r.disk().path, 0, 1<<20),
				judge.AllZero("deploy: the disk's end is cleared", r.disk().path, -1<<20, 0)}
		},
	}
}

func pinBreak() breakKind {
	var g *fault.Gateway
	return breakKind{
		name: "pin", what: "the gateway that the machine reaches has another CA", stage: "join", cause: regexp.MustCompile(`(?i)\bpin`),
		setup: func(r *run) (err error) {
			ln, err := r.lab.Listen(netlab.Peer, "tcp", peerGateway)
			if err != nil {
				return fmt.Errorf("start rogue gateway: %w", err)
			}
			r.onClose("rogue gateway", ln.Close)
			g, err = fault.NewGateway(serverName, []net.IP{net.ParseIP(netlab.PeerAddress)}, netip.MustParseAddr(netlab.SiteAddress), siteGateway, r.lab.DialContext(netlab.Peer))
			if err != nil {
				return err
			}
			go func() {
				if err := g.Serve(ln); err != nil {
					r.log.Error("rogue gateway ended", "err", err)
				}
			}()
			r.onClose("rogue gateway's connections", func() error { g.Close(); return nil })
			r.serve.Gateway.Advertise = peerGateway
			return nil
		},
		judge: func(ctx context.Context, r *run) []judge.Check {
			met := g.Met()
			said := int64(0)
			var last error
			for _, m := range met {
				said, last = said+m.Bytes, m.Err
			}
			return append(r.untouched(ctx), judge.Of("fault was met", len(met) > 0 && said == 0 && last != nil,
				"%d handshakes with the rogue gateway, %d bytes said to it, the last one ended with: %s", len(met), said, errorText(last)))
		},
	}
}

// thief fetches the machine's boot and joins with it before the machine does.
func (r *run) thief(ctx context.Context) error {
	mac, err := net.ParseMAC(r.mac)
	if err != nil {
		return err
	}
	script, err := r.peer.AskScript(ctx, mac)
	if err != nil {
		return err
	}
	boot, err := r.peer.FetchBoot(ctx, script)
	if err != nil {
		return err
	}
	id, err := r.peer.JoinDiscovery(ctx, boot, &commonv1.HardwareClaims{SystemUuid: r.uuid, Macs: []string{r.mac}})
	if err != nil {
		return fmt.Errorf("thief: %w", err)
	}
	r.out.say("           a thief joined as %s with the machine's boot lease", id.NodeID)
	return nil
}

func scriptBreak() breakKind {
	stolen := false
	return breakKind{
		name: "script", what: "somebody else joined with the boot lease before the machine asks for its script", stage: "script",
		cause: regexp.MustCompile(`(?i)boot lease .*(consumed|used)[^\r\n]*`),
		step: func(ctx context.Context, r *run, rec *judge.Record) error {
			vm := r.rack.VM()
			if stolen || vm == nil || !rec.Over("tftp") {
				return nil
			}
			stolen = true
			// The machine stands still meanwhile: the thief is always the first.
			if err := vm.Pause(ctx); err != nil {
				return err
			}
			return errors.Join(r.thief(ctx), vm.Resume(ctx))
		},
		judge: func(ctx context.Context, r *run) []judge.Check {
			s, t, err := r.trace(ctx, r.machine)
			if err != nil {
				return []judge.Check{judge.Fail("packets", "%v", err)}
			}
			serial, err := judge.ReadSerial(r.serialPath())
			if err != nil {
				return []judge.Check{judge.Fail("serial", "%v", err)}
			}
			// A refusal is a script too: it says why, and ends. So what counts is that nothing was fetched that boots.
			said := r.spoil.cause.FindString(serial)
			return append(r.untouched(ctx),
				judge.Of("fault was met", stolen, "the thief was there first: %v", stolen),
				judge.Of("packets: nothing that boots was fetched", len(s.Scripts(t)) > 0 && len(s.SystemFiles(t)) == 0,
					"%d scripts and %d files asked for by the machine", len(s.Scripts(t)), len(s.SystemFiles(t))),
				judge.Of("serial: the screen says why", said != "", "the boot script said %q", said))
		},
	}
}

func assertionBreak() breakKind {
	var p *fault.Proxy
	// other is the URL of the second machine's overlay; empty until its lease is open. Set before the first machine boots.
	var other string
	var stranger peer.Host
	return breakKind{
		name: "assertion", what: "the machine gets the assertion of another machine's boot", stage: "join", cause: regexp.MustCompile(`(?i)assertion`),
		setup: func(r *run) (err error) {
			stranger = r.peer
			p, err = r.proxy(fault.Spoil{
				Match: func(u string) bool {
					return other != "" && strings.HasSuffix(u, "/boot.cpio") && !strings.HasSuffix(other, u)
				},
				// Fetched anew: an assertion is short-lived.
				Change: func([]byte) ([]byte, error) { return stranger.FetchOverlay(context.Background(), other) },
			})
			return err
		},
		enrolled: func(ctx context.Context, r *run) (err error) {
			other, err = r.openOther(ctx)
			return err
		},
		judge: func(ctx context.Context, r *run) []judge.Check {
			return append(r.untouched(ctx), spoiled("boot overlay", p.Spoiled()))
		},
	}
}

// openOther has a second machine provisioned as far as its open boot lease, and returns the URL of its overlay.
func (r *run) openOther(ctx context.Context) (string, error) {
	c, err := r.startBMC(&shell{}, bmcPort+1)
	if err != nil {
		return "", err
	}
	mac := r.lab.MAC(1)
	if err := r.addMachine(ctx, otherName, mac, newUUID(), "FLT"+randomHex(4)+"7", c); err != nil {
		return "", err
	}
	if _, err := r.firstlight(ctx, "provision", otherName, "--image", imageName); err != nil {
		return "", err
	}
	hw, err := net.ParseMAC(mac)
	if err != nil {
		return "", err
	}
	script, err := r.peer.AskScript(ctx, hw)
	if err != nil {
		return "", err
	}
	boot, err := r.peer.FetchBoot(ctx, script)
	if err != nil {
		return "", err
	}
	return boot.BootURL, nil
}

func tokenBreak() breakKind {
	var stolen *peer.Seed
	var joined string
	return breakKind{
		name: "token", what: "somebody else joins with the deploy's secret before the node does", stage: "node-join",
		cause: regexp.MustCompile(`(?i)secret was used twice`), pauseAfter: []string{"deploy"},
		paused: func(ctx context.Context, r *run, _ string) (err error) {
			stolen, err = r.stealSecret(ctx)
			return err
		},
		// Before the machine is told to enter its system the secret opens nothing; the thief waits for that and is then the faster one.
		step: func(ctx context.Context, r *run, rec *judge.Record) (err error) {
			if s := rec.Step("kexec"); stolen == nil || joined != "" || s == nil || s.Start == nil {
				return nil
			}
			joined, err = r.joinAsNode(ctx, stolen)
			return err
		},
		judge: func(_ context.Context, r *run) []judge.Check {
			alarms := []string{}
			for _, a := range r.record.Alarms {
				alarms = append(alarms, a.Text)
			}
			return []judge.Check{judge.Of("fault was met", joined != "", "the peer joined as %s", joined),
				judge.Of("record: alarm", slices.ContainsFunc(alarms, func(s string) bool { return strings.Contains(s, "secret") }), "alarms: %q", alarms)}
		},
	}
}

// stealSecret reads the node's configuration with the deploy's join secret from the disk file, while the machine stands still.
func (r *run) stealSecret(ctx context.Context) (*peer.Seed, error) {
	part, ok := r.image.Manifest.Partition("config")
	if !ok {
		return nil, errors.New("the image has no configuration partition")
	}
	text, err := fault.ReadFAT(ctx, r.disk().path, part.Start, "/config.toml")
	if err != nil {
		return nil, err
	}
	return peer.ParseSeed(text)
}

// joinAsNode joins with a stolen configuration and the machine's own hardware claims. It says as what.
func (r *run) joinAsNode(ctx context.Context, seed *peer.Seed) (string, error) {
	hw := r.record.Hardware
	if hw == nil {
		return "", errors.New("record has no hardware")
	}
	claims := &commonv1.HardwareClaims{SystemUuid: hw.UUID, SystemSerial: hw.Serial, Manufacturer: hw.Manufacturer, Product: hw.Product}
	for _, n := range hw.NICs {
		claims.Macs = append(claims.Macs, n.MAC)
	}
	slices.Sort(claims.Macs)
	id, err := r.peer.JoinProvisioned(ctx, seed, claims)
	if err != nil {
		return "", fmt.Errorf("join with the stolen secret: %w", err)
	}
	r.out.say("           a peer joined as %s with the deploy's secret", id.NodeID)
	return string(id.NodeID), nil
}
