// Package session is the agent half of the agent protocol: it joins, keeps one session with the gateway for as long as it
// is asked to, checks each command before anything happens, journals what it did and answers until the gateway has it.
//
// It is for agents of every role (site, ramdisk, node) and for whoever verifies what they signed (VerifyUpdate,
// VerifyReport). It knows no command beside inventory.refresh: what commands do is in the handlers. It is not for the
// gateway; that is gatewayserver. Rank 1: it imports link, sealed, envelope, ident and the messages.
package session

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	"firstlight/gateway-client/link"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// Identity is what Join gives an agent: who it is, the key that proves it, and what it believes from then on.
type Identity struct {
	NodeID ident.NodeID
	Role   commonv1.AgentRole
	Key    *ecdsa.PrivateKey
	// Chain is the node certificate first, without the root.
	Chain []*x509.Certificate
	Trust *commonv1.TrustBundle
	// ServerTime is the JoinService's clock when it signed; zero when the identity was read back from a disk.
	ServerTime time.Time
}

// Call is one command that passed every check.
type Call struct {
	CommandID, Kind, WorkflowID, StepID string
	// Payload is the serialized message of the kind.
	Payload []byte
	// Progress may be called often and from any goroutine; the newest value of each ProgressInterval is sent.
	Progress func(*agentv1.Progress)
	// Secret fetches one secret, sealed to a key that is used once and bound to this command's workflow and step.
	// It waits at most SecretTimeout; a refusal is a *SecretError.
	Secret func(ctx context.Context, ref string) ([]byte, error)
}

// Handler runs one kind of command.
type Handler struct {
	// Lane limits how many run at once: ControlLane or BulkLane.
	Lane commonv1.Lane
	// Attested answers carry an AttestedReport signed by the node key.
	Attested bool
	// Destructive commands run one at a time, whatever their lane.
	Destructive bool
	// SelfTerminating commands end the agent: After is called once the gateway acked the stored result.
	SelfTerminating bool
	// Repeatable commands may run twice and end as after once. One that an earlier process of the agent left unfinished runs again
	// when the gateway sends it again; every other kind has failed then.
	Repeatable bool
	// Run does the work. A nil message is an empty result; a message beside an error is sent as the failed command's
	// result. An error that wraps ErrInvalidPayload rejects the command. The context ends with Cancel or with the agent,
	// never with a session: work goes on while the agent redials.
	Run func(ctx context.Context, c *Call) (proto.Message, error)
	// After may not return; nil does nothing. It is not called when Run failed, nor after a restart of the agent.
	After func() error
}

// Config is what an agent needs for its sessions.
type Config struct {
	// Link without Certificate: the identity's is used.
	Link           link.Config
	Identity       *Identity
	JoinSigningKey *ecdsa.PublicKey
	// BootID is random per boot of the kernel.
	BootID string
	// JournalPath is a file of this agent alone; made when missing.
	JournalPath string
	Hardware    *commonv1.HardwareClaims
	Version     string
	// Inventory returns the canonical encoding by section name; nil when there is none to report. Called at the first
	// connection and for every inventory.refresh, from one goroutine at a time.
	Inventory func(ctx context.Context) (map[string][]byte, error)
	// Handlers by kind; inventory.refresh is added.
	Handlers map[string]Handler
	// Now is the agent's clock; nil is time.Now.
	Now func() time.Time
	// Log is where to tell; nil discards.
	Log *slog.Logger
	// Lines are sent while there is a session, and lost when there is none for too long; nil sends none.
	Lines *Lines
	// OnWelcome is called before any command of the session is looked at; it may set the clock. May be nil.
	OnWelcome func(*agentv1.Welcome)
}

// ErrInvalidPayload is wrapped by handlers that cannot read or accept their payload, before they did anything.
var ErrInvalidPayload = errors.New("invalid payload")

// ErrRefused is wrapped by what Run returns when redialling cannot help: the gateway refused this identity for good.
var ErrRefused = errors.New("gateway refused this agent")

// Agent keeps one session with the gateway, and runs commands whether or not it has one.
type Agent struct {
	cfg     Config
	journal *journal
	signer  envelope.Signer
	// lanes and destructive are slots: a command holds one of its lane, and the latter when it destroys.
	lanes       map[commonv1.Lane]chan struct{}
	destructive chan struct{}
	// collecting is held while Config.Inventory runs.
	collecting sync.Mutex
	// work counts running handlers.
	work sync.WaitGroup

	mu     sync.Mutex // guards what follows
	trust  *commonv1.TrustBundle
	roots  envelope.Roots
	conn   *conn         // nil between sessions
	joined chan struct{} // closed when conn is set
	// unacked are terminal updates that the gateway has not acked; sent is when the present session said them.
	unacked map[string]*unacked
	rejects []string // ids in unacked that the journal does not know, oldest first
	held    map[string]*held
	// restricted: the gateway takes nothing but an upgrade from this agent.
	restricted bool
	// sections is the newest inventory; changed says that the next heartbeat carries its digests.
	sections map[string][]byte
	changed  bool
}

// unacked is a terminal update on its way.
type unacked struct {
	update *agentv1.CommandUpdate
	conn   *conn // the session that said it last
	sent   time.Time
	after  func() error
}

// held is a command that waits or runs.
type held struct {
	cancel   context.CancelCauseFunc
	state    commonv1.CommandState
	progress *agentv1.Progress // not sent yet
}

// New opens the journal, and fails the commands that an earlier process of this agent left unfinished, but for repeatable ones. The caller runs the
// agent once with Run, which closes the journal.
func New(cfg Config) (*Agent, error) {
	switch {
	case cfg.Identity == nil || cfg.JoinSigningKey == nil:
		return nil, errors.New("session: identity and join signing key are required")
	case cfg.BootID == "" || cfg.JournalPath == "":
		return nil, errors.New("session: boot id and journal path are required")
	}
	if err := cfg.Identity.check(); err != nil {
		return nil, fmt.Errorf("session: %w", err)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Link.Now == nil {
		cfg.Link.Now = cfg.Now
	}
	cert := tls.Certificate{PrivateKey: cfg.Identity.Key, Leaf: cfg.Identity.Chain[0]}
	for _, c := range cfg.Identity.Chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	cfg.Link.Certificate = &cert
	roots, err := commandRoots(cfg.Identity.Trust)
	if err != nil {
		return nil, fmt.Errorf("session: %w", err)
	}
	j, err := openJournal(cfg.JournalPath)
	if err != nil {
		return nil, fmt.Errorf("session: %w", err)
	}
	a := &Agent{
		cfg: cfg, journal: j, signer: envelope.Signer{Key: cfg.Identity.Key},
		lanes: map[commonv1.Lane]chan struct{}{
			commonv1.Lane_LANE_CONTROL: make(chan struct{}, ControlLane),
			commonv1.Lane_LANE_BULK:    make(chan struct{}, BulkLane),
		},
		destructive: make(chan struct{}, 1),
		trust:       cfg.Identity.Trust, roots: roots,
		joined:  make(chan struct{}),
		unacked: make(map[string]*unacked), held: make(map[string]*held),
	}
	if err := a.restore(); err != nil {
		j.close()
		return nil, fmt.Errorf("session: %w", err)
	}
	return a, nil
}

// restore takes up what the journal knows.
func (a *Agent) restore() error {
	signed, err := a.journal.trust()
	if err != nil {
		return err
	}
	if signed != nil {
		if b, err := checkBundle(a.cfg.JoinSigningKey, signed, a.trust); err != nil {
			a.cfg.Log.Warn("journaled trust bundle", "err", err)
		} else if b != nil {
			a.setTrust(b)
		}
	}
	records, err := a.journal.open()
	if err != nil {
		return err
	}
	for id, r := range records {
		if h, _ := a.handler(r.Kind); h.Repeatable && len(r.Update) == 0 {
			if err := a.journal.forget(id); err != nil {
				return err
			}
			continue
		}
		u := new(agentv1.CommandUpdate)
		if len(r.Update) > 0 {
			err = proto.Unmarshal(r.Update, u)
		} else {
			u, err = a.update(id, commonv1.CommandState_COMMAND_STATE_FAILED, nil, "interrupted: the agent was restarted while it ran "+r.Kind)
			if err == nil {
				err = a.journal.finish(u)
			}
		}
		if err != nil {
			return fmt.Errorf("journaled command %s: %w", id, err)
		}
		a.unacked[id] = &unacked{update: u}
	}
	return nil
}

func (a *Agent) setTrust(b *commonv1.TrustBundle) {
	roots, err := commandRoots(b)
	if err != nil {
		return // checkBundle looked already
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trust, a.roots = b, roots
}

// Run dials, and redials with jitter, until ctx ends (nil) or the gateway refuses the agent for good (ErrRefused). It
// returns once handlers ended, StopTimeout at the latest.
func (a *Agent) Run(ctx context.Context) error {
	defer a.journal.close()
	ctx, cancel := context.WithCancel(ctx)
	err := a.redial(ctx)
	cancel()
	done := make(chan struct{})
	go func() { a.work.Wait(); close(done) }()
	t := time.NewTimer(StopTimeout)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		a.cfg.Log.Warn("stopped while a command runs")
	}
	return err
}

func (a *Agent) redial(ctx context.Context) error {
	backoff := BackoffMin
	for {
		welcomed, err := a.session(ctx)
		if ctx.Err() != nil {
			return nil
		}
		var asked time.Duration
		if e := (*ended)(nil); errors.As(err, &e) {
			asked = min(e.pushback, MaxPushback)
		}
		switch code := status.Code(err); {
		case errors.Is(err, ErrRefused):
			return err
		case code == codes.Unauthenticated || code == codes.PermissionDenied:
			return fmt.Errorf("session with %s: %w: %w", a.cfg.Link.URL, ErrRefused, err)
		case code == codes.Aborted:
			backoff = BackoffMax // another process has this identity: let it
		case welcomed:
			backoff = BackoffMin
		}
		wait := asked + jitter(backoff)
		a.cfg.Log.Warn("session ended", "gateway", a.cfg.Link.URL, "err", err, "redial_in", wait)
		if sleep(ctx, wait) != nil {
			return nil
		}
		backoff = min(2*backoff, BackoffMax)
	}
}

func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// Emit journals an event, fills its sequence (and its time, when it has none) and sends it until the gateway acked it.
// The event is copied. One that cannot be journaled is logged and lost.
func (a *Agent) Emit(e *agentv1.Event) {
	e = proto.CloneOf(e)
	if e.Time == nil {
		e.Time = timestamppb.New(a.cfg.Now())
	}
	if err := a.journal.append(e); err != nil {
		a.cfg.Log.Error("emit event", "kind", e.Kind, "err", err)
		return
	}
	a.wake()
}

// wake makes the present session look at what is to be sent.
func (a *Agent) wake() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn != nil {
		a.conn.wake()
	}
}

// current returns the present session; nil when there is none.
func (a *Agent) current() *conn {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.conn
}
