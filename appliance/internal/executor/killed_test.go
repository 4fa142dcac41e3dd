package executor_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
)

// maxWrites bounds the writes of one whole way, so that a test that never ends is noticed.
const maxWrites = 400

// Killed at any write to the store, before it is made or once it is durable, and started again: the machine becomes active, agents
// and people repeat what was not answered, and no step gets a second, different command.
func TestKilledAtEveryWrite(t *testing.T) {
	n := 0
	for _, before := range []bool{true, false} {
		for at := 1; ; at++ {
			if at > maxWrites {
				t.Fatalf("got more than %d writes", maxWrites)
			}
			killed := false
			t.Run(fmt.Sprintf("%d before %t", at, before), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := idleRig(t)
					r.fate = &fate{Store: r.store, at: at, before: before}
					r.sender.fate = r.fate
					r.start()
					defer func() { r.stop() }()
					killed = r.survive(func() { r.provisionAgain() })
					for _, m := range moves() {
						killed = r.survive(func() { m.do(r) }) || killed
					}
					wantHappyEnd(t, r)
					r.wantDisk(fleet.HoldsImage("demo"), "read back")
				})
			})
			if !killed {
				n += at
				break
			}
		}
	}
	if n < 60 {
		t.Errorf("got %d writes in both ways, want a whole provisioning", n)
	}
}

// survive does something, and when the appliance was killed over it, starts it again and repeats that.
func (r *rig) survive(do func()) bool {
	r.t.Helper()
	do()
	synctest.Wait()
	if !r.fate.killed() {
		return false
	}
	r.stop()
	r.fate.mu.Lock()
	r.fate.dead = false
	r.fate.mu.Unlock()
	r.start()
	if r.show().State != fleet.MachineActive {
		do()
		synctest.Wait()
	}
	return true
}

// provisionAgain is a person who orders until it is ordered.
func (r *rig) provisionAgain() {
	r.t.Helper()
	wf, err := r.ex.Provision(r.t.Context(), r.order())
	switch {
	case err == nil:
		r.wf = wf
	case errors.Is(err, executor.ErrBusy):
		rec, err := r.repo.Machine(r.t.Context(), "m1")
		if err != nil {
			r.t.Fatal(err)
		}
		r.wf = rec.Workflow
	case !r.fate.killed():
		r.t.Fatal(err)
	}
}
