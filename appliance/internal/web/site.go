package web

import (
	"html/template"
	"net/http"
	"strconv"
	"strings"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/fleet"
)

type discoveredPage struct {
	Parts map[string]template.HTML
	Live  string
}

// foundView is a machine that is nobody's yet.
type foundView struct {
	fleet.Machine
	ID, URL, Product, Serial string
	// First: its button is the page's primary one.
	First bool
}

func (s *Server) discoveredParts(v *visit) ([]part, string, error) {
	all, err := s.cfg.API.Discovered(v.ctx())
	if err != nil {
		return nil, "", err
	}
	kids := []part{}
	for _, m := range all {
		f := foundView{Machine: m, ID: dom("d", m.Name), URL: machineURL(m.Name), First: len(kids) == 0}
		if m.Hardware != nil {
			f.Product, f.Serial = strings.TrimSpace(m.Hardware.Manufacturer+" "+m.Hardware.Product), m.Hardware.Serial
		}
		kids = append(kids, part{id: f.ID, tmpl: "found", data: f, mark: f.Serial})
	}
	return []part{{id: "found-head", tmpl: "found-head", data: len(kids)}, {id: "found", tmpl: "found-list", data: len(kids), kids: kids}}, "", nil
}

func (s *Server) discovered(v *visit) error {
	all, _, err := s.discoveredParts(v)
	if err != nil {
		return err
	}
	drawn, err := v.drawAll(all)
	if err != nil {
		return err
	}
	return v.show("discovered", "Discovered machines", http.StatusOK, discoveredPage{drawn, "/live/discovered"})
}

// checkView is one check of the doctor.
type checkView struct {
	api.HealthCheck
	Tone, Word string
}

type healthPage struct {
	Tone, Headline string
	Checked        fleet.Time
	Bad, Good      []checkView
}

func (s *Server) health(v *visit) error {
	h, err := s.cfg.API.Health(v.ctx())
	if err != nil {
		return err
	}
	p := healthPage{Tone: toneGreen, Headline: "The site is well", Checked: h.Checked}
	fails := 0
	for _, c := range h.Checks {
		switch c.State {
		case "ok":
			p.Good = append(p.Good, checkView{c, toneGreen, "well"})
		case "fail":
			fails++
			p.Bad = append([]checkView{{c, toneRed, "needs you now"}}, p.Bad...)
		default:
			p.Bad = append(p.Bad, checkView{c, toneAmber, "needs you soon"})
		}
	}
	switch n := len(p.Bad); {
	case fails > 0:
		p.Tone = toneRed
		fallthrough
	case n > 0:
		if fails == 0 {
			p.Tone = toneAmber
		}
		p.Headline = count(n) + " things need you"
		if n == 1 {
			p.Headline = "1 thing needs you"
		}
	}
	return v.show("health", "Site health", http.StatusOK, p)
}

// siteQuestions are what can be done to everything at once.
var siteQuestions = map[string]sure{
	"stop": {Title: "Stop", Object: "everything", Verb: "Stop everything", Back: "/health", Reason: true,
		Explain: "Every workflow stands still at its next safe point, and no new one begins, until somebody lets everything go on. Running machines are not touched."},
	"resume": {Title: "Let", Object: "everything go on", Verb: "Let everything go on", Back: "/health",
		Explain: "Workflows that stand still go on with their next step, and new ones can begin."},
}

func (s *Server) siteQuestion(v *visit) (sure, error) {
	q, ok := siteQuestions[v.r.PathValue("action")]
	if !ok {
		return q, s.nowhere(v)
	}
	return q, v.need(auth.PermManage, strings.ToLower(q.Title)+" "+q.Object)
}

func (s *Server) confirmSite(v *visit) error {
	q, err := s.siteQuestion(v)
	if err != nil {
		return err
	}
	return v.ask(q, nil)
}

func (s *Server) actSite(v *visit) error {
	q, err := s.siteQuestion(v)
	if err != nil {
		return err
	}
	ctx := api.WithKey(v.ctx(), v.r.PostFormValue("key"))
	if v.r.PathValue("action") == "stop" {
		_, err = s.cfg.API.StopAll(ctx, strings.TrimSpace(v.r.PostFormValue("reason")))
	} else {
		_, err = s.cfg.API.ResumeAll(ctx)
	}
	if err != nil {
		return v.ask(q, err)
	}
	v.to("/")
	return nil
}

type auditPage struct {
	Entries []api.AuditEntry
	Older   string
	First   bool
}

func (s *Server) audit(v *visit) error {
	before, _ := strconv.ParseUint(v.r.URL.Query().Get("before"), 10, 64)
	page, err := s.cfg.API.Audit(v.ctx(), auditRows, before)
	if err != nil {
		return err
	}
	p := auditPage{Entries: page.Entries, First: before == 0}
	if page.Before != 0 {
		p.Older = "/audit?before=" + strconv.FormatUint(page.Before, 10)
	}
	return v.show("audit", "Audit log", http.StatusOK, p)
}
