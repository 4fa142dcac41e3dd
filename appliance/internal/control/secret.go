package control

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"errors"
	"strings"

	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/planner"
	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/gatewayserver"
	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/gateway-client/sealed"
)

// Errors of a SecretResponse.
const (
	secretNotFound    = "not-found"
	secretNotBound    = "not-bound"
	secretDenied      = "access-denied"
	secretUnavailable = "unavailable"
)

// maxSecretText bounds ref and ids of a request, in bytes.
const maxSecretText = 256

// Secret implements gatewayserver.Services. A reference is answered only to the agent that has a command with this reference in
// hand, in the running step of the named workflow; the answer is sealed to the key of this one request.
func (c *Control) Secret(ctx context.Context, p gatewayserver.Peer, req *agentv1.SecretRequest) *agentv1.SecretResponse {
	jwe, word, err := c.secret(ctx, p, req)
	if word != "" {
		c.about(ctx, string(p.Identity.Node)).Warn("secret refused", "ref", fleet.Clip(req.GetRef()), "answer", word, "err", err)
		return &agentv1.SecretResponse{RequestId: req.GetRequestId(), Error: word}
	}
	return &agentv1.SecretResponse{RequestId: req.GetRequestId(), Jwe: jwe}
}

func (c *Control) secret(ctx context.Context, p gatewayserver.Peer, req *agentv1.SecretRequest) (jwe, word string, err error) {
	epk, err := verifySecretRequest(p, req)
	if err != nil {
		return "", secretDenied, err
	}
	value, word, err := c.value(ctx, p, req)
	if word != "" {
		return "", word, err
	}
	jwe, err = sealed.Seal(epk, sealed.TypSecret, sealed.SecretClaims{Ref: req.Ref, RequestID: req.RequestId, Value: value,
		Expires: c.cfg.Now().Add(secretLife)})
	if err != nil {
		return "", secretUnavailable, err
	}
	return jwe, "", nil
}

// verifySecretRequest checks that the agent's own key asked, and returns the one-time key of the answer.
func verifySecretRequest(p gatewayserver.Peer, req *agentv1.SecretRequest) (*ecdsa.PublicKey, error) {
	for _, s := range []string{req.Ref, req.RequestId, req.WorkflowId, req.StepId} {
		if s == "" || len(s) > maxSecretText {
			return nil, errors.New("a field is empty or too long")
		}
	}
	key, ok := p.Certificate.PublicKey.(*ecdsa.PublicKey)
	if !ok {
		return nil, errors.New("agent's key is not ECDSA")
	}
	if err := envelope.VerifyKey(key, req.NodeSig, envelope.SecretRequest, []byte(req.RequestId), []byte(req.Ref), []byte(req.WorkflowId),
		[]byte(req.StepId), []byte(req.AllocationId), req.Epk); err != nil {
		return nil, err
	}
	return ecdsa.ParseUncompressedPublicKey(elliptic.P256(), req.Epk)
}

// value returns what a reference stands for, if it is bound to what the agent does now.
func (c *Control) value(ctx context.Context, p gatewayserver.Peer, req *agentv1.SecretRequest) (value []byte, word string, err error) {
	run, _, err := c.cfg.Fleet.Run(ctx, req.WorkflowId)
	switch {
	case errors.Is(err, fleet.ErrUnknown):
		return nil, secretNotBound, err
	case err != nil:
		return nil, secretUnavailable, err
	case !run.Holds(string(p.Identity.Node), ident.RoleWord(p.Role), req.StepId, req.Ref):
		return nil, secretNotBound, errors.New("no command with this reference is in the agent's hands")
	}
	switch {
	case req.Ref == planner.BMCPasswordRef(run.Machine) && p.Role == commonv1.AgentRole_AGENT_ROLE_SITE:
		value, err = c.cfg.Fleet.BMCPassword(ctx, run.Machine)
	case req.Ref == planner.JoinSecretRef(run.ID) && p.Role == commonv1.AgentRole_AGENT_ROLE_RAMDISK:
		key, kerr := keyOf(p)
		if kerr != nil || key != run.RAMDiskKeyID {
			return nil, secretNotBound, errors.Join(kerr, errors.New("the key is not the one that joined for this workflow"))
		}
		value, err = c.mintNodeSecret(ctx, run)
	case strings.HasPrefix(req.Ref, "secret://"):
		return nil, secretNotFound, nil
	default:
		return nil, secretDenied, nil
	}
	switch {
	case errors.Is(err, fleet.ErrUnknown):
		return nil, secretNotFound, err
	case errors.Is(err, errSecretUsed):
		return nil, secretNotBound, err
	case err != nil:
		return nil, secretUnavailable, err
	}
	return value, "", nil
}
