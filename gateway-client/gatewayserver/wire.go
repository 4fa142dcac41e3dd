package gatewayserver

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// wire is the generated service; Server's own methods stay those of its users.
//
// 2026-11-30: grpc-go ends a call at the client's grpc-timeout, which the specification wants ignored for sessions; our
// agents send none. Ignoring it needs an HTTP handler in front of gRPC (see the README's decisions).
type wire struct {
	agentv1.UnimplementedAgentGatewayServer
	s *Server
}

func (w wire) Join(ctx context.Context, r *agentv1.JoinRequest) (*agentv1.JoinResponse, error) {
	if err := w.s.handshake(unaryTrailer(ctx)); err != nil {
		return nil, err
	}
	switch {
	case len(r.GetCsr()) == 0 || len(r.Csr) > MaxCSRBytes:
		return nil, status.Errorf(codes.InvalidArgument, "csr has %d bytes, want 1 to %d", len(r.GetCsr()), MaxCSRBytes)
	case len(r.Evidence) > MaxEvidenceBytes:
		return nil, status.Errorf(codes.InvalidArgument, "evidence has %d bytes, want at most %d", len(r.Evidence), MaxEvidenceBytes)
	case r.Role == commonv1.AgentRole_AGENT_ROLE_UNSPECIFIED:
		return nil, status.Error(codes.InvalidArgument, "role is missing")
	case !words(r.Attestor, r.DaemonVersion, r.NodeId) || !claims(r.Hardware):
		return nil, status.Error(codes.InvalidArgument, "a name or claim is too long")
	}
	var addr string
	if p, ok := peer.FromContext(ctx); ok {
		addr = p.Addr.String()
	}
	resp, err := w.s.cfg.Services.Join(ctx, r, addr)
	if err != nil {
		return nil, w.s.refusal("join", err)
	}
	return resp, nil
}

func (w wire) Renew(ctx context.Context, r *agentv1.RenewRequest) (*agentv1.RenewResponse, error) {
	if err := w.s.handshake(unaryTrailer(ctx)); err != nil {
		return nil, err
	}
	p, err := w.s.peer(ctx)
	if err != nil {
		return nil, err
	}
	if len(r.GetCsr()) == 0 || len(r.Csr) > MaxCSRBytes {
		return nil, status.Errorf(codes.InvalidArgument, "csr has %d bytes, want 1 to %d", len(r.GetCsr()), MaxCSRBytes)
	}
	resp, err := w.s.cfg.Services.Renew(ctx, p, r)
	if err != nil {
		return nil, w.s.refusal("renew", err)
	}
	return resp, nil
}

func unaryTrailer(ctx context.Context) func(metadata.MD) {
	return func(md metadata.MD) { _ = grpc.SetTrailer(ctx, md) }
}

// refusal passes a status on; what a service did not mean for the agent stays in the log.
func (s *Server) refusal(what string, err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	s.cfg.Log.Error("gateway service", "what", what, "err", err)
	return status.Error(codes.Unavailable, what+" is not available")
}

func (w wire) Session(stream grpc.BidiStreamingServer[agentv1.AgentFrame, agentv1.ServerFrame]) error {
	s := w.s
	if err := s.handshake(stream.SetTrailer); err != nil {
		return err
	}
	p, err := s.peer(stream.Context())
	if err != nil {
		return err
	}
	select {
	case s.pending <- struct{}{}:
	default:
		return exhausted(stream.SetTrailer, "too many streams without a hello")
	}
	frames, failed := receive(stream)
	h, err := firstFrame(stream.Context(), frames, failed)
	<-s.pending
	if err != nil {
		return err
	}
	if err := checkHello(p, h); err != nil {
		return err
	}
	p.BootID, p.JournalID = h.BootId, h.JournalId
	if err := s.cfg.Control.Admit(stream.Context(), p, h); err != nil {
		if _, ok := status.FromError(err); ok {
			return err
		}
		return status.Error(codes.PermissionDenied, err.Error())
	}
	c, err := s.open(stream, p, h)
	if err != nil {
		return err
	}
	return s.run(c, h, stream, frames, failed)
}

// receive reads frames in a goroutine that ends with the stream's context, that is once the handler returned.
func receive(stream grpc.BidiStreamingServer[agentv1.AgentFrame, agentv1.ServerFrame]) (<-chan *agentv1.AgentFrame, <-chan error) {
	frames, failed := make(chan *agentv1.AgentFrame), make(chan error, 1)
	go func() {
		for {
			var r received
			err := stream.RecvMsg(&r)
			if err == nil && r.err != nil {
				err = status.Errorf(codes.InvalidArgument, "undecodable message: %v", r.err)
			}
			if err != nil {
				failed <- err
				return
			}
			select {
			case frames <- r.frame:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	return frames, failed
}

// ended turns what Recv returned into what the session ends with; nil when the agent closed its side.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func firstFrame(ctx context.Context, frames <-chan *agentv1.AgentFrame, failed <-chan error) (*agentv1.Hello, error) {
	timer := time.NewTimer(HelloTimeout)
	defer timer.Stop()
	select {
	case f := <-frames:
		if h := f.GetHello(); h != nil {
			return h, nil
		}
		return nil, status.Error(codes.InvalidArgument, "first frame is not hello")
	case err := <-failed:
		if err = ended(err); err == nil {
			err = status.Error(codes.InvalidArgument, "stream closed before hello")
		}
		return nil, err
	case <-timer.C:
		return nil, status.Errorf(codes.InvalidArgument, "no hello within %s", HelloTimeout)
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func checkHello(p Peer, h *agentv1.Hello) error {
	switch {
	case h.Role == commonv1.AgentRole_AGENT_ROLE_UNSPECIFIED, h.BootId == "", h.JournalId == "":
		return status.Error(codes.InvalidArgument, "hello lacks role, boot_id or journal_id")
	case !words(h.NodeId, h.BootId, h.JournalId, h.DaemonVersion) || !words(h.Capabilities...) || !claims(h.Hardware),
		len(h.Capabilities) > MaxCapabilities, len(h.InventorySha256) > MaxSections:
		return status.Error(codes.InvalidArgument, "hello: a name, claim or list is too long")
	case h.NodeId != string(p.Identity.Node):
		return status.Errorf(codes.PermissionDenied, "hello says node %q, the certificate %q", h.NodeId, p.Identity.Node)
	case h.Role != p.Role:
		return status.Errorf(codes.PermissionDenied, "hello says role %s, the certificate %s", h.Role, p.Role)
	}
	return nil
}

func words(list ...string) bool {
	for _, w := range list {
		if len(w) > MaxWordBytes {
			return false
		}
	}
	return true
}

func claims(h *commonv1.HardwareClaims) bool {
	return len(h.GetMacs()) <= MaxMACs && words(h.GetMacs()...) &&
		words(h.GetSystemUuid(), h.GetSystemSerial(), h.GetManufacturer(), h.GetProduct())
}

// negotiate returns the highest version that both speak; false when there is none.
func negotiate(low, high uint32) (uint32, bool) {
	if low > ProtoMax || high < ProtoMin || low > high {
		return ProtoMin, false
	}
	return min(high, ProtoMax), true
}
