package peer

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"

	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	"firstlight/gateway-client/link"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
	"firstlight/gateway-client/session"
)

// Session is a session that a thief holds in a machine's name: it says hello and nothing that would move a workflow on.
type Session struct {
	conn   *grpc.ClientConn
	stream grpc.BidiStreamingClient[agentv1.AgentFrame, agentv1.ServerFrame]
	signer envelope.Signer
	frames chan *agentv1.ServerFrame
	// end is why the session ended; valid once frames is closed.
	end error
}

// OpenSession opens a session with an identity that the peer joined as.
func (h Host) OpenSession(ctx context.Context, anchors *sitev1.TrustAnchors, id *session.Identity) (*Session, error) {
	cert := &tls.Certificate{PrivateKey: id.Key}
	for _, c := range id.Chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	conn, err := link.Dial(link.Config{URL: anchors.GatewayUrl, ServerName: anchors.GatewayServerName, SPKIPins: anchors.ServingCaSpkiSha256, Certificate: cert,
		DialContext: func(ctx context.Context, address string) (net.Conn, error) { return h.Dial(ctx, "tcp", address) }})
	if err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	s := &Session{conn: conn, signer: envelope.Signer{Key: id.Key, Chain: id.Chain}, frames: make(chan *agentv1.ServerFrame, 64)}
	if err := s.hello(ctx, id); err != nil {
		conn.Close()
		return nil, fmt.Errorf("open session: %w", err)
	}
	go s.read()
	return s, nil
}

func (s *Session) hello(ctx context.Context, id *session.Identity) (err error) {
	if s.stream, err = agentv1.NewAgentGatewayClient(s.conn).Session(ctx); err != nil {
		return err
	}
	h := &agentv1.Hello{NodeId: string(id.NodeID), Role: id.Role, BootId: ident.New("boot"), JournalId: ident.New("journal"),
		ProtoMin: session.ProtoMin, ProtoMax: session.ProtoMax, DaemonVersion: "testbed peer"}
	if err := s.stream.Send(&agentv1.AgentFrame{Frame: &agentv1.AgentFrame_Hello{Hello: h}}); err != nil {
		return err
	}
	f, err := s.stream.Recv()
	if err != nil {
		return err
	}
	if f.GetWelcome() == nil {
		return fmt.Errorf("first frame is not welcome")
	}
	return nil
}

// read takes frames until the session ends; a thief who does not listen loses the oldest.
func (s *Session) read() {
	defer close(s.frames)
	for {
		f, err := s.stream.Recv()
		if err != nil {
			s.end = err
			return
		}
		select {
		case s.frames <- f:
		default:
		}
	}
}

// AskSecret asks for a secret in a step's name and returns the broker's error word; empty is that it came.
func (s *Session) AskSecret(ctx context.Context, ref, workflow, step string) (string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	point, err := key.PublicKey.Bytes()
	if err != nil {
		return "", err
	}
	r := &agentv1.SecretRequest{RequestId: ident.New("sec"), Ref: ref, WorkflowId: workflow, StepId: step, Epk: point}
	if r.NodeSig, err = s.signer.Sign(envelope.SecretRequest, []byte(r.RequestId), []byte(r.Ref), []byte(workflow), []byte(step), nil, point); err != nil {
		return "", err
	}
	if err := s.stream.Send(&agentv1.AgentFrame{Frame: &agentv1.AgentFrame_SecretRequest{SecretRequest: r}}); err != nil {
		return "", fmt.Errorf("ask for secret: %w", err)
	}
	for {
		select {
		case f, ok := <-s.frames:
			if !ok {
				return "", fmt.Errorf("ask for secret: %w", s.end)
			}
			if a := f.GetSecret(); a.GetRequestId() == r.RequestId {
				return a.Error, nil
			}
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// Ended waits until the gateway ends the session, and returns how.
func (s *Session) Ended(ctx context.Context, limit time.Duration) (error, bool) {
	t := time.NewTimer(limit)
	defer t.Stop()
	for {
		select {
		case _, ok := <-s.frames:
			if !ok {
				return s.end, true
			}
		case <-t.C:
			return nil, false
		case <-ctx.Done():
			return ctx.Err(), false
		}
	}
}

// Close ends the session.
func (s *Session) Close() error { return s.conn.Close() }
