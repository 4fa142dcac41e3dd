package webtest

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/images"
	"firstlight/imagebuild/manifest"
)

func (a *Appliance) routes() {
	a.handle("GET /v1/machines", auth.PermRead, a.page)
	a.handle("POST /v1/machines", auth.PermEnrol, a.add)
	a.handle("GET /v1/machines/{name}", auth.PermRead, func(r *http.Request, _ string) (any, error) { return a.shown(r) })
	a.handle("GET /v1/machines/{name}/timeline", auth.PermRead, a.timeline)
	a.handle("GET /v1/machines/{name}/log", auth.PermRead, a.log)
	a.handle("PATCH /v1/machines/{name}", auth.PermManage, a.setMachine)
	a.handle("DELETE /v1/machines/{name}", auth.PermManage, a.remove)
	for verb, perm := range map[string]auth.Permission{"provision": auth.PermProvision, "retry": auth.PermRepair, "cancel": auth.PermRepair,
		"resume": auth.PermRepair, "protect": auth.PermManage, "unprotect": auth.PermManage, "adopt": auth.PermManage} {
		a.handle("POST /v1/machines/{name}/"+verb, perm, func(r *http.Request, by string) (any, error) { return a.act(r, by, verb) })
	}
	a.handle("POST /v1/machines/{name}/preview", auth.PermRead, a.preview)
	a.handle("GET /v1/discovered", auth.PermRead, a.discovered)
	a.handle("GET /v1/images", auth.PermRead, func(*http.Request, string) (any, error) { return a.images, nil })
	a.handle("DELETE /v1/images/{name}", auth.PermManage, a.removeImage)
	a.handle("POST /v1/uploads", auth.PermManage, a.begin)
	a.handle("PUT /v1/uploads/{id}/blobs/{sha256}", auth.PermManage, a.put)
	a.handle("POST /v1/uploads/{id}/finish", auth.PermManage, a.finish)
	a.handle("GET /v1/health", auth.PermRead, func(*http.Request, string) (any, error) { return a.health, nil })
	for _, verb := range []string{"stop", "resume"} {
		a.handle("POST /v1/"+verb, auth.PermManage, func(r *http.Request, by string) (any, error) {
			return a.stopOrResume(r, by, verb)
		})
	}
	a.handle("GET /v1/users", auth.PermAdmin, func(*http.Request, string) (any, error) { return a.users, nil })
	a.handle("POST /v1/users", auth.PermAdmin, a.addUser)
	a.handle("PATCH /v1/users/{name}", auth.PermAdmin, a.setUser)
	a.handle("DELETE /v1/users/{name}", auth.PermAdmin, a.removeUser)
	a.handle("GET /v1/tokens", auth.PermAdmin, func(*http.Request, string) (any, error) { return a.tokens, nil })
	a.handle("POST /v1/tokens", auth.PermAdmin, a.mint)
	a.handle("DELETE /v1/tokens/{id}", auth.PermAdmin, a.revoke)
	a.handle("GET /v1/audit", auth.PermAdmin, func(*http.Request, string) (any, error) { return api.AuditPage{Entries: a.audit}, nil })
	a.mux.HandleFunc("GET /v1/watch", a.watch)
}

func (a *Appliance) stopOrResume(r *http.Request, by, verb string) (any, error) {
	a.note(r, by, "")
	a.stop = nil
	if verb == "stop" {
		in, err := read[api.Reason](r)
		if err != nil {
			return nil, err
		}
		a.stop = &fleet.Stop{By: by, Reason: in.Reason, Since: fleet.At(a.now())}
	}
	a.changes++
	a.tell(api.Change{ID: a.changes, Kind: api.ChangeEvent, Event: &fleet.Event{Kind: verb}})
	return api.Stopped{Stop: a.stop}, nil
}

func (a *Appliance) note(r *http.Request, by, body string) {
	a.orders = append(a.orders, Order{r.Method, r.URL.Path, by, body})
}

func (a *Appliance) page(r *http.Request, _ string) (any, error) {
	q := r.URL.Query()
	out := api.MachinePage{Rows: []api.MachineRow{}, NeedYou: []api.MachineRow{}, Counts: map[string]int{}, Rev: a.changes, Stop: a.stop}
	var hits []api.MachineRow
	for _, name := range a.names() {
		m := a.machines[name]
		working := m.State == fleet.MachineProvisioning || m.State == fleet.MachinePaused || m.State == fleet.MachineCancelling
		out.Counts["all"]++
		out.Counts[string(m.State)]++
		if working {
			out.Counts["working"]++
		}
		if m.Row.Need {
			out.Counts["need"]++
			out.NeedYou = append(out.NeedYou, m.Row)
		}
		if st := q.Get("state"); st != "" && !slices.Contains(strings.Split(st, ","), string(m.State)) && (st != "need" || !m.Row.Need) && (st != "working" || !working) {
			continue
		}
		if found(m.Row, m.UUID, q.Get("q")) {
			hits = append(hits, m.Row)
		}
	}
	slices.SortStableFunc(out.NeedYou, func(x, y api.MachineRow) int { return x.Since.Compare(y.Since.Time) })
	order(hits, q.Get("sort"))
	out.Total = len(hits)
	begin, _ := strconv.Atoi(q.Get("cursor"))
	begin = min(begin, len(hits))
	end := min(begin+number(r, "limit", api.DefaultPage), len(hits))
	out.Rows = append(out.Rows, hits[begin:end]...)
	if end < len(hits) {
		out.Next = strconv.Itoa(end)
	}
	return out, nil
}

func found(m api.MachineRow, uuid, q string) bool {
	q = strings.ToLower(q)
	hay := strings.ToLower(strings.Join(append([]string{m.Name, m.Serial, m.Place, m.Image, string(m.State), m.NodeID, uuid}, m.MACs...), "\n"))
	return strings.Contains(hay, q) || q != "" && strings.Contains(strings.ReplaceAll(hay, ":", ""), strings.NewReplacer(":", "", "-", "", ".", "").Replace(q))
}

func order(rows []api.MachineRow, by string) {
	by, down := strings.CutPrefix(by, "-")
	slices.SortStableFunc(rows, func(x, y api.MachineRow) int {
		c := 0
		switch by {
		case "place":
			c = cmp.Compare(x.Place, y.Place)
		case "state":
			c = cmp.Compare(x.State, y.State)
		case "image":
			c = cmp.Compare(x.Image, y.Image)
		case "since":
			c = x.Since.Compare(y.Since.Time)
		case "changed":
			c = x.Changed.Compare(y.Changed.Time)
		default:
			c = cmp.Compare(x.Name, y.Name)
		}
		if down {
			return -c
		}
		return c
	})
}

func (a *Appliance) shown(r *http.Request) (any, error) {
	m, err := a.machine(r)
	if err != nil {
		return nil, err
	}
	return m.Machine, nil
}

func (a *Appliance) timeline(r *http.Request, _ string) (any, error) {
	m, err := a.machine(r)
	if err != nil {
		return nil, err
	}
	begin := min(number(r, "before", 0), len(m.Timeline))
	end := min(begin+number(r, "limit", 50), len(m.Timeline))
	out := api.TimelinePage{Entries: m.Timeline[begin:end]}
	if end < len(m.Timeline) {
		out.Before = strconv.Itoa(end)
	}
	return out, nil
}

func (a *Appliance) log(r *http.Request, _ string) (any, error) {
	m, err := a.machine(r)
	if err != nil {
		return nil, err
	}
	return m.Log, nil
}

// act carries out an order as far as the page can see.
func (a *Appliance) act(r *http.Request, by, verb string) (any, error) {
	m, err := a.machine(r)
	if err != nil {
		return nil, err
	}
	in, err := read[struct {
		Version, Image, Reason, Name string
		Disks                        *int
		Reinstall                    bool
	}](r)
	if err != nil {
		return nil, err
	}
	if in.Version != "" && in.Version != m.Version {
		return nil, fault.New(fault.Conflict, verb, m.Name, errors.New("the machine changed since it was shown"), "look at it again, then decide")
	}
	next := *m
	switch verb {
	case "provision", "retry":
		if m.Protected != nil {
			return nil, fault.New(fault.Conflict, verb, m.Name, fmt.Errorf("it is %s", m.Protected), "remove the protection first")
		}
		if in.Disks == nil || *in.Disks != len(m.DiskSerials) {
			got := 0
			if in.Disks != nil {
				got = *in.Disks
			}
			return nil, fault.New(fault.Conflict, verb, m.Name, fmt.Errorf("%d disks were said, and %d would be wiped: %s", got, len(m.DiskSerials), strings.Join(m.DiskSerials, ", ")),
				"look at the machine and its disks; nothing was sent")
		}
		next = At(next, fleet.StepPowerOn, a.now())
		if in.Image != "" {
			next.Image, next.Workflow.Image = in.Image, in.Image
		}
	case "cancel":
		next.State, next.Waiting = fleet.MachineCancelled, nil
		next.Row.Line = "Cancelled by " + by
		next.Cancel = &fleet.Cancel{By: by, Reason: in.Reason, Since: fleet.At(a.now()), Outcome: "nothing was running", Next: "provision it again when you like"}
	case "resume":
		next.State = fleet.MachineProvisioning
	case "protect":
		next.Protected = &fleet.Protection{Since: fleet.At(a.now()), By: by, Why: in.Reason}
	case "unprotect":
		next.Protected = nil
	case "adopt":
		next.State, next.Protected = fleet.MachineAdopted, &fleet.Protection{Since: fleet.At(a.now()), By: by, Why: in.Reason}
	}
	a.note(r, by, verb+" "+in.Image)
	a.set(next)
	return a.machines[next.Name].Machine, nil
}

func (a *Appliance) add(r *http.Request, by string) (any, error) {
	in, err := read[api.AddMachine](r)
	if err != nil {
		return nil, err
	}
	if in.Name == "" || strings.ContainsAny(in.Name, " /<>") {
		return nil, fault.New(fault.Invalid, "add machine", in.Name, errors.New("the name has other signs than letters, digits and hyphens"), "give another name")
	}
	if _, taken := a.machines[in.Name]; taken {
		return nil, fault.New(fault.Conflict, "add machine", in.Name, errors.New("another machine has this name"), "choose another name")
	}
	m := Machine{}
	m.Name, m.State, m.MACs, m.UUID, m.DiskSerials = in.Name, fleet.MachineNew, in.MACs, in.UUID, in.DiskSerials
	m.BMC = fleet.BMC{URL: in.BMCURL, User: in.BMCUser}
	if from, ok := a.machines[in.From]; ok {
		m.MACs, m.Hardware, m.UUID = from.MACs, from.Hardware, from.UUID
		delete(a.machines, in.From)
	}
	m.Row = api.MachineRow{Place: in.Place, Line: "Ready to be provisioned", Since: fleet.At(a.now()), Changed: fleet.At(a.now())}
	a.note(r, by, in.Name+" from "+in.From)
	a.set(m)
	return a.machines[m.Name].Machine, nil
}

func (a *Appliance) setMachine(r *http.Request, by string) (any, error) {
	m, err := a.machine(r)
	if err != nil {
		return nil, err
	}
	in, err := read[api.SetMachine](r)
	if err != nil {
		return nil, err
	}
	next := *m
	if in.Place != nil {
		next.Row.Place = *in.Place
	}
	if in.DiskSerials != nil {
		next.DiskSerials = *in.DiskSerials
	}
	said, _ := json.Marshal(in)
	a.note(r, by, string(said))
	a.set(next)
	return a.machines[m.Name].Machine, nil
}

func (a *Appliance) remove(r *http.Request, by string) (any, error) {
	m, err := a.machine(r)
	if err != nil {
		return nil, err
	}
	a.note(r, by, "remove")
	delete(a.machines, m.Name)
	a.changes++
	a.tell(api.Change{ID: a.changes, Kind: api.ChangeGone, Name: m.Name})
	return api.Removed{Name: m.Name}, nil
}

func (a *Appliance) preview(r *http.Request, _ string) (any, error) {
	m, err := a.machine(r)
	if err != nil {
		return nil, err
	}
	p := executor.Preview{Machine: m.Name, Disks: []executor.PreviewDisk{}}
	for _, s := range m.DiskSerials {
		d := executor.PreviewDisk{Serial: s, Holds: fleet.HoldsOldData}
		if m.Hardware != nil {
			for _, h := range m.Hardware.Disks {
				if h.Serial == s {
					d.Model, d.SizeBytes = h.Model, h.SizeBytes
				}
			}
		}
		p.Disks = append(p.Disks, d)
	}
	return p, nil
}

func (a *Appliance) discovered(*http.Request, string) (any, error) {
	out := []fleet.Machine{}
	for _, n := range a.names() {
		if m := a.machines[n]; m.State == fleet.MachineDiscovered {
			out = append(out, m.Machine.Machine)
		}
	}
	return out, nil
}

func (a *Appliance) removeImage(r *http.Request, by string) (any, error) {
	name := r.PathValue("name")
	i := slices.IndexFunc(a.images, func(i images.Image) bool { return i.Name == name })
	if i < 0 {
		return nil, fault.New(fault.NotFound, "remove image", name, errors.New("there is none of this name"), "see the Images page")
	}
	for _, m := range a.machines {
		if m.Image == name && m.State == fleet.MachineProvisioning {
			return nil, fault.New(fault.Conflict, "remove image", name, fmt.Errorf("machine %s is being installed with it", m.Name), "wait until it is done, or cancel that")
		}
	}
	a.images = slices.Delete(a.images, i, i+1)
	a.note(r, by, "remove image")
	return api.Removed{Name: name}, nil
}

type upload struct {
	up    api.Upload
	sizes map[string]int64
	have  map[string]bool
}

func (a *Appliance) begin(r *http.Request, _ string) (any, error) {
	in, err := read[api.BeginUpload](r)
	if err != nil {
		return nil, err
	}
	m, err := manifest.Decode(in.Manifest)
	if err != nil {
		return nil, fault.New(fault.Invalid, "add image", in.Name, err, "make it again with `imagebuild pack`")
	}
	id := hex.EncodeToString(hash(in.Manifest)[:8])
	u := a.uploads[id]
	if u == nil {
		u = &upload{up: api.Upload{ID: id, Name: in.Name, Began: fleet.At(a.now())}, sizes: map[string]int64{}, have: map[string]bool{}}
		for _, c := range m.Chunks {
			if c.Size > 0 {
				u.sizes[c.Compressed.String()] = c.Size
				u.up.Total += c.Size
			}
		}
		a.uploads[id] = u
	}
	return u.state(), nil
}

func hash(b []byte) []byte { s := sha256.Sum256(b); return s[:] }

func (u *upload) state() api.Upload {
	up := u.up
	for sha, size := range u.sizes {
		if u.have[sha] {
			up.Have += size
		} else {
			up.Missing = append(up.Missing, sha)
		}
	}
	slices.Sort(up.Missing)
	return up
}

func (a *Appliance) put(r *http.Request, _ string) (any, error) {
	u := a.uploads[r.PathValue("id")]
	if u == nil {
		return nil, fault.New(fault.NotFound, "add image", "", errors.New("there is no such upload"), "begin again")
	}
	data, err := io.ReadAll(r.Body)
	if err != nil || hex.EncodeToString(hash(data)) != r.PathValue("sha256") {
		return nil, fault.New(fault.Invalid, "add image", u.up.Name, errors.New("a part arrived damaged: its SHA-256 is another one"), "send it again")
	}
	u.have[r.PathValue("sha256")] = true
	return u.state(), nil
}

func (a *Appliance) finish(r *http.Request, by string) (any, error) {
	u := a.uploads[r.PathValue("id")]
	if u == nil || len(u.state().Missing) > 0 {
		return nil, fault.New(fault.Conflict, "add image", "", errors.New("parts are missing"), "send them")
	}
	img := images.Image{Name: u.up.Name, StoredSize: u.up.Total, RawSize: u.up.Total, ManifestSHA256: u.up.ID, Added: a.now()}
	a.images = append(a.images, img)
	a.note(r, by, "image "+img.Name)
	return img, nil
}

func (a *Appliance) addUser(r *http.Request, by string) (any, error) {
	in, err := read[api.AddUser](r)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(a.users, func(u api.User) bool { return u.Name == in.Name }) {
		return nil, fault.New(fault.Conflict, "add user", in.Name, errors.New("the name is taken"), "choose another name")
	}
	u := api.User{Name: in.Name, Role: in.Role, Created: fleet.At(a.now())}
	a.users = append(a.users, u)
	a.note(r, by, "add user "+in.Name)
	return u, nil
}

func (a *Appliance) setUser(r *http.Request, by string) (any, error) {
	in, err := read[api.SetUser](r)
	if err != nil {
		return nil, err
	}
	for i := range a.users {
		if a.users[i].Name == r.PathValue("name") {
			if in.Role != "" {
				a.users[i].Role = in.Role
			}
			a.note(r, by, "set user")
			return a.users[i], nil
		}
	}
	return nil, fault.New(fault.NotFound, "set user", r.PathValue("name"), errors.New("there is none of this name"), "see the list")
}

func (a *Appliance) removeUser(r *http.Request, by string) (any, error) {
	a.users = slices.DeleteFunc(a.users, func(u api.User) bool { return u.Name == r.PathValue("name") })
	a.note(r, by, "remove user")
	return api.Removed{Name: r.PathValue("name")}, nil
}

func (a *Appliance) mint(r *http.Request, by string) (any, error) {
	in, err := read[api.MintToken](r)
	if err != nil {
		return nil, err
	}
	t := api.Token{Name: in.Name, Role: in.Role, Created: fleet.At(a.now()), By: by, Expires: fleet.At(a.now().Add(time.Duration(in.LifeS) * time.Second))}
	a.tokens = append(a.tokens, t)
	return api.MintedToken{Token: t, Value: "flt_" + hex.EncodeToString(hash([]byte(in.Name)))}, nil
}

func (a *Appliance) revoke(r *http.Request, _ string) (any, error) {
	a.tokens = slices.DeleteFunc(a.tokens, func(t api.Token) bool { return t.Name == r.PathValue("id") })
	return api.Removed{Name: r.PathValue("id")}, nil
}

func (a *Appliance) watch(w http.ResponseWriter, r *http.Request) {
	p, ok := auth.PrincipalOf(r.Context())
	if !ok || !p.Role.Allows(auth.PermRead) {
		http.Error(w, "no", http.StatusForbidden)
		return
	}
	ch := make(chan api.Change, 64)
	a.mu.Lock()
	a.watchers[ch] = r.URL.Query().Get("machine")
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.watchers, ch)
		a.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(w)
	fmt.Fprintf(w, "event: %s\ndata: {\"kind\":%q}\n\n", api.ChangeBeat, api.ChangeBeat)
	rc.Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case c := <-ch:
			data, _ := json.Marshal(c)
			fmt.Fprintf(w, "id: %d\nevent: %s\ndata: %s\n\n", c.ID, c.Kind, data)
			rc.Flush()
		}
	}
}
