package gatewayserver

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that this one wraps
	"google.golang.org/grpc/mem"

	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
)

// received is one message of a session's stream, decoded or not.
type received struct {
	frame *agentv1.AgentFrame
	err   error
}

// codec is gRPC's for protobuf, except that a session's message which is none reaches the session: gRPC itself would end
// the stream with INTERNAL, the specification wants INVALID_ARGUMENT.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*received)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	r.frame = new(agentv1.AgentFrame)
	r.err = c.CodecV2.Unmarshal(data, r.frame)
	return nil
}
