package executor

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/appliance/internal/fleet"
	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
)

// skippedPrefix begins the message of a diagnosis that tested nothing.
const skippedPrefix = "skipped: "

// mint signs a command and journals it in run.
func mint(run *fleet.Run, signer envelope.Signer, step string, p fleet.PlannedCommand, now, notAfter time.Time, background bool) error {
	role, err := ident.ParseRole(p.Role)
	if err != nil {
		return fmt.Errorf("sign %s: %w", p.Kind, err)
	}
	lane := commonv1.Lane_LANE_CONTROL
	if p.Lane == "bulk" {
		lane = commonv1.Lane_LANE_BULK
	}
	id := ident.New("cmd")
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(&agentv1.CommandBody{
		CommandId: id, Kind: p.Kind, Payload: p.Payload, Audience: p.Node, Role: role,
		IssuedAt: timestamppb.New(now), NotAfter: timestamppb.New(notAfter),
		WorkflowId: run.ID, StepId: step, Lane: lane, Generation: run.Generation,
	})
	if err != nil {
		return fmt.Errorf("sign %s: %w", p.Kind, err)
	}
	sig, err := signer.Sign(envelope.Command, body)
	if err != nil {
		return fmt.Errorf("sign %s: %w", p.Kind, err)
	}
	wire, err := proto.Marshal(&agentv1.Command{Body: body, Signature: sig})
	if err != nil {
		return fmt.Errorf("sign %s: %w", p.Kind, err)
	}
	if run.Sent == nil {
		run.Sent = map[string]*fleet.Sent{}
	}
	run.Sent[id] = &fleet.Sent{Step: step, Node: p.Node, Role: p.Role, Wire: wire, Background: background, Refs: p.Refs,
		Attested: p.Attested, NotAfter: fleet.At(notAfter)}
	s := run.Step(step)
	s.Commands = append(s.Commands, fleet.Command{ID: id, Kind: p.Kind, KeyID: sig.Kid, Issued: fleet.At(now), State: fleet.CommandPending})
	return nil
}

// judge compares a command's result with what was ordered; wire is the stored command. The message is for people.
func judge(kind string, wire, result []byte) (message string, err error) {
	var cmd agentv1.Command
	var body agentv1.CommandBody
	if err := errors.Join(proto.Unmarshal(wire, &cmd), proto.Unmarshal(cmd.GetBody(), &body)); err != nil {
		return "", fmt.Errorf("its stored command does not decode: %w", err)
	}
	order := body.Payload
	switch kind {
	case "bmc.power":
		var res sitev1.BMCPowerResult
		if err := decode(result, &res); err != nil {
			return "", err
		}
		if res.State != "on" {
			return "", fmt.Errorf("the machine's power reads %q, want %q", res.State, "on")
		}
	case "bmc.bootOverride":
		return "", judgeOverride(order, result)
	case "disk.wipe":
		return judgeWipe(order, result)
	case "diag.nvml", "diag.dcgm":
		return judgeDiag(result)
	case "deploy.image":
		return judgeDeploy(order, result)
	case "boot.kexec":
		var res agentv1.BootKexecResult
		if err := decode(result, &res); err != nil {
			return "", err
		}
		return "entered " + res.Entry, nil
	}
	return "", nil
}

func decode(b []byte, into proto.Message) error {
	if err := proto.Unmarshal(b, into); err != nil {
		return fmt.Errorf("its result does not decode: %w", err)
	}
	return nil
}

func judgeOverride(order, result []byte) error {
	var want sitev1.BMCBootOverride
	var got sitev1.BMCBootOverrideResult
	if err := errors.Join(decode(order, &want), decode(result, &got)); err != nil {
		return err
	}
	if got.Device != want.Device || got.Once != want.Once {
		return fmt.Errorf("the BMC reads boot device %q, once %t; want %q, once %t", got.Device, got.Once, want.Device, want.Once)
	}
	// A site agent of an earlier version, and a controller without the setting, show no mode.
	if ordered := want.Mode == "uefi" || want.Mode == "bios"; ordered && got.Mode != "" && got.Mode != want.Mode {
		return fmt.Errorf("the BMC reads firmware mode %q, want %q", got.Mode, want.Mode)
	}
	return nil
}

func judgeWipe(order, result []byte) (string, error) {
	var want agentv1.DiskWipe
	var got agentv1.DiskWipeResult
	if err := errors.Join(decode(order, &want), decode(result, &got)); err != nil {
		return "", err
	}
	clean := map[string]bool{}
	var bytesVerified uint64
	for _, d := range got.Disks {
		switch {
		case d.Outcome != "clean":
			return "", fmt.Errorf("disk %s is %s: %s", d.Serial, orText(d.Outcome, "without outcome"), d.Message)
		case d.SizeBytes == 0 || d.BytesVerified != d.SizeBytes:
			return "", fmt.Errorf("of disk %s %d of %d bytes were read back", d.Serial, d.BytesVerified, d.SizeBytes)
		}
		clean[d.Serial] = true
		bytesVerified += d.BytesVerified
	}
	for _, d := range want.Disks {
		if !clean[d.Serial] {
			return "", fmt.Errorf("it says nothing of disk %s", d.Serial)
		}
	}
	return fmt.Sprintf("%d disks erased, %d bytes read back", len(clean), bytesVerified), nil
}

func judgeDiag(result []byte) (string, error) {
	var got agentv1.DiagResult
	if err := decode(result, &got); err != nil {
		return "", err
	}
	switch got.Outcome {
	case agentv1.DiagResult_OUTCOME_PASSED:
		return "passed", nil
	case agentv1.DiagResult_OUTCOME_SKIPPED:
		return skippedPrefix + orText(got.Reason, "no reason given"), nil
	case agentv1.DiagResult_OUTCOME_FAILED:
		return "", fmt.Errorf("its outcome is failed: %s", got.Reason)
	}
	return "", errors.New("it has no outcome")
}

func judgeDeploy(order, result []byte) (string, error) {
	var want agentv1.DeployImage
	var got agentv1.DeployImageResult
	if err := errors.Join(decode(order, &want), decode(result, &got)); err != nil {
		return "", err
	}
	switch {
	case got.Serial != want.Disk.GetSerial():
		return "", fmt.Errorf("it wrote to disk %q, ordered was %q", got.Serial, want.Disk.GetSerial())
	case !bytes.Equal(got.ManifestSha256, want.ManifestSha256):
		return "", fmt.Errorf("it wrote the image of manifest %s, ordered was %s", digestText(got.ManifestSha256), digestText(want.ManifestSha256))
	case got.BytesWritten == 0 || got.BytesVerified < got.BytesWritten:
		return "", fmt.Errorf("%d of %d written bytes were read back", got.BytesVerified, got.BytesWritten)
	}
	return fmt.Sprintf("%d chunks, %d bytes written and read back", got.Chunks, got.BytesVerified), nil
}

// unwire returns a stored command as it goes to the session.
func unwire(wire []byte, attempt uint32) (*agentv1.Command, error) {
	var c agentv1.Command
	if err := proto.Unmarshal(wire, &c); err != nil {
		return nil, fmt.Errorf("decode stored command: %w", err)
	}
	c.Attempt = attempt
	return &c, nil
}
