package roster

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"firstlight/appliance/internal/fleet"
)

// Words of a filter besides the states'.
const (
	Need    = "need"
	Working = "working"
	All     = "all"
)

// ErrQuery: the query cannot be answered; the error says why.
var ErrQuery = errors.New("bad query")

// Query asks for a page.
type Query struct {
	// Text is found in any field that a search looks at; empty is everywhere.
	Text string
	// States are states, Need or Working; none is all.
	States []string
	// Sort is one of the words of sorts, with "-" before it for descending; empty is by name.
	Sort  string
	Limit int
	// Cursor is Page.Next of the page before.
	Cursor string
}

// Row is a machine as a list shows it.
type Row struct {
	Machine *fleet.Machine
	// Place, Serial and so on are in Machine too; Line is the whole line.
	Serial, Line string
	Since, Until fleet.Time
	Percent      *int
	Left         *int64
	Changed      fleet.Time
	Need         bool
	Why, Next    string
}

// Page is the answer.
type Page struct {
	Rows   []Row
	Total  int
	Counts map[string]int
	// Need are the machines that need a person, longest first, at most as many as were asked for.
	Need []Row
	Next string
	Rev  int64
}

// sorts gives the key by which machines are ordered; equal ones are by name.
var sorts = map[string]func(*entry) string{
	"name":    func(*entry) string { return "" },
	"place":   func(e *entry) string { return e.place },
	"state":   func(e *entry) string { return string(e.machine.State) },
	"image":   func(e *entry) string { return e.machine.Image },
	"since":   func(e *entry) string { return e.since },
	"changed": func(e *entry) string { return e.changed },
}

// moment is a time that sorts as text.
func moment(t fleet.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.String()
}

// cursor is where a page ended, so that the next one goes on there even when machines came or went or were sorted anew.
type cursor struct {
	Sort string `json:"s"`
	Key  string `json:"k"`
	Name string `json:"n"`
}

// keyed is a machine with its key, so that the key is made once.
type keyed struct {
	key, name string
	entry     *entry
}

// Page answers a query; need bounds Page.Need.
func (r *Roster) Page(q Query, need int) (Page, error) {
	word, descending := strings.CutPrefix(q.Sort, "-")
	if word == "" {
		word = "name"
	}
	key, ok := sorts[word]
	if !ok {
		return Page{}, fmt.Errorf("%w: no order is called %q", ErrQuery, q.Sort)
	}
	from, err := parseCursor(q.Cursor, q.Sort)
	if err != nil {
		return Page{}, err
	}
	match, err := matcher(q)
	if err != nil {
		return Page{}, err
	}
	now := r.cfg.Now()
	var p Page
	var counts tally
	lists := r.lists.Get().(*[2][]keyed)
	hits, needy := lists[0][:0], lists[1][:0]
	defer func() {
		clear(lists[0])
		clear(lists[1])
		r.lists.Put(lists)
	}()
	r.mu.RLock()
	p.Rev = r.rev
	for _, e := range r.sorted {
		needs := e.needs(now)
		counts.add(e, needs)
		if needs {
			needy = append(needy, keyed{key: e.since, name: e.rec.Name, entry: e})
		}
		if match(e, needs) {
			hits = append(hits, keyed{key: key(e), name: e.rec.Name, entry: e})
		}
	}
	r.mu.RUnlock()
	lists[0], lists[1] = hits, needy
	p.Total, p.Counts = len(hits), counts.words()
	if word != "name" || descending {
		order(hits, descending)
	}
	hits = after(hits, from, descending)
	if len(hits) > q.Limit {
		last := hits[q.Limit-1]
		p.Next = cursor{Sort: q.Sort, Key: last.key, Name: last.name}.String()
		hits = hits[:q.Limit]
	}
	order(needy, false)
	p.Rows, p.Need = rows(hits, now), rows(needy[:min(need, len(needy))], now)
	return p, nil
}

// Rows returns every machine that match says, by name.
func (r *Roster) Rows(match func(*fleet.Machine) bool) []Row {
	now := r.cfg.Now()
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := []Row{}
	for _, e := range r.sorted {
		if match(&e.machine) {
			out = append(out, e.row(now))
		}
	}
	return out
}

// Row returns one machine; false when it is not known.
func (r *Roster) Row(name string) (Row, bool) {
	r.mu.RLock()
	e := r.machines[name]
	r.mu.RUnlock()
	if e == nil {
		return Row{}, false
	}
	return e.row(r.cfg.Now()), true
}

// tally counts machines by the index of their state.
type tally struct {
	all, need, working int
	states             [16]int
}

func (t *tally) add(e *entry, needs bool) {
	t.all++
	t.states[e.state]++
	if needs {
		t.need++
	}
	if e.working() {
		t.working++
	}
}

func (t *tally) words() map[string]int {
	out := map[string]int{All: t.all, Need: t.need, Working: t.working}
	for i, s := range states {
		if t.states[i] > 0 {
			out[string(s)] = t.states[i]
		}
	}
	return out
}

func (e *entry) needs(now time.Time) bool {
	return e.line.need || !e.line.alarmed.IsZero() && now.Before(e.line.alarmed)
}

func (e *entry) working() bool {
	return e.machine.State == fleet.MachineProvisioning || e.machine.State == fleet.MachinePaused || e.machine.State == fleet.MachineCancelling
}

func (e *entry) row(now time.Time) Row {
	l := &e.line
	var p *pace
	if e.run != nil {
		p = &e.run.pace
	}
	row := Row{Machine: &e.machine, Serial: l.serial, Since: l.since, Until: l.until, Changed: l.changed, Need: e.needs(now)}
	row.Line, row.Percent, row.Left = l.full(p, now)
	if row.Need || l.alarmed.IsZero() {
		row.Why, row.Next = l.why, l.next
	}
	return row
}

func rows(in []keyed, now time.Time) []Row {
	out := make([]Row, len(in))
	for i := range in {
		out[i] = in[i].entry.row(now)
	}
	return out
}

func order(in []keyed, descending bool) {
	slices.SortFunc(in, func(a, b keyed) int {
		c := cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.name, b.name))
		if descending {
			return -c
		}
		return c
	})
}

// after cuts what a cursor says was shown already.
func after(in []keyed, c *cursor, descending bool) []keyed {
	if c == nil {
		return in
	}
	i, _ := slices.BinarySearchFunc(in, c, func(k keyed, c *cursor) int {
		d := cmp.Or(cmp.Compare(k.key, c.Key), cmp.Compare(k.name, c.Name))
		if descending {
			d = -d
		}
		if d == 0 {
			return -1
		}
		return d
	})
	return in[i:]
}

// String is opaque to whoever gets it.
func (c cursor) String() string {
	b, err := json.Marshal(c)
	if err != nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

func parseCursor(s, sort string) (*cursor, error) {
	if s == "" {
		return nil, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	var c cursor
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil || c.Sort != sort {
		return nil, fmt.Errorf("%w: the cursor is not one of this order", ErrQuery)
	}
	return &c, nil
}

// matcher says which machines a query means.
func matcher(q Query) (func(e *entry, needs bool) bool, error) {
	for _, s := range q.States {
		if !slices.Contains(words, s) {
			return nil, fmt.Errorf("%w: no state is called %q: want one of %s", ErrQuery, s, strings.Join(words, ", "))
		}
	}
	text := strings.ToLower(strings.TrimSpace(q.Text))
	mac := macDigits(text)
	return func(e *entry, needs bool) bool {
		if len(q.States) > 0 && !slices.ContainsFunc(q.States, func(s string) bool {
			return s == string(e.machine.State) || s == Need && needs || s == Working && e.working()
		}) {
			return false
		}
		return text == "" || strings.Contains(e.text, text) || mac != "" && strings.Contains(e.macs, mac)
	}, nil
}

// states are all of a machine's; a test holds that tally has room for them.
var states = []fleet.MachineState{fleet.MachineNew, fleet.MachineProvisioning, fleet.MachinePaused, fleet.MachineActive, fleet.MachineFailed,
	fleet.MachineCancelling, fleet.MachineCancelled, fleet.MachineAdopted, fleet.MachineDiscovered}

// words are what a filter may name.
var words = func() []string {
	out := []string{Need, Working}
	for _, s := range states {
		out = append(out, string(s))
	}
	return out
}()

// macDigits is a search text as MACs are kept, whatever its separators; empty when it is no part of a MAC.
func macDigits(s string) string {
	digits := strings.Map(func(c rune) rune {
		if c == ':' || c == '-' || c == '.' {
			return -1
		}
		return c
	}, s)
	if len(digits) < 2 || len(digits) > 12 || strings.Trim(digits, "0123456789abcdef") != "" {
		return ""
	}
	return digits
}
