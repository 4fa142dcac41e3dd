package web

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
)

// newKey is a key for one order. The prefix tells live.go that it is no change of the page.
func newKey() string {
	var b [16]byte
	rand.Read(b[:])
	return "k-" + hex.EncodeToString(b[:])
}

// action is something that is done to a machine after a page asked.
type action struct {
	// Title heads the page, Verb is on the button, Explain says what will happen.
	Title, Verb, Explain string
	perm                 auth.Permission
	// Disks: it wipes the machine's disks, and their number must be typed. Image: one is chosen. Reason: one may be given.
	Disks, Image, Reason bool
	// Name: the machine's name must be typed.
	Name bool
	// Form is the machine's own values: enrol or change.
	Form string
	do   func(ctx context.Context, c *api.Client, name string, o order) (goTo string, err error)
}

// order is what a person filled in.
type order struct {
	Version string
	Disks   *int
	Image   string
	Reason  string
	Form    machineForm
}

func stay[T any](name string, _ T, err error) (string, error) { return machineURL(name), err }

var actions = map[string]action{
	"provision": {Title: "Provision", Verb: "Wipe and provision", perm: auth.PermProvision, Disks: true, Image: true,
		Explain: "It is power-cycled into the network, the disks below are wiped and read back, and the image is written. What is on them is lost.",
		do: func(ctx context.Context, c *api.Client, name string, o order) (string, error) {
			m, err := c.Provision(ctx, name, api.Provision{Image: o.Image, Disks: o.Disks, Version: o.Version})
			return stay(name, m, err)
		}},
	"reinstall": {Title: "Reinstall", Verb: "Wipe and reinstall", perm: auth.PermManage, Disks: true, Image: true,
		Explain: "This machine is in use. It is power-cycled into the network, the disks below are wiped and read back, and the image is written. What is on them is lost.",
		do: func(ctx context.Context, c *api.Client, name string, o order) (string, error) {
			m, err := c.Provision(ctx, name, api.Provision{Image: o.Image, Disks: o.Disks, Version: o.Version, Reinstall: true})
			return stay(name, m, err)
		}},
	"retry": {Title: "Retry", Verb: "Wipe and retry", perm: auth.PermRepair, Disks: true,
		Explain: "The last order begins again from the start, with the same image: the disks below are wiped and read back first. What is on them is lost.",
		do: func(ctx context.Context, c *api.Client, name string, o order) (string, error) {
			m, err := c.Retry(ctx, name, api.Retry{Disks: o.Disks, Version: o.Version})
			return stay(name, m, err)
		}},
	"cancel": {Title: "Cancel", Verb: "Cancel the work", perm: auth.PermRepair, Reason: true,
		Explain: "Nothing new is begun. The command in hand ends first, or is stopped where that is safe; the machine's page then says what its disks hold.",
		do: func(ctx context.Context, c *api.Client, name string, o order) (string, error) {
			m, err := c.Cancel(ctx, name, api.Reason{Reason: o.Reason, Version: o.Version})
			return stay(name, m, err)
		}},
	"resume": {Title: "Let it go on", Verb: "Let it go on", perm: auth.PermRepair, Explain: "The work goes on with its next step.",
		do: func(ctx context.Context, c *api.Client, name string, o order) (string, error) {
			m, err := c.Resume(ctx, name, api.Act{Version: o.Version})
			return stay(name, m, err)
		}},
	"protect": {Title: "Protect", Verb: "Protect it", perm: auth.PermManage, Reason: true, Explain: "Nothing wipes or installs a protected machine until somebody removes the protection.",
		do: func(ctx context.Context, c *api.Client, name string, o order) (string, error) {
			m, err := c.Protect(ctx, name, api.Reason{Reason: o.Reason, Version: o.Version})
			return stay(name, m, err)
		}},
	"unprotect": {Title: "Remove the protection of", Verb: "Remove the protection", perm: auth.PermManage, Name: true, Explain: "After this the machine can be wiped and provisioned again.",
		do: func(ctx context.Context, c *api.Client, name string, o order) (string, error) {
			m, err := c.Unprotect(ctx, name, api.Act{Version: o.Version})
			return stay(name, m, err)
		}},
	"adopt": {Title: "Adopt", Verb: "Adopt it", perm: auth.PermManage, Reason: true, Form: "adopt",
		Explain: "It keeps running what it runs and is protected from then on: nothing is wiped.",
		do: func(ctx context.Context, c *api.Client, name string, o order) (string, error) {
			m, err := c.Adopt(ctx, name, api.Adopt{Name: o.Form.Name, Reason: o.Reason, Version: o.Version})
			return stay(m.Name, m, err)
		}},
	"remove": {Title: "Remove", Verb: "Remove it from the fleet", perm: auth.PermManage, Name: true,
		Explain: "The appliance forgets the machine and its certificates. Its disks are not touched; when it boots from the network again it is an unknown one.",
		do: func(ctx context.Context, c *api.Client, name string, o order) (string, error) {
			_, err := c.RemoveMachine(ctx, name, o.Version)
			return "/", err
		}},
	"enrol": {Title: "Enrol", Verb: "Enrol it", perm: auth.PermEnrol, Form: "enrol", Explain: "It gets a name and can be provisioned. Nothing is wiped by this.",
		do: func(ctx context.Context, c *api.Client, name string, o order) (string, error) {
			in := o.Form.add()
			in.From = name
			m, err := c.AddMachine(ctx, in)
			return stay(m.Name, m, err)
		}},
	"change": {Title: "Change", Verb: "Save", perm: auth.PermManage, Form: "change", Explain: "What is left as it is stays. An empty password keeps the one that is stored, unless the BMC gets another address.",
		do: func(ctx context.Context, c *api.Client, name string, o order) (string, error) {
			now, err := c.Machine(ctx, name)
			if err != nil {
				return "", err
			}
			m, err := c.SetMachine(ctx, name, o.Form.set(o.Version, now))
			return stay(name, m, err)
		}},
}

// diskView is a disk that an order would wipe, or that a form offers.
type diskView struct {
	Serial, Model, Holds, Doubt string
	SizeBytes                   uint64
	Since                       fleet.Time
	Chosen                      bool
}

// confirmPage asks before something is done.
type confirmPage struct {
	action
	Path    string
	M       api.Machine
	Look    look
	Key     string
	DiskSet []diskView
	Images  []imageView
	Chosen  string
	Typed   string
	Why     string
	Fields  machineForm
	// Refused is why it was not done; Stop is why it cannot be done now, and then there is no button.
	Refused, Stop *three
}

func (s *Server) confirm(v *visit) error {
	p, err := s.confirmPage(v)
	if err != nil {
		return err
	}
	return v.show("confirm", p.Title+" "+attr(p.M.Name), http.StatusOK, p)
}

func (s *Server) confirmPage(v *visit) (*confirmPage, error) {
	name := v.r.PathValue("name")
	a, ok := actions[v.r.PathValue("action")]
	if !ok {
		return nil, s.nowhere(v)
	}
	if !v.can(a.perm) {
		return nil, fault.New(fault.Denied, strings.ToLower(a.Title)+" "+name, "", fmt.Errorf("the role %s may not do this", v.session.Principal.Role),
			"ask somebody whose role may, or an administrator for another role")
	}
	m, err := s.cfg.API.Machine(v.ctx(), name)
	if err != nil {
		return nil, err
	}
	p := &confirmPage{action: a, Path: v.r.URL.Path, M: m, Look: lookOf(m.State, m.Row.Need), Key: newKey(), DiskSet: disksOf(m), Fields: formOf(m, a.Form)}
	if a.Image {
		err = s.offerImages(v, p)
	}
	if m.Protected != nil && a.Disks {
		p.Stop = &three{toneAmber, "This machine is protected, so nothing wipes it", m.Protected.String(),
			"leave it, or have an operator remove the protection on the machine's page first"}
	}
	return p, err
}

// offerImages lists what can be installed and asks the API what an order would do: what it would refuse is said before anybody types.
func (s *Server) offerImages(v *visit, p *confirmPage) error {
	all, err := s.cfg.API.Images(v.ctx())
	if err != nil {
		return err
	}
	p.Images, p.Chosen = imageViews(all), p.M.Image
	if len(all) == 0 {
		p.Stop = &three{toneNeutral, "There is no image to install", "no image was added yet", "add one on the Images page"}
		return nil
	}
	known := false
	for _, i := range all {
		known = known || i.Name == p.Chosen
	}
	if !known {
		p.Chosen = all[0].Name
	}
	plan, err := s.cfg.API.DryRun(v.ctx(), p.M.Name, api.Provision{Image: p.Chosen, Reinstall: p.Title == "Reinstall"})
	if err != nil {
		t := threeOf(err)
		p.Stop = &t
		return nil
	}
	p.DiskSet = planned(plan, p.DiskSet)
	return nil
}

func planned(plan executor.Preview, known []diskView) []diskView {
	out := make([]diskView, 0, len(plan.Disks))
	for _, d := range plan.Disks {
		view := diskView{Serial: d.Serial, Model: d.Model, SizeBytes: d.SizeBytes, Holds: d.Holds, Doubt: d.Doubt}
		for _, k := range known {
			if k.Serial == d.Serial {
				view.Since = k.Since
			}
		}
		out = append(out, view)
	}
	return out
}

// disksOf are the disks that may be written on this machine, with what is known of them.
func disksOf(m api.Machine) []diskView {
	out := []diskView{}
	for _, serial := range m.DiskSerials {
		d := diskView{Serial: serial}
		for _, h := range m.DiskState {
			if h.Serial == serial {
				d.Holds, d.Since = h.Holds, h.Since
			}
		}
		if m.Hardware != nil {
			for _, h := range m.Hardware.Disks {
				if h.Serial == serial {
					d.Model, d.SizeBytes = h.Model, h.SizeBytes
				}
			}
		}
		out = append(out, d)
	}
	return out
}

// act does what was asked, and shows the question again with what speaks against it.
func (s *Server) act(v *visit) error {
	name := v.r.PathValue("name")
	a, ok := actions[v.r.PathValue("action")]
	if !ok {
		return s.nowhere(v)
	}
	o, err := readOrder(v.r, a, name)
	if err == nil {
		ctx := api.WithKey(v.ctx(), v.r.PostFormValue("key"))
		var to string
		if to, err = a.do(ctx, s.cfg.API, name, o); err == nil {
			v.to(to)
			return nil
		}
	}
	p, shown := s.confirmPage(v)
	if shown != nil {
		return err
	}
	t := threeOf(err)
	p.Refused, p.Why, p.Typed = &t, o.Reason, ""
	if o.Image != "" {
		p.Chosen = o.Image
	}
	if a.Form != "" {
		o.Form.Kind = a.Form
		p.Fields = o.Form.again(p.M)
	}
	return v.show("confirm", p.Title+" "+attr(name), status(fault.Of(err, "", "").Kind), p)
}

func readOrder(r *http.Request, a action, name string) (order, error) {
	o := order{Version: r.PostFormValue("version"), Image: r.PostFormValue("image"), Reason: strings.TrimSpace(r.PostFormValue("reason"))}
	op := strings.ToLower(a.Title)
	if a.Form != "" {
		o.Form = readForm(r)
	}
	if o.Version == "" {
		return o, fault.New(fault.Usage, op, name, errors.New("the form does not say which state of the machine it was made from"), "load the page again")
	}
	if a.Name && strings.TrimSpace(r.PostFormValue("typed")) != name {
		return o, fault.New(fault.Invalid, op, name, errors.New("the name that was typed is not this machine's"), "type the name exactly as it is shown, or leave it")
	}
	if !a.Disks {
		return o, nil
	}
	n, err := strconv.Atoi(strings.TrimSpace(r.PostFormValue("disks")))
	if err != nil {
		return o, fault.New(fault.Invalid, op, name, errors.New("no number of disks was typed"), "count the disks in the list and type their number")
	}
	o.Disks = &n
	return o, nil
}
