// Package control is what the gateway half asks and tells: who may join and what they become, which secret goes to whom, and what
// agents report. It implements gatewayserver.Services and gatewayserver.Control.
//
// It judges and writes facts; it moves no workflow. What it learns about one it posts to the executor and answers the agent only
// when that is stored; so an acknowledged event, result or join is durable. A join decision is one compare-and-swap on the record
// of its credential (a boot lease, a deploy's secret, a join token): of two different keys one gets it, and the same request again
// gets the same answer again, byte for byte.
//
// A refusal is an event. Where it can be tied to an open workflow (the lease in a site-signed assertion, the workflow of a
// presented secret, claimed MACs that the fleet knows) it also fails that workflow's join step with the cause in words.
//
// For appliance only.
package control

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/pki"
	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/gatewayserver"
	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// Bounds and lives.
const (
	// secretLife bounds a sealed answer to a secret request.
	secretLife = 5 * time.Minute
	// nodeSecretLife is how long a deploy's join secret is good: the rest of the workflow with room to spare.
	nodeSecretLife = 2 * time.Hour
	// nodeSecretSize is its size in bytes.
	nodeSecretSize = 32
	// clockSkew is how far in the future the site agent's clock may be.
	clockSkew = time.Minute
	// untiedPeriod is how often a refusal that concerns nobody known becomes an event.
	untiedPeriod = time.Second
)

// Workflows is where facts go: executor.Executor. Nil means stored; executor.ErrNotOpen that it changes nothing any more.
type Workflows interface {
	Post(ctx context.Context, workflow string, f executor.Fact) error
	Report(ctx context.Context, r executor.Report) error
	Available(node ident.NodeID, role commonv1.AgentRole)
}

// Config of a control plane's gateway side. All fields but Log are required.
type Config struct {
	Fleet     *fleet.Repo
	Workflows Workflows
	PKI       *pki.Authority
	// Gateway is how sessions are reached; the composition root attaches the server to it.
	Gateway     *Gateway
	TrustDomain string
	SiteID      string
	// SiteNode is the site agent's node id; Boot is what it is to do with boots that no lease is open for.
	SiteNode ident.NodeID
	Boot     BootPolicy
	// SectionDir is where inventory sections are kept by their SHA-256; made with mode 0700 when missing.
	SectionDir string
	Now        func() time.Time
	Log        *slog.Logger
}

// Control implements gatewayserver.Services and gatewayserver.Control. It is safe for use from many goroutines.
type Control struct {
	cfg      Config
	sections sectionDir
	proofs   replays

	mu         sync.Mutex
	lastUntied time.Time

	policy policy
}

var (
	_ gatewayserver.Services = (*Control)(nil)
	_ gatewayserver.Control  = (*Control)(nil)
)

// New returns a control side. Nothing happens before its methods are called.
func New(cfg Config) (*Control, error) {
	if cfg.Fleet == nil || cfg.Workflows == nil || cfg.PKI == nil || cfg.Gateway == nil || cfg.Now == nil ||
		!ident.Valid(cfg.TrustDomain) || !ident.Valid(cfg.SiteID) {
		return nil, errors.New("control: incomplete configuration")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	dir, err := openSections(cfg.SectionDir)
	if err != nil {
		return nil, err
	}
	return &Control{cfg: cfg, sections: dir}, nil
}

// Start forgets the sessions of an earlier process. It is called once, before the gateway serves.
func (c *Control) Start(ctx context.Context) error {
	if err := c.cfg.Fleet.Tidy(ctx); err != nil {
		return err
	}
	all, err := c.cfg.Fleet.Machines(ctx)
	if err != nil {
		return err
	}
	for _, m := range all {
		if m.Connected == nil {
			continue
		}
		_, err := c.cfg.Fleet.Update(ctx, m.Name, func(r *fleet.Record) error { r.Connected, r.Epoch = nil, 0; return nil })
		if err != nil {
			return err
		}
	}
	return nil
}

// TrustBundle implements gatewayserver.Services.
func (c *Control) TrustBundle(context.Context) (*commonv1.SignedTrustBundle, error) {
	return c.cfg.PKI.SignedBundle()
}

// Status implements gatewayserver.Control. Nothing is desired of agents yet, so there is nothing to hold the report against.
func (c *Control) Status(_ context.Context, p gatewayserver.Peer, r *agentv1.StatusReport) {
	c.cfg.Log.Debug("status", "node", string(p.Identity.Node), "trust_version", r.GetTrustVersion())
}

func (c *Control) identity(node string) ident.Identity {
	return ident.Identity{TrustDomain: c.cfg.TrustDomain, Site: c.cfg.SiteID, Node: ident.NodeID(node)}
}

// keyOf is the thumbprint of a peer's certified key.
func keyOf(p gatewayserver.Peer) (string, error) {
	key, ok := p.Certificate.PublicKey.(*ecdsa.PublicKey)
	if !ok {
		return "", status.Error(codes.Unauthenticated, "certificate key is not ECDSA")
	}
	id, err := envelope.KeyID(key)
	if err != nil {
		return "", status.Error(codes.Unauthenticated, err.Error())
	}
	return id, nil
}

// post gives a fact to a workflow. That the workflow is over is no error.
func (c *Control) post(ctx context.Context, workflow string, f executor.Fact) error {
	err := c.cfg.Workflows.Post(ctx, workflow, f)
	if errors.Is(err, executor.ErrNotOpen) {
		return nil
	}
	return err
}

// emit stores an event of the control plane; losing one is told to the log only.
func (c *Control) emit(ctx context.Context, e fleet.Event) {
	e.Time, e.Source = fleet.At(c.cfg.Now()), "control"
	if err := c.cfg.Fleet.Emit(ctx, e); err != nil {
		c.cfg.Log.Warn("store event", "kind", e.Kind, "machine", e.Machine, "workflow", e.Workflow, "err", err)
	}
}

// about is what a log line says of the agent that it is about: its node and, where it is a machine's, the machine and its workflow.
func (c *Control) about(ctx context.Context, node string) *slog.Logger {
	m, err := c.cfg.Fleet.ByNode(ctx, node)
	if err != nil {
		return c.cfg.Log.With("node", node)
	}
	return c.cfg.Log.With("node", node, "machine", m.Name, "workflow", m.Workflow)
}

// alarm puts an alarm on a machine's record, and into the events.
func (c *Control) alarm(ctx context.Context, machine, workflow, text string) error {
	now := c.cfg.Now()
	fresh := false
	rec, err := c.cfg.Fleet.Update(ctx, machine, func(r *fleet.Record) error {
		fresh = r.Alarm(now, text)
		return nil
	})
	if err != nil || !fresh {
		return err
	}
	c.cfg.Log.Error("alarm", "machine", machine, "workflow", workflow, "text", text)
	c.emit(ctx, fleet.Event{Machine: machine, NodeID: rec.NodeID, Workflow: workflow, Kind: "alarm", Message: text})
	return nil
}
