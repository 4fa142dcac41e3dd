package kmod

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// Module is one chosen module.
type Module struct {
	Name string
	// Path is where it is below lib/modules/<release>.
	Path string
	Data []byte
	// Needs are all modules that must be loaded before it, in an order in which they load; soft dependencies included.
	Needs []string
	Info  Info
}

// Set is a chosen group of modules that is closed under dependency, in an order in which they load.
type Set struct {
	Release string
	Modules []Module
	// Builtin are the paths that modules.builtin names.
	Builtin []string
}

// Resolve chooses the named modules and everything that they need. A named module that is built in is left out; one that does
// not exist is an error. The result depends on the names' set and order only.
func (k *Kernel) Resolve(names ...string) (*Set, error) {
	r := resolver{k: k, needs: map[string][]string{}, open: map[string]bool{}}
	for _, n := range names {
		n = Name(n)
		if k.Builtin(n) {
			continue
		}
		if !k.Has(n) {
			return nil, fmt.Errorf("kernel %s has no module %s, neither as a file nor built in", k.Release, n)
		}
		if err := r.add(n); err != nil {
			return nil, err
		}
	}
	s := &Set{Release: k.Release, Builtin: slices.Sorted(maps.Values(k.builtin))}
	for _, n := range r.order {
		data, err := k.read(path.Join(k.dir, k.paths[n]), MaxModule)
		if err != nil {
			return nil, err
		}
		s.Modules = append(s.Modules, Module{Name: n, Path: k.paths[n], Data: data, Needs: r.needs[n], Info: k.infos[n]})
	}
	return s, nil
}

type resolver struct {
	k     *Kernel
	order []string
	needs map[string][]string // of the modules that are done
	open  map[string]bool     // on the way from the root to here
}

func (r *resolver) add(n string) error {
	if _, done := r.needs[n]; done {
		return nil
	}
	if r.open[n] {
		return fmt.Errorf("module %s needs itself", n)
	}
	r.open[n] = true
	defer delete(r.open, n)
	in, err := r.k.info(n)
	if err != nil {
		return err
	}
	direct, after, err := r.direct(n, in)
	if err != nil {
		return err
	}
	var needs []string
	for _, d := range direct {
		if err := r.add(d); err != nil {
			return fmt.Errorf("module %s: %w", n, err)
		}
		for _, m := range append(slices.Clone(r.needs[d]), d) {
			if !slices.Contains(needs, m) {
				needs = append(needs, m)
			}
		}
	}
	r.needs[n] = needs
	r.order = append(r.order, n)
	for _, d := range after {
		if r.open[d] {
			continue
		}
		if err := r.add(d); err != nil {
			return fmt.Errorf("module %s: %w", n, err)
		}
	}
	return nil
}

// direct returns the modules that n names itself: those to load before it, and those that should follow it.
func (r *resolver) direct(n string, in Info) (before, after []string, err error) {
	soft := func(names []string) (out []string, err error) {
		for _, s := range names {
			m, err := r.k.soft(s)
			if err != nil {
				return nil, err
			}
			// A soft dependency on something that is waiting for n would be a circle; modprobe drops it as well.
			if m != "" && !r.open[m] {
				out = append(out, m)
			}
		}
		return out, nil
	}
	if before, err = soft(in.SoftPre); err != nil {
		return nil, nil, err
	}
	for _, d := range in.Depends {
		switch {
		case r.k.Has(d):
			before = append(before, d)
		case !r.k.Builtin(d):
			return nil, nil, fmt.Errorf("module %s needs %s, which kernel %s does not have", n, d, r.k.Release)
		}
	}
	after, err = soft(in.SoftPost)
	return before, after, err
}

// Dep is the set's modules.dep, as depmod writes it: behind the colon everything that the module needs, what loads first last,
// and nothing at all behind the colon of a module that needs nothing.
func (s *Set) Dep() []byte {
	paths := map[string]string{}
	for _, m := range s.Modules {
		paths[m.Name] = m.Path
	}
	var b bytes.Buffer
	for _, m := range s.Modules {
		b.WriteString(m.Path + ":")
		for _, n := range slices.Backward(m.Needs) {
			b.WriteString(" " + paths[n])
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// Alias is the set's modules.alias: one "alias PATTERN MODULE" a line.
func (s *Set) Alias() []byte {
	var b bytes.Buffer
	for _, m := range s.Modules {
		for _, a := range m.Info.Alias {
			if !strings.ContainsAny(a, " \t\n") {
				fmt.Fprintf(&b, "alias %s %s\n", a, m.Name)
			}
		}
	}
	return b.Bytes()
}

// BuiltinList is the set's modules.builtin.
func (s *Set) BuiltinList() []byte {
	var b bytes.Buffer
	for _, p := range s.Builtin {
		b.WriteString(p + "\n")
	}
	return b.Bytes()
}

// Names are the modules' names in load order.
func (s *Set) Names() []string {
	var out []string
	for _, m := range s.Modules {
		out = append(out, m.Name)
	}
	return out
}

// Lists are the files that belong beside the modules in lib/modules/<release>, by name.
func (s *Set) Lists() map[string][]byte {
	return map[string][]byte{"modules.dep": s.Dep(), "modules.alias": s.Alias(), "modules.builtin": s.BuiltinList()}
}
