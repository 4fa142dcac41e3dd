package session

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	"firstlight/gateway-client/sealed"
)

// SecretError is the broker's refusal: "not-found", "not-bound", "access-denied" or "unavailable".
type SecretError struct{ Ref, Code string }

func (e *SecretError) Error() string { return "secret " + e.Ref + ": " + e.Code }

func secretParts(r *agentv1.SecretRequest) [][]byte {
	return [][]byte{[]byte(r.RequestId), []byte(r.Ref), []byte(r.WorkflowId), []byte(r.StepId), []byte(r.AllocationId), r.Epk}
}

// newSecretRequest returns a signed request and the key, used once, that opens its answer.
func newSecretRequest(s envelope.Signer, ref, workflowID, stepID string) (*agentv1.SecretRequest, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	point, err := key.PublicKey.Bytes()
	if err != nil {
		return nil, nil, err
	}
	r := &agentv1.SecretRequest{RequestId: ident.New("sec"), Ref: ref, WorkflowId: workflowID, StepId: stepID, Epk: point}
	r.NodeSig, err = s.Sign(envelope.SecretRequest, secretParts(r)...)
	return r, key, err
}

// openSecretResponse opens the answer to r; it must be bound to the same reference and request, and unexpired.
func openSecretResponse(r *agentv1.SecretRequest, key *ecdsa.PrivateKey, resp *agentv1.SecretResponse, now time.Time) ([]byte, error) {
	if resp.Error != "" {
		return nil, &SecretError{Ref: r.Ref, Code: resp.Error}
	}
	var c sealed.SecretClaims
	if err := sealed.Open(key, sealed.TypSecret, resp.Jwe, &c); err != nil {
		return nil, fmt.Errorf("secret %s: %w", r.Ref, err)
	}
	switch {
	case c.Ref != r.Ref || c.RequestID != r.RequestId:
		return nil, fmt.Errorf("secret %s: the answer is to another request", r.Ref)
	case !now.Before(c.Expires):
		return nil, fmt.Errorf("secret %s: the answer expired at %s, this machine's clock says %s", r.Ref, stamp(c.Expires), stamp(now))
	}
	return c.Value, nil
}

// VerifySecretRequest is the broker's check that the node asked: leaf is the certificate that the session proved.
// Whether the reference is bound to that workflow and step is the broker's to decide.
func VerifySecretRequest(leaf *x509.Certificate, r *agentv1.SecretRequest) error {
	key, ok := leaf.PublicKey.(*ecdsa.PublicKey)
	if !ok {
		return errors.New("verify secret request: node key is not ECDSA")
	}
	if err := envelope.VerifyKey(key, r.NodeSig, envelope.SecretRequest, secretParts(r)...); err != nil {
		return fmt.Errorf("secret request %s: %w", r.RequestId, err)
	}
	return nil
}

// AnswerSecret is the broker's answer: value sealed to the request's key, good until expires.
func AnswerSecret(r *agentv1.SecretRequest, value []byte, expires time.Time) (*agentv1.SecretResponse, error) {
	key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), r.Epk)
	if err != nil {
		return nil, fmt.Errorf("secret request %s: one-time key: %w", r.RequestId, err)
	}
	jwe, err := sealed.Seal(key, sealed.TypSecret, sealed.SecretClaims{Ref: r.Ref, RequestID: r.RequestId, Value: value, Expires: expires})
	if err != nil {
		return nil, err
	}
	return &agentv1.SecretResponse{RequestId: r.RequestId, Jwe: jwe}, nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// secret hands an answer to whoever asked on this session; an answer to nothing is ignored.
func (c *conn) secret(r *agentv1.SecretResponse) {
	c.a.mu.Lock()
	defer c.a.mu.Unlock()
	if ch := c.secrets[r.RequestId]; ch != nil {
		delete(c.secrets, r.RequestId)
		ch <- r
	}
}

// secret asks the broker through the present session, or the next one, within SecretTimeout.
func (a *Agent) secret(ctx context.Context, ref, workflowID, stepID string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, SecretTimeout)
	defer cancel()
	r, key, err := newSecretRequest(envelope.Signer{Key: a.cfg.Identity.Key}, ref, workflowID, stepID)
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", ref, err)
	}
	for {
		a.mu.Lock()
		c, joined := a.conn, a.joined
		answer := make(chan *agentv1.SecretResponse, 1)
		if c != nil {
			c.secrets[r.RequestId] = answer
		}
		a.mu.Unlock()
		if c == nil {
			select {
			case <-joined:
				continue
			case <-ctx.Done():
				return nil, fmt.Errorf("secret %s: no session: %w", ref, context.Cause(ctx))
			}
		}
		c.send(ctx, &agentv1.AgentFrame{Frame: &agentv1.AgentFrame_SecretRequest{SecretRequest: r}})
		select {
		case resp := <-answer:
			return openSecretResponse(r, key, resp, a.cfg.Now())
		case <-ctx.Done():
			return nil, fmt.Errorf("secret %s: no answer: %w", ref, context.Cause(ctx))
		case <-c.ctx.Done():
			<-c.gone
		}
	}
}
