package web

import (
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/fleet"
)

// workingShown is how many machines at work the fleet page lists; the rest are a click away.
const workingShown = 6

// rowView is a machine in a list.
type rowView struct {
	api.MachineRow
	Look look
	URL  string
	// ID is the element's, Class what its rows are marked by.
	ID string
	// First: its button is the page's primary one.
	First bool
}

func rowOf(kind string, m api.MachineRow) rowView {
	return rowView{MachineRow: m, Look: lookOf(m.State, m.Need), URL: machineURL(m.Name), ID: dom(kind, m.Name)}
}

// mark is what a row's change is worth marking for: not its progress, not its clock.
func (r rowView) mark() string {
	return strings.Join([]string{string(r.State), r.Why, r.Image, r.Look.Tone, r.Next}, "\x00")
}

func machineURL(name string) string { return "/machines/" + url.PathEscape(name) }

func rowParts(kind, tmpl string, rows []api.MachineRow) []part {
	out := make([]part, 0, len(rows))
	for i, m := range rows {
		r := rowOf(kind, m)
		r.First = i == 0
		out = append(out, part{id: r.ID, tmpl: tmpl, data: r, mark: r.mark()})
	}
	return out
}

// fleetQuery is what of the address asks for machines.
func fleetQuery(q url.Values) api.Query {
	return api.Query{Q: strings.TrimSpace(q.Get("q")), State: q.Get("state"), Sort: q.Get("sort"), Cursor: q.Get("after"), Limit: pageRows}
}

// address gives a fleet page's own address with some values changed; the page of it starts again.
func address(path string, q url.Values, set ...string) string {
	out := url.Values{}
	for _, key := range []string{"q", "state", "sort"} {
		if v := q.Get(key); v != "" {
			out.Set(key, v)
		}
	}
	for i := 0; i+1 < len(set); i += 2 {
		if set[i+1] == "" {
			out.Del(set[i])
		} else {
			out.Set(set[i], set[i+1])
		}
	}
	if len(out) == 0 {
		return path
	}
	return path + "?" + out.Encode()
}

type chip struct {
	Word, Tone, URL string
	N               int
	Here            bool
}

func fleetChips(q url.Values, counts map[string]int) []chip {
	var out []chip
	for _, c := range chips {
		n := counts[c.Key]
		if c.Key == "" {
			n = counts["all"]
		}
		if always := c.Key == "" || c.Key == "active" || c.Key == "new"; !always && n == 0 && q.Get("state") != c.Key {
			continue
		}
		out = append(out, chip{Word: c.Word, Tone: c.Tone, N: n, Here: q.Get("state") == c.Key, URL: address("/", q, "state", c.Key, "q", "")})
	}
	return out
}

// headline is the fleet in one sentence.
type headline struct {
	Tone, Text, More string
}

const noMachines = "No machines yet"

func headlineOf(counts map[string]int, filtered bool, total int) headline {
	need, work := counts["need"], working(counts)
	if filtered {
		text := count(total) + " machines match"
		if total == 1 {
			text = "1 machine matches"
		}
		return headline{toneNeutral, text, "of " + count(counts["all"])}
	}
	more := count(work) + " working, " + count(counts["active"]+counts["adopted"]) + " running, " + count(counts["new"]) + " ready"
	switch {
	case counts["all"] == 0:
		return headline{toneNeutral, noMachines, ""}
	case need == 1:
		return headline{toneAmber, "1 machine needs you", more}
	case need > 1:
		return headline{toneAmber, count(need) + " machines need you", more}
	case work == 1:
		return headline{toneBlue, "1 machine is at work, nothing needs you", more}
	case work > 1:
		return headline{toneBlue, count(work) + " machines are at work, nothing needs you", more}
	}
	return headline{toneGreen, "All is quiet, nothing needs you", more}
}

type sortable struct{ Word, URL, Dir, Class string }

func sortables(q url.Values) []sortable {
	now := q.Get("sort")
	if now == "" {
		now = "name"
	}
	var out []sortable
	for _, c := range []struct{ key, word, class string }{{"name", "Name", ""}, {"place", "Place", ""}, {"state", "State", ""}, {"since", "Since", "num"}, {"image", "Image", ""}, {"changed", "Last change", "num"}} {
		s := sortable{Word: c.word, Class: c.class, URL: address("/", q, "sort", c.key)}
		switch now {
		case c.key:
			s.Dir, s.URL = "ascending", address("/", q, "sort", "-"+c.key)
		case "-" + c.key:
			s.Dir = "descending"
		}
		out = append(out, s)
	}
	return out
}

type pager struct {
	Shown, Total int
	Next, First  string
}

type listEnd struct {
	// Rows is how many there are; Q what was searched for.
	Rows int
	Q    string
	// All is the address without any filter.
	All   string
	Empty bool
}

func (s *Server) fleetParts(v *visit) ([]part, string, error) {
	q := v.r.URL.Query()
	ask := fleetQuery(q)
	page, err := s.cfg.API.Page(v.ctx(), ask)
	if err != nil {
		return nil, "", err
	}
	v.all = everywhereOf(page)
	filtered := ask.Q != "" || ask.State != ""
	more := pager{Shown: len(page.Rows), Total: page.Total}
	if page.Next != "" {
		more.Next = address("/", q, "after", page.Next)
	}
	if ask.Cursor != "" {
		more.First = address("/", q)
	}
	head := headlineOf(page.Counts, filtered, page.Total)
	all := []part{{id: "headline", tmpl: "headline", data: head, mark: head.Text}}
	if page.Counts["all"] > 0 {
		all = append(all, part{id: "counts", tmpl: "counts", data: fleetChips(q, page.Counts)})
	}
	if !filtered && page.Counts["all"] > 0 {
		all = append(all, needParts(page)...)
		all = append(all, s.workingParts(v, page.Counts)...)
	}
	return append(all,
		part{id: "rows", tmpl: "rows", kids: rowParts("m", "row", page.Rows)},
		part{id: "end", tmpl: "list-end", data: listEnd{Rows: len(page.Rows), Q: ask.Q, All: "/", Empty: page.Counts["all"] == 0}},
		part{id: "pager", tmpl: "pager", data: more},
	), "", nil
}

func needParts(page api.MachinePage) []part {
	return []part{
		{id: "need-head", tmpl: "need-head", data: page.Counts["need"]},
		{id: "need", tmpl: "need", kids: rowParts("n", "need-row", urgent(page.NeedYou))},
	}
}

// urgent puts those that failed before those that only wait, the longest first in both.
func urgent(rows []api.MachineRow) []api.MachineRow {
	out := slices.Clone(rows)
	slices.SortStableFunc(out, func(a, b api.MachineRow) int {
		rank := func(m api.MachineRow) int {
			if lookOf(m.State, m.Need).Tone == toneRed {
				return 0
			}
			return 1
		}
		return rank(a) - rank(b)
	})
	return out
}

// atWork are the states in which a machine works without a person; a paused one waits for somebody and is listed above.
const atWork = string(fleet.MachineProvisioning) + "," + string(fleet.MachineCancelling)

func working(counts map[string]int) int {
	return counts[string(fleet.MachineProvisioning)] + counts[string(fleet.MachineCancelling)]
}

// workingParts are what runs; that they could not be listed does not take the page away.
func (s *Server) workingParts(v *visit, counts map[string]int) []part {
	n := working(counts)
	if n == 0 {
		return []part{{id: "working-head", tmpl: "working-head", data: 0}, {id: "working", tmpl: "working", kids: []part{}}}
	}
	work, err := s.cfg.API.Page(v.ctx(), api.Query{State: atWork, Limit: workingShown, Sort: "name"})
	if err != nil {
		return []part{{id: "working-head", tmpl: "working-head", data: n}, {id: "working", tmpl: "trouble", data: trouble{"working", threeOf(err)}}}
	}
	return []part{
		{id: "working-head", tmpl: "working-head", data: n},
		{id: "working", tmpl: "working", kids: rowParts("w", "work-row", work.Rows)},
	}
}

// trouble is a part that could not be shown while the rest of its page could.
type trouble struct {
	ID string
	three
}

type fleetPage struct {
	Parts   map[string]template.HTML
	Columns []sortable
	Live    string
	// Empty: there is no machine at all.
	Empty bool
}

func (s *Server) fleet(v *visit) error {
	all, _, err := s.fleetParts(v)
	if err != nil {
		return err
	}
	drawn, err := v.drawAll(all)
	if err != nil {
		return err
	}
	q := v.r.URL.Query()
	title := "Fleet"
	if i := slices.IndexFunc(all, func(p part) bool { return p.id == "headline" }); i >= 0 {
		title = all[i].data.(headline).Text
	}
	return v.show("fleet", title, http.StatusOK, fleetPage{Parts: drawn, Columns: sortables(q), Empty: title == noMachines,
		Live: address("/live/fleet", q, "after", q.Get("after"), "parts", idsOf(all))})
}
