package diag

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"
)

// Status of one test on one GPU.
type Status string

// Statuses. Anything that the tool says beside these is NotRun, never Pass.
const (
	Pass   Status = "pass"
	Warn   Status = "warn"
	Fail   Status = "fail"
	Skip   Status = "skip"
	NotRun Status = "not run"
)

// Test is one test's status on one GPU.
type Test struct {
	Category, Name string
	// GPU is the tool's number of it; empty when the test is about the machine.
	GPU      string
	Status   Status
	Messages []string
}

// Report is what a dcgmi run says, in one form for every version.
type Report struct {
	Version string
	Tests   []Test
	// RuntimeError is the tool's own failure; empty when it ran.
	RuntimeError string
}

// ErrFormat: the output is no report that is understood. It is never a pass.
var ErrFormat = errors.New("not a DCGM report")

// Bounds of a report.
const (
	MaxReport  = 4 << 20
	maxTests   = 1 << 14
	maxMessage = 500
	maxSaid    = 20
)

// ParseDCGM reads the output of "dcgmi diag -j" of DCGM 2, 3 and 4 (GPU-01). Text before the first brace is passed over.
func ParseDCGM(out []byte) (*Report, error) {
	if len(out) > MaxReport {
		return nil, fmt.Errorf("%w: %d bytes, want at most %d", ErrFormat, len(out), MaxReport)
	}
	start := bytes.IndexByte(out, '{')
	if start < 0 {
		return nil, fmt.Errorf("%w: no JSON in it", ErrFormat)
	}
	var root map[string]json.RawMessage
	if err := json.NewDecoder(bytes.NewReader(out[start:])).Decode(&root); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	body, ok := root["DCGM Diagnostic"]
	if !ok {
		if body, ok = root["DCGM GPU Diagnostic"]; !ok {
			return nil, fmt.Errorf("%w: unknown root", ErrFormat)
		}
	}
	var d struct {
		Version      string `json:"version"`
		RuntimeError any    `json:"runtime_error"`
		Categories   []struct {
			Category string  `json:"category"`
			Tests    []*test `json:"tests"`
		} `json:"test_categories"`
	}
	if err := json.Unmarshal(body, &d); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	r := &Report{Version: d.Version}
	if d.RuntimeError != nil {
		r.RuntimeError = short(fmt.Sprint(d.RuntimeError))
	}
	if m, ok := root["metadata"]; ok && r.Version == "" {
		var meta struct {
			Version string `json:"version"`
		}
		if json.Unmarshal(m, &meta) == nil {
			r.Version = meta.Version
		}
	}
	for _, c := range d.Categories {
		for _, t := range c.Tests {
			if t == nil {
				continue
			}
			r.Tests = append(r.Tests, t.each(c.Category)...)
			if len(r.Tests) > maxTests {
				return nil, fmt.Errorf("%w: more than %d results", ErrFormat, maxTests)
			}
		}
	}
	if len(r.Tests) == 0 && r.RuntimeError == "" {
		return nil, fmt.Errorf("%w: no test in it", ErrFormat)
	}
	return r, nil
}

type test struct {
	Name    string   `json:"name"`
	Results []result `json:"results"`
	Summary *result  `json:"test_summary"`
}

type result struct {
	GPUs        any    `json:"gpu_ids"`
	GPU         any    `json:"gpu_id"`
	EntityGroup string `json:"entity_group"`
	EntityID    any    `json:"entity_id"`
	Status      string `json:"status"`
	Warnings    any    `json:"warnings"`
}

// each gives one Test per GPU. A summary counts only where no result is: it says the same once more.
func (t *test) each(category string) []Test {
	results := t.Results
	if len(results) == 0 && t.Summary != nil {
		results = []result{*t.Summary}
	}
	var out []Test
	for _, r := range results {
		for _, gpu := range r.gpus() {
			out = append(out, Test{Category: category, Name: t.Name, GPU: gpu, Status: status(r.Status), Messages: messages(r.Warnings)})
		}
	}
	if len(results) == 0 {
		out = append(out, Test{Category: category, Name: t.Name, Status: NotRun})
	}
	return out
}

func (r result) gpus() []string {
	for _, v := range []any{r.GPUs, r.GPU, r.EntityID} {
		switch x := v.(type) {
		case string:
			if x != "" {
				var ids []string
				for _, id := range strings.Split(x, ",") {
					if ids = append(ids, short(strings.TrimSpace(id))); len(ids) == 64 {
						break
					}
				}
				return ids
			}
		case float64:
			return []string{fmt.Sprint(x)}
		}
	}
	return []string{""}
}

func status(s string) Status {
	switch strings.ToLower(strings.TrimSpace(s)) {
	case "pass", "passed":
		return Pass
	case "warn", "warning":
		return Warn
	case "fail", "failed":
		return Fail
	case "skip", "skipped":
		return Skip
	}
	return NotRun
}

func messages(v any) []string {
	var out []string
	switch x := v.(type) {
	case string:
		out = append(out, short(x))
	case []any:
		for _, w := range x {
			switch y := w.(type) {
			case string:
				out = append(out, short(y))
			case map[string]any:
				if s, ok := y["warning"].(string); ok {
					out = append(out, short(s))
				}
			}
			if len(out) == maxSaid {
				break
			}
		}
	}
	return out
}

func short(s string) string {
	if len(s) > maxMessage {
		return strings.ToValidUTF8(s[:maxMessage], "")
	}
	return s
}

// Judge gives the verdict: any failure fails; anything skipped or not run is inconclusive and never passes (GPU-02); warnings pass.
func (r *Report) Judge() (Outcome, string) {
	if r.RuntimeError != "" {
		return Failed, "dcgmi could not run its tests: " + r.RuntimeError
	}
	by := map[Status][]string{}
	for _, t := range r.Tests {
		name := t.Name
		if t.GPU != "" {
			name += " on GPU " + t.GPU
		}
		if t.Status == Fail && len(t.Messages) > 0 {
			name += " (" + t.Messages[0] + ")"
		}
		by[t.Status] = append(by[t.Status], name)
	}
	open := append(by[Skip], by[NotRun]...)
	switch {
	case len(by[Fail]) > 0:
		return Failed, fmt.Sprintf("%d tests failed: %s", len(by[Fail]), some(by[Fail]))
	case len(by[Pass])+len(by[Warn]) == 0:
		return Skipped, "every test was skipped: nothing was tested"
	case len(open) > 0:
		return Skipped, fmt.Sprintf("inconclusive: %d tests were skipped: %s", len(open), some(open))
	case len(by[Warn]) > 0:
		return Passed, fmt.Sprintf("passed with %d warnings: %s", len(by[Warn]), some(by[Warn]))
	}
	return Passed, fmt.Sprintf("%d tests passed", len(by[Pass]))
}

func some(names []string) string {
	sort.Strings(names)
	if len(names) > maxSaid {
		names = append(names[:maxSaid:maxSaid], "…")
	}
	return strings.Join(names, ", ")
}
