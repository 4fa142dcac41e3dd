package manifest

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"firstlight/gateway-client/envelope"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
)

// MaxSigned bounds a serialized signed manifest: its body, the signature and the certificates that come with it.
const MaxSigned = MaxBody + 64<<10

// Sign returns the serialized signed manifest: a SignedImageManifest whose signature (purpose image-manifest) covers body as it is.
func Sign(body []byte, s envelope.Signer) ([]byte, error) {
	if _, err := Decode(body); err != nil {
		return nil, fmt.Errorf("sign image manifest: %w", err)
	}
	sig, err := s.Sign(envelope.ImageManifest, body)
	if err != nil {
		return nil, fmt.Errorf("sign image manifest: %w", err)
	}
	out, err := proto.MarshalOptions{Deterministic: true}.Marshal(&agentv1.SignedImageManifest{Body: body, Signature: sig})
	if err != nil {
		return nil, fmt.Errorf("sign image manifest: %w", err)
	}
	return out, nil
}

// Open verifies a serialized signed manifest at the time now and returns its content. The signature is checked before the body is
// looked at; an error about trust wraps envelope.ErrUntrusted or envelope.ErrSignature, one about the body ErrInvalid.
func Open(signed []byte, roots envelope.Roots, now time.Time) (*Manifest, error) {
	if len(signed) > MaxSigned {
		return nil, fmt.Errorf("open image manifest: %w: %d bytes, at most %d allowed", ErrInvalid, len(signed), MaxSigned)
	}
	var env agentv1.SignedImageManifest
	if err := proto.Unmarshal(signed, &env); err != nil {
		return nil, fmt.Errorf("open image manifest: %w: %w", ErrInvalid, err)
	}
	if _, err := roots.Verify(now, env.Signature, envelope.ImageManifest, env.Body); err != nil {
		return nil, fmt.Errorf("open image manifest: %w", err)
	}
	m, err := Decode(env.Body)
	if err != nil {
		return nil, fmt.Errorf("open image manifest: %w", err)
	}
	return m, nil
}
