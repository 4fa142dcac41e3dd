package executor_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// machine is a RAM disk's agent with one disk, and what that truly holds.
type machine struct {
	r *rig
	// read is how many of the sender's commands and cancels came in, or were lost with a session.
	read, stops int
	had         map[string]bool
	// hand is the command at work; answer what is still to be said, again and again until it is heard.
	hand   *agentv1.CommandBody
	answer *executor.Report
	truth  string
	wipes  int
}

// hear takes what the session brought.
func (m *machine) hear() {
	for ; m.read < len(m.r.sender.sent); m.read++ {
		c := m.r.sender.sent[m.read].body
		if c.Role != commonv1.AgentRole_AGENT_ROLE_RAMDISK || m.had[c.CommandId] {
			continue
		}
		m.had[c.CommandId], m.hand = true, c
		switch c.Kind {
		case "disk.wipe":
			m.truth, m.wipes = fleet.HoldsPartlyWiped, m.wipes+1
		case "deploy.image":
			if m.truth != fleet.HoldsClean {
				m.r.t.Errorf("a deploy came to a disk that holds %s", m.truth)
			}
			m.truth = fleet.HoldsPartlyWritten
		}
	}
	for ; m.stops < len(m.r.sender.cancels); m.stops++ {
		if id, _, _ := strings.Cut(m.r.sender.cancels[m.stops], " "); m.hand != nil && m.hand.CommandId == id {
			m.end(fleet.CommandCancelled, nil)
		}
	}
}

// end ends the command at work.
func (m *machine) end(state fleet.CommandState, result proto.Message) {
	rep := &executor.Report{CommandID: m.hand.CommandId, Node: m.r.rec.NodeID, Role: "ramdisk", State: state, Message: "stopped", Attested: true, AttestedKind: m.hand.Kind}
	if result != nil {
		rep.Message, rep.Result = "", marshal(m.r.t, result)
	}
	m.hand, m.answer = nil, rep
}

// finish does the work to its end.
func (m *machine) finish() {
	if m.hand == nil {
		return
	}
	switch m.hand.Kind {
	case "disk.wipe":
		m.truth = fleet.HoldsClean
		m.end(fleet.CommandSucceeded, wiped(serial))
	case "deploy.image":
		m.truth = fleet.HoldsImage("demo")
		m.end(fleet.CommandSucceeded, deployed(serial, manifest[:]))
	case "boot.kexec":
		m.end(fleet.CommandSucceeded, &agentv1.BootKexecResult{Entry: "firstlight.conf"})
	default:
		m.end(fleet.CommandSucceeded, &agentv1.DiagResult{Outcome: agentv1.DiagResult_OUTCOME_SKIPPED, Reason: "no GPU"})
	}
}

// say answers, if there is a session.
func (m *machine) say() {
	if m.answer == nil || !m.r.sender.up["ramdisk"] {
		return
	}
	_ = m.r.ex.Report(m.r.t.Context(), *m.answer)
	m.answer = nil
}

// judge holds the record against the truth.
func (m *machine) judge() (over bool) {
	m.r.t.Helper()
	x := m.r.show()
	if w := x.Waiting; x.Workflow.State.Open() && (w == nil || w.For == "" || w.Next == "" || w.Since.IsZero() || w.Until.IsZero() && x.State != fleet.MachinePaused) {
		m.r.t.Errorf("got %s waiting %+v, want what for, since, until, next", m.r.describe(), w)
	}
	if m.wipes > 1 {
		m.r.t.Errorf("got %d wipes of one workflow", m.wipes)
	}
	holds := x.DiskState[0].Holds
	better := holds == fleet.HoldsClean || holds == fleet.HoldsImage("demo") || holds == fleet.HoldsOldData
	if !x.Workflow.State.Open() && better && holds != m.truth {
		m.r.t.Errorf("got %s and a disk that holds %s, in truth %s", m.r.describe(), holds, m.truth)
	}
	return !x.Workflow.State.Open()
}

// Whatever order sessions, people, the clock and the appliance's own deaths come in: there is one wipe, no deploy before it, each wait
// says what for, and no record of a workflow that is over is better than the disk.
func TestAnyOrder(t *testing.T) {
	ends := map[fleet.MachineState]int{}
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				rnd := rand.New(rand.NewPCG(seed, 1))
				r.until("section " + executor.Sections()[len(executor.Sections())-1])
				m := &machine{r: r, had: map[string]bool{}, truth: fleet.HoldsOldData}
				r.post(executor.Section{Name: executor.Sections()[len(executor.Sections())-1]})
				cancelled := false
				for range 60 {
					m.act(rnd, &cancelled)
					if m.judge() {
						break
					}
				}
				pass(3 * time.Minute)
				m.hear()
				m.say()
				m.judge()
				ends[r.show().State]++
			})
		})
	}
	if len(ends) < 3 {
		t.Errorf("got the ends %v, want failed, cancelled and open ones at least", ends)
	}
}

// act does one thing at random.
func (m *machine) act(rnd *rand.Rand, cancelled *bool) {
	r := m.r
	switch n := rnd.IntN(20); {
	case n < 5:
		m.hear()
	case n < 8:
		m.finish()
	case n < 12:
		m.say()
	case n == 12 && r.sender.up["ramdisk"]:
		m.read, m.stops = len(r.sender.sent), len(r.sender.cancels) // lost with the session
		r.lose()
	case n <= 14 && !r.sender.up["ramdisk"]:
		r.connect("ramdisk")
	case n == 15:
		pass(time.Duration(rnd.IntN(90)) * time.Second)
	case n == 16:
		if _, err := r.ex.StopAll(r.t.Context(), "root", "smoke"); err != nil {
			r.t.Fatal(err)
		}
	case n == 17 || n == 13:
		if _, err := r.ex.ResumeAll(r.t.Context(), "root"); err != nil {
			r.t.Fatal(err)
		}
	case n == 18 && rnd.IntN(3) == 0:
		m.read, m.stops = len(r.sender.sent), len(r.sender.cancels)
		r.sender.up["ramdisk"] = false
		r.restart()
	case n == 19 && rnd.IntN(4) == 0 && !*cancelled:
		*cancelled = true
		r.cancel()
	}
	pass(time.Second)
}
