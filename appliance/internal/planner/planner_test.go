package planner_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/planner"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
)

var update = flag.Bool("update", false, "write the golden files anew")

func input() planner.Input {
	return planner.Input{
		Machine: &fleet.Record{Name: "m1", NodeID: "node-1", MACs: []string{"52:54:00:00:00:01", "52:54:00:00:00:02"},
			DiskSerials: []string{"DISK0001", "DISK0002"}, BMC: fleet.BMC{URL: "https://10.78.0.1", User: "admin"},
			BMCCertificateSHA256: bytes.Repeat([]byte{7}, 32)},
		Image: planner.Image{Name: "demo", ManifestSHA256: [32]byte{1, 2, 3}, RawSize: 100 << 20},
		Site: planner.Site{NodeID: "site-a", HTTPBase: "http://10.77.0.2:8080", Anchors: &sitev1.TrustAnchors{TrustDomain: "firstlight.test",
			SiteId: "site-a", GatewayUrl: "https://10.77.0.2:8443", GatewayServerName: "gw.site-a.firstlight.test",
			ServingCaSpkiSha256: [][]byte{{1}}, JoinSigningKey: []byte{2}, JoinEncryptionKey: []byte{3}, NodeCas: [][]byte{{4}}}},
		WorkflowID: "wf-1", LeaseID: "lease-1", PauseAfter: []string{"wipe"},
		Now: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC),
	}
}

// No plan is made for a machine that is protected, is nobody's, or has no controller.
func TestGuards(t *testing.T) {
	for want, change := range map[string]func(m *fleet.Record){
		"machine is protected: it is protected since": func(m *fleet.Record) { m.Protected = &fleet.Protection{By: "root", Why: "customer data"} },
		"machine is not enrolled":                     func(m *fleet.Record) { m.Discovered = fleet.At(time.Now()) },
		"names no management controller":              func(m *fleet.Record) { m.BMC = fleet.BMC{} },
	} {
		in := input()
		change(in.Machine)
		if _, err := planner.Plan(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a refusal that says %q", err, want)
		}
	}
}

// payloads names the message of each kind.
var payloads = map[string]proto.Message{
	"boot.prepareRamdisk": &sitev1.PrepareRAMDisk{}, "boot.cleanUp": &sitev1.CleanUpBoot{}, "bmc.power": &sitev1.BMCPower{},
	"bmc.bootOverride": &sitev1.BMCBootOverride{}, "disk.wipe": &agentv1.DiskWipe{}, "diag.nvml": &agentv1.DiagNVML{},
	"diag.dcgm": &agentv1.DiagDCGM{}, "deploy.image": &agentv1.DeployImage{}, "boot.kexec": &agentv1.BootKexec{},
	"inventory.refresh": &agentv1.InventoryRefresh{},
}

// readable is the plan with decoded payloads.
func readable(t *testing.T, p fleet.Plan) []byte {
	t.Helper()
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := json.Unmarshal(b, &tree); err != nil {
		t.Fatal(err)
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, x := range v {
				walk(x)
			}
		case map[string]any:
			if kind, ok := v["kind"].(string); ok {
				v["payload"] = decode(t, kind, v["payload"])
				return
			}
			for _, x := range v {
				walk(x)
			}
		}
	}
	walk(tree)
	out, err := json.MarshalIndent(tree, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(out, '\n')
}

func decode(t *testing.T, kind string, payload any) any {
	t.Helper()
	text, _ := payload.(string)
	var raw []byte
	if err := json.Unmarshal([]byte(`"`+text+`"`), &raw); err != nil {
		t.Fatal(err)
	}
	m := proto.Clone(payloads[kind])
	if err := proto.Unmarshal(raw, m); err != nil {
		t.Fatalf("%s: %v", kind, err)
	}
	b, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestPlanGolden(t *testing.T) {
	p, err := planner.Plan(input())
	if err != nil {
		t.Fatal(err)
	}
	got := readable(t, p)
	path := filepath.Join("testdata", "provision.json")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("got a plan that is not %s (write it anew with -update and look at the difference):\n%s", path, got)
	}
}

// A firmware mode is ordered only for a machine whose mode is known, and a person's word counts more than the machine's.
func TestFirmwareMode(t *testing.T) {
	for _, c := range []struct {
		said, seen, mode string
		uefi             bool
	}{
		{"", "", "keep", true}, {"bios", "", "bios", false}, {"uefi", "", "uefi", true},
		{"", "bios", "bios", false}, {"", "uefi", "uefi", true}, {"uefi", "bios", "uefi", true}, {"bios", "uefi", "bios", false},
		{"", "coreboot", "keep", true},
	} {
		in := input()
		in.Machine.Firmware, in.Machine.Hardware = c.said, &fleet.Hardware{FirmwareMode: c.seen}
		p, err := planner.Plan(in)
		if err != nil {
			t.Fatal(err)
		}
		var o sitev1.BMCBootOverride
		for _, x := range p.Step(fleet.StepPowerOn).Commands {
			if x.Kind == "bmc.bootOverride" {
				if err := proto.Unmarshal(x.Payload, &o); err != nil {
					t.Fatal(err)
				}
			}
		}
		remedy := p.Step(fleet.StepPowerOn).Remedy
		if strings.Contains(remedy, "firmware mode "+c.mode+", which comes from") != (c.mode != "keep") {
			t.Errorf("said %q, seen %q: got remedy %q", c.said, c.seen, remedy)
		}
		if o.Mode != c.mode || o.Uefi != c.uefi || o.Device != "pxe" || !o.Once {
			t.Errorf("said %q, seen %q: got %v, want mode %s", c.said, c.seen, &o, c.mode)
		}
	}
}

func TestPlanIsPure(t *testing.T) {
	in := input()
	before, _ := json.Marshal(in.Machine)
	a, errA := planner.Plan(in)
	b, errB := planner.Plan(input())
	if errA != nil || errB != nil || !reflect.DeepEqual(a, b) {
		t.Errorf("got two plans for one input (%v, %v), want one", errA, errB)
	}
	if after, _ := json.Marshal(in.Machine); !bytes.Equal(before, after) {
		t.Error("got the machine's record changed")
	}
}

func TestPlanSteps(t *testing.T) {
	p, err := planner.Plan(input())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range p.Steps {
		names = append(names, s.Name)
		if s.For == "" || s.Next == "" || s.Deadline <= 0 {
			t.Errorf("got step %+v, want what it waits for, what to do next and a deadline", s)
		}
	}
	if !reflect.DeepEqual(names, fleet.StepNames()) {
		t.Errorf("got steps %v, want %v", names, fleet.StepNames())
	}
}

// INV-04: what is wiped and written is named by serial number only.
func TestINV04_DisksByIdentityOnly(t *testing.T) {
	p, err := planner.Plan(input())
	if err != nil {
		t.Fatal(err)
	}
	var w agentv1.DiskWipe
	var d agentv1.DeployImage
	var k agentv1.BootKexec
	for kind, m := range map[string]proto.Message{"disk.wipe": &w, "deploy.image": &d, "boot.kexec": &k} {
		for _, s := range p.Steps {
			for _, c := range s.Commands {
				if c.Kind != kind {
					continue
				}
				if err := proto.Unmarshal(c.Payload, m); err != nil {
					t.Fatal(err)
				}
				if strings.Contains(string(c.Payload), "/dev") {
					t.Errorf("got a device name in %s", kind)
				}
			}
		}
	}
	if len(w.Disks) != 2 || w.Disks[0].Serial != "DISK0001" || w.Disks[1].Serial != "DISK0002" {
		t.Errorf("got %v to wipe, want both serials of the record", w.Disks)
	}
	if d.Disk.GetSerial() != "DISK0001" || k.Disk.GetSerial() != "DISK0001" {
		t.Errorf("got image to %v and kexec from %v, want the record's first serial", d.Disk, k.Disk)
	}
}

func TestPlanRefusals(t *testing.T) {
	for want, spoil := range map[string]func(*planner.Input){
		"has no MAC":                 func(in *planner.Input) { in.Machine.MACs = nil },
		"names no disk by serial":    func(in *planner.Input) { in.Machine.DiskSerials = nil },
		"is not an image":            func(in *planner.Input) { in.Image = planner.Image{} },
		"site is not configured":     func(in *planner.Input) { in.Site.HTTPBase = "" },
		`cannot pause after "lunch"`: func(in *planner.Input) { in.PauseAfter = []string{"lunch"} },
		`nothing comes after`:        func(in *planner.Input) { in.PauseAfter = []string{"active"} },
	} {
		in := input()
		spoil(&in)
		if _, err := planner.Plan(in); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"m1"`) {
			t.Errorf("got %v, want an error about m1 that says %q", err, want)
		}
	}
}
