package scenario_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"

	"firstlight/testbed/scenario"
)

// env says which scenarios the tests run: "core", "all", or nothing. make test and make test-all set it.
const env = "FIRSTLIGHT_SCENARIOS"

// guests is how many virtual machines run at a time.
const guests = 2

// runLimit bounds any run from outside, beyond each run's own bound.
func runLimit() time.Duration {
	most := scenario.DefaultTimeout
	for _, s := range scenario.All() {
		most = max(most, s.Limit())
	}
	return most + 2*time.Minute
}

// TestScenarios runs bin/testbed as a person would, and believes its exit code and its report only together.
func TestScenarios(t *testing.T) {
	set := os.Getenv(env)
	if set != "core" && set != "all" {
		t.Skipf("%s is not core or all: the scenarios take minutes and run by make test and make test-all", env)
	}
	if testing.Short() {
		t.Skip("scenarios take minutes")
	}
	if os.Geteuid() != 0 {
		t.Skip("network namespaces and taps need root")
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Skip("no qemu-system-x86_64 here: make setup installs it")
	}
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(bin, "testbed")); err != nil {
		t.Skipf("%v: make build makes it", err)
	}
	out := filepath.Join(bin, "scenarios")
	if err := os.MkdirAll(out, 0o755); err != nil {
		t.Fatal(err)
	}
	// Two guests with one CPU each are what two cores carry.
	cores := semaphore.NewWeighted(guests)
	for _, s := range scenario.All() {
		if set == "core" && !s.Core {
			continue
		}
		run := func(name string, f func(t *testing.T)) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				n := int64(max(s.Guests(), 1))
				if err := cores.Acquire(t.Context(), n); err != nil {
					t.Fatal(err)
				}
				defer cores.Release(n)
				f(t)
			})
		}
		run(s.Name, func(t *testing.T) { passes(t, bin, out, s.Name, s.Name, s.Firmware[0], s.Want()) })
		if set == "all" {
			for _, firmware := range s.Firmware[1:] {
				run(s.Name+"-"+firmware, func(t *testing.T) { passes(t, bin, out, s.Name+"-"+firmware, s.Name, firmware, s.Want()) })
			}
		}
		breaks := s.CoreBreaks
		if set == "all" {
			breaks = s.Breaks
		}
		for _, b := range breaks {
			run(s.Name+"-break-"+b, func(t *testing.T) { breaksAsSaid(t, bin, out, s.Name, b) })
		}
		if set != "all" {
			continue
		}
		for _, stage := range s.HoldAfter {
			run(s.Name+"-hold-"+stage, func(t *testing.T) { holds(t, bin, out, s.Name, stage) })
		}
	}
}

// launch runs bin/testbed and returns its report and exit code.
func launch(t *testing.T, bin, out, name string, args ...string) (scenario.Report, int) {
	t.Helper()
	report := filepath.Join(out, name+".json")
	if err := os.Remove(report); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), runLimit())
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "testbed"), append(args, "--json", report)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	said, err := cmd.CombinedOutput()
	t.Logf("testbed %v:\n%s", args, said)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	b, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var rep scenario.Report
	if err := json.Unmarshal(b, &rep); err != nil {
		t.Fatal(err)
	}
	return rep, cmd.ProcessState.ExitCode()
}

func passes(t *testing.T, bin, out, report, name, firmware, want string) {
	rep, code := launch(t, bin, out, report, "run", name, "--firmware", firmware)
	if code != 0 || rep.Outcome != want || len(rep.Errors) > 0 {
		t.Errorf("exit code %d, outcome %s, errors %q; want 0, %s and none", code, rep.Outcome, rep.Errors, want)
	}
	for _, s := range rep.Stages {
		if want == scenario.OutcomeActive && s.State == "failed" {
			t.Errorf("stage %s failed: %s", s.Name, s.Why)
		}
	}
	allHold(t, rep)
}

func holds(t *testing.T, bin, out, name, stage string) {
	rep, code := launch(t, bin, out, name+"-hold-"+stage, "run", name, "--hold-after", stage)
	if want := "held-after-" + stage; code != 0 || rep.Outcome != want {
		t.Errorf("exit code %d, outcome %s, errors %q; want 0 and %s", code, rep.Outcome, rep.Errors, want)
	}
	allHold(t, rep)
}

func breaksAsSaid(t *testing.T, bin, out, name, kind string) {
	rep, code := launch(t, bin, out, name+"-break-"+kind, "run", name, "--break", kind)
	if code != 1 || len(rep.Errors) == 0 || rep.Outcome == scenario.OutcomeActive {
		t.Errorf("exit code %d, outcome %s, errors %q; want 1, a failure and its cause", code, rep.Outcome, rep.Errors)
	}
	allHold(t, rep)
}

func allHold(t *testing.T, rep scenario.Report) {
	t.Helper()
	if len(rep.Checks) == 0 {
		t.Error("nothing was checked")
	}
	for _, c := range rep.Checks {
		if !c.OK {
			t.Errorf("check %s: %s", c.Name, c.Detail)
		}
	}
}
