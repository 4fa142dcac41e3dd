package ramdisk

import (
	"crypto/sha256"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/gateway-client/session"
	"firstlight/ramdisk/internal/deploy"
	"firstlight/ramdisk/internal/diag"
	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/inventory"
	"firstlight/ramdisk/internal/kexec"
	"firstlight/ramdisk/internal/nodeconf"
	"firstlight/ramdisk/internal/trust"
	"firstlight/ramdisk/internal/wipe"
)

// The messages of the protocol end in this file: everything else works on plain types.

// read decodes a command's payload; what cannot be read is the sender's error.
func read(c *session.Call, into proto.Message) error {
	if err := proto.Unmarshal(c.Payload, into); err != nil {
		return fmt.Errorf("%w: %s: %w", session.ErrInvalidPayload, c.Kind, err)
	}
	return nil
}

func selector(m *agentv1.DiskSelector) (disk.Selector, error) {
	if m.GetSerial() == "" && m.GetWwn() == "" {
		return disk.Selector{}, fmt.Errorf("%w: %w", session.ErrInvalidPayload, disk.ErrUnnamed)
	}
	if m.SizeBytes > 1<<62 {
		return disk.Selector{}, fmt.Errorf("%w: disk size %d", session.ErrInvalidPayload, m.SizeBytes)
	}
	return disk.Selector{Serial: m.Serial, WWN: m.Wwn, Model: m.Model, Size: int64(m.SizeBytes), Namespace: m.NamespaceId}, nil
}

func wipeResult(rs []wipe.DiskResult) *agentv1.DiskWipeResult {
	out := &agentv1.DiskWipeResult{}
	for _, r := range rs {
		message := r.Note
		if r.Err != nil {
			message = r.Sentence()
		}
		out.Disks = append(out.Disks, &agentv1.WipedDisk{Serial: r.Disk.Serial, Wwn: r.Disk.WWN, Model: r.Disk.Model, SizeBytes: uint64(r.Disk.Size),
			Method: r.Method, BytesErased: uint64(r.Erased), BytesVerified: uint64(r.Verified), Outcome: r.Outcome, Message: message,
			Started: timestamppb.New(r.Started), Ended: timestamppb.New(r.Ended)})
	}
	return out
}

func diagResult(r diag.Result) *agentv1.DiagResult {
	outcome := map[diag.Outcome]agentv1.DiagResult_Outcome{diag.Passed: agentv1.DiagResult_OUTCOME_PASSED,
		diag.Failed: agentv1.DiagResult_OUTCOME_FAILED, diag.Skipped: agentv1.DiagResult_OUTCOME_SKIPPED}[r.Outcome]
	return &agentv1.DiagResult{Outcome: outcome, Reason: r.Reason, Details: r.Details}
}

func deployResult(r deploy.Result) *agentv1.DeployImageResult {
	return &agentv1.DeployImageResult{Serial: r.Disk.Serial, BytesWritten: uint64(r.Written), BytesVerified: uint64(r.Verified), Chunks: uint32(r.Chunks),
		ManifestSha256: r.Manifest[:], Partitions: r.Partitions}
}

func kexecResult(r kexec.Result) *agentv1.BootKexecResult {
	return &agentv1.BootKexecResult{Entry: r.Entry, KernelSha256: r.KernelSHA256, InitrdSha256: r.InitrdSHA256, CommandLine: r.CommandLine}
}

// nodeConfig is the seed as the node agent will read it.
func nodeConfig(s *agentv1.NodeSeed, secret []byte) (*nodeconf.Config, error) {
	fail := func(what string, err error) error {
		return fmt.Errorf("%w: seed: %s: %w", session.ErrInvalidPayload, what, err)
	}
	if s == nil {
		return nil, fmt.Errorf("%w: it has no seed for the node", session.ErrInvalidPayload)
	}
	c := &nodeconf.Config{GatewayURL: s.GatewayUrl, ServerName: s.GatewayServerName, Node: ident.NodeID(s.NodeId), TrustDomain: s.TrustDomain,
		Site: s.SiteId, Workflow: s.WorkflowId, Pins: s.ServingCaSpkiSha256, JoinSecret: secret}
	var err error
	if c.JoinSigning, err = trust.ParseKey(s.JoinSigningKey); err != nil {
		return nil, fail("join signing key", err)
	}
	if c.JoinEncryption, err = trust.ParseKey(s.JoinEncryptionKey); err != nil {
		return nil, fail("join encryption key", err)
	}
	if _, err := c.Encode(); err != nil {
		return nil, fail("configuration", err)
	}
	return c, nil
}

func claimsMessage(c inventory.Claims, found time.Time) *commonv1.HardwareClaims {
	m := &commonv1.HardwareClaims{SystemUuid: c.UUID, SystemSerial: c.Serial, Manufacturer: c.Manufacturer, Product: c.Product, Macs: c.MACs}
	if !found.IsZero() {
		m.ClockFound = timestamppb.New(found)
	}
	return m
}

// sections is the inventory in its canonical encoding, by section name.
func sections(p platform) (map[string][]byte, error) {
	disks, err := p.disks.Scan()
	if err != nil {
		return nil, err
	}
	sys, cpu := inventory.ReadSystem(p.sys, p.proc), inventory.ReadCPU(p.proc)
	d, n := &agentv1.DisksSection{}, &agentv1.NICsSection{}
	for _, x := range disks {
		d.Disks = append(d.Disks, &agentv1.Disk{Name: x.Name, Serial: x.Serial, Wwn: x.WWN, Model: x.Model, SizeBytes: uint64(max(x.Size, 0)),
			LogicalBlockBytes: uint32(x.LogicalBlock), PhysicalBlockBytes: uint32(x.PhysicalBlock), Rotational: x.Rotational, Transport: x.Transport,
			Candidate: x.Excluded == "", ExcludedBecause: x.Excluded, NamespaceId: x.Namespace, Address: x.Address})
	}
	for _, x := range inventory.ReadNICs(p.sys) {
		n.Nics = append(n.Nics, &agentv1.NIC{Name: x.Name, Mac: x.MAC, Driver: x.Driver, Link: x.Link, SpeedMbps: uint32(x.SpeedMbps)})
	}
	out := map[string][]byte{}
	for name, m := range map[string]proto.Message{
		"system": &agentv1.SystemSection{Manufacturer: sys.Manufacturer, Product: sys.Product, Serial: sys.Serial, Uuid: sys.UUID, FirmwareVendor: sys.FirmwareVendor,
			FirmwareVersion: sys.FirmwareVersion, FirmwareMode: sys.FirmwareMode, KernelRelease: sys.KernelRelease},
		"cpu":    &agentv1.CPUSection{Model: cpu.Model, Sockets: uint32(cpu.Sockets), Cores: uint32(cpu.Cores), Threads: uint32(cpu.Threads), Architecture: architecture},
		"memory": &agentv1.MemorySection{TotalBytes: uint64(inventory.ReadMemory(p.proc))},
		"disks":  d,
		"nics":   n,
	} {
		if out[name], err = (proto.MarshalOptions{Deterministic: true}).Marshal(m); err != nil {
			return nil, fmt.Errorf("encode inventory section %s: %w", name, err)
		}
	}
	return out, nil
}

func deployRequest(m *agentv1.DeployImage, workflow string) (deploy.Request, error) {
	s, err := selector(m.Disk)
	if err != nil {
		return deploy.Request{}, err
	}
	if len(m.ManifestSha256) != sha256.Size {
		return deploy.Request{}, fmt.Errorf("%w: manifest digest of %d bytes", session.ErrInvalidPayload, len(m.ManifestSha256))
	}
	return deploy.Request{Disk: s, ManifestURL: m.ManifestUrl, ManifestSHA256: m.ManifestSha256, ChunkBaseURL: m.ChunkBaseUrl,
		ConfigName: nodeconf.File, Workflow: workflow}, nil
}
