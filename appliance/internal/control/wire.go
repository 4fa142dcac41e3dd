package control

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"firstlight/appliance/internal/fleet"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

func rejectWord(r commonv1.CommandRejectReason) string {
	return strings.TrimPrefix(r.String(), "COMMAND_REJECT_REASON_")
}

func progressOf(p *agentv1.Progress) *fleet.Progress {
	if p == nil {
		return nil
	}
	return &fleet.Progress{What: fleet.Clip(p.What), Done: p.Done, Total: p.Total, Unit: fleet.Clip(p.Unit)}
}

func eventOf(e *agentv1.Event) fleet.Event {
	out := fleet.Event{NodeID: fleet.Clip(e.NodeId), Workflow: fleet.Clip(e.WorkflowId), Kind: e.Kind, Fields: e.Fields, Message: e.Message}
	if e.Time.IsValid() {
		out.Time = fleet.At(e.Time.AsTime())
	}
	return out
}

// Bounds of what an inventory keeps in a record; the whole section is on disk.
const (
	maxDisks = 64
	maxNICs  = 64
)

// learn reads one section into h. A section that is not known changes nothing.
func learn(h *fleet.Hardware, name string, encoding []byte) error {
	var err error
	read := func(m proto.Message) bool {
		err = proto.Unmarshal(encoding, m)
		return err == nil
	}
	switch name {
	case "system":
		if s := new(agentv1.SystemSection); read(s) {
			h.Manufacturer, h.Product, h.Serial, h.UUID = fleet.Clip(s.Manufacturer), fleet.Clip(s.Product), fleet.Clip(s.Serial), fleet.Clip(s.Uuid)
			h.FirmwareMode, h.FirmwareVersion, h.Kernel = fleet.Clip(s.FirmwareMode), fleet.Clip(s.FirmwareVersion), fleet.Clip(s.KernelRelease)
		}
	case "cpu":
		if s := new(agentv1.CPUSection); read(s) {
			h.CPU, h.Threads = fleet.Clip(s.Model), int(s.Threads)
		}
	case "memory":
		if s := new(agentv1.MemorySection); read(s) {
			h.MemoryBytes = s.TotalBytes
		}
	case "disks":
		if s := new(agentv1.DisksSection); read(s) {
			h.Disks = disksOf(s)
		}
	case "nics":
		if s := new(agentv1.NICsSection); read(s) {
			h.NICs = nicsOf(s)
		}
	}
	if err != nil {
		return fmt.Errorf("inventory section %q: %w", name, err)
	}
	return nil
}

func disksOf(s *agentv1.DisksSection) []fleet.Disk {
	out := []fleet.Disk{}
	for _, d := range s.Disks[:min(len(s.Disks), maxDisks)] {
		out = append(out, fleet.Disk{Name: fleet.Clip(d.Name), Serial: fleet.Clip(d.Serial), WWN: fleet.Clip(d.Wwn), Model: fleet.Clip(d.Model),
			SizeBytes: d.SizeBytes, Candidate: d.Candidate, ExcludedBecause: fleet.Clip(d.ExcludedBecause)})
	}
	return out
}

func nicsOf(s *agentv1.NICsSection) []fleet.NIC {
	out := []fleet.NIC{}
	for _, n := range s.Nics[:min(len(s.Nics), maxNICs)] {
		out = append(out, fleet.NIC{Name: fleet.Clip(n.Name), MAC: fleet.Clip(n.Mac), Driver: fleet.Clip(n.Driver), Link: n.Link})
	}
	return out
}
