package control_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"firstlight/appliance/internal/fleet"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
)

// stolen is how far the thief has come when the real machine shows up.
var stolen = map[string]struct {
	way func(r *rig) (thief *agent, secret []byte)
	// step fails when the real machine joins, asked when it asks for its script.
	step, asked string
}{
	"after the join":   {func(r *rig) (*agent, []byte) { return r.joined(), nil }, fleet.StepJoin, fleet.StepScript},
	"in the wipe":      {func(r *rig) (*agent, []byte) { return r.wiping(), nil }, fleet.StepJoin, fleet.StepWipe},
	"in the deploy":    {func(r *rig) (*agent, []byte) { a := r.deploying(); s, _ := r.secret(a, nil); return a, s }, fleet.StepJoin, fleet.StepDeploy},
	"before the kexec": {func(r *rig) (*agent, []byte) { return r.deployed() }, fleet.StepJoin, fleet.StepKexec},
	"before node joins": {func(r *rig) (*agent, []byte) {
		a, s := r.deployed()
		r.succeed(a, "boot.kexec", &agentv1.BootKexecResult{})
		return a, s
	}, fleet.StepJoin, fleet.StepNodeJoin},
}

// A thief fetched the script and joined first. When the real machine joins, or asks for its script, there is an alarm, the thief's
// certificate opens nothing any more and its session ends, this deploy's join secret is void, and the workflow fails in words. No
// secret but that one ever left.
func TestStolenScript(t *testing.T) {
	for stage, c := range stolen {
		for _, how := range []string{"joins", "asks for its script", "asks for a file of its boot"} {
			t.Run(stage+" the machine "+how, func(t *testing.T) {
				bubble(t, func(t *testing.T, r *rig) {
					evidence := r.assertion
					thief, secret := c.way(r)
					for _, ref := range []string{"secret://bmc/m1", "secret://bmc/m2", "secret://provisioned/other", "secret://bmc/"} {
						if v, word := r.ask(thief, &agentv1.SecretRequest{Ref: ref, WorkflowId: r.wf, StepId: r.current(), RequestId: "q-2"}, nil); word == "" {
							t.Errorf("got %d bytes for %s, want the thief to get nothing", len(v), ref)
						}
					}
					step := c.step
					if how == "joins" {
						_, err := r.joinDiscovery(r.agent(), evidence(nil), claims(uuid1, mac1))
						r.refused(err, "was consumed already")
					} else {
						step = c.asked
						r.events(map[string]string{"asks for its script": "boot.script.refused", "asks for a file of its boot": "boot.file.refused"}[how])
					}
					m := r.show("m1")
					if m.State != fleet.MachineFailed || m.Failure == nil || m.Failure.Step != step || !strings.Contains(m.Failure.Next, "machine") {
						t.Errorf("got %s with failure %+v, want it failed at %s with words on what to do", m.State, m.Failure, step)
					}
					if got := r.alarms("m1"); !strings.Contains(got, "joined") && !strings.Contains(got, "two machines presented") {
						t.Errorf("got alarms %q, want one that says that another machine may have joined", got)
					}
					if err := r.control.Admit(t.Context(), thief.peer, &agentv1.Hello{}); status.Code(err) == codes.OK {
						t.Error("got the thief admitted, want its certificate revoked")
					}
					rec, err := r.repo.Machine(t.Context(), "m1")
					r.must(err)
					run, _, err := r.repo.Run(t.Context(), r.wf)
					r.must(err)
					if len(rec.RevokedKeys) == 0 || rec.RevokedKeys[0] != run.RAMDiskKeyID {
						t.Errorf("got revoked keys %v, want the thief's %s", rec.RevokedKeys, run.RAMDiskKeyID)
					}
					if len(r.sessions.revoked) == 0 || !strings.Contains(r.sessions.revoked[0], rec.NodeID+" as ramdisk") {
						t.Errorf("got ended sessions %q, want the thief's", r.sessions.revoked)
					}
					if _, word := r.secret(thief, nil); word == "" {
						t.Error("got a join secret after the alarm, want none")
					}
					if secret == nil {
						return
					}
					_, err = r.joinProvisioned(r.agent(), secret, claims(uuid1, mac1))
					r.refused(err, "is void")
				})
			})
		}
	}
}

// A thief that went the whole way and joined as the node loses that too.
func TestStolenScriptTakesTheNodeToo(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		secret := r.started()
		n := r.agent()
		_, err := r.joinProvisioned(n, secret, claims(uuid1, mac1))
		r.must(err)
		_, err = r.joinDiscovery(r.agent(), r.assertion(nil), claims(uuid1, mac1))
		r.refused(err, "was consumed already")
		if err := r.control.Admit(t.Context(), n.peer, &agentv1.Hello{}); status.Code(err) != codes.Unauthenticated {
			t.Errorf("got %v for the node, want its certificate revoked", err)
		}
		if r.open() {
			t.Error("got the workflow open, want it failed")
		}
	})
}

// After the machine is active the second claimant is an alarm, and the machine keeps its identity.
func TestStolenScriptAfterTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		secret := r.started()
		n := r.agent()
		_, err := r.joinProvisioned(n, secret, claims(uuid1, mac1))
		r.must(err)
		r.connect(n)
		r.succeed(n, "inventory.refresh", &agentv1.InventoryRefreshResult{})
		_, err = r.joinDiscovery(r.agent(), r.assertion(nil), claims(uuid1, mac1))
		r.refused(err, "is over")
		if got := r.alarms("m1"); !strings.Contains(got, "two machines presented") {
			t.Errorf("got alarms %q, want the second claimant", got)
		}
		r.events("boot.script.refused")
		synctest.Wait()
		if m := r.show("m1"); m.State != fleet.MachineActive {
			t.Errorf("got %s, want active", m.State)
		}
		r.must(r.control.Admit(t.Context(), n.peer, &agentv1.Hello{}))
	})
}

// current is the step that m1's workflow is at.
func (r *rig) current() string {
	r.t.Helper()
	for _, s := range r.show("m1").Workflow.Steps {
		if !s.State.Ended() {
			return s.Name
		}
	}
	return ""
}
