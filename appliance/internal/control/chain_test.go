package control_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/appliance/internal/control"
	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/pki"
	"firstlight/appliance/internal/planner"
	"firstlight/appliance/internal/store"
	"firstlight/appliance/internal/store/storetest"
	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/gatewayserver"
	"firstlight/gateway-client/ident"
	"firstlight/gateway-client/link"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
	"firstlight/gateway-client/sealed"
	"firstlight/gateway-client/session"
)

// chainTimeout bounds the whole chain on a slow machine.
const chainTimeout = time.Minute

// chain is a control plane behind a real gateway on the loopback, with real agents.
type chain struct {
	t       *testing.T
	dir     string
	pki     *pki.Authority
	control *control.Control
	link    link.Config
	signing *ecdsa.PublicKey
	wg      sync.WaitGroup
	// machine starts the machine's next system.
	machine chan func(ctx context.Context)
	// wipe is the RAM disk's way to wipe; its zero value succeeds.
	wipe session.Handler

	mu    sync.Mutex
	lease *sitev1.PrepareRAMDisk
	site  *session.Identity
}

// order starts everything and orders m1. The returned channel tells of every change of a workflow.
func (c *chain) order(ctx context.Context) (*fleet.Repo, *executor.Executor, <-chan store.Entry) {
	c.t.Helper()
	mem := storetest.New()
	repo := fleet.NewRepo(mem)
	ex := c.start(ctx, repo)
	_, err := repo.AddMachine(ctx, fleet.Spec{Name: "m1", MACs: []string{mac1}, DiskSerials: []string{"DISK-m1"}, BMCURL: "https://10.78.0.1",
		BMCUser: "admin", BMCPassword: fleet.Secret("hunter2"), BMCCertificateSHA256: make([]byte, 32)}, time.Now())
	c.must(err)
	changes, err := mem.Watch(ctx, "workflows/")
	c.must(err)
	c.wg.Go(func() { c.runSite(ctx) })
	c.wg.Go(func() {
		for {
			select {
			case system := <-c.machine:
				c.wg.Go(func() { system(ctx) })
			case <-ctx.Done():
				return
			}
		}
	})
	_, err = ex.Provision(ctx, executor.Order{Machine: "m1", By: "root", Image: planner.Image{Name: "demo", ManifestSHA256: [32]byte{1}, RawSize: 1}})
	c.must(err)
	return repo, ex, changes
}

// A cancelled wipe is stopped through gateway and session, its machine signs how far it came, and the record says so.
func TestCancelOverTheWire(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), chainTimeout)
	c := &chain{t: t, dir: t.TempDir(), machine: make(chan func(context.Context), 4)}
	c.wipe = session.Handler{Lane: lane, Attested: true, Destructive: true, Run: func(ctx context.Context, call *session.Call) (proto.Message, error) {
		call.Progress(&agentv1.Progress{What: "erase DISK-m1", Done: 7, Total: 9, Unit: "bytes"})
		<-ctx.Done()
		return &agentv1.DiskWipeResult{Disks: []*agentv1.WipedDisk{{Serial: "DISK-m1", SizeBytes: 9, BytesErased: 7, Outcome: "cancelled"}}}, context.Cause(ctx)
	}}
	repo, ex, changes := c.order(ctx)
	defer func() { cancel(); c.wg.Wait(); ex.Wait() }()
	for range changes {
		m, err := repo.Show(ctx, "m1")
		if err != nil {
			t.Fatal(err)
		}
		if s := m.Workflow.Steps[7]; s.Name != fleet.StepWipe || len(s.Commands) == 0 || s.Commands[0].State != fleet.CommandRunning {
			continue
		}
		if err := ex.Cancel(ctx, "m1", "uid 0 (root)", "wrong rack"); err != nil {
			t.Fatal(err)
		}
		break
	}
	m, err := repo.Show(ctx, "m1")
	if err != nil {
		t.Fatal(err)
	}
	if m.State != fleet.MachineCancelled || m.Workflow.Steps[7].Commands[0].State != fleet.CommandCancelled || !m.Workflow.Steps[7].Commands[0].Attested {
		t.Errorf("got %s with wipe %+v, want both cancelled, the wipe attested", m.State, m.Workflow.Steps[7].Commands)
	}
	if d := m.DiskState[0]; d.Holds != fleet.HoldsPartlyWiped || !strings.Contains(d.Why, "7 of 9 bytes erased") || !strings.Contains(d.Why, "wrong rack") {
		t.Errorf("got disk %+v, want it partly wiped, how far and why", d)
	}
}

// One machine goes its whole way over TLS, gRPC, sealed secrets and signed frames: what the two halves of the protocol say to each
// other is what this side believes.
func TestChainOverTheWire(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), chainTimeout)
	c := &chain{t: t, dir: t.TempDir(), machine: make(chan func(context.Context), 4)}
	repo, ex, changes := c.order(ctx)
	defer func() { cancel(); c.wg.Wait(); ex.Wait() }()
	for range changes {
		m, err := repo.Show(ctx, "m1")
		if err != nil {
			t.Fatal(err)
		}
		switch m.State {
		case fleet.MachineFailed:
			t.Fatalf("got failure %+v, want active", m.Failure)
		case fleet.MachineActive:
			checkChain(t, m)
			return
		}
	}
	m, _ := repo.Show(context.Background(), "m1")
	t.Fatalf("got %s waiting for %+v after %s, want active", m.State, m.Waiting, chainTimeout)
}

func checkChain(t *testing.T, m fleet.Machine) {
	t.Helper()
	for _, s := range m.Workflow.Steps {
		for _, c := range s.Commands {
			attested := c.Kind == "disk.wipe" || c.Kind == "deploy.image" || c.Kind == "diag.nvml" || c.Kind == "diag.dcgm"
			if c.KeyID == "" || c.Attested != attested {
				t.Errorf("got %s attested %t with key %q, want attested %t with a key", c.Kind, c.Attested, c.KeyID, attested)
			}
		}
	}
	if m.Hardware == nil || len(m.Hardware.Disks) != 1 || m.NodeKeyID == "" {
		t.Errorf("got hardware %+v and node key %q, want both", m.Hardware, m.NodeKeyID)
	}
}

func (c *chain) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *chain) start(ctx context.Context, repo *fleet.Repo) *executor.Executor {
	c.t.Helper()
	const name = "gw.site-a.firstlight.test"
	var err error
	c.pki, err = pki.Open(filepath.Join(c.dir, "pki"), pki.Config{TrustDomain: domain, SiteID: siteID, ServerName: name, Now: time.Now})
	c.must(err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	c.must(err)
	url := "https://" + ln.Addr().String()
	gw := &control.Gateway{}
	ex, err := executor.New(executor.Config{Fleet: repo, Sender: gw, Signer: c.pki.Commands, Now: time.Now,
		Site: planner.Site{NodeID: siteNode, HTTPBase: "http://127.0.0.1:1", Anchors: c.pki.Anchors(url, name)}})
	c.must(err)
	c.control, err = control.New(control.Config{Fleet: repo, Workflows: ex, PKI: c.pki, Gateway: gw, TrustDomain: domain, SiteID: siteID,
		SectionDir: filepath.Join(c.dir, "sections"), Now: time.Now})
	c.must(err)
	c.must(c.control.Start(ctx))
	c.must(ex.Start(ctx))
	server, err := gatewayserver.New(gatewayserver.Config{Certificate: c.pki.Serving(), NodeCAs: c.pki.NodeCAs, TrustDomain: domain,
		Services: c.control, Control: c.control, Now: time.Now})
	c.must(err)
	gw.Attach(server)
	c.wg.Go(func() {
		if err := server.Serve(ln); err != nil {
			c.t.Errorf("serve: %v", err)
		}
	})
	c.wg.Go(func() {
		<-ctx.Done()
		server.Stop(ctx)
	})
	c.link = link.Config{URL: url, ServerName: name, SPKIPins: c.pki.ServingPins()}
	c.signing = c.pki.JoinSigner().Key.Public().(*ecdsa.PublicKey)
	return ex
}

// run joins and keeps a session until ctx ends or refused.
func (c *chain) run(ctx context.Context, p session.JoinParams, handlers map[string]session.Handler, joined func(*session.Identity, *session.Agent)) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Error(err)
		return
	}
	p.Link, p.JoinSigningKey, p.Key, p.Hardware = c.link, c.signing, key, claims("", mac1)
	id, err := session.Join(ctx, p)
	if err != nil {
		if ctx.Err() == nil {
			c.t.Errorf("join as %s: %v", ident.RoleWord(p.Role), err)
		}
		return
	}
	word := ident.RoleWord(p.Role)
	a, err := session.New(session.Config{Link: c.link, Identity: id, JoinSigningKey: c.signing, BootID: "boot-" + word,
		JournalPath: filepath.Join(c.dir, word+".journal"), Hardware: p.Hardware, Version: "test", Inventory: inventory, Handlers: handlers})
	if err != nil {
		c.t.Error(err)
		return
	}
	if joined != nil {
		joined(id, a)
	}
	if err := a.Run(ctx); err != nil && ctx.Err() == nil {
		c.t.Errorf("session as %s: %v", word, err)
	}
}

func inventory(context.Context) (map[string][]byte, error) {
	out := map[string][]byte{}
	for name, m := range map[string]proto.Message{"system": &agentv1.SystemSection{}, "cpu": &agentv1.CPUSection{Model: "x"},
		"memory": &agentv1.MemorySection{TotalBytes: 1}, "nics": &agentv1.NICsSection{},
		"disks": &agentv1.DisksSection{Disks: []*agentv1.Disk{{Serial: "DISK-m1", Candidate: true}}}} {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			return nil, err
		}
		out[name] = b
	}
	return out, nil
}

// does is a handler that answers with a fixed result after an action.
func does(lane commonv1.Lane, attested bool, result proto.Message, act func(ctx context.Context, call *session.Call) error) session.Handler {
	return session.Handler{Lane: lane, Attested: attested, Run: func(ctx context.Context, call *session.Call) (proto.Message, error) {
		if act != nil {
			if err := act(ctx, call); err != nil {
				return nil, err
			}
		}
		return result, nil
	}}
}

const (
	lane = commonv1.Lane_LANE_CONTROL
	bulk = commonv1.Lane_LANE_BULK
)

func (c *chain) runSite(ctx context.Context) {
	var events *session.Agent
	password := func(ctx context.Context, call *session.Call) error {
		v, err := call.Secret(ctx, planner.BMCPasswordRef("m1"))
		if err == nil && string(v) != "hunter2" {
			err = errors.New("got another password")
		}
		return err
	}
	handlers := map[string]session.Handler{
		"boot.prepareRamdisk": does(lane, false, &sitev1.PrepareRAMDiskResult{}, func(_ context.Context, call *session.Call) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.lease = &sitev1.PrepareRAMDisk{}
			return proto.Unmarshal(call.Payload, c.lease)
		}),
		"boot.cleanUp":     does(lane, false, &sitev1.CleanUpBootResult{}, nil),
		"bmc.bootOverride": does(lane, false, &sitev1.BMCBootOverrideResult{Device: "pxe", Once: true, Uefi: true}, password),
		"bmc.power": does(lane, false, &sitev1.BMCPowerResult{State: "on"}, func(ctx context.Context, call *session.Call) error {
			if err := password(ctx, call); err != nil {
				return err
			}
			for _, kind := range []string{"boot.dhcp.offered", "boot.tftp.served", "boot.script.served"} {
				events.Emit(&agentv1.Event{Kind: kind, NodeId: c.lease.NodeId, WorkflowId: c.lease.WorkflowId, Message: kind})
			}
			c.machine <- c.runRAMDisk
			return nil
		}),
	}
	c.run(ctx, session.JoinParams{Role: site, Attestor: "join-token", NodeID: siteNode, Evidence: func(csr []byte) ([]byte, error) {
		token, err := c.control.MintJoinToken(ctx, siteNode, site, time.Minute)
		if err != nil {
			return nil, err
		}
		return c.seal(token, csr)
	}}, handlers, func(id *session.Identity, a *session.Agent) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.site, events = id, a
	})
}

func (c *chain) seal(secret, csr []byte) ([]byte, error) {
	jwe, err := sealed.Seal(&c.pki.JoinKey().PublicKey, sealed.TypJoin, sealed.JoinClaims{Secret: secret, CSRSHA256: csr})
	return []byte(jwe), err
}

// assertion is what the site's boot server would have put into the overlay.
func (c *chain) assertion([]byte) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	body, err := proto.Marshal(&sitev1.DiscoveryAssertion{AssertionId: "a", TrustDomain: domain, SiteId: siteID, NodeId: c.lease.NodeId,
		LeaseId: c.lease.LeaseId, WorkflowId: c.lease.WorkflowId, Macs: c.lease.Macs, IssuedAt: timestamppb.Now(),
		NotAfter: timestamppb.New(time.Now().Add(time.Minute))})
	if err != nil {
		return nil, err
	}
	sig, err := envelope.Signer{Key: c.site.Key, Chain: []*x509.Certificate{c.site.Chain[0]}}.Sign(envelope.DiscoveryAssertion, body)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(&sitev1.SignedDiscoveryAssertion{Body: body, Signature: sig})
}

func (c *chain) runRAMDisk(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var secret []byte
	skipped := &agentv1.DiagResult{Outcome: agentv1.DiagResult_OUTCOME_SKIPPED, Reason: "no GPU"}
	manifest := make([]byte, 32)
	manifest[0] = 1
	wipe := c.wipe
	if wipe.Run == nil {
		wipe = does(lane, true, wiped(), nil)
	}
	handlers := map[string]session.Handler{
		"disk.wipe": wipe,
		"diag.nvml": does(lane, true, skipped, nil),
		"diag.dcgm": does(bulk, true, skipped, nil),
		"deploy.image": does(bulk, true, &agentv1.DeployImageResult{Serial: "DISK-m1", BytesWritten: 1, BytesVerified: 1, ManifestSha256: manifest},
			func(ctx context.Context, call *session.Call) error {
				var d agentv1.DeployImage
				if err := proto.Unmarshal(call.Payload, &d); err != nil {
					return err
				}
				v, err := call.Secret(ctx, d.Seed.JoinSecretRef)
				secret = v
				return err
			}),
		"boot.kexec": {Lane: lane, SelfTerminating: true,
			Run: func(context.Context, *session.Call) (proto.Message, error) {
				return &agentv1.BootKexecResult{Entry: "x"}, nil
			},
			After: func() error {
				c.machine <- func(ctx context.Context) { c.runNode(ctx, secret) }
				stop()
				return nil
			}},
	}
	c.run(ctx, session.JoinParams{Role: ramdisk, Attestor: "discovery", Evidence: c.assertion}, handlers, nil)
}

func (c *chain) runNode(ctx context.Context, secret []byte) {
	c.run(ctx, session.JoinParams{Role: node, Attestor: "provisioned", NodeID: ident.NodeID(c.lease.NodeId),
		Evidence: func(csr []byte) ([]byte, error) { return c.seal(secret, csr) }}, map[string]session.Handler{}, nil)
}
