// Package diag tests the machine's GPUs: it runs gpu-probe (NVML) and dcgmi as programs and judges what they print.
//
// It is for ramdisk's diag.nvml and diag.dcgm, in both roles. It links no GPU library: those are loaded at run time by programs that
// may be missing or crash, and neither may hurt the agent. Only a machine without a GPU is skipped; a GPU that cannot be tested is a
// failure with its reason, and nothing that was not tested ever counts as passed.
package diag

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"time"
)

// Outcome of a diagnostic.
type Outcome string

// Outcomes. Skipped means that nothing, or not everything, was tested.
const (
	Passed  Outcome = "passed"
	Failed  Outcome = "failed"
	Skipped Outcome = "skipped"
)

// NoGPU is the reason of a machine without one.
const NoGPU = "no GPU"

// Bounds.
const (
	// ProbeTimeout bounds gpu-probe.
	ProbeTimeout = 2 * time.Minute
	// DCGMTimeout bounds dcgmi, whose level 4 runs for hours.
	DCGMTimeout = 4 * time.Hour
	// MaxDetails bounds what a result carries of a program's output.
	MaxDetails = 256 << 10
)

// Result is a verdict with what it stands on.
type Result struct {
	Outcome Outcome
	Reason  string
	// Details is the program's JSON, cut to MaxDetails; nil when there is none that fits.
	Details []byte
}

// Programs runs a program and returns what it printed. A program that is not there is exec.ErrNotFound; one that ended badly is
// another error beside its output.
type Programs interface {
	Run(ctx context.Context, name string, args ...string) (stdout []byte, err error)
}

// Probe is what gpu-probe prints.
type Probe struct {
	// Error is set when NVML could not be used; State says how: "no-library", "no-driver", "error".
	State  string `json:"state"`
	Error  string `json:"error,omitempty"`
	Driver string `json:"driver,omitempty"`
	Count  int    `json:"count"`
	GPUs   []GPU  `json:"gpus"`
}

// GPU is one GPU in Probe.
type GPU struct {
	Index int    `json:"index"`
	Name  string `json:"name"`
	UUID  string `json:"uuid"`
	Error string `json:"error,omitempty"`
	// ECC is nil where the GPU has none.
	ECC *ECC `json:"ecc,omitempty"`
}

// ECC are a GPU's memory error counts since its driver was loaded.
type ECC struct {
	Enabled       bool    `json:"enabled"`
	Corrected     *uint64 `json:"corrected,omitempty"`
	Uncorrectable *uint64 `json:"uncorrectable,omitempty"`
}

// NVML runs gpu-probe and holds its count against pci, the number of GPUs on the PCI bus.
func NVML(ctx context.Context, p Programs, pci int) Result {
	if pci == 0 {
		return Result{Outcome: Skipped, Reason: NoGPU}
	}
	ctx, cancel := context.WithTimeout(ctx, ProbeTimeout)
	defer cancel()
	out, err := p.Run(ctx, "gpu-probe")
	if errors.Is(err, exec.ErrNotFound) {
		return Result{Outcome: Failed, Reason: fmt.Sprintf("%d GPUs on the PCI bus, and no gpu-probe in this system to test them", pci)}
	}
	if err != nil {
		return Result{Outcome: Failed, Reason: fmt.Sprintf("gpu-probe ended badly: %v", err), Details: details(out)}
	}
	var probe Probe
	if err := json.Unmarshal(out, &probe); err != nil {
		return Result{Outcome: Failed, Reason: "gpu-probe printed no report: " + err.Error()}
	}
	r := Result{Outcome: Passed, Reason: fmt.Sprintf("%d GPUs answer", probe.Count), Details: details(out)}
	fail := func(format string, a ...any) Result {
		r.Outcome, r.Reason = Failed, fmt.Sprintf(format, a...)
		return r
	}
	if probe.State != "ok" {
		return fail("%d GPUs on the PCI bus, NVML is not usable (%s): %s", pci, probe.State, probe.Error)
	}
	if probe.Count != pci || len(probe.GPUs) != pci {
		return fail("%d GPUs on the PCI bus, NVML counts %d and shows %d", pci, probe.Count, len(probe.GPUs))
	}
	for _, g := range probe.GPUs {
		if g.Error != "" || g.UUID == "" {
			return fail("GPU %d (%s) does not answer: %s", g.Index, g.UUID, g.Error)
		}
		if g.ECC != nil && g.ECC.Uncorrectable != nil && *g.ECC.Uncorrectable > 0 {
			return fail("GPU %s has %d uncorrectable memory errors", g.UUID, *g.ECC.Uncorrectable)
		}
	}
	return r
}

// DCGM runs dcgmi's diagnostic at a level from 1 to 4.
func DCGM(ctx context.Context, p Programs, pci int, level int) (Result, error) {
	if level < 1 || level > 4 {
		return Result{}, fmt.Errorf("dcgmi level %d: want 1 to 4", level)
	}
	if pci == 0 {
		return Result{Outcome: Skipped, Reason: NoGPU}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, DCGMTimeout)
	defer cancel()
	out, err := p.Run(ctx, "dcgmi", "diag", "-r", strconv.Itoa(level), "-j")
	if errors.Is(err, exec.ErrNotFound) {
		return Result{Outcome: Failed, Reason: fmt.Sprintf("%d GPUs on the PCI bus, and no dcgmi in this system to test them", pci)}, nil
	}
	report, parseErr := ParseDCGM(out)
	if parseErr != nil {
		// The exit status says little (it is not zero for harmless settings too); without a report there is no verdict.
		return Result{Outcome: Failed, Reason: fmt.Sprintf("dcgmi gave no report: %v", errors.Join(parseErr, err))}, nil
	}
	r := Result{Details: details(out)}
	r.Outcome, r.Reason = report.Judge()
	return r, nil
}

// details keeps JSON that fits.
func details(out []byte) []byte {
	if i := bytes.IndexByte(out, '{'); i >= 0 && len(out)-i <= MaxDetails && json.Valid(out[i:]) {
		return out[i:]
	}
	return nil
}

// Exec runs programs of the system.
type Exec struct{}

// maxOutput bounds what a program may print.
const maxOutput = MaxReport

// Run runs a program without a shell and without standard input.
func (Exec) Run(ctx context.Context, name string, args ...string) ([]byte, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return nil, err
	}
	var out, complaint limited
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdout, cmd.Stderr = &out, &complaint
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Run()
	if err != nil && complaint.Len() > 0 {
		err = fmt.Errorf("%w: %s", err, short(complaint.String()))
	}
	return out.Bytes(), err
}

// limited keeps the first maxOutput bytes.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if room := maxOutput - l.Len(); room > 0 {
		l.Buffer.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}
