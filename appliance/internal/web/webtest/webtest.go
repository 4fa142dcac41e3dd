// Package webtest is the page's twin of an appliance: an API handler over a fleet that is made up, and accounts in memory. Tests and
// pictures of the page use it; nothing in production imports it.
//
// It answers the same paths with the same values as package api, for the permissions of package auth, and refuses in the same words
// where a test looks at them. It is no appliance: nothing is provisioned, a test moves a machine with Set.
package webtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/images"
)

// Appliance is the fake. Its zero value is not ready: use New or Empty.
type Appliance struct {
	now func() time.Time
	mux *http.ServeMux

	mu       sync.Mutex
	machines map[string]*Machine
	images   []images.Image
	users    []api.User
	tokens   []api.Token
	audit    []api.AuditEntry
	health   api.Health
	stop     *fleet.Stop
	uploads  map[string]*upload
	answers  map[string]answer
	// broken maps a path's prefix to the error that it answers.
	broken   map[string]error
	watchers map[chan api.Change]string
	changes  int64
	orders   []Order
}

// Machine is one machine of the fake, with what the API says beside it.
type Machine struct {
	api.Machine
	Timeline []api.TimelineEntry
	Log      []api.LogLine
}

// Order is an order that was carried out.
type Order struct {
	Method, Path, By string
	Body             string
}

type answer struct {
	code int
	body []byte
}

// Empty returns an appliance without machines.
func Empty(now func() time.Time) *Appliance {
	a := &Appliance{now: now, mux: http.NewServeMux(), machines: map[string]*Machine{}, uploads: map[string]*upload{}, answers: map[string]answer{},
		broken: map[string]error{}, watchers: map[chan api.Change]string{}}
	a.health = api.Health{State: "ok", Checked: fleet.At(now())}
	a.routes()
	return a
}

// ServeHTTP is the API.
func (a *Appliance) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.mux.ServeHTTP(w, r) }

// Set puts a machine in, or changes it, and tells whoever watches.
func (a *Appliance) Set(m Machine) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.set(m)
}

func (a *Appliance) set(m Machine) {
	a.changes++
	m.Version = fmt.Sprintf("v%d", a.changes)
	m.Row = rowOf(m)
	m.Line = m.Row.Line
	a.machines[m.Name] = &m
	a.tell(api.Change{ID: a.changes, Kind: api.ChangeMachine, Name: m.Name, Row: &m.Row})
}

// Get returns a machine.
func (a *Appliance) Get(name string) (Machine, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	m, ok := a.machines[name]
	if !ok {
		return Machine{}, false
	}
	return *m, true
}

// Break makes every path that begins so answer err; nil heals it.
func (a *Appliance) Break(prefix string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		delete(a.broken, prefix)
		return
	}
	a.broken[prefix] = err
}

// Orders returns what was carried out so far.
func (a *Appliance) Orders() []Order {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.orders)
}

func (a *Appliance) tell(c api.Change) {
	for ch, machine := range a.watchers {
		if machine != "" && machine != c.Name {
			continue
		}
		select {
		case ch <- c:
		default:
		}
	}
}

// rowOf fills what a machine does not say itself of its row.
func rowOf(m Machine) api.MachineRow {
	r := m.Row
	r.Name, r.NodeID, r.State, r.Image, r.MACs = m.Name, m.NodeID, m.State, m.Image, m.MACs
	r.Protected, r.Version, r.Disks = m.Protected != nil, m.Version, m.DiskSerials
	if m.Hardware != nil {
		r.Serial = m.Hardware.Serial
	}
	if m.Failure != nil {
		r.Need, r.Line, r.Why, r.Next = true, m.Failure.What, m.Failure.Why, m.Failure.Next
	}
	return r
}

// handle answers one path: who may is asked first, a key's first answer is its only one.
func (a *Appliance) handle(path string, perm auth.Permission, do func(r *http.Request, by string) (any, error)) {
	a.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		p, ok := auth.PrincipalOf(r.Context())
		op := strings.TrimPrefix(path, r.Method+" /v1/")
		var v any
		var err error
		a.mu.Lock()
		defer a.mu.Unlock()
		key := p.String() + " " + r.Header.Get("Idempotency-Key")
		if was, again := a.answers[key]; again && r.Header.Get("Idempotency-Key") != "" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(was.code)
			w.Write(was.body)
			return
		}
		switch {
		case !ok || !p.Role.Allows(perm):
			err = fault.New(fault.Denied, op, "", fmt.Errorf("the role %s may not do this", p.Role), "ask an administrator for another role")
		default:
			if err = a.brokenAt(r.URL.Path); err == nil {
				v, err = do(r, p.String())
			}
		}
		code := http.StatusOK
		if err != nil {
			f := fault.Of(err, op, "")
			code = map[fault.Kind]int{fault.Denied: 403, fault.NotFound: 404, fault.Conflict: 409, fault.Invalid: 400, fault.Usage: 400, fault.Unavailable: 503}[f.Kind]
			if code == 0 {
				code = 500
			}
			v = map[string]any{"error": f}
		}
		body, _ := json.Marshal(v)
		if r.Header.Get("Idempotency-Key") != "" {
			a.answers[key] = answer{code, body}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		w.Write(body)
	})
}

func (a *Appliance) brokenAt(path string) error {
	for prefix, err := range a.broken {
		if strings.HasPrefix(path, prefix) {
			return err
		}
	}
	return nil
}

func read[T any](r *http.Request) (T, error) {
	var v T
	if err := json.NewDecoder(r.Body).Decode(&v); err != nil {
		return v, fault.New(fault.Usage, "read the request", "", err, "send JSON")
	}
	return v, nil
}

func number(r *http.Request, key string, def int) int {
	if n, err := strconv.Atoi(r.URL.Query().Get(key)); err == nil {
		return n
	}
	return def
}

func (a *Appliance) machine(r *http.Request) (*Machine, error) {
	name := r.PathValue("name")
	m, ok := a.machines[name]
	if !ok {
		return nil, fault.New(fault.NotFound, "show machine", name, errors.New("there is no machine of this name"), "see the fleet for the names")
	}
	return m, nil
}

// names of all machines, sorted.
func (a *Appliance) names() []string { return slices.Sorted(maps.Keys(a.machines)) }
