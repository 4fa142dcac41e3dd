package planner

import (
	"encoding/hex"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/appliance/internal/fleet"
	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
)

const (
	laneControl = "control"
	laneBulk    = "bulk"
)

// builder writes payloads; the first encoding error stays in err.
type builder struct {
	in      Input
	expires fleet.Time
	err     error
}

func (b *builder) command(kind, node string, role commonv1.AgentRole, lane string, payload proto.Message) fleet.PlannedCommand {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(payload)
	if err != nil && b.err == nil {
		b.err = fmt.Errorf("plan %s: %w", kind, err)
	}
	return fleet.PlannedCommand{Kind: kind, Node: node, Role: ident.RoleWord(role), Lane: lane, Payload: raw, Refs: []string{}}
}

// waits says what is waited for while a command is in hand.
func waits(what string, c fleet.PlannedCommand) fleet.PlannedCommand {
	c.For = what
	return c
}

func (b *builder) site(kind string, payload proto.Message) fleet.PlannedCommand {
	return b.command(kind, string(b.in.Site.NodeID), commonv1.AgentRole_AGENT_ROLE_SITE, laneControl, payload)
}

func (b *builder) bmc(kind string, payload proto.Message) fleet.PlannedCommand {
	c := b.site(kind, payload)
	c.Refs = []string{BMCPasswordRef(b.in.Machine.Name)}
	return c
}

func (b *builder) ramdisk(kind, lane string, attested bool, payload proto.Message) fleet.PlannedCommand {
	c := b.command(kind, b.in.Machine.NodeID, commonv1.AgentRole_AGENT_ROLE_RAMDISK, lane, payload)
	c.Attested = attested
	return c
}

func (b *builder) node(kind string, payload proto.Message) fleet.PlannedCommand {
	return b.command(kind, b.in.Machine.NodeID, commonv1.AgentRole_AGENT_ROLE_NODE, laneControl, payload)
}

func (b *builder) prepare() proto.Message {
	return &sitev1.PrepareRAMDisk{
		LeaseId: b.in.LeaseID, NodeId: b.in.Machine.NodeID, WorkflowId: b.in.WorkflowID, Macs: b.in.Machine.MACs,
		Expires: timestamppb.New(b.expires.Time), Anchors: b.in.Site.Anchors, MachineName: b.in.Machine.Name,
	}
}

func (b *builder) target() *sitev1.BMCTarget {
	m := b.in.Machine
	return &sitev1.BMCTarget{Url: m.BMC.URL, Username: m.BMC.User, PasswordRef: BMCPasswordRef(m.Name),
		CertificateSha256: m.BMCCertificateSHA256}
}

func (b *builder) override() proto.Message {
	o := &sitev1.BMCBootOverride{Target: b.target(), Device: "pxe", Once: true, Mode: b.in.Machine.FirmwareMode()}
	if o.Mode == "" {
		o.Mode = "keep"
	}
	// A site agent that does not know mode gets what it always got, but for a machine that is known to boot by BIOS.
	o.Uefi = o.Mode != fleet.FirmwareBIOS
	return o
}

// modeRemedy is what to do about a controller that does not take the ordered firmware mode; empty where none is ordered.
func (b *builder) modeRemedy() string {
	m := b.in.Machine
	mode := m.FirmwareMode()
	if mode == "" {
		return ""
	}
	from := "its last inventory"
	if m.Firmware != "" {
		from = "its record"
	}
	return fmt.Sprintf(". If the BMC does not take firmware mode %s, which comes from %s, then the machine is set to another one: set it right in its firmware or in its record", mode, from)
}

func (b *builder) power() proto.Message {
	return &sitev1.BMCPower{Target: b.target(), Action: sitev1.BMCPower_ACTION_CYCLE}
}

func (b *builder) cleanUp(why sitev1.CleanUpBoot_Reason) proto.Message {
	return &sitev1.CleanUpBoot{LeaseId: b.in.LeaseID, Reason: why}
}

func (b *builder) wipe() proto.Message {
	w := &agentv1.DiskWipe{}
	for _, s := range b.in.Machine.DiskSerials {
		w.Disks = append(w.Disks, &agentv1.DiskSelector{Serial: s})
	}
	return w
}

func (b *builder) nvml() proto.Message { return &agentv1.DiagNVML{} }

func (b *builder) dcgm() proto.Message { return &agentv1.DiagDCGM{Level: diagLevel} }

func (b *builder) deploy() fleet.PlannedCommand {
	m, a := b.in.Machine, b.in.Site.Anchors
	ref := JoinSecretRef(b.in.WorkflowID)
	blobs := b.in.Site.HTTPBase + "/blob"
	c := b.ramdisk("deploy.image", laneBulk, true, &agentv1.DeployImage{
		Disk:           &agentv1.DiskSelector{Serial: m.DiskSerials[0]},
		ManifestUrl:    blobs + "/" + hex.EncodeToString(b.in.Image.ManifestSHA256[:]),
		ManifestSha256: b.in.Image.ManifestSHA256[:],
		ChunkBaseUrl:   blobs,
		Seed: &agentv1.NodeSeed{
			GatewayUrl: a.GatewayUrl, GatewayServerName: a.GatewayServerName, NodeId: m.NodeID,
			ServingCaSpkiSha256: a.ServingCaSpkiSha256, JoinSigningKey: a.JoinSigningKey, JoinEncryptionKey: a.JoinEncryptionKey,
			TrustDomain: a.TrustDomain, SiteId: a.SiteId, JoinSecretRef: ref, WorkflowId: b.in.WorkflowID,
		},
	})
	c.Refs = []string{ref}
	return c
}

func (b *builder) kexec() proto.Message {
	return &agentv1.BootKexec{Disk: &agentv1.DiskSelector{Serial: b.in.Machine.DiskSerials[0]}}
}

func (b *builder) refresh() proto.Message { return &agentv1.InventoryRefresh{} }
