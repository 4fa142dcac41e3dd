package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"firstlight/testbed/scenario"
)

// boots are the stages in which firmware starts, or a kernel and what comes with it until our agent speaks. What our agent does in
// them cannot be told apart from outside and is with them: it is some seconds.
var boots = []string{"dhcp", "join", "node-join"}

// measureProvision is P14: one run of the scenario, whose report says how long each stage took.
func (b *bench) measureProvision(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "firstlight-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "provision.json")
	// A Ctrl-C reaches both; the scenario clears up by itself.
	cmd := exec.CommandContext(ctx, filepath.Join(b.Bin, "testbed"), "run", "provision", "--firmware", scenario.UEFI, "--json", path)
	cmd.Stderr = b.Out
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("testbed run provision: %w", err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var rep scenario.Report
	if err := json.Unmarshal(data, &rep); err != nil {
		return fmt.Errorf("read report: %w", err)
	}
	r, err := shareOf(rep)
	if err != nil {
		return err
	}
	b.add(r)
	return nil
}

// shareOf is P14's figure: ours over the whole.
func shareOf(rep scenario.Report) (Result, error) {
	var ours, whole float64
	var each []string
	for _, s := range rep.Stages {
		start, err := time.Parse(time.RFC3339, s.Start)
		if err != nil {
			return Result{}, fmt.Errorf("stage %s: %w", s.Name, err)
		}
		end, err := time.Parse(time.RFC3339, s.End)
		if err != nil {
			return Result{}, fmt.Errorf("stage %s: %w", s.Name, err)
		}
		took := end.Sub(start).Seconds()
		whole += took
		if !slices.Contains(boots, s.Name) {
			ours += took
		}
		each = append(each, fmt.Sprintf("%s %.1f", s.Name, took))
	}
	if rep.Outcome != scenario.OutcomeActive || whole <= 0 {
		return Result{}, fmt.Errorf("the machine ended %s", rep.Outcome)
	}
	share, limit := ours/whole, atMost(0.25)
	return Result{ID: "P14", What: fmt.Sprintf("one QEMU pass from power-on to active, the judge's pauses left out, in seconds: all but %s (firmware and kernels start) over the whole; %s; 1 round",
		strings.Join(boots, ", "), strings.Join(each, ", ")), Target: limit.String(), Ours: ours, Peer: &whole, Ratio: &share, Holds: limit.holds(share)}, nil
}
