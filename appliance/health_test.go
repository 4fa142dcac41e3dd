package appliance

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/appliance/internal/api"
	"firstlight/gateway-client/gatewayserver"
	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// The running appliance examines itself: it finds its own process behind its socket and its own store, and does so once for many.
func TestHealth(t *testing.T) {
	p := start(t)
	client := api.NewClient(p.cfg.File.Socket)
	h, err := client.Health(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	state := map[string]string{}
	for _, c := range h.Checks {
		state[c.Name] = c.State
	}
	for name, want := range map[string]string{"port: API (unix " + p.cfg.File.Socket + ")": "ok", "store: size": "ok", "disk: permissions": "ok",
		"boot segment: DHCP servers": "skipped"} {
		if state[name] != want {
			t.Errorf("%s: got %q, want %s", name, state[name], want)
		}
	}
	again, err := client.Health(t.Context())
	if err != nil || !again.Checked.Equal(h.Checked.Time) || !slices.Equal(again.Checks, h.Checks) {
		t.Errorf("got %+v, %v, want the same examination again", again.Checked, err)
	}
}

// What a machine's agent says is in the machine's log; removing the machine removes it.
func TestMachineLogOverTheAPI(t *testing.T) {
	p := start(t)
	client := api.NewClient(p.cfg.File.Socket)
	m, err := client.AddMachine(t.Context(), api.AddMachine{Name: "m1", MACs: []string{"52:54:00:00:00:0a"}, DiskSerials: []string{"DISK0001"},
		BMCURL: "https://10.78.0.10", BMCUser: "admin", BMCPassword: password, BMCCertificateSHA256: strings.Repeat("ab", 32)})
	if err != nil {
		t.Fatal(err)
	}
	peer := gatewayserver.Peer{Identity: ident.Identity{Node: ident.NodeID(m.NodeID)}, Role: commonv1.AgentRole_AGENT_ROLE_RAMDISK}
	p.logged(peer, &agentv1.LogBatch{Dropped: 2, Lines: []*agentv1.LogLine{{Time: timestamppb.New(time.Now()), Text: "drivers: 9 kernel modules loaded"}}})
	lines, err := client.Log(t.Context(), "m1", 10)
	if err != nil || len(lines) != 2 || !slices.ContainsFunc(lines, func(l api.LogLine) bool {
		return l.Text == "drivers: 9 kernel modules loaded" && l.Source == "ramdisk"
	}) {
		t.Errorf("got %+v, %v, want the line and that two were lost", lines, err)
	}
	p.forget(m.NodeID)
	if left, err := p.logs.Tail(m.NodeID, 10); err != nil || len(left) != 0 {
		t.Errorf("got %v, %v after the machine was removed", left, err)
	}
}
