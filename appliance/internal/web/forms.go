package web

import (
	"net/http"
	"slices"
	"strings"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/fault"
)

// machineForm is what a person says about a machine. Lists are texts, one value a line or separated by spaces or commas.
type machineForm struct {
	Name, Place, MACs, UUID     string
	Disks                       []string
	MoreDisks                   string
	BMCURL, BMCUser             string
	BMCPassword, BMCCertificate string
	Adopt                       bool
	// Offered are the disks that the machine reported.
	Offered []diskView
	// Kind says which fields there are: new, enrol, adopt or change.
	Kind string
}

// String hides the password.
func (machineForm) String() string { return "what a person says about a machine" }

func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ';' || r == ' ' || r == '\n' || r == '\r' || r == '\t' })
}

func readForm(r *http.Request) machineForm {
	get := func(key string) string { return strings.TrimSpace(r.PostFormValue(key)) }
	return machineForm{Name: get("name"), Place: get("place"), MACs: get("macs"), UUID: get("uuid"), Disks: r.PostForm["disk"], MoreDisks: get("disks"),
		BMCURL: get("bmc_url"), BMCUser: get("bmc_user"), BMCPassword: r.PostFormValue("bmc_password"), BMCCertificate: get("bmc_certificate"),
		Adopt: get("adopt") != "", Kind: get("kind")}
}

// without is the form to show again: a password is never sent back.
func (f machineForm) without() machineForm {
	f.BMCPassword = ""
	return f
}

func (f machineForm) serials() []string {
	return append(append([]string{}, f.Disks...), list(f.MoreDisks)...)
}

func (f machineForm) add() api.AddMachine {
	return api.AddMachine{Name: f.Name, Place: f.Place, MACs: list(f.MACs), UUID: f.UUID, DiskSerials: f.serials(), BMCURL: f.BMCURL, BMCUser: f.BMCUser,
		BMCPassword: f.BMCPassword, BMCCertificateSHA256: strings.ReplaceAll(f.BMCCertificate, ":", ""), Adopt: f.Adopt}
}

// set is what differs from the machine as it is: a form sends everything, and what nobody touched must neither be refused while a
// workflow is open nor put the disks in another order, of which the first gets the system.
func (f machineForm) set(version string, now api.Machine) api.SetMachine {
	in := api.SetMachine{Version: version}
	for _, x := range []struct {
		to       **string
		is, want string
	}{{&in.Place, now.Row.Place, f.Place}, {&in.UUID, now.UUID, f.UUID}, {&in.BMCURL, now.BMC.URL, f.BMCURL}, {&in.BMCUser, now.BMC.User, f.BMCUser}} {
		if x.is != x.want {
			*x.to = &x.want
		}
	}
	if macs := list(f.MACs); !slices.Equal(macs, now.MACs) {
		in.MACs = &macs
	}
	if disks := f.serials(); !slices.Equal(disks, now.DiskSerials) && !(len(f.Disks) > 0 && sameSet(disks, now.DiskSerials)) {
		in.DiskSerials = &disks
	}
	if f.BMCPassword != "" {
		in.BMCPassword = &f.BMCPassword
	}
	if cert := strings.ReplaceAll(f.BMCCertificate, ":", ""); cert != "" {
		in.BMCCertificateSHA256 = &cert
	}
	return in
}

// sameSet says whether both have the same elements: ticks have no order of their own.
func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// formOf fills a form with what is known.
func formOf(m api.Machine, kind string) machineForm {
	f := machineForm{Kind: kind, Place: m.Row.Place, MACs: strings.Join(m.MACs, "\n"), UUID: m.UUID, BMCURL: m.BMC.URL, BMCUser: m.BMC.User}
	chosen := map[string]bool{}
	for _, d := range m.DiskSerials {
		chosen[d] = true
	}
	if m.Hardware != nil {
		for _, d := range m.Hardware.Disks {
			v := diskView{Serial: d.Serial, Model: d.Model, SizeBytes: d.SizeBytes, Chosen: chosen[d.Serial]}
			if !d.Candidate {
				v.Doubt = d.ExcludedBecause
			}
			f.Offered = append(f.Offered, v)
			delete(chosen, d.Serial)
		}
		// Ticks are sent in the order in which they stand: the disk that gets the system stays the first.
		slices.SortStableFunc(f.Offered, func(a, b diskView) int { return rank(m.DiskSerials, a.Serial) - rank(m.DiskSerials, b.Serial) })
	}
	var more []string
	for _, d := range m.DiskSerials {
		if chosen[d] {
			more = append(more, d)
		}
	}
	f.MoreDisks = strings.Join(more, "\n")
	return f
}

func rank(all []string, s string) int {
	if i := slices.Index(all, s); i >= 0 {
		return i
	}
	return len(all)
}

// again is the form as it was sent, with the disks that the machine reported.
func (f machineForm) again(m api.Machine) machineForm {
	out := f.without()
	out.Offered = formOf(m, f.Kind).Offered
	for i := range out.Offered {
		out.Offered[i].Chosen = slices.Contains(f.Disks, out.Offered[i].Serial)
	}
	return out
}

// newPage is the form of a machine that was never seen.
type newPage struct {
	Fields  machineForm
	Key     string
	Refused *three
}

func (s *Server) newMachine(v *visit) error {
	return v.show("new", "Add a machine", http.StatusOK, newPage{Fields: machineForm{Kind: "new"}, Key: newKey()})
}

func (s *Server) addMachine(v *visit) error {
	if err := v.r.ParseForm(); err != nil {
		return fault.New(fault.Usage, "add machine", "", err, "load the page again")
	}
	f := readForm(v.r)
	m, err := s.cfg.API.AddMachine(api.WithKey(v.ctx(), v.r.PostFormValue("key")), f.add())
	if err != nil {
		t := threeOf(err)
		f = f.without()
		f.Kind = "new"
		return v.show("new", "Add a machine", status(fault.Of(err, "", "").Kind), newPage{Fields: f, Key: newKey(), Refused: &t})
	}
	v.to(machineURL(m.Name))
	return nil
}
