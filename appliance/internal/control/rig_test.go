package control_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/appliance/internal/control"
	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/pki"
	"firstlight/appliance/internal/planner"
	"firstlight/appliance/internal/store/storetest"
	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/gatewayserver"
	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
	"firstlight/gateway-client/sealed"
)

const (
	domain   = "firstlight.test"
	siteID   = "site-a"
	siteNode = "site-agent"
	mac1     = "52:54:00:00:00:01"
	mac2     = "52:54:00:00:00:02"
	uuid1    = "f47ac10b-58cc-4372-a567-0e02b2c3d479"
	site     = commonv1.AgentRole_AGENT_ROLE_SITE
	ramdisk  = commonv1.AgentRole_AGENT_ROLE_RAMDISK
	node     = commonv1.AgentRole_AGENT_ROLE_NODE
)

// now is the bubble's clock, moved from the year 2000, on which no authority makes keys.
func now() time.Time { return time.Now().Add(27 * 365 * 24 * time.Hour) }

// sessions is the gateway's twin: it takes every command and every revocation.
type sessions struct {
	mu      sync.Mutex
	sent    []*agentv1.CommandBody
	revoked []string
	// cancelled are command ids.
	cancelled []string
}

func (s *sessions) Send(_ ident.NodeID, _ commonv1.AgentRole, c *agentv1.Command) error {
	var b agentv1.CommandBody
	if err := proto.Unmarshal(c.Body, &b); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, &b)
	return nil
}

func (s *sessions) Cancel(_ ident.NodeID, _ commonv1.AgentRole, id, _ string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancelled = append(s.cancelled, id)
	return nil
}

func (s *sessions) Revoke(n ident.NodeID, role commonv1.AgentRole, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revoked = append(s.revoked, string(n)+" as "+ident.RoleWord(role)+": "+reason)
}

func (s *sessions) command(kind string) *agentv1.CommandBody {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.sent) - 1; i >= 0; i-- {
		if s.sent[i].Kind == kind {
			return s.sent[i]
		}
	}
	return nil
}

// agent is a key, and after a join a certificate.
type agent struct {
	key   *ecdsa.PrivateKey
	csr   []byte
	chain []*x509.Certificate
	peer  gatewayserver.Peer
}

// rig is a control plane with one machine, m1, whose workflow is open, and another machine, m2. It lives in a synctest bubble.
type rig struct {
	t        *testing.T
	mem      *storetest.Memory
	repo     *fleet.Repo
	pki      *pki.Authority
	ex       *executor.Executor
	control  *control.Control
	sessions *sessions
	m1, m2   fleet.Record
	site     *agent
	wf       string
	gw       *control.Gateway
	dir      string
}

func bubble(t *testing.T, test func(t *testing.T, r *rig), pauseAfter ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		r := newRig(t, ctx, pauseAfter...)
		defer func() { cancel(); r.ex.Wait() }()
		test(t, r)
	})
}

func newRig(t *testing.T, ctx context.Context, pauseAfter ...string) *rig {
	t.Helper()
	dir := t.TempDir()
	r := &rig{t: t, mem: storetest.New(), sessions: &sessions{}}
	r.repo = fleet.NewRepo(r.mem)
	var err error
	r.pki, err = pki.Open(filepath.Join(dir, "pki"), pki.Config{TrustDomain: domain, SiteID: siteID, ServerName: "gw.site-a.firstlight.test", Now: now})
	r.must(err)
	r.m1 = r.add("m1", mac1, uuid1)
	r.m2 = r.add("m2", mac2, "")
	gw := &control.Gateway{}
	r.ex, err = executor.New(executor.Config{Fleet: r.repo, Sender: gw, Signer: r.pki.Commands, Now: now,
		Site: planner.Site{NodeID: siteNode, HTTPBase: "http://10.77.0.2:8080", Anchors: r.pki.Anchors("https://10.77.0.2:8443", "gw")}})
	r.must(err)
	r.must(r.ex.Start(ctx))
	r.gw, r.dir = gw, dir
	r.control = r.newControl(control.BootPolicy{Discovery: true, Anchors: r.pki.Anchors("https://10.77.0.2:8443", "gw")})
	r.must(r.control.Start(t.Context()))
	gw.Attach(r.sessions)
	r.site = r.agent()
	r.must(r.joinToken(r.site, r.token()))
	r.wf = r.provision("m1", pauseAfter...)
	return r
}

// newControl is another control plane on the same fleet.
func (r *rig) newControl(boot control.BootPolicy) *control.Control {
	r.t.Helper()
	c, err := control.New(control.Config{Fleet: r.repo, Workflows: r.ex, PKI: r.pki, Gateway: r.gw, TrustDomain: domain, SiteID: siteID,
		SectionDir: filepath.Join(r.dir, "sections"), Now: now, SiteNode: siteNode, Boot: boot})
	r.must(err)
	return c
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) add(name, mac, uuid string) fleet.Record {
	r.t.Helper()
	m, err := r.repo.AddMachine(r.t.Context(), fleet.Spec{Name: name, MACs: []string{mac}, UUID: uuid, DiskSerials: []string{"DISK-" + name},
		BMCURL: "https://10.78.0.1", BMCUser: "admin", BMCPassword: fleet.Secret("hunter2"), BMCCertificateSHA256: make([]byte, 32)}, now())
	r.must(err)
	return m
}

func (r *rig) provision(machine string, pauseAfter ...string) string {
	r.t.Helper()
	wf, err := r.ex.Provision(r.t.Context(), executor.Order{Machine: machine, By: "root", PauseAfter: pauseAfter,
		Image: planner.Image{Name: "demo", ManifestSHA256: [32]byte{1}, RawSize: 1 << 20}})
	r.must(err)
	synctest.Wait()
	return wf
}

func (r *rig) agent() *agent {
	r.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	r.must(err)
	a := &agent{key: key}
	a.csr, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	r.must(err)
	return a
}

// join sends a request and takes the certificate of the answer.
func (r *rig) join(a *agent, req *agentv1.JoinRequest) ([]byte, error) {
	r.t.Helper()
	req.Csr = a.csr
	resp, err := r.control.Join(r.t.Context(), req, "10.77.0.100:4000")
	synctest.Wait()
	if err != nil {
		return nil, err
	}
	signing := r.pki.JoinSigner().Key.Public().(*ecdsa.PublicKey)
	r.must(envelope.VerifyKey(signing, resp.Signature, envelope.JoinResponse, resp.Body))
	var body agentv1.JoinResponseBody
	r.must(proto.Unmarshal(resp.Body, &body))
	sum := sha256.Sum256(a.csr)
	if string(body.CsrSha256) != string(sum[:]) || body.Role != req.Role || body.Trust == nil || body.ServerTime == nil {
		r.t.Errorf("got answer %v, want it bound to the request, with trust and time", &body)
	}
	a.chain = nil
	for _, der := range body.CertificateChain {
		c, err := x509.ParseCertificate(der)
		r.must(err)
		a.chain = append(a.chain, c)
	}
	id, err := ident.FromCertificate(a.chain[0])
	r.must(err)
	if life := a.chain[0].NotAfter.Sub(now()); life > 24*time.Hour+time.Minute || life < 23*time.Hour {
		r.t.Errorf("got a certificate for %s, want 24 hours", life)
	}
	a.peer = gatewayserver.Peer{Identity: id, Role: req.Role, Certificate: a.chain[0], BootID: "boot-1", JournalID: "j-1",
		Epoch: uint64(now().UnixMilli()), Addr: "10.77.0.100:4000"}
	raw, err := proto.Marshal(resp)
	r.must(err)
	return raw, nil
}

func (r *rig) token() []byte {
	r.t.Helper()
	token, err := r.control.MintJoinToken(r.t.Context(), siteNode, site, time.Minute)
	r.must(err)
	return token
}

// seal is the evidence of join-token and provisioned for an agent's request.
func (r *rig) seal(a *agent, secret []byte) []byte {
	r.t.Helper()
	sum := sha256.Sum256(a.csr)
	jwe, err := sealed.Seal(&r.pki.JoinKey().PublicKey, sealed.TypJoin, sealed.JoinClaims{Secret: secret, CSRSHA256: sum[:]})
	r.must(err)
	return []byte(jwe)
}

func (r *rig) joinToken(a *agent, token []byte) error {
	r.t.Helper()
	_, err := r.join(a, &agentv1.JoinRequest{Role: site, Attestor: "join-token", Evidence: r.seal(a, token)})
	return err
}

// assertion is a signed assertion for the open boot of m1, after change.
func (r *rig) assertion(change func(*sitev1.DiscoveryAssertion)) []byte {
	r.t.Helper()
	return r.assertionBy(envelope.Signer{Key: r.site.key, Chain: r.site.chain[:1]}, change)
}

func (r *rig) assertionBy(by envelope.Signer, change func(*sitev1.DiscoveryAssertion)) []byte {
	r.t.Helper()
	run, _, err := r.repo.Run(r.t.Context(), r.wf)
	r.must(err)
	b := &sitev1.DiscoveryAssertion{AssertionId: "a-1", TrustDomain: domain, SiteId: siteID, NodeId: r.m1.NodeID, LeaseId: run.Plan.LeaseID,
		WorkflowId: r.wf, Macs: []string{mac1}, IssuedAt: timestamppb.New(now()), NotAfter: timestamppb.New(now().Add(5 * time.Minute))}
	if change != nil {
		change(b)
	}
	body, err := proto.Marshal(b)
	r.must(err)
	sig, err := by.Sign(envelope.DiscoveryAssertion, body)
	r.must(err)
	raw, err := proto.Marshal(&sitev1.SignedDiscoveryAssertion{Body: body, Signature: sig})
	r.must(err)
	return raw
}

func claims(uuid string, macs ...string) *commonv1.HardwareClaims {
	return &commonv1.HardwareClaims{SystemUuid: uuid, Macs: macs}
}

func (r *rig) joinDiscovery(a *agent, evidence []byte, hw *commonv1.HardwareClaims) ([]byte, error) {
	r.t.Helper()
	return r.join(a, &agentv1.JoinRequest{Role: ramdisk, Attestor: "discovery", Evidence: evidence, Hardware: hw})
}

func (r *rig) joinProvisioned(a *agent, secret []byte, hw *commonv1.HardwareClaims) ([]byte, error) {
	r.t.Helper()
	return r.join(a, &agentv1.JoinRequest{Role: node, Attestor: "provisioned", Evidence: r.seal(a, secret), Hardware: hw, NodeId: r.m1.NodeID})
}

// refused checks that a join was refused for good, with a cause.
func (r *rig) refused(err error, cause string) {
	r.t.Helper()
	if status.Code(err) != codes.PermissionDenied || !strings.Contains(status.Convert(err).Message(), cause) {
		r.t.Errorf("got %v, want PERMISSION_DENIED that says %q", err, cause)
	}
}

// failed checks that m1's workflow failed at a step with a cause.
func (r *rig) failed(step, cause string) {
	r.t.Helper()
	f := r.show("m1").Failure
	if f == nil || f.Step != step || !strings.Contains(f.Why, cause) || f.Next == "" {
		r.t.Errorf("got failure %+v, want step %s that says %q and what to do next", f, step, cause)
	}
}

func (r *rig) show(name string) fleet.Machine {
	r.t.Helper()
	m, err := r.repo.Show(r.t.Context(), name)
	r.must(err)
	return m
}

func (r *rig) open() bool { return r.show("m1").Workflow.State.Open() }

func (r *rig) alarms(name string) string {
	r.t.Helper()
	out := ""
	for _, a := range r.show(name).Alarms {
		out += a.Text + "\n"
	}
	return out
}

// update is an agent's signed update on the newest command of a kind.
func (r *rig) update(a *agent, kind string, state commonv1.CommandState, result proto.Message) *agentv1.CommandUpdate {
	r.t.Helper()
	c := r.sessions.command(kind)
	if c == nil {
		r.t.Fatalf("got no %s sent, want one; failure %+v", kind, r.show("m1").Failure)
	}
	raw, err := proto.Marshal(result)
	r.must(err)
	u := &agentv1.CommandUpdate{CommandId: c.CommandId, State: state, Result: raw}
	r.sign(a, u)
	body, err := proto.Marshal(&agentv1.AttestedReportBody{NodeId: c.Audience, CommandId: c.CommandId, Kind: kind, Result: raw, BootId: "boot-1"})
	r.must(err)
	sig, err := envelope.Signer{Key: a.key}.Sign(envelope.AttestedReport, body)
	r.must(err)
	u.Attested = &agentv1.AttestedReport{Body: body, Signature: sig}
	return u
}

func (r *rig) sign(a *agent, u *agentv1.CommandUpdate) {
	r.t.Helper()
	sum := sha256.Sum256(u.Result)
	sig, err := envelope.Signer{Key: a.key}.Sign(envelope.CommandUpdate, []byte(u.CommandId), binary.BigEndian.AppendUint32(nil, uint32(u.State)), sum[:])
	r.must(err)
	u.Signature = sig
}

func (r *rig) succeed(a *agent, kind string, result proto.Message) {
	r.t.Helper()
	r.must(r.control.Update(r.t.Context(), a.peer, r.update(a, kind, commonv1.CommandState_COMMAND_STATE_SUCCEEDED, result)))
	synctest.Wait()
}

func (r *rig) events(kinds ...string) {
	r.t.Helper()
	run, _, err := r.repo.Run(r.t.Context(), r.wf)
	r.must(err)
	cur, err := r.repo.Cursor(r.t.Context(), siteNode)
	r.must(err)
	b := &agentv1.EventBatch{JournalId: "j-site"}
	for i, k := range kinds {
		kind, name, _ := strings.Cut(k, " ")
		b.Events = append(b.Events, &agentv1.Event{Sequence: cur.Sequence + uint64(i) + 1, Time: timestamppb.New(now()), Kind: kind, NodeId: run.NodeID,
			WorkflowId: r.wf, Fields: map[string]string{"name": name}, Message: k})
	}
	r.must(r.control.Events(r.t.Context(), r.site.peer, b))
	synctest.Wait()
}

func (r *rig) connect(a *agent) {
	r.t.Helper()
	r.must(r.control.Admit(r.t.Context(), a.peer, &agentv1.Hello{}))
	r.control.Connected(r.t.Context(), a.peer, &agentv1.Hello{})
	synctest.Wait()
}

// booted plays m1's way up to its RAM disk's start.
func (r *rig) booted() {
	r.t.Helper()
	r.connect(r.site)
	r.succeed(r.site, "boot.prepareRamdisk", &sitev1.PrepareRAMDiskResult{})
	r.succeed(r.site, "bmc.bootOverride", &sitev1.BMCBootOverrideResult{Device: "pxe", Once: true, Uefi: true})
	r.succeed(r.site, "bmc.power", &sitev1.BMCPowerResult{State: "on"})
	r.events("boot.dhcp.offered", "boot.tftp.served", "boot.script.served", "boot.file.served boot")
}

func (r *rig) sections(a *agent) {
	r.t.Helper()
	for name, m := range map[string]proto.Message{
		"system": &agentv1.SystemSection{Product: "QEMU"}, "cpu": &agentv1.CPUSection{Model: "x", Threads: 2},
		"memory": &agentv1.MemorySection{TotalBytes: 1 << 30},
		"disks":  &agentv1.DisksSection{Disks: []*agentv1.Disk{{Name: "vda", Serial: "DISK-m1", Candidate: true, SizeBytes: 1 << 29}}},
		"nics":   &agentv1.NICsSection{Nics: []*agentv1.NIC{{Name: "eth0", Mac: mac1, Link: true}}},
	} {
		b, err := proto.Marshal(m)
		r.must(err)
		sum := sha256.Sum256(b)
		r.must(r.control.Inventory(r.t.Context(), a.peer, &agentv1.InventorySection{Name: name, Encoding: b, Sha256: sum[:]}))
	}
	synctest.Wait()
}

// joined plays m1's way up to its RAM disk's open session.
func (r *rig) joined() *agent {
	r.t.Helper()
	r.booted()
	a := r.agent()
	_, err := r.joinDiscovery(a, r.assertion(nil), claims(uuid1, mac1))
	r.must(err)
	r.connect(a)
	return a
}

// wiping plays m1's way up to the wipe.
func (r *rig) wiping() *agent {
	r.t.Helper()
	a := r.joined()
	r.sections(a)
	return a
}

// deploying plays m1's way up to the deploy.
func (r *rig) deploying() *agent {
	r.t.Helper()
	a := r.wiping()
	r.succeed(a, "disk.wipe", wiped())
	skipped := &agentv1.DiagResult{Outcome: agentv1.DiagResult_OUTCOME_SKIPPED, Reason: "no GPU"}
	r.succeed(a, "diag.nvml", skipped)
	r.succeed(a, "diag.dcgm", skipped)
	return a
}

func wiped() *agentv1.DiskWipeResult {
	return &agentv1.DiskWipeResult{Disks: []*agentv1.WipedDisk{{Serial: "DISK-m1", SizeBytes: 9, BytesErased: 9, BytesVerified: 9, Outcome: "clean"}}}
}

// deployed plays m1's way up to the end of the deploy and returns the join secret that is on the disk.
func (r *rig) deployed() (*agent, []byte) {
	r.t.Helper()
	a := r.deploying()
	secret, word := r.secret(a, nil)
	if word != "" {
		r.t.Fatalf("got %q for the join secret, want it", word)
	}
	d := &agentv1.DeployImageResult{Serial: "DISK-m1", BytesWritten: 5, BytesVerified: 5, Chunks: 1, ManifestSha256: make([]byte, 32)}
	d.ManifestSha256[0] = 1
	r.succeed(a, "deploy.image", d)
	return a, secret
}

// started plays m1's way up to its installed system's start.
func (r *rig) started() []byte {
	r.t.Helper()
	a, secret := r.deployed()
	r.succeed(a, "boot.kexec", &agentv1.BootKexecResult{Entry: "firstlight.conf"})
	return secret
}

// secret asks for the join secret of m1's deploy, after change.
func (r *rig) secret(a *agent, change func(*agentv1.SecretRequest)) (value []byte, word string) {
	r.t.Helper()
	return r.ask(a, &agentv1.SecretRequest{Ref: planner.JoinSecretRef(r.wf), WorkflowId: r.wf, StepId: "deploy", RequestId: "q-1"}, change)
}

func (r *rig) ask(a *agent, req *agentv1.SecretRequest, change func(*agentv1.SecretRequest)) (value []byte, word string) {
	r.t.Helper()
	once, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	r.must(err)
	req.Epk, err = once.PublicKey.Bytes()
	r.must(err)
	req.NodeSig, err = envelope.Signer{Key: a.key}.Sign(envelope.SecretRequest, []byte(req.RequestId), []byte(req.Ref), []byte(req.WorkflowId),
		[]byte(req.StepId), []byte(req.AllocationId), req.Epk)
	r.must(err)
	if change != nil {
		change(req)
	}
	resp := r.control.Secret(r.t.Context(), a.peer, req)
	if resp.RequestId != req.RequestId {
		r.t.Errorf("got an answer to %q, want to %q", resp.RequestId, req.RequestId)
	}
	if resp.Error != "" {
		if resp.Jwe != "" {
			r.t.Error("got a value with an error, want none")
		}
		return nil, resp.Error
	}
	var c sealed.SecretClaims
	r.must(sealed.Open(once, sealed.TypSecret, resp.Jwe, &c))
	if c.Ref != req.Ref || c.RequestID != req.RequestId || !c.Expires.After(now()) || c.Expires.After(now().Add(5*time.Minute)) {
		r.t.Errorf("got claims for %q, %q until %s, want them bound to the request for 5 minutes", c.Ref, c.RequestID, c.Expires)
	}
	return c.Value, ""
}
