package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Result is one figure beside its target, as bin/bench.json holds it.
type Result struct {
	// ID is the row of the table of targets ("P2"); "page" is the list at 10,000 machines.
	ID string `json:"id"`
	// What says what was measured: unit, peer, how often, how far the rounds lie apart.
	What string `json:"what"`
	// Target is the bound in words: of the ratio where there is a peer, else of Ours.
	Target string  `json:"target"`
	Ours   float64 `json:"ours"`
	// Peer and Ratio are nil where the target is an absolute one.
	Peer  *float64 `json:"peer"`
	Ratio *float64 `json:"ratio"`
	Holds bool     `json:"holds"`
}

// bound is a target: at least or at most so much.
type bound struct {
	least bool
	limit float64
	unit  string
}

func atLeast(limit float64) bound            { return bound{least: true, limit: limit} }
func atMost(limit float64) bound             { return bound{limit: limit} }
func atMostOf(limit float64, u string) bound { return bound{limit: limit, unit: u} }

func (b bound) holds(v float64) bool {
	if b.least {
		return v >= b.limit
	}
	return v <= b.limit
}

func (b bound) String() string {
	sign := "≤"
	if b.least {
		sign = "≥"
	}
	return strings.TrimSpace(fmt.Sprintf("%s %g %s", sign, b.limit, b.unit))
}

// against is the result of the medians of two series of one run, round by round interleaved.
func against(id, what string, target bound, ours, peer series) Result {
	o, p := ours.median(), peer.median()
	r := o / p
	low, high := ours.ratios(peer)
	return Result{ID: id, What: fmt.Sprintf("%s; %d rounds, ratio %.2f to %.2f", what, len(ours), low, high), Target: target.String(),
		Ours: o, Peer: &p, Ratio: &r, Holds: target.holds(r)}
}

// alone is the result of a series that is held against a fixed bound.
func alone(id, what string, target bound, ours series) Result {
	o := ours.median()
	low, high := ours.ends()
	return Result{ID: id, What: fmt.Sprintf("%s; %d rounds, %s to %s", what, len(ours), short(low), short(high)), Target: target.String(),
		Ours: o, Holds: target.holds(o)}
}

// WriteTable prints the results for people.
func WriteTable(w io.Writer, results []Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "id\ttarget\tours\tpeer\tratio\t\twhat")
	for _, r := range results {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.ID, r.Target, short(r.Ours), maybe(r.Peer), maybe(r.Ratio), verdict(r), r.What)
	}
	return t.Flush()
}

// WriteMarkdown prints them as a table for a document.
func WriteMarkdown(w io.Writer, results []Result) error {
	var b strings.Builder
	b.WriteString("| id | what | target | ours | peer | ratio | |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, r := range results {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", r.ID, strings.ReplaceAll(r.What, "|", "\\|"), r.Target, short(r.Ours), maybe(r.Peer), maybe(r.Ratio), verdict(r))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteJSON writes them as bin/bench.json holds them.
func WriteJSON(w io.Writer, results []Result) error {
	if results == nil {
		results = []Result{}
	}
	b, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// ReadJSON reads what WriteJSON wrote.
func ReadJSON(r io.Reader) ([]Result, error) {
	var out []Result
	if err := json.NewDecoder(io.LimitReader(r, maxJSON)).Decode(&out); err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	return out, nil
}

// maxJSON bounds a file of results in bytes.
const maxJSON = 1 << 20

func verdict(r Result) string {
	if r.Holds {
		return "holds"
	}
	return "falls short"
}

// short prints a figure with three digits that count.
func short(v float64) string {
	if v >= 1000 || v <= -1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

func maybe(v *float64) string {
	if v == nil {
		return "–"
	}
	return short(*v)
}
