package executor_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/planner"
	"firstlight/appliance/internal/store"
	"firstlight/appliance/internal/store/storetest"
	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
)

const (
	siteNode = "site-a"
	serial   = "DISK0001"
	diskSize = 512 << 20
)

var manifest = [32]byte{1, 2, 3}

// sender is the gateway's twin: sessions that are up take commands, and everything taken is kept.
type sender struct {
	mu   sync.Mutex
	up   map[string]bool
	sent []sent
	fate *fate
	// cancels are the cancellations taken: command id and reason.
	cancels []string
}

type sent struct {
	body *agentv1.CommandBody
	raw  string
}

var errDown = errors.New("not connected")

func (s *sender) Send(node ident.NodeID, role commonv1.AgentRole, c *agentv1.Command) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b agentv1.CommandBody
	if err := proto.Unmarshal(c.Body, &b); err != nil {
		return err
	}
	if b.Audience != string(node) || b.Role != role {
		return fmt.Errorf("command for %s as %s sent to %s as %s", b.Audience, b.Role, node, role)
	}
	if !s.up[ident.RoleWord(role)] || s.fate.killed() {
		return errDown
	}
	s.sent = append(s.sent, sent{&b, string(c.Body)})
	return nil
}

// Cancel takes a cancellation where the session is up.
func (s *sender) Cancel(_ ident.NodeID, role commonv1.AgentRole, id, reason string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.up[ident.RoleWord(role)] {
		return errDown
	}
	s.cancels = append(s.cancels, id+" "+reason)
	return nil
}

// rig is one machine under one executor. It lives in a synctest bubble.
type rig struct {
	t      *testing.T
	store  *storetest.Memory
	repo   *fleet.Repo
	sender *sender
	signer envelope.Signer
	rec    fleet.Record
	ex     *executor.Executor
	stop   func()
	wf     string
	// fate ends the appliance at one write; nil lets it live.
	fate *fate
}

// fate counts the executor's writes and ends it at the given one: before it is made, or when it is durable. From then on nothing of it
// reaches the store or an agent.
type fate struct {
	store.Store
	at     int
	before bool

	mu     sync.Mutex
	writes int
	dead   bool
}

var errKilled = errors.New("killed")

// write runs one write of the executor's.
func (f *fate) write(do func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		return errKilled
	}
	f.writes++
	if f.writes == f.at && f.before {
		f.dead = true
		return errKilled
	}
	err := do()
	if f.writes == f.at {
		f.dead = true
		return errKilled
	}
	return err
}

func (f *fate) killed() bool {
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dead
}

func (f *fate) Get(ctx context.Context, key string) (store.Entry, error) {
	if f.killed() {
		return store.Entry{}, errKilled
	}
	return f.Store.Get(ctx, key)
}

func (f *fate) List(ctx context.Context, prefix string) ([]store.Entry, error) {
	if f.killed() {
		return nil, errKilled
	}
	return f.Store.List(ctx, prefix)
}

func (f *fate) Put(ctx context.Context, key string, value []byte, rev int64) (next int64, err error) {
	err = f.write(func() error { next, err = f.Store.Put(ctx, key, value, rev); return err })
	return next, err
}

func (f *fate) Delete(ctx context.Context, key string, rev int64) error {
	return f.write(func() error { return f.Store.Delete(ctx, key, rev) })
}

func newRig(t *testing.T, pauseAfter ...string) *rig {
	t.Helper()
	r := idleRig(t)
	r.start()
	var err error
	r.wf, err = r.ex.Provision(t.Context(), r.order(pauseAfter...))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return r
}

// idleRig has its machine; its executor is not started.
func idleRig(t *testing.T) *rig {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, store: storetest.New(), sender: &sender{up: map[string]bool{}}, signer: envelope.Signer{Key: key}}
	r.repo = fleet.NewRepo(r.store)
	r.rec, err = r.repo.AddMachine(t.Context(), fleet.Spec{Name: "m1", Firmware: fleet.FirmwareUEFI, MACs: []string{"52:54:00:00:00:01"}, DiskSerials: []string{serial},
		BMCURL: "https://10.78.0.1", BMCUser: "admin", BMCPassword: fleet.Secret("x"), BMCCertificateSHA256: make([]byte, 32)}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) order(pauseAfter ...string) executor.Order {
	return executor.Order{Machine: "m1", Image: planner.Image{Name: "demo", ManifestSHA256: manifest, RawSize: 100 << 20}, PauseAfter: pauseAfter, By: "root"}
}

func (r *rig) start() {
	r.t.Helper()
	var kept store.Store = r.store
	if r.fate != nil {
		kept = r.fate
	}
	ex, err := executor.New(executor.Config{Fleet: fleet.NewRepo(kept), Sender: r.sender, Signer: func() envelope.Signer { return r.signer },
		Site: planner.Site{NodeID: siteNode, HTTPBase: "http://10.77.0.2:8080", Anchors: &sitev1.TrustAnchors{TrustDomain: "td", SiteId: "site-a"}},
		Now:  time.Now})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := ex.Start(ctx); err != nil {
		r.t.Fatal(err)
	}
	r.ex, r.stop = ex, func() { cancel(); ex.Wait() }
	r.reconnect()
	synctest.Wait()
}

// reconnect tells the executor of every session that is up, as agents do after the appliance's restart.
func (r *rig) reconnect() {
	for role, up := range r.sender.up {
		if !up {
			continue
		}
		r.available(role)
		if role != "site" {
			if err := r.ex.Post(r.t.Context(), r.wf, executor.SessionUp{Role: role}); err != nil && !errors.Is(err, executor.ErrNotOpen) && !r.fate.killed() {
				r.t.Fatalf("post session: %v", err)
			}
		}
	}
}

func (r *rig) available(role string) {
	p, err := ident.ParseRole(role)
	if err != nil {
		r.t.Fatal(err)
	}
	node := ident.NodeID(r.rec.NodeID)
	if role == "site" {
		node = siteNode
	}
	r.ex.Available(node, p)
}

func (r *rig) restart() {
	r.stop()
	r.start()
}

// connect opens a session.
func (r *rig) connect(role string) {
	r.sender.up[role] = true
	r.available(role)
	if role != "site" {
		r.post(executor.SessionUp{Role: role})
	}
	synctest.Wait()
}

func (r *rig) post(f executor.Fact) {
	r.t.Helper()
	if err := r.ex.Post(r.t.Context(), r.wf, f); err != nil && !r.fate.killed() {
		r.t.Fatalf("post %T: %v", f, err)
	}
	synctest.Wait()
}

func (r *rig) event(kind string, kv ...string) {
	r.t.Helper()
	fields := map[string]string{}
	for i := 0; i+1 < len(kv); i += 2 {
		fields[kv[i]] = kv[i+1]
	}
	r.post(executor.SiteEvent{Kind: kind, Fields: fields, Text: kind + " happened"})
}

// command returns the newest sent command of a kind, nil when none was.
func (r *rig) command(kind string) *agentv1.CommandBody {
	r.sender.mu.Lock()
	defer r.sender.mu.Unlock()
	var found *agentv1.CommandBody
	for _, s := range r.sender.sent {
		if s.body.Kind == kind {
			found = s.body
		}
	}
	return found
}

// report answers the newest command of a kind.
func (r *rig) report(kind string, rep executor.Report) {
	r.t.Helper()
	c := r.command(kind)
	if c == nil {
		r.t.Fatalf("got no %s, want it sent; machine: %s", kind, r.describe())
	}
	rep.CommandID, rep.Node, rep.Role = c.CommandId, c.Audience, ident.RoleWord(c.Role)
	if rep.AttestedKind == "" {
		rep.AttestedKind = kind
	}
	if err := r.ex.Report(r.t.Context(), rep); err != nil && !r.fate.killed() {
		r.t.Fatalf("report %s: %v", kind, err)
	}
	synctest.Wait()
}

func (r *rig) succeed(kind string, result proto.Message) {
	r.t.Helper()
	b, err := proto.Marshal(result)
	if err != nil {
		r.t.Fatal(err)
	}
	r.report(kind, executor.Report{State: fleet.CommandSucceeded, Result: b, Attested: true})
}

func (r *rig) show() fleet.Machine {
	r.t.Helper()
	m, err := r.repo.Show(context.Background(), "m1")
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

func (r *rig) step(name string) fleet.Step {
	r.t.Helper()
	for _, s := range r.show().Workflow.Steps {
		if s.Name == name {
			return s
		}
	}
	r.t.Fatalf("no step %q", name)
	return fleet.Step{}
}

func (r *rig) describe() string {
	m := r.show()
	out := string(m.State) + ":"
	for _, s := range m.Workflow.Steps {
		out += fmt.Sprintf(" %s=%s", s.Name, s.State)
	}
	if m.Failure != nil {
		out += " failure: " + m.Failure.Why
	}
	return out
}

func (r *rig) wantFailed(step, why string) {
	r.t.Helper()
	m := r.show()
	if m.State != fleet.MachineFailed || m.Failure == nil || m.Failure.Step != step {
		r.t.Fatalf("got %s, want failed at %s", r.describe(), step)
	}
	if !contains(m.Failure.Why, why) {
		r.t.Errorf("got cause %q, want it to say %q", m.Failure.Why, why)
	}
	if m.Failure.Next == "" || m.Failure.What == "" {
		r.t.Errorf("got failure %+v, want what was done and what to do next", m.Failure)
	}
	for _, s := range m.Workflow.Steps {
		if s.State == fleet.StepRunning || s.State == fleet.StepPending || s.Waiting != nil {
			r.t.Errorf("got step %s %s waiting %v after the failure, want it over", s.Name, s.State, s.Waiting)
		}
		if s.State == fleet.StepFailed && s.Name != step {
			r.t.Errorf("got step %s failed, want only %s", s.Name, step)
		}
	}
}

// move is one thing that happens in a machine's way.
type move struct {
	name string
	do   func(r *rig)
}

// moves is the whole way of one machine.
func moves() []move {
	ok := func(kind string, result proto.Message) move {
		return move{"ok " + kind, func(r *rig) { r.t.Helper(); r.succeed(kind, result) }}
	}
	ev := func(kind string, kv ...string) move {
		return move{kind, func(r *rig) { r.t.Helper(); r.event(kind, kv...) }}
	}
	out := []move{
		{"site connects", func(r *rig) { r.connect("site") }},
		ok("boot.prepareRamdisk", &sitev1.PrepareRAMDiskResult{}),
		ok("bmc.bootOverride", &sitev1.BMCBootOverrideResult{Device: "pxe", Once: true, Uefi: true}),
		ok("bmc.power", &sitev1.BMCPowerResult{State: "on"}),
		ev("boot.dhcp.offered", "stage", "firmware", "file", "t/x/snponly.efi"),
		ev("boot.tftp.served", "file", "t/x/snponly.efi"),
		ev("boot.dhcp.offered", "stage", "ipxe"),
		ev("boot.script.served", "client", "10.77.0.100"),
		ev("boot.file.served", "name", "kernel"),
		ev("boot.file.served", "name", "boot"),
		{"ramdisk joins", func(r *rig) { r.post(executor.Joined{Role: "ramdisk", KeyID: "k-ram"}) }},
		ok("boot.cleanUp", &sitev1.CleanUpBootResult{}),
		{"ramdisk connects", func(r *rig) { r.connect("ramdisk") }},
	}
	for _, s := range executor.Sections() {
		out = append(out, move{"section " + s, func(r *rig) { r.post(executor.Section{Name: s}) }})
	}
	skipped := &agentv1.DiagResult{Outcome: agentv1.DiagResult_OUTCOME_SKIPPED, Reason: "no GPU"}
	return append(out,
		ok("disk.wipe", wiped(serial)),
		ok("diag.nvml", skipped),
		ok("diag.dcgm", skipped),
		ok("deploy.image", deployed(serial, manifest[:])),
		ok("boot.kexec", &agentv1.BootKexecResult{Entry: "firstlight.conf"}),
		move{"node joins", func(r *rig) { r.sender.up["ramdisk"] = false; r.post(executor.Joined{Role: "node", KeyID: "k-node"}) }},
		move{"node connects", func(r *rig) { r.connect("node") }},
		ok("inventory.refresh", &agentv1.InventoryRefreshResult{}),
	)
}

func wiped(serial string) *agentv1.DiskWipeResult {
	return &agentv1.DiskWipeResult{Disks: []*agentv1.WipedDisk{{Serial: serial, SizeBytes: diskSize, BytesErased: diskSize, BytesVerified: diskSize, Outcome: "clean"}}}
}

func deployed(serial string, manifest []byte) *agentv1.DeployImageResult {
	return &agentv1.DeployImageResult{Serial: serial, BytesWritten: 100, BytesVerified: 100, Chunks: 1, ManifestSha256: manifest}
}

// until runs the moves before the named one.
func (r *rig) until(name string) {
	r.t.Helper()
	for _, m := range moves() {
		if m.name == name {
			return
		}
		m.do(r)
	}
	r.t.Fatalf("no move %q", name)
}
