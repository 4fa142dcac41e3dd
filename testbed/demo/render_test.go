package demo

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"firstlight/testbed/judge"
)

var update = flag.Bool("update", false, "write the golden files anew")

// at is a moment of the demo.
func at(s float64) time.Time {
	return time.Date(2026, 5, 4, 21, 0, 0, 0, time.UTC).Add(time.Duration(s * float64(time.Second)))
}

// provisioned is a machine after so many ended steps of five seconds each, the next one running since then; why is of the skipped ones.
func provisioned(name, disk string, ended int, why map[string]string) *machine {
	m := &machine{}
	m.Name, m.State, m.DiskSerials = name, "provisioning", []string{disk}
	m.Hardware = inventory("Firstlight", disk)
	m.Workflow = &judge.Workflow{ID: "wf-1", Image: "demo", State: "running"}
	for i, stage := range judge.Stages {
		s := judge.Step{Name: stage, State: "pending"}
		begin, end := at(20+5*float64(i)), at(25+5*float64(i))
		switch {
		case i < ended:
			s.State, s.Start, s.End = "done", &begin, &end
			if text, ok := why[stage]; ok {
				s.State, s.Why = "skipped", text
			}
		case i == ended:
			s.State, s.Start = "running", &begin
		}
		m.Workflow.Steps = append(m.Workflow.Steps, s)
	}
	if ended == len(judge.Stages) {
		m.State, m.Workflow.State = "active", "done"
	}
	return m
}

func inventory(maker, disk string) *judge.Hardware {
	h := &judge.Hardware{Manufacturer: maker, Product: "Testbed"}
	h.Disks = append(h.Disks, struct {
		Serial    string `json:"serial"`
		SizeBytes int64  `json:"size_bytes"`
	}{disk, 256 << 20})
	return h
}

// failed is a machine whose wipe was refused.
func failed(name string) *machine {
	m := provisioned(name, "B", 7, map[string]string{"tftp": "the card's own iPXE asked for the script"})
	s, end := m.Step("wipe"), at(60)
	s.State, s.End = "failed", &end
	m.State, m.Workflow.State = "failed", "failed"
	m.Failure = &judge.Failure{Step: "wipe", What: "Could not wipe its disks", Why: "no disk with serial B in this machine; this machine's disks: serial A (256 MiB, virtio, at PCI 0000:00:02.0, now called vda)",
		Next: "correct the machine's disk serials"}
	return m
}

func discovered(text string) *machine {
	m := &machine{Row: row{Since: at(150), Next: "give it a name: firstlight machine add NAME --from found-1"}}
	m.Name, m.State, m.Hardware = "found-1", "discovered", inventory(text, "C")
	return m
}

func says(m *machine, text string, left *int64) *machine {
	m.Row.Line, m.Row.LeftS = text, left
	var percent int
	if _, err := fmt.Sscanf(text, "Writing image demo, %d %%", &percent); err == nil {
		m.Row.Percent = &percent
	}
	return m
}

// last is how long the steps took in the last demo.
func last(who string) past {
	p := past{unknown + "/discovered": 50}
	for i, stage := range judge.Stages {
		p[who+"/"+stage] = float64(2 * i)
	}
	return p
}

func TestRender(t *testing.T) {
	t.Parallel()
	left := int64(40)
	skips := map[string]string{"diag": "skipped: no GPU"}
	for name, p := range map[string]picture{
		"nothing-yet": {now: at(20), machines: []seen{{who: first, goal: true}, {who: unknown, unknown: true}}},
		"progress": {now: at(58), past: last(first), machines: []seen{
			{who: first, goal: true, rec: says(provisioned(first, "A", 9, skips), "Writing image demo, 62 %, 40 s left", &left)}}},
		"progress-without-pace": {now: at(68), past: last(first), machines: []seen{
			{who: first, goal: true, rec: says(provisioned(first, "A", 9, skips), "Writing image demo, 3 %", nil)}}},
		"first-time": {now: at(58), machines: []seen{
			{who: first, goal: true, rec: says(provisioned(first, "A", 5, nil), "Waiting for the RAM disk to start and join, 13 s of 5 min", nil)}}},
		"as-last-time": {now: at(46), past: last(first), machines: []seen{
			{who: first, goal: true, rec: says(provisioned(first, "A", 5, nil), "Waiting for the RAM disk to start and join, 1 s of 5 min", nil)}}},
		"longer-than-last-time": {now: at(70), past: last(first), machines: []seen{
			{who: first, goal: true, rec: says(provisioned(first, "A", 5, nil), "Waiting for the RAM disk to start and join, 25 s of 5 min", nil)}}},
		"button": {now: at(120), past: last(first), machines: []seen{{who: unknown, unknown: true, since: at(110)}}},
		"whole-rack": {now: at(200), past: last(first), machines: []seen{
			{who: first, goal: true, rec: provisioned(first, "A", len(judge.Stages), skips)},
			{who: unknown, unknown: true, since: at(110), rec: discovered("Firstlight")},
			{who: wrong, rec: failed(wrong)}}},
		"not-inspected-yet": {now: at(160), past: last(first), machines: []seen{{who: unknown, unknown: true, since: at(110), rec: blank()}}},
		"hostile":           {now: at(200), machines: []seen{{who: unknown, unknown: true, rec: discovered("\x1b[2J\x1b]0;owned\a\u202e<b>evil</b>\r\n")}}},
		"paused":            {now: at(60), past: last(first), machines: []seen{{who: first, goal: true, rec: paused()}}},
	} {
		p.started = at(0)
		golden(t, name, p)
	}
}

func blank() *machine {
	m := discovered("")
	m.Hardware = nil
	return m
}

func paused() *machine {
	m := says(provisioned(first, "A", 8, nil), "Waiting for a person to resume it after wipe", nil)
	m.State = "paused"
	return m
}

func golden(t *testing.T, name string, p picture) {
	t.Helper()
	done, live := render(p)
	var b strings.Builder
	for _, part := range []struct {
		what  string
		lines []line
	}{{"over", done}, {"goes on", live}} {
		fmt.Fprintf(&b, "%s:\n", part.what)
		for _, l := range part.lines {
			fmt.Fprintln(&b, strings.Join(l.format(false, plainWidth), "\n"))
		}
	}
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, b.String(), want)
	}
}

// A step is said once, also when a machine is provisioned again.
func TestEveryStepIsSaidOnce(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	s := newScreen(&out, true)
	m := failed(wrong)
	for range 2 {
		done, _ := render(picture{started: at(0), now: at(100), machines: []seen{{who: wrong, rec: m}}})
		s.add(done...)
	}
	if n := strings.Count(out.String(), "Could not wipe its disks"); n != 1 {
		t.Errorf("the failure is said %d times:\n%s", n, out.String())
	}
	m.Workflow.ID = "wf-2"
	done, _ := render(picture{started: at(0), now: at(100), machines: []seen{{who: wrong, rec: m}}})
	s.add(done...)
	if n := strings.Count(out.String(), "Could not wipe its disks"); n != 2 {
		t.Errorf("the second workflow's failure is not said:\n%s", out.String())
	}
}

func TestPast(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "last.json")
	if p := readPast(path); len(p) != 0 {
		t.Errorf("got %v, want nothing known before the first demo", p)
	}
	p := past{"build": 3}
	p.learn(seen{who: first, rec: provisioned(first, "A", 2, nil)})
	p.learn(seen{who: unknown, since: at(110), rec: discovered("x")})
	if err := p.write(path); err != nil {
		t.Fatal(err)
	}
	p = readPast(path)
	for key, want := range map[string]float64{"build": 3, first + "/power-on": 5, first + "/dhcp": 5, unknown + "/discovered": 40} {
		if p[key] != want {
			t.Errorf("%s: got %v, want %v", key, p[key], want)
		}
	}
	if _, ok := p[first+"/tftp"]; ok {
		t.Error("a step that goes on is known")
	}
	for _, bad := range []string{"", "null", "[1]", `{"build":-1,"start":1e9}`} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if p := readPast(path); p == nil || len(p) != 0 {
			t.Errorf("%q: got %v, want nothing known", bad, p)
		}
	}
}
