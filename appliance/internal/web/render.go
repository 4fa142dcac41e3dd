package web

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"

	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
)

// looks are the templates: one set per page, each with the frame and the shared ones.
type looks struct {
	assets *assets
	pages  map[string]*template.Template
	// shared renders the parts that a live stream sends alone.
	shared *template.Template
}

func newLooks(a *assets) (*looks, error) {
	funcs := template.FuncMap{
		"word": word, "text": text, "brief": brief, "long": long, "attr": attr, "count": count, "bytes": bytesOf, "memory": memory, "upper": upper, "asset": a.name, "left": left,
		"dom": dom, "view": func(f frame, p any) view { return view{f, p} },
		"mark": func(tone string) template.HTML { return marks[tone] },
		"step": func(state fleet.StepState) template.HTML { return stepMarks[state] },
		"dict": dict,
	}
	shared, err := template.New("shared").Funcs(funcs).ParseFS(files, "templates/shared/*.html")
	if err != nil {
		return nil, fmt.Errorf("templates: %w", err)
	}
	l := &looks{assets: a, pages: map[string]*template.Template{}, shared: shared}
	names, err := fs.Glob(files, "templates/*.html")
	if err != nil {
		return nil, fmt.Errorf("templates: %w", err)
	}
	for _, n := range names {
		t, err := shared.Clone()
		if err == nil {
			t, err = t.ParseFS(files, n)
		}
		if err != nil {
			return nil, fmt.Errorf("templates: %w", err)
		}
		l.pages[strings.TrimSuffix(path.Base(n), ".html")] = t
	}
	return l, nil
}

// name of a bundle as browsers ask for it.
func (a *assets) name(bundle string) (string, error) {
	if n, ok := a.names[bundle]; ok {
		return n, nil
	}
	return "", fmt.Errorf("no asset %q", bundle)
}

// dict makes a map of pairs, for a template that takes more than one value.
func dict(pairs ...any) (map[string]any, error) {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		key, ok := pairs[i].(string)
		if !ok {
			return nil, errors.New("dict: a key is no text")
		}
		m[key] = pairs[i+1]
	}
	return m, nil
}

// frame is what every page has around it.
type frame struct {
	Title, Site, Version string
	// Here is the path of the page's place in the navigation.
	Here string
	// Q is what was searched for; Find says that this page lists what is found while somebody types.
	Q    string
	Find bool
	// User and Role are empty for nobody.
	User string
	Role auth.Role
	CSRF string
	Now  time.Time
	All  everywhere
}

// Can says whether the person may.
func (f frame) Can(permission string) bool { return f.Role.Allows(auth.Permission(permission)) }

// Ago, For and In say a moment.
func (f frame) Ago(t fleet.Time) template.HTML { return ago(f.Now, t, "ago") }

// For says how long something lasts already.
func (f frame) For(t fleet.Time) template.HTML { return ago(f.Now, t, "for") }

// In says a moment to come.
func (f frame) In(t fleet.Time) template.HTML { return ago(f.Now, t, "in") }

// view is what a template gets: the frame and its own values.
type view struct {
	F frame
	P any
}

// here maps the first part of a path to its place in the navigation.
func here(p string) string {
	switch first, _, _ := strings.Cut(strings.TrimPrefix(p, "/"), "/"); first {
	case "", "machines":
		return "/"
	case "tokens":
		return "/users"
	case "site":
		return "/health"
	default:
		return "/" + first
	}
}

func (v *visit) frame(title string) frame {
	f := frame{Title: title, Site: v.s.cfg.Site, Version: v.s.cfg.Version, Here: here(v.r.URL.Path), Q: attr(v.r.URL.Query().Get("q")), Find: v.r.URL.Path == "/", Now: v.s.cfg.Now()}
	if p := v.session.Principal; p.Name != "" {
		f.User, f.Role, f.CSRF = p.Name, p.Role, v.session.CSRF.Reveal()
	}
	return f
}

// show answers with a page.
func (v *visit) show(page, title string, status int, p any) error {
	t := v.s.looks.pages[page]
	if t == nil {
		return fmt.Errorf("show page: no template %q", page)
	}
	f := v.frame(title)
	if f.User != "" {
		var err error
		if f.All, err = v.everywhere(); err != nil {
			v.s.cfg.Log.Warn("what every page says", "path", v.r.URL.Path, "error", err)
		}
	}
	var out bytes.Buffer
	if err := t.ExecuteTemplate(&out, "frame", view{f, p}); err != nil {
		return fmt.Errorf("show page %s: %w", page, err)
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if !takesGzip(v.r) {
		v.w.WriteHeader(status)
		v.w.Write(out.Bytes())
		return nil
	}
	v.w.Header().Set("Content-Encoding", "gzip")
	v.w.Header().Add("Vary", "Accept-Encoding")
	v.w.WriteHeader(status)
	z, _ := gzip.NewWriterLevel(v.w, gzip.BestSpeed)
	z.Write(out.Bytes())
	z.Close()
	return nil
}

// three is a fault as it is shown: what, why, what next.
type three struct{ Tone, What, Why, Next string }

func threeOf(err error) three {
	f := fault.Of(err, "show the page", "")
	l := f.Lines()
	t := three{Tone: "red", What: upper(l[0]) + ": not done", Why: strings.TrimPrefix(l[1], "cause: "), Next: strings.TrimPrefix(l[2], "next: ")}
	switch f.Kind {
	case fault.Denied:
		t.Tone, t.What = "amber", upper(l[0])+": you may not"
	case fault.Conflict, fault.Invalid, fault.Usage:
		t.Tone = "amber"
	case fault.NotFound:
		t.Tone = "neutral"
	}
	return t
}

// status of a fault as a page's.
func status(k fault.Kind) int {
	switch k {
	case fault.Denied:
		return http.StatusForbidden
	case fault.NotFound:
		return http.StatusNotFound
	case fault.Conflict:
		return http.StatusConflict
	case fault.Invalid, fault.Usage:
		return http.StatusUnprocessableEntity
	case fault.Unavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// fail answers with the page that says what did not work.
func (v *visit) fail(err error) {
	f := fault.Of(err, "show the page", "")
	if f.Kind == fault.Internal {
		v.s.cfg.Log.Error("page", "path", v.r.URL.Path, "error", err)
	}
	if v.r.Header.Get("X-CSRF") != "" {
		v.json(status(f.Kind), map[string]any{"error": f})
		return
	}
	title := map[fault.Kind]string{fault.Denied: "Not allowed", fault.NotFound: "Not here"}[f.Kind]
	if title == "" {
		title = "Not done"
	}
	if err := v.show("failed", title, status(f.Kind), failedPage{threeOf(f), f.Kind}); err != nil {
		v.s.cfg.Log.Error("page", "path", v.r.URL.Path, "error", err)
		http.Error(v.w, f.Error(), http.StatusInternalServerError)
	}
}

type failedPage struct {
	three
	Kind fault.Kind
}

func (s *Server) nowhere(v *visit) error {
	return fault.New(fault.NotFound, "show "+attr(v.r.URL.Path), "", errors.New("there is no such page"), "go back to the fleet, or search with /")
}
