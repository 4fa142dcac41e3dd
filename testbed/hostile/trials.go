package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

const (
	ramdisk  = commonv1.AgentRole_AGENT_ROLE_RAMDISK
	workflow = "wf-victim"
	// commandLife is how long a good command is good.
	commandLife = 10 * time.Minute
	// withheldFor is how long a withheld command is waited for in vain.
	withheldFor = 10 * time.Second
)

// reasons of a rejection, short.
const (
	badSignature  = commonv1.CommandRejectReason_COMMAND_REJECT_REASON_BAD_SIGNATURE
	untrusted     = commonv1.CommandRejectReason_COMMAND_REJECT_REASON_UNTRUSTED_KEY
	wrongAudience = commonv1.CommandRejectReason_COMMAND_REJECT_REASON_WRONG_AUDIENCE
	expired       = commonv1.CommandRejectReason_COMMAND_REJECT_REASON_EXPIRED
	replayed      = commonv1.CommandRejectReason_COMMAND_REJECT_REASON_REPLAYED
	unsigned      = commonv1.CommandRejectReason_COMMAND_REJECT_REASON_UNSIGNED
)

// trial is one thing that a hostile gateway does. Every wipe in it names the machine's own disk: run, it would write.
type trial struct {
	name string
	do   func(ctx context.Context, a *attack) (answer, error)
	// reason and says are how the machine must refuse; no reason: it must not answer at all, or as says demands.
	reason commonv1.CommandRejectReason
	says   *regexp.Regexp
}

// answer is what came back.
type answer struct {
	update *agentv1.CommandUpdate
	// note is an answer that is no update.
	note string
}

// attack is a gateway with the machine's disk in its sights.
type attack struct {
	g      *Gateway
	serial string
	// withheld is a good wipe that was never delivered.
	withheld *agentv1.Command
}

// body is a good wipe of the machine's disk.
func (a *attack) body() *agentv1.CommandBody {
	now := time.Now()
	payload, err := marshal(&agentv1.DiskWipe{Disks: []*agentv1.DiskSelector{{Serial: a.serial}}})
	if err != nil {
		panic(err) // a message without bytes of others always encodes
	}
	return &agentv1.CommandBody{CommandId: ident.New("cmd"), Kind: "disk.wipe", Payload: payload, Audience: string(victim), Role: ramdisk,
		WorkflowId: workflow, StepId: "wipe", Generation: 7, IssuedAt: timestamppb.New(now), NotAfter: timestamppb.New(now.Add(commandLife))}
}

func sign(s envelope.Signer, p envelope.Purpose, b *agentv1.CommandBody) (*agentv1.Command, error) {
	raw, err := marshal(b)
	if err != nil {
		return nil, err
	}
	sig, err := s.Sign(p, raw)
	return &agentv1.Command{Body: raw, Signature: sig, Attempt: 1}, err
}

// deliver sends a command and waits for its end.
func (a *attack) deliver(ctx context.Context, id string, c *agentv1.Command) (answer, error) {
	seen := len(a.g.of(id))
	if err := a.g.send(c); err != nil {
		return answer{}, err
	}
	u, err := a.g.terminal(ctx, id, seen)
	return answer{update: u}, err
}

// altered is a trial that changes the body before the control plane signs it: commands for others, of other times, for other roles.
func altered(name string, reason commonv1.CommandRejectReason, says string, change func(*agentv1.CommandBody)) trial {
	return trial{name: name, reason: reason, says: regexp.MustCompile(says), do: func(ctx context.Context, a *attack) (answer, error) {
		b := a.body()
		change(b)
		c, err := sign(a.g.worker, envelope.Command, b)
		if err != nil {
			return answer{}, err
		}
		return a.deliver(ctx, b.CommandId, c)
	}}
}

// tampered is a trial that changes a good command on its way.
func tampered(name string, reason commonv1.CommandRejectReason, says string, change func(*attack, *agentv1.Command) error) trial {
	return trial{name: name, reason: reason, says: regexp.MustCompile(says), do: func(ctx context.Context, a *attack) (answer, error) {
		b := a.body()
		c, err := sign(a.g.worker, envelope.Command, b)
		if err != nil {
			return answer{}, err
		}
		if err := change(a, c); err != nil {
			return answer{}, err
		}
		return a.deliver(ctx, b.CommandId, c)
	}}
}

// by is a trial whose command is signed by a key that must not.
func by(name string, reason commonv1.CommandRejectReason, says string, key func(*Gateway) (envelope.Signer, envelope.Purpose)) trial {
	return trial{name: name, reason: reason, says: regexp.MustCompile(says), do: func(ctx context.Context, a *attack) (answer, error) {
		b := a.body()
		s, p := key(a.g)
		c, err := sign(s, p, b)
		if err != nil {
			return answer{}, err
		}
		return a.deliver(ctx, b.CommandId, c)
	}}
}

// trials in their order: the machine's session is one and the same throughout.
func trials() []trial {
	return []trial{
		{name: "withholds a command", do: withhold},
		altered("swaps two machines' commands", wrongAudience, `for node "node-neighbour", this is "node-victim"`,
			func(b *agentv1.CommandBody) { b.Audience = string(neighbour) }),
		tampered("flips a bit of the body", badSignature, `signature`, func(a *attack, c *agentv1.Command) error {
			at := bytes.Index(c.Body, []byte(a.serial))
			if at < 0 {
				return errors.New("command does not name the disk")
			}
			c.Body[at] ^= 1
			return nil
		}),
		tampered("flips a bit of the signature", badSignature, `signature`, func(_ *attack, c *agentv1.Command) error {
			c.Signature.Value[len(c.Signature.Value)-1] ^= 1
			return nil
		}),
		tampered("takes the signature off", unsigned, `not signed`, func(_ *attack, c *agentv1.Command) error {
			c.Signature = nil
			return nil
		}),
		tampered("puts another command's signature on", badSignature, `signature`, func(a *attack, c *agentv1.Command) error {
			other, err := sign(a.g.worker, envelope.Command, a.body())
			c.Signature = other.GetSignature()
			return err
		}),
		by("signs with a stranger's key", untrusted, `(?i)trust|root|authority`, func(g *Gateway) (envelope.Signer, envelope.Purpose) { return g.stranger, envelope.Command }),
		by("signs with the image signer's key", untrusted, `(?i)purpose|command|trust`, func(g *Gateway) (envelope.Signer, envelope.Purpose) { return g.image, envelope.Command }),
		by("passes an image's signature off as a command's", badSignature, `(?i)signature`,
			func(g *Gateway) (envelope.Signer, envelope.Purpose) { return g.worker, envelope.ImageManifest }),
		altered("delivers when the command has expired", expired, `expired at .*clock says`, func(b *agentv1.CommandBody) {
			b.IssuedAt, b.NotAfter = timestamppb.New(time.Now().Add(-time.Hour)), timestamppb.New(time.Now().Add(-time.Minute))
		}),
		altered("delivers before the command is issued", expired, `issued at .*clock says`, func(b *agentv1.CommandBody) {
			b.IssuedAt, b.NotAfter = timestamppb.New(time.Now().Add(time.Hour)), timestamppb.New(time.Now().Add(2*time.Hour))
		}),
		altered("delivers the command of another role", wrongAudience, `for role node, this is ramdisk`,
			func(b *agentv1.CommandBody) { b.Role = commonv1.AgentRole_AGENT_ROLE_NODE }),
		{name: "replays a command's id with another body", do: replayBody, reason: replayed, says: regexp.MustCompile(`another body`)},
		{name: "replays a command that ran", do: replaySame, says: regexp.MustCompile(`^the same answer, not run again`)},
		altered("reorders two plans", expired, `generation 6 .*overtaken`, func(b *agentv1.CommandBody) { b.Generation = 6 }),
		altered("delivers a plan's command of long ago", expired, `generation 1 .*overtaken`, func(b *agentv1.CommandBody) { b.Generation = 1 }),
	}
}

// withhold has a good wipe signed and keeps it: the machine must not act without it.
func withhold(ctx context.Context, a *attack) (_ answer, err error) {
	b := a.body()
	if a.withheld, err = sign(a.g.worker, envelope.Command, b); err != nil {
		return answer{}, err
	}
	limited, cancel := context.WithTimeout(ctx, withheldFor)
	defer cancel()
	u, err := a.g.terminal(limited, b.CommandId, 0)
	if ctx.Err() != nil {
		return answer{}, ctx.Err()
	}
	if err == nil {
		return answer{update: u}, nil
	}
	return answer{note: fmt.Sprintf("the machine did nothing for %s", withheldFor)}, nil
}

// harmless is a wipe of a disk that is not there: it runs, writes nothing, and fails in words.
func (a *attack) harmless() *agentv1.CommandBody {
	b := a.body()
	payload, err := marshal(&agentv1.DiskWipe{Disks: []*agentv1.DiskSelector{{Serial: "NOT-HERE"}}})
	if err != nil {
		panic(err) // a message without bytes of others always encodes
	}
	b.Payload = payload
	return b
}

// replayBody runs a harmless command, then sends its id again with a wipe of the machine's disk, well signed.
func replayBody(ctx context.Context, a *attack) (answer, error) {
	first := a.harmless()
	c, err := sign(a.g.worker, envelope.Command, first)
	if err != nil {
		return answer{}, err
	}
	if _, err := a.deliver(ctx, first.CommandId, c); err != nil {
		return answer{}, err
	}
	second := a.body()
	second.CommandId = first.CommandId
	if c, err = sign(a.g.worker, envelope.Command, second); err != nil {
		return answer{}, err
	}
	return a.deliver(ctx, second.CommandId, c)
}

// replaySame sends one command twice. The second time it must be answered by the first one's result, and not run.
func replaySame(ctx context.Context, a *attack) (answer, error) {
	b := a.harmless()
	c, err := sign(a.g.worker, envelope.Command, b)
	if err != nil {
		return answer{}, err
	}
	first, err := a.deliver(ctx, b.CommandId, c)
	if err != nil {
		return answer{}, err
	}
	before := len(a.g.of(b.CommandId))
	second, err := a.deliver(ctx, b.CommandId, c)
	if err != nil {
		return answer{}, err
	}
	after := states(a.g.of(b.CommandId)[before:])
	if ran := slices.Contains(after, word(commonv1.CommandState_COMMAND_STATE_RUNNING)); ran || !proto.Equal(first.update, second.update) {
		return answer{note: fmt.Sprintf("another answer: %s", strings.Join(after, ", "))}, nil
	}
	return answer{note: fmt.Sprintf("the same answer, not run again: %s, %s", word(first.update.State), first.update.Message)}, nil
}

// judge compares an answer with what it must be. ok false says what is wrong in words.
func (t trial) judge(got answer) (ok bool, words string) {
	if got.update == nil {
		return t.reason == 0 && (t.says == nil || t.says.MatchString(got.note)), got.note
	}
	u := got.update
	words = fmt.Sprintf("%s, %s: %s", word(u.State), word(u.RejectReason), u.Message)
	return t.reason != 0 && u.State == commonv1.CommandState_COMMAND_STATE_REJECTED && u.RejectReason == t.reason && t.says.MatchString(u.Message), words
}

// word is the last part of an enum's name: "rejected", "bad signature".
func word(e fmt.Stringer) string {
	s := e.String()
	for _, p := range []string{"COMMAND_STATE_", "COMMAND_REJECT_REASON_"} {
		s = strings.TrimPrefix(s, p)
	}
	return strings.ToLower(strings.ReplaceAll(s, "_", " "))
}

func decode(c *agentv1.Command) (*agentv1.CommandBody, error) {
	b := &agentv1.CommandBody{}
	if err := proto.Unmarshal(c.Body, b); err != nil {
		return nil, fmt.Errorf("read command: %w", err)
	}
	return b, nil
}
