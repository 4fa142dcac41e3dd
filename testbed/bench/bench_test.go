package bench

import (
	"bytes"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"firstlight/testbed/scenario"
)

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

// figures are results of every sort: a ratio that holds, one that does not, and a bound without a peer.
func figures() []Result {
	return []Result{
		against("P2", "offers/s over dnsmasq", atLeast(3), series{40, 30, 50}, series{10, 12, 9}),
		against("P2", "µs an offer | over dnsmasq", atMost(0.35), series{8, 9, 7}, series{10, 20, 10}),
		alone("page", "p99 in ms", atMostOf(20, "ms"), series{25, 12.34, 19}),
	}
}

func TestResultsAreWrittenForPeopleAndPrograms(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(*bytes.Buffer) error{
		"bench.json": func(b *bytes.Buffer) error { return WriteJSON(b, figures()) },
		"table.txt":  func(b *bytes.Buffer) error { return WriteTable(b, figures()) },
		"table.md":   func(b *bytes.Buffer) error { return WriteMarkdown(b, figures()) },
	} {
		var out bytes.Buffer
		if err := write(&out); err != nil {
			t.Fatal(err)
		}
		golden(t, name, out.Bytes())
	}
}

func TestJSONIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	var out, again bytes.Buffer
	if err := WriteJSON(&out, figures()); err != nil {
		t.Fatal(err)
	}
	first := out.String()
	got, err := ReadJSON(&out)
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteJSON(&again, got); err != nil || again.String() != first {
		t.Errorf("got %s, %v, want %s", again.String(), err, first)
	}
	if _, err := ReadJSON(strings.NewReader("none")); err == nil {
		t.Error("what is no list was read as one")
	}
	var empty bytes.Buffer
	if err := WriteJSON(&empty, nil); err != nil || empty.String() != "[]\n" {
		t.Errorf("no results: got %q, %v, want an empty list", empty.String(), err)
	}
}

func TestStatistics(t *testing.T) {
	t.Parallel()
	hundred := series{}
	for i := range 100 {
		hundred = append(hundred, float64(100-i))
	}
	for _, c := range []struct {
		what      string
		got, want float64
	}{
		{"median of three", series{9, 1, 5}.median(), 5},
		{"median of four", series{9, 1, 5, 7}.median(), 6},
		{"median of one", series{4}.median(), 4},
		{"p99 of a hundred", hundred.quantile(0.99), 99},
		{"p50 of a hundred", hundred.quantile(0.5), 50},
		{"p99 of three", series{3, 1, 2}.quantile(0.99), 3},
		{"p0", hundred.quantile(0), 1},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %v, want %v", c.what, c.got, c.want)
		}
	}
	if !math.IsNaN(series{}.median()) || !math.IsNaN(series{}.quantile(0.5)) {
		t.Error("a series without figures has a median")
	}
	if low, high := (series{4, 9}).ratios(series{2, 3}); low != 2 || high != 3 {
		t.Errorf("ratios: got %v to %v, want 2 to 3", low, high)
	}
	s := series{3, 1, 2}
	if s.median(); !slices.Equal(s, series{3, 1, 2}) {
		t.Errorf("the median changed its series: %v", s)
	}
}

// A figure that is none meets no target.
func TestBoundsHoldForFiguresOnly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		b    bound
		v    float64
		want bool
	}{
		{atLeast(1), 1, true}, {atLeast(1), 0.999, false}, {atMost(1.3), 1.3, true}, {atMost(1.3), 1.31, false},
		{atLeast(1), math.NaN(), false}, {atMost(1), math.NaN(), false},
	} {
		if got := c.b.holds(c.v); got != c.want {
			t.Errorf("%v for %v: got %v, want %v", c.b, c.v, got, c.want)
		}
	}
}

func TestShareOfAProvisioning(t *testing.T) {
	t.Parallel()
	stage := func(name, start, end string) scenario.Stage {
		return scenario.Stage{Name: name, Start: "2026-12-01T04:" + start + "Z", End: "2026-12-01T04:" + end + "Z", State: "done"}
	}
	rep := scenario.Report{Outcome: scenario.OutcomeActive, Stages: []scenario.Stage{
		stage("power-on", "00:00.000", "00:01.000"), stage("dhcp", "00:01.000", "00:11.000"), stage("wipe", "00:20.000", "00:24.000"),
		stage("node-join", "00:30.000", "00:55.000")}}
	r, err := shareOf(rep)
	if err != nil {
		t.Fatal(err)
	}
	// The pauses between stages are in neither.
	if r.Ours != 5 || *r.Peer != 40 || *r.Ratio != 0.125 || !r.Holds || !strings.Contains(r.What, "power-on 1.0, dhcp 10.0, wipe 4.0, node-join 25.0") {
		t.Errorf("got %+v of %v, ratio %v, want 5 of 40", r, *r.Peer, *r.Ratio)
	}
	rep.Outcome = scenario.OutcomeFailed
	if _, err := shareOf(rep); err == nil {
		t.Error("a machine that failed has a figure")
	}
	rep.Outcome, rep.Stages[0].End = scenario.OutcomeActive, ""
	if _, err := shareOf(rep); err == nil {
		t.Error("a stage without an end has a figure")
	}
	if _, err := shareOf(scenario.Report{Outcome: scenario.OutcomeActive}); err == nil {
		t.Error("no stages have a figure")
	}
}

func TestMetricsOfGoBenchmarks(t *testing.T) {
	t.Parallel()
	const said = `goos: linux
cpu: Intel
BenchmarkList10k-2   	     400	  10786228 ns/op	         3.010 p50-ms	        99.60 p99-ms
BenchmarkList10kOther-2	     400	  1 ns/op	         7 p99-ms
BenchmarkList10k-2   	     400	   5294332 ns/op	         2.248 p50-ms	        37.04 p99-ms
PASS
`
	got, err := metrics(strings.NewReader(said), "BenchmarkList10k")
	if err != nil || !slices.Equal(got["p99-ms"], series{99.60, 37.04}) || !slices.Equal(got["p50-ms"], series{3.010, 2.248}) {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := metrics(strings.NewReader("BenchmarkList10k-2 400 many ns/op\n"), "BenchmarkList10k"); err == nil {
		t.Error("a figure that is none was read")
	}
}

func TestFamilyIsAProcessAndItsDescendants(t *testing.T) {
	t.Parallel()
	got := family(10, map[int]int{10: 1, 11: 10, 12: 11, 13: 1, 14: 13})
	slices.Sort(got)
	if !slices.Equal(got, []int{10, 11, 12}) {
		t.Errorf("got %v, want 10, 11, 12", got)
	}
	all, err := parents("/proc")
	if err != nil || all[os.Getpid()] != os.Getppid() {
		t.Errorf("parent of this process: got %d, %v, want %d", all[os.Getpid()], err, os.Getppid())
	}
}

func TestRunRefusesWhatIsNoTarget(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{Only: []string{"P99"}}, {Rounds: 2}} {
		if _, err := Run(t.Context(), o); !errors.Is(err, ErrUsage) {
			t.Errorf("%+v: got %v, want a word on its use", o, err)
		}
	}
}
