package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/roster"
)

// versionOf stands for what a person decides by when he orders something for a machine: which machine it is, what state it is in, by
// which workflow, and what an order would touch. Progress and sessions are not part of it, so an order on a machine that works is
// not refused for being a second old.
func versionOf(m *fleet.Machine) string {
	seen := struct {
		Name, Node, State, Workflow, Image, Firmware string
		MACs, Disks                                  []string
		BMC                                          fleet.BMC
		Protected                                    bool
	}{m.Name, m.NodeID, string(m.State), "", m.Image, m.Firmware, m.MACs, m.DiskSerials, m.BMC, m.Protected != nil}
	if m.Workflow != nil {
		seen.Workflow = m.Workflow.ID
	}
	b, err := json.Marshal(seen)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:12])
}

func rowOf(r roster.Row) MachineRow {
	m := r.Machine
	return MachineRow{Name: m.Name, NodeID: m.NodeID, Serial: r.Serial, Place: m.Place, State: m.State, Line: r.Line, Since: r.Since, Until: r.Until,
		Percent: r.Percent, LeftS: r.Left, Image: m.Image, MACs: m.MACs, Changed: r.Changed, Need: r.Need, Why: r.Why, Next: r.Next,
		Protected: m.Protected != nil, Disks: m.DiskSerials, Version: versionOf(m)}
}

func rowsOf(in []roster.Row) []MachineRow {
	out := make([]MachineRow, len(in))
	for i := range in {
		out[i] = rowOf(in[i])
	}
	return out
}

func (s *Server) listMachines(r *http.Request) (any, error) {
	const op = "list machines"
	v := r.URL.Query()
	full := v.Get("view") == ViewFull
	most := MaxPage
	switch {
	case full:
		most = MaxFull
	case v.Get("view") != "" && v.Get("view") != ViewRow:
		return nil, fault.New(fault.Usage, op, "", fmt.Errorf("view %.64q: want row or full", v.Get("view")), "give another view")
	}
	limit, err := number(r, op, "limit", DefaultPage, most)
	if err != nil {
		return nil, err
	}
	q := roster.Query{Text: v.Get("q"), Sort: v.Get("sort"), Cursor: v.Get("cursor"), Limit: limit}
	if len(q.Text) > MaxQuery {
		return nil, fault.New(fault.Usage, op, "", fmt.Errorf("search text of %d bytes, want at most %d", len(q.Text), MaxQuery), "search for less")
	}
	if v.Get("state") != "" {
		q.States = strings.Split(v.Get("state"), ",")
	}
	p, err := s.cfg.Roster.Page(q, MaxNeedYou)
	if err != nil {
		return nil, fault.New(fault.Usage, op, "", err, "correct the query")
	}
	stop, err := s.cfg.Fleet.Stop(r.Context())
	if err != nil {
		return nil, fault.Of(err, op, "")
	}
	out := MachinePage{Rows: []MachineRow{}, Machines: []fleet.Machine{}, Total: p.Total, Counts: p.Counts, NeedYou: rowsOf(p.Need), Next: p.Next, Rev: p.Rev, Stop: stop}
	if !full {
		out.Rows = rowsOf(p.Rows)
		return out, nil
	}
	for _, x := range p.Rows {
		out.Machines = append(out.Machines, *x.Machine)
	}
	return out, nil
}

func (s *Server) listDiscovered(*http.Request) (any, error) {
	out := []fleet.Machine{}
	for _, x := range s.cfg.Roster.Rows(func(m *fleet.Machine) bool { return m.State == fleet.MachineDiscovered }) {
		out = append(out, *x.Machine)
	}
	return out, nil
}

func (s *Server) showMachine(r *http.Request) (any, error) {
	return s.show(r.Context(), "show machine", r.PathValue("name"))
}

// show reads a machine from the store, so that it is as whoever just acted on it left it.
func (s *Server) show(ctx context.Context, op, name string) (Machine, error) {
	if err := s.cfg.Roster.Refresh(ctx, name); err != nil {
		return Machine{}, fault.Of(err, op, name)
	}
	row, ok := s.cfg.Roster.Row(name)
	if !ok {
		return Machine{}, machineFault(op, name, fleet.ErrUnknown)
	}
	out := Machine{Machine: *row.Machine, Row: rowOf(row), Line: row.Line}
	out.Version = out.Row.Version
	return out, nil
}

// seen returns the machine that an order is about, and refuses it when the machine is not as it was shown any more (APP-04).
func (s *Server) seen(r *http.Request, op, version string) (Machine, error) {
	m, err := s.show(r.Context(), op, r.PathValue("name"))
	if err != nil {
		return m, err
	}
	if version != "" && version != m.Version {
		return m, fault.New(fault.Conflict, op, m.Name, fmt.Errorf("it changed since it was shown: it is %s now: %s", m.State, m.Line),
			"look at the machine as it is now, then order again")
	}
	return m, nil
}

func (s *Server) addMachine(r *http.Request) (any, error) {
	op, done := "add machine", "added"
	in, err := asked[AddMachine](r, op, "")
	if err != nil {
		return nil, err
	}
	note(r, in.Name, "")
	if in.Adopt {
		op, done = "adopt machine", "adopted and is protected"
	}
	if in.From != "" {
		done = "enrolled from " + in.From
		note(r, in.Name, "from "+in.From)
	}
	// A technician may give a discovered machine a name; what else there is, only whoever manages machines says.
	if in.From == "" || in.Adopt {
		if err := s.need(r, auth.PermManage); err != nil {
			return nil, err
		}
	}
	cert, err := digestOf(op, in.Name, in.BMCCertificateSHA256)
	if err != nil {
		return nil, err
	}
	defer s.act(in.Name)()
	_, err = s.cfg.Fleet.AddMachine(r.Context(), fleet.Spec{
		Name: in.Name, MACs: in.MACs, UUID: in.UUID, DiskSerials: in.DiskSerials, Firmware: in.Firmware, Place: in.Place,
		BMCURL: in.BMCURL, BMCUser: in.BMCUser, BMCPassword: fleet.Secret(in.BMCPassword), BMCCertificateSHA256: cert,
		Adopt: in.Adopt, From: in.From, By: by(r),
	}, s.cfg.Now())
	if err != nil {
		return nil, addFault(op, in.Name, err)
	}
	if in.From != "" {
		if err := s.cfg.Roster.Refresh(r.Context(), in.From); err != nil {
			return nil, fault.Of(err, op, in.Name)
		}
	}
	m, err := s.show(r.Context(), op, in.Name)
	if err != nil {
		return nil, err
	}
	s.emit(r, fleet.Event{Machine: m.Name, NodeID: m.NodeID, Kind: "machine.added", Message: "machine " + m.Name + " was " + done + " by " + by(r)})
	return m, nil
}

func digestOf(op, name, text string) ([]byte, error) {
	cert, err := hex.DecodeString(text)
	if err != nil {
		return nil, fault.New(fault.Invalid, op, name, fmt.Errorf("BMC certificate digest: %w", err),
			"give the SHA-256 of the controller's certificate as 64 hex digits")
	}
	return cert, nil
}

func (s *Server) setMachine(r *http.Request) (any, error) {
	const op = "set machine"
	name := r.PathValue("name")
	in, err := asked[SetMachine](r, op, name)
	if err != nil {
		return nil, err
	}
	defer s.act(name)()
	if _, err := s.seen(r, op, in.Version); err != nil {
		return nil, err
	}
	p := fleet.Patch{Place: in.Place, MACs: in.MACs, UUID: in.UUID, DiskSerials: in.DiskSerials, Firmware: in.Firmware, BMCURL: in.BMCURL, BMCUser: in.BMCUser}
	if in.BMCPassword != nil {
		p.BMCPassword = fleet.Secret(*in.BMCPassword)
	}
	if in.BMCCertificateSHA256 != nil {
		if p.BMCCertificateSHA256, err = digestOf(op, name, *in.BMCCertificateSHA256); err != nil {
			return nil, err
		}
	}
	what := changes(in)
	if what == "" {
		return nil, fault.New(fault.Usage, op, name, errors.New("nothing is to be changed"), "say what to change")
	}
	note(r, name, what)
	if _, err := s.cfg.Fleet.SetMachine(r.Context(), name, p); err != nil {
		return nil, addFault(op, name, err)
	}
	m, err := s.show(r.Context(), op, name)
	if err != nil {
		return nil, err
	}
	s.emit(r, fleet.Event{Machine: m.Name, NodeID: m.NodeID, Kind: "machine.changed", Fields: map[string]string{"changed": what},
		Message: what + " of machine " + name + " changed by " + by(r)})
	return m, nil
}

// changes names what is to be changed.
func changes(in SetMachine) string {
	var out []string
	for _, f := range []struct {
		name  string
		there bool
	}{{"place", in.Place != nil}, {"MACs", in.MACs != nil}, {"UUID", in.UUID != nil}, {"disks", in.DiskSerials != nil}, {"firmware", in.Firmware != nil},
		{"BMC address", in.BMCURL != nil}, {"BMC user", in.BMCUser != nil}, {"BMC password", in.BMCPassword != nil}, {"BMC certificate", in.BMCCertificateSHA256 != nil}} {
		if f.there {
			out = append(out, f.name)
		}
	}
	return strings.Join(out, ", ")
}

// adopt takes over a machine that runs; a discovered one gets its name with it.
func (s *Server) adopt(r *http.Request) (any, error) {
	const op = "adopt machine"
	name := r.PathValue("name")
	in, err := asked[Adopt](r, op, name)
	if err != nil {
		return nil, err
	}
	if len(in.Reason) > maxReason {
		return nil, longReason(op, name, in.Reason)
	}
	defer s.act(name)()
	m, err := s.seen(r, op, in.Version)
	if err != nil {
		return nil, err
	}
	note(r, name, in.Name)
	now, known := s.cfg.Now(), name
	switch why := adoptReason(in.Reason); {
	case m.State == fleet.MachineDiscovered && in.Name == "":
		return nil, fault.New(fault.Invalid, op, name, errors.New("it was discovered and has no name of its own"), "say the name that it gets")
	case m.State == fleet.MachineDiscovered:
		known = in.Name
		_, err = s.cfg.Fleet.AddMachine(r.Context(), fleet.Spec{Name: in.Name, Adopt: true, From: name, By: by(r)}, now)
	case in.Name != "" && in.Name != name:
		return nil, fault.New(fault.Invalid, op, name, errors.New("it has a name already"), "leave the name out")
	default:
		_, err = s.cfg.Fleet.Adopt(r.Context(), name, by(r), why, now)
	}
	if err != nil {
		return nil, addFault(op, name, err)
	}
	if err := s.cfg.Roster.Refresh(r.Context(), name); err != nil {
		return nil, fault.Of(err, op, name)
	}
	if m, err = s.show(r.Context(), op, known); err != nil {
		return nil, err
	}
	s.emit(r, fleet.Event{Machine: m.Name, NodeID: m.NodeID, Kind: "machine.adopted", Message: "machine " + m.Name + " was adopted and is protected, by " + by(r)})
	return m, nil
}

func adoptReason(why string) string {
	if why == "" {
		return "adopted as a machine that runs"
	}
	return why
}

func (s *Server) removeMachine(r *http.Request) (any, error) {
	const op = "remove machine"
	name := r.PathValue("name")
	defer s.act(name)()
	m, err := s.seen(r, op, r.URL.Query().Get("version"))
	if err != nil {
		return nil, err
	}
	_, err = s.cfg.Fleet.RemoveMachine(r.Context(), name)
	switch {
	case errors.Is(err, fleet.ErrProtected):
		return nil, fault.New(fault.Conflict, op, name, err, "when it may go after all: firstlight machine unprotect "+name)
	case errors.Is(err, fleet.ErrOpen):
		return nil, fault.New(fault.Conflict, op, name, err, "cancel it with `firstlight cancel "+name+"`, or wait for its end")
	case err != nil:
		return nil, machineFault(op, name, err)
	}
	if err := s.cfg.Roster.Refresh(r.Context(), name); err != nil {
		return nil, fault.Of(err, op, name)
	}
	if s.cfg.Forget != nil {
		s.cfg.Forget(m.NodeID)
	}
	note(r, name, "node "+m.NodeID+", disks "+strings.Join(m.DiskSerials, " "))
	s.emit(r, fleet.Event{NodeID: m.NodeID, Kind: "machine.removed", Fields: map[string]string{"machine": name},
		Message: "machine " + name + " was removed by " + by(r) + "; nothing was done to it"})
	return Removed{Name: name}, nil
}
