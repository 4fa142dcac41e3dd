package web

import (
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/fleet"
)

// button is something that a person can do to a machine from its page.
type button struct {
	Label, URL string
	// Post: it is done at once; otherwise it leads to a page that asks.
	Post bool
}

// headView is the top of a machine's page: what is wrong, what it waits for, what to do.
type headView struct {
	M       api.Machine
	Look    look
	Primary *button
	// Plain are shown beside it, More behind one button.
	Plain, More []button
	// Key makes a second click harmless.
	Key string
	// Trouble is the failure or what needs a person, in three lines; nil for none.
	Trouble *three
	Product string
}

func (s *Server) headOf(v *visit, m api.Machine) headView {
	h := headView{M: m, Look: lookOf(m.State, m.Row.Need), Key: newKey()}
	if hw := m.Hardware; hw != nil {
		h.Product = strings.TrimSpace(hw.Manufacturer + " " + hw.Product)
	}
	var others []button
	h.Primary, others = buttons(m, v.can)
	h.Plain, h.More = spread(others)
	switch {
	case m.Failure != nil:
		h.Trouble = &three{toneRed, m.Failure.What, m.Failure.Why, m.Failure.Next}
	case m.Row.Need && m.Row.Why != "":
		h.Trouble = &three{toneAmber, "It needs you", m.Row.Why, m.Row.Next}
	case m.Cancel != nil && m.Cancel.Outcome != "":
		h.Trouble = &three{toneNeutral, "Cancelled by " + m.Cancel.By + orNothing(": ", m.Cancel.Reason), m.Cancel.Outcome, m.Cancel.Next}
	}
	if h.Trouble != nil && h.Trouble.What == m.Line {
		h.Trouble.What = ""
	}
	return h
}

// spread shows one or two buttons as they are, and of more the first.
func spread(all []button) (plain, more []button) {
	if len(all) <= 2 {
		return all, nil
	}
	return all[:1], all[1:]
}

func orNothing(before, s string) string {
	if s == "" {
		return ""
	}
	return before + s
}

// buttons are what this person may do to this machine now. What destroys something asks on a page of its own first.
func buttons(m api.Machine, can func(auth.Permission) bool) (primary *button, others []button) {
	at := machineURL(m.Name)
	offer := func(first bool, p auth.Permission, label, action string) {
		switch b := (button{Label: label, URL: at + "/" + action, Post: action == "resume"}); {
		case !can(p):
		case first && primary == nil:
			primary = &b
		default:
			others = append(others, b)
		}
	}
	free := m.Protected == nil
	switch m.State {
	case fleet.MachineNew, fleet.MachineCancelled:
		if free {
			offer(true, auth.PermProvision, "Provision…", "provision")
		}
	case fleet.MachineFailed:
		if free {
			offer(true, auth.PermRepair, "Retry…", "retry")
			offer(false, auth.PermProvision, "Provision…", "provision")
		}
	case fleet.MachinePaused:
		offer(true, auth.PermRepair, "Let it go on", "resume")
		offer(false, auth.PermRepair, "Cancel…", "cancel")
	case fleet.MachineProvisioning:
		offer(false, auth.PermRepair, "Cancel…", "cancel")
	case fleet.MachineActive, fleet.MachineAdopted:
		if free {
			offer(false, auth.PermManage, "Reinstall…", "reinstall")
		}
	case fleet.MachineDiscovered:
		offer(true, auth.PermEnrol, "Enrol…", "enrol")
		offer(false, auth.PermManage, "Adopt…", "adopt")
	}
	if m.State != fleet.MachineDiscovered {
		if free {
			offer(false, auth.PermManage, "Protect…", "protect")
		} else {
			offer(false, auth.PermManage, "Unprotect…", "unprotect")
		}
		offer(false, auth.PermManage, "Change…", "change")
	}
	offer(false, auth.PermManage, "Remove…", "remove")
	return primary, others
}

// stepView is one step as it is shown.
type stepView struct {
	fleet.Step
	Label string
	Class string
}

// stepLabels are the steps in everyday words.
var stepLabels = map[string]string{
	fleet.StepPowerOn: "Power", fleet.StepDHCP: "DHCP", fleet.StepTFTP: "Boot file", fleet.StepScript: "Script", fleet.StepKernel: "Kernel",
	fleet.StepJoin: "Join", fleet.StepInventory: "Inventory", fleet.StepWipe: "Wipe", fleet.StepDiag: "GPU test", fleet.StepDeploy: "Image",
	fleet.StepKexec: "Restart", fleet.StepNodeJoin: "Node joins", fleet.StepActive: "Running",
}

// stepsView is a workflow's way.
type stepsView struct {
	W     *fleet.Workflow
	Steps []stepView
	// Now is the step in hand, nil when there is none; N its number.
	Now      *stepView
	N        int
	Waiting  *fleet.Waiting
	Percent  *int
	LeftS    *int64
	Progress *fleet.Progress
}

func stepsOf(m api.Machine) stepsView {
	out := stepsView{W: m.Workflow, Waiting: m.Waiting, Percent: m.Row.Percent, LeftS: m.Row.LeftS}
	if m.Workflow == nil {
		return out
	}
	for i, st := range m.Workflow.Steps {
		s := stepView{Step: st, Label: stepLabels[st.Name], Class: "later"}
		if s.Label == "" {
			s.Label = st.Name
		}
		switch {
		case st.State == fleet.StepDone:
			s.Class = "done"
		case st.State != fleet.StepPending && st.State != fleet.StepSkipped:
			s.Class = "now"
		}
		out.Steps = append(out.Steps, s)
		stuck := st.State == fleet.StepFailed || st.State == fleet.StepCancelled
		if out.Now == nil && (stuck || !st.State.Ended() && m.Workflow.State.Open()) {
			out.Now, out.N = &out.Steps[len(out.Steps)-1], i+1
			out.Progress = progressOf(st)
		}
	}
	return out
}

func progressOf(st fleet.Step) *fleet.Progress {
	for _, c := range slices.Backward(st.Commands) {
		if c.Progress != nil && !c.State.Ended() {
			return c.Progress
		}
	}
	return nil
}

// Amount says how far a command is in its own unit.
func (s stepsView) Amount() string {
	p := s.Progress
	if p == nil || p.Total == 0 {
		return ""
	}
	if p.Unit == "bytes" {
		return bytesOf(p.Done) + " of " + bytesOf(p.Total)
	}
	return count(int(p.Done)) + " of " + count(int(p.Total)) + " " + p.Unit
}

// Took is how long a step lasted or lasts.
func (s stepView) Took(now time.Time) string {
	switch {
	case s.Start.IsZero():
		return ""
	case s.State == fleet.StepSkipped:
		return "skipped"
	case s.End.IsZero():
		return span(now.Sub(s.Start.Time))
	}
	return span(s.End.Sub(s.Start.Time))
}

// tabs of a machine's page.
var tabs = []struct{ Key, Word string }{{"", "Timeline"}, {"log", "Log"}, {"hardware", "Hardware"}, {"disks", "Disks"}, {"bmc", "BMC"}}

type tabLink struct {
	Word, URL string
	Here      bool
}

func tabLinks(name, here string) []tabLink {
	var out []tabLink
	for _, t := range tabs {
		u := machineURL(name)
		if t.Key != "" {
			u += "?tab=" + t.Key
		}
		out = append(out, tabLink{t.Word, u, t.Key == here})
	}
	return out
}

func tabOf(q url.Values) string {
	for _, t := range tabs {
		if t.Key == q.Get("tab") {
			return t.Key
		}
	}
	return ""
}

func (s *Server) machineParts(v *visit) ([]part, string, error) {
	name := v.r.PathValue("name")
	m, err := s.cfg.API.Machine(v.ctx(), name)
	if err != nil {
		return nil, name, err
	}
	head, steps := s.headOf(v, m), stepsOf(m)
	all := []part{
		{id: "head", tmpl: "machine-head", data: head, mark: string(m.State) + head.Look.Tone},
		{id: "steps", tmpl: "steps", data: steps},
		{id: "facts", tmpl: "facts", data: m},
	}
	return append(all, s.tabParts(v, m)...), name, nil
}

// entryView is one entry of a timeline.
type entryView struct {
	api.TimelineEntry
	ID, Tone string
}

// timelineFilters are what a timeline can be cut down to.
var timelineFilters = []struct{ Key, Word string }{{"all", "Everything"}, {api.TimelineStep, "Steps"}, {api.TimelineEvent, "Events"}, {api.TimelineAlarm, "Alarms"}}

type timelineHead struct {
	Filters []tabLink
	Older   string
	Empty   bool
	// Short: a phone shows the first few only, and All is where the rest is.
	Short bool
	All   string
}

func (s *Server) tabParts(v *visit, m api.Machine) []part {
	switch tab := tabOf(v.r.URL.Query()); tab {
	case "log":
		lines, err := s.cfg.API.Log(v.ctx(), m.Name, logRows)
		if err != nil {
			return []part{{id: "tab", tmpl: "trouble", data: trouble{"tab", threeOf(err)}}}
		}
		return []part{{id: "tab", tmpl: "tab-log", data: lines}}
	case "":
		return s.timelineParts(v, m)
	default:
		return []part{{id: "tab", tmpl: "tab-" + tab, data: m}}
	}
}

func (s *Server) timelineParts(v *visit, m api.Machine) []part {
	q := v.r.URL.Query()
	page, err := s.cfg.API.Timeline(v.ctx(), m.Name, timelineRows, q.Get("before"))
	if err != nil {
		return []part{{id: "tab", tmpl: "trouble", data: trouble{"tab", threeOf(err)}}}
	}
	show := orElse(q.Get("show"), "all")
	head := timelineHead{Short: q.Get("show") == "" && q.Get("before") == "", All: machineURL(m.Name) + "?show=all"}
	for _, f := range timelineFilters {
		head.Filters = append(head.Filters, tabLink{f.Word, machineURL(m.Name) + "?show=" + f.Key, f.Key == show})
	}
	if page.Before != "" {
		head.Older = machineURL(m.Name) + "?" + url.Values{"before": {page.Before}, "show": {show}}.Encode()
	}
	kids := []part{}
	for _, e := range page.Entries {
		if show != "all" && e.Of != show {
			continue
		}
		ev := entryView{e, dom("t", e.Time.String()+e.Kind+e.State+e.Text+strconv.Itoa(len(kids))), entryTone(e)}
		kids = append(kids, part{id: ev.ID, tmpl: "entry", data: ev})
	}
	head.Empty = len(kids) == 0
	return []part{{id: "tab", tmpl: "tab-timeline", data: head, kids: kids}}
}

func entryTone(e api.TimelineEntry) string {
	switch {
	case e.Of == api.TimelineAlarm:
		return toneRed
	case e.State == string(fleet.StepFailed), strings.HasSuffix(e.Kind, ".failed"), strings.HasSuffix(e.Kind, ".refused"):
		return toneRed
	case e.State == string(fleet.StepDone), strings.HasSuffix(e.Kind, ".done"), strings.HasSuffix(e.Kind, ".succeeded"):
		return toneGreen
	case e.State == string(fleet.StepRunning):
		return toneBlue
	}
	return toneNeutral
}

type machinePage struct {
	Parts map[string]template.HTML
	Tabs  []tabLink
	Live  string
}

func (s *Server) machine(v *visit) error {
	all, name, err := s.machineParts(v)
	if err != nil {
		return err
	}
	drawn, err := v.drawAll(all)
	if err != nil {
		return err
	}
	live := "/live/machine/" + url.PathEscape(name)
	if q := v.r.URL.RawQuery; q != "" {
		live += "?" + q
	}
	return v.show("machine", attr(name), http.StatusOK, machinePage{Parts: drawn, Tabs: tabLinks(name, tabOf(v.r.URL.Query())), Live: live})
}
