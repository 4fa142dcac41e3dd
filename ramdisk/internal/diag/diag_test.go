package diag

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"testing"
)

const (
	dcgm2 = `{"DCGM GPU Diagnostic":{"version":"1.7","test_categories":[{"category":"Deployment","tests":[{"name":"Denylist","results":[{"gpu_ids":"0,1","status":"PASS"}]},null]}]}}`
	dcgm3 = "Successfully ran diagnostic\n" + `{"DCGM GPU Diagnostic":{"version":"3.1.0","test_categories":[{"category":"Hardware","tests":[{"name":"PCIe","results":[
		{"gpu_id":"0","status":"Pass","warnings":[{"error_id":1,"warning":"slow"}]},{"gpu_id":"1","status":"Fail","warnings":"link down"},{"gpu_ids":2,"status":"pass"}]}]}]}}`
	dcgm4 = `{"DCGM Diagnostic":{"test_categories":[{"category":"Hardware","tests":[{"name":"memory","results":[{"entity_group":"GPU","entity_id":0,"status":"Fail",
		"warnings":[{"warning":"row remap pending","error_id":95,"error_category":10,"error_severity":2}]}],"test_summary":{"status":"Fail"}}]}]},"entity_groups":[],"metadata":{"version":"4.1.0"}}`
)

func TestGPU01_ThreeShapes(t *testing.T) {
	for name, c := range map[string]struct {
		in, version string
		tests       int
		outcome     Outcome
		says        string
	}{
		"2.x": {dcgm2, "1.7", 2, Passed, "2 tests"},
		"3.x": {dcgm3, "3.1.0", 3, Failed, "PCIe on GPU 1 (link down)"},
		"4.x": {dcgm4, "4.1.0", 1, Failed, "memory on GPU 0 (row remap pending)"},
	} {
		r, err := ParseDCGM([]byte(c.in))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		outcome, reason := r.Judge()
		if r.Version != c.version || len(r.Tests) != c.tests || outcome != c.outcome || !strings.Contains(reason, c.says) {
			t.Errorf("%s: got version %s, %d tests, %s: %s", name, r.Version, len(r.Tests), outcome, reason)
		}
	}
	for _, bad := range []string{"", "no json", `{"something":{}}`, `{"DCGM Diagnostic":{"test_categories":[]}}`, `{"DCGM Diagnostic":[]}`} {
		if r, err := ParseDCGM([]byte(bad)); !errors.Is(err, ErrFormat) {
			t.Errorf("%q: got %+v, %v, want ErrFormat", bad, r, err)
		}
	}
}

func results(statuses ...string) string {
	var rs []string
	for _, s := range statuses {
		rs = append(rs, `{"name":"t","results":[{"gpu_id":"0","status":"`+s+`"}]}`)
	}
	return `{"DCGM Diagnostic":{"test_categories":[{"category":"c","tests":[` + strings.Join(rs, ",") + `]}]}}`
}

func TestGPU02_AllSkippedIsNotPassed(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Outcome
		says string
	}{
		{results("Skip", "Skip"), Skipped, "nothing was tested"},
		{results("Pass", "Pass", "Pass", "Skip", "SKIPPED"), Skipped, "inconclusive: 2"},
		{results("Pass", "odd new word"), Skipped, "inconclusive"},
		{results("Pass", "Warn"), Passed, "1 warnings"},
		{results("PASS", "pass"), Passed, "2 tests"},
		{`{"DCGM Diagnostic":{"runtime_error":"host engine is not running"}}`, Failed, "host engine"},
	} {
		r, err := ParseDCGM([]byte(c.in))
		if err != nil {
			t.Fatal(err)
		}
		if got, reason := r.Judge(); got != c.want || !strings.Contains(reason, c.says) {
			t.Errorf("%s: got %s: %s, want %s: %s", c.in, got, reason, c.want, c.says)
		}
	}
}

// programs answers for every program.
type programs struct {
	out string
	err error
}

func (p programs) Run(context.Context, string, ...string) ([]byte, error) {
	return []byte(p.out), p.err
}

func TestGPU06_OnlyNoGPUIsSkipped(t *testing.T) {
	two := `{"state":"ok","count":2,"gpus":[{"index":0,"name":"H200","uuid":"GPU-1"},{"index":1,"name":"H200","uuid":"GPU-2","ecc":{"enabled":true,"uncorrectable":0}}]}`
	for name, c := range map[string]struct {
		pci  int
		p    programs
		want Outcome
		says string
	}{
		"no GPU at all":    {0, programs{err: errors.New("not asked")}, Skipped, NoGPU},
		"no gpu-probe":     {2, programs{err: exec.ErrNotFound}, Failed, "no gpu-probe"},
		"probe crashes":    {2, programs{err: errors.New("signal: segmentation fault")}, Failed, "segmentation"},
		"probe babbles":    {2, programs{out: "?"}, Failed, "no report"},
		"no library":       {2, programs{out: `{"state":"no-library","error":"libnvidia-ml.so.1"}`}, Failed, "no-library"},
		"one is missing":   {3, programs{out: two}, Failed, "NVML counts 2"},
		"all there":        {2, programs{out: two}, Passed, "2 GPUs"},
		"memory is broken": {2, programs{out: strings.Replace(two, `"uncorrectable":0`, `"uncorrectable":3`, 1)}, Failed, "GPU-2"},
		"one is mute":      {2, programs{out: strings.Replace(two, `"uuid":"GPU-1"`, `"error":"GPU is lost"`, 1)}, Failed, "GPU is lost"},
	} {
		if r := NVML(context.Background(), c.p, c.pci); r.Outcome != c.want || !strings.Contains(r.Reason, c.says) {
			t.Errorf("%s: got %s: %s, want %s: %s", name, r.Outcome, r.Reason, c.want, c.says)
		}
	}
}

func TestDCGM(t *testing.T) {
	ctx := context.Background()
	if r, err := DCGM(ctx, programs{}, 0, 1); err != nil || r.Outcome != Skipped || r.Reason != NoGPU {
		t.Errorf("no GPU: got %+v, %v", r, err)
	}
	if _, err := DCGM(ctx, programs{}, 1, 5); err == nil {
		t.Error("level 5 was taken")
	}
	if r, _ := DCGM(ctx, programs{err: exec.ErrNotFound}, 1, 1); r.Outcome != Failed {
		t.Errorf("no dcgmi: got %+v, want failed", r)
	}
	if r, _ := DCGM(ctx, programs{out: dcgm2, err: errors.New("exit status 226")}, 2, 1); r.Outcome != Passed || len(r.Details) == 0 {
		t.Errorf("a harmless exit status: got %+v, want passed", r)
	}
	if r, _ := DCGM(ctx, programs{out: "", err: errors.New("exit status 1")}, 2, 1); r.Outcome != Failed {
		t.Errorf("no report: got %+v, want failed", r)
	}
}

func TestExec(t *testing.T) {
	if _, err := (Exec{}).Run(context.Background(), "no-such-program-here"); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("got %v, want exec.ErrNotFound", err)
	}
	out, err := (Exec{}).Run(context.Background(), "sh", "-c", "echo out; echo why >&2; exit 3")
	if string(out) != "out\n" || err == nil || !strings.Contains(err.Error(), "why") {
		t.Errorf("got %q, %v", out, err)
	}
}

// printing is a Programs whose every program prints this.
type printing []byte

func (p printing) Run(context.Context, string, ...string) ([]byte, error) { return p, nil }

// FuzzNVML: whatever the probe prints, two GPUs pass only when two are counted, answer and have no uncorrectable errors.
func FuzzNVML(f *testing.F) {
	for _, s := range []string{`{"state":"ok","count":2,"gpus":[{"index":0,"uuid":"GPU-a"},{"index":1,"uuid":"GPU-b","ecc":{"enabled":true,"uncorrectable":0}}]}`,
		`{"state":"ok","count":2,"gpus":[{"uuid":"GPU-a","ecc":{"uncorrectable":1}},{"uuid":"GPU-b"}]}`, `{"state":"no library","error":"libnvidia-ml.so.1"}`, `[]`, `{"count":-1}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NVML(context.Background(), printing(b), 2)
		var p Probe
		if r.Outcome == Passed && (json.Unmarshal(b, &p) != nil || p.Count != 2 || len(p.GPUs) != 2 || p.State != "ok" || p.GPUs[0].UUID == "" || p.GPUs[1].Error != "") {
			t.Fatalf("passed with %q", b)
		}
	})
}

func FuzzDCGM(f *testing.F) {
	for _, s := range []string{dcgm2, dcgm3, dcgm4, results("Skip"), `{"DCGM Diagnostic":{"test_categories":null,"runtime_error":7}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseDCGM(b)
		if err != nil {
			return
		}
		if outcome, _ := r.Judge(); outcome == Passed {
			for _, x := range r.Tests {
				if x.Status != Pass && x.Status != Warn {
					t.Fatalf("passed with %+v", x)
				}
			}
		}
	})
}
