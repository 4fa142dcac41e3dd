package telemetry

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
)

var (
	metricWord   = regexp.MustCompile(`\b(?:firstlight|go|process)_[a-z0-9_]+`)
	selectorWord = regexp.MustCompile(`([a-z_]+)\{([^}]*)\}`)
	matcherWord  = regexp.MustCompile(`([a-z_]+)(?:=~|!~|!=|=)"`)
	byWord       = regexp.MustCompile(`by \(([a-z_, ]+)\)`)
)

// scraped are the labels that the one who scrapes adds; le is a bucket's.
var scraped = []string{"job", "instance", "le"}

// The dashboard's queries name metrics and labels that there are; every number of ours is in it.
func TestDashboardNamesWhatThereIs(t *testing.T) {
	t.Parallel()
	labels := map[string][]string{}
	families, err := touched(t).registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		names := []string{f.GetName()}
		if f.GetType() == dto.MetricType_HISTOGRAM {
			names = []string{f.GetName() + "_bucket", f.GetName() + "_sum", f.GetName() + "_count"}
		}
		for _, n := range names {
			labels[n] = nil
			for _, l := range f.GetMetric()[0].GetLabel() {
				labels[n] = append(labels[n], l.GetName())
			}
		}
	}
	used := map[string]bool{}
	for _, q := range queries(t, "../../docs/grafana/firstlight.json") {
		var known []string
		for _, name := range metricWord.FindAllString(q, -1) {
			have, ok := labels[name]
			if !ok {
				t.Errorf("query %q: there is no metric %s", q, name)
			}
			used[name], known = true, append(known, have...)
		}
		if len(known) == 0 && !metricWord.MatchString(q) {
			t.Errorf("query %q names no metric", q)
		}
		var asked []string
		for _, m := range selectorWord.FindAllStringSubmatch(q, -1) {
			for _, l := range matcherWord.FindAllStringSubmatch(m[2], -1) {
				asked = append(asked, l[1])
			}
		}
		for _, m := range byWord.FindAllStringSubmatch(q, -1) {
			asked = append(asked, strings.Split(m[1], ", ")...)
		}
		for _, l := range asked {
			if !slices.Contains(scraped, l) && !slices.Contains(known, l) {
				t.Errorf("query %q: there is no label %s", q, l)
			}
		}
	}
	for name := range labels {
		ours, summed := strings.HasPrefix(name, "firstlight_"), strings.HasSuffix(name, "_sum") || strings.HasSuffix(name, "_count")
		if ours && !summed && !used[name] {
			t.Errorf("no query shows %s", name)
		}
	}
}

// queries are the dashboard's, panel by panel.
func queries(t *testing.T, path string) []string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Type, Title string
			Targets     []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(b, &board); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range board.Panels {
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q shows nothing", p.Title)
		}
		for _, q := range p.Targets {
			out = append(out, q.Expr)
		}
	}
	if len(out) < 20 {
		t.Fatalf("got %d queries, want a dashboard", len(out))
	}
	return out
}
