package control

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// attempt is one Join, read.
type attempt struct {
	req   *agentv1.JoinRequest
	key   *ecdsa.PublicKey
	keyID string
	// csr is the SHA-256 of the request's CSR.
	csr    []byte
	claims fleet.Claims
	addr   string
	now    time.Time
}

// denied is a refusal in words, with what it can be tied to.
type denied struct {
	code  codes.Code
	cause string
	// machine and workflow, where they are known.
	machine, workflow string
	// step is the workflow step that fails by it; empty: none.
	step string
	next string
	// alarm: the machine gets an alarm.
	alarm bool
	// contest: two keys presented one boot's assertion; nobody can say whose the first was, so it is good for nothing any more.
	contest bool
}

func (d *denied) Error() string { return d.cause }

func deny(format string, args ...any) *denied {
	return &denied{code: codes.PermissionDenied, cause: fmt.Sprintf(format, args...)}
}

// Join implements gatewayserver.Services.
func (c *Control) Join(ctx context.Context, req *agentv1.JoinRequest, addr string) (*agentv1.JoinResponse, error) {
	a, err := c.read(req, addr)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, "join: "+err.Error())
	}
	var raw []byte
	switch req.Attestor {
	case "join-token":
		raw, err = c.joinToken(ctx, a)
	case "discovery":
		raw, err = c.joinDiscovery(ctx, a)
	case "provisioned":
		raw, err = c.joinProvisioned(ctx, a)
	default:
		err = &denied{code: codes.InvalidArgument, cause: fmt.Sprintf("attestor %q is not known here", req.Attestor)}
	}
	if err != nil {
		return nil, c.refuse(ctx, a, err)
	}
	resp := new(agentv1.JoinResponse)
	if err := proto.Unmarshal(raw, resp); err != nil {
		return nil, fmt.Errorf("join: decode stored response: %w", err)
	}
	return resp, nil
}

func (c *Control) read(req *agentv1.JoinRequest, addr string) (*attempt, error) {
	csr, err := x509.ParseCertificateRequest(req.Csr)
	if err != nil {
		return nil, fmt.Errorf("CSR: %w", err)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("CSR: %w", err)
	}
	key, ok := csr.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("CSR: key is not ECDSA P-256")
	}
	id, err := envelope.KeyID(key)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(req.Csr)
	return &attempt{req: req, key: key, keyID: id, csr: sum[:], claims: claimsOf(req.Hardware), addr: addr, now: c.cfg.Now()}, nil
}

// maxClaimedMACs bounds the MACs of a claim that are kept.
const maxClaimedMACs = 64

func claimsOf(h *commonv1.HardwareClaims) fleet.Claims {
	macs := slices.Clone(h.GetMacs())
	for i := range macs {
		macs[i] = fleet.Clip(macs[i])
	}
	slices.Sort(macs)
	macs = slices.Compact(macs)
	return fleet.Claims{UUID: fleet.Clip(h.GetSystemUuid()), MACs: macs[:min(len(macs), maxClaimedMACs)]}
}

// refuse turns a refusal into events, alarms and failed steps, and words the answer. Trouble of our own is UNAVAILABLE: the agent
// asks again.
func (c *Control) refuse(ctx context.Context, a *attempt, err error) error {
	d, ok := errors.AsType[*denied](err)
	if !ok {
		c.cfg.Log.Warn("join", "attestor", a.req.Attestor, "from", a.addr, "err", err)
		return status.Error(codes.Unavailable, "join: the appliance cannot decide now, try again")
	}
	answer := status.Error(d.code, "join refused: "+d.cause)
	e := fleet.Event{Machine: d.machine, NodeID: a.req.NodeId, Workflow: d.workflow, Kind: "join.refused", Message: "a join was refused: " + d.cause,
		Fields: map[string]string{"attestor": a.req.Attestor, "from": a.addr, "role": ident.RoleWord(a.req.Role), "macs": fmt.Sprint(a.claims.MACs)}}
	if d.machine == "" {
		if c.quiet(a.now) {
			return answer
		}
		c.emit(ctx, e)
		return answer
	}
	c.emit(ctx, e)
	if d.alarm {
		if err := c.alarm(ctx, d.machine, d.workflow, d.cause); err != nil {
			c.cfg.Log.Error("raise alarm", "machine", d.machine, "workflow", d.workflow, "err", err)
		}
	}
	if d.step != "" {
		if err := c.post(ctx, d.workflow, executor.Refused{Step: d.step, Cause: d.cause, Next: d.next, Contest: d.contest}); err != nil {
			c.cfg.Log.Error("post refusal", "machine", d.machine, "workflow", d.workflow, "err", err)
		}
	}
	return answer
}

// quiet bounds the events that strangers can cause.
func (c *Control) quiet(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.lastUntied) < untiedPeriod {
		return true
	}
	c.lastUntied = now
	return false
}

// tie adds to a refusal the machine whose MACs were claimed, and the step of its open workflow when that is waiting for such a
// join; what a refusal is tied to already stays.
func (c *Control) tie(ctx context.Context, a *attempt, d *denied, step string) *denied {
	if d.machine != "" || len(a.claims.MACs) == 0 {
		return d
	}
	rec, err := c.cfg.Fleet.ByMAC(ctx, a.claims.MACs)
	if err != nil {
		return d
	}
	d.machine = rec.Name
	run, _, err := c.cfg.Fleet.Run(ctx, rec.Workflow)
	if err != nil || !run.State.Open() {
		return d
	}
	if waitsFor(run, step) {
		d.workflow, d.step = run.ID, step
	}
	return d
}

// waitsFor says whether such a join may be this workflow's: before the power cycle it is one of the system that ran before.
func waitsFor(run *fleet.Run, step string) bool {
	s := run.Current()
	if s == nil {
		return false
	}
	if step == fleet.StepJoin {
		return run.Step(fleet.StepPowerOn).State.Ended()
	}
	return s.Name == fleet.StepKexec || s.Name == fleet.StepNodeJoin
}

// respond issues a certificate and signs the answer. The result is the serialized JoinResponse, to be stored with the decision.
func (c *Control) respond(a *attempt, node string, role commonv1.AgentRole) ([]byte, error) {
	chain, err := c.cfg.PKI.IssueAgent(a.key, c.identity(node), role, a.now)
	if err != nil {
		return nil, err
	}
	body := &agentv1.JoinResponseBody{NodeId: node, Role: role, CsrSha256: a.csr, Trust: c.cfg.PKI.Bundle(), ServerTime: timestamppb.New(a.now)}
	for _, x := range chain {
		body.CertificateChain = append(body.CertificateChain, x.Raw)
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(body)
	if err != nil {
		return nil, err
	}
	sig, err := c.cfg.PKI.JoinSigner().Sign(envelope.JoinResponse, raw)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(&agentv1.JoinResponse{Body: raw, Signature: sig})
}

// joined tells the workflow and the events of a granted join. It is repeated with a repeated answer.
func (c *Control) joined(ctx context.Context, a *attempt, machine, node, workflow, role string) error {
	err := c.cfg.Workflows.Post(ctx, workflow, executor.Joined{Role: role, KeyID: a.keyID, At: a.now})
	if errors.Is(err, executor.ErrNotOpen) {
		return &denied{code: codes.PermissionDenied, cause: "its workflow is over", machine: machine, workflow: workflow}
	}
	if err != nil {
		return err
	}
	c.emit(ctx, fleet.Event{Machine: machine, NodeID: node, Workflow: workflow, Kind: "join.granted",
		Fields:  map[string]string{"attestor": a.req.Attestor, "from": a.addr, "role": role, "key": a.keyID},
		Message: fmt.Sprintf("a %s agent joined as %s from %s", role, machine, a.addr)})
	return nil
}
