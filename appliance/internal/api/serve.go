package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
)

// route is one thing that can be asked.
type route struct {
	method, path string
	// id is its name in the description and in the audit log; says is what it does, for people.
	id, says string
	perm     auth.Permission
	// in and out are values of the types of body and answer, for the description; nil is none.
	in, out any
	// example is a body that in reads.
	example string
	params  []param
	// limit bounds the body in bytes; 0 is maxRequest.
	limit int64
	// quiet: it changes nothing that anybody will ask about, so the audit log is not told.
	quiet bool
	// once: its answer has a value that is shown this once and kept nowhere.
	once bool
	// do answers with a value; where it is nil, stream answers by itself.
	do     func(*http.Request) (any, error)
	stream func(http.ResponseWriter, *http.Request) error
	// kind is the media type of what stream answers with.
	kind string
}

// param is one parameter of a query.
type param struct{ name, says string }

func (rt *route) audited() bool { return rt.method != "" && rt.method != http.MethodGet && !rt.quiet }

// keyed says whether a key makes it happen once: what changes nothing needs none, and would push out the answers that matter.
func (rt *route) keyed() bool { return rt.audited() }

// serve checks who asks before anything else, bounds what runs at one time, and words the answer.
func (s *Server) serve(rt *route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		t := &trail{}
		r = r.WithContext(context.WithValue(r.Context(), trailKey{}, t))
		p, err := s.admit(r, rt.perm)
		if err != nil {
			s.audit(r, rt, t, err)
			s.refuse(w, r, err)
			return
		}
		pool := s.slots
		if rt.stream != nil {
			pool = s.streams
		}
		select {
		case pool <- struct{}{}:
			defer func() { <-pool }()
		default:
			s.refuse(w, r, fault.New(fault.Unavailable, "call the API", "", fmt.Errorf("%d requests are running, the limit", cap(pool)),
				"wait for them to end and try again"))
			return
		}
		limit := rt.limit
		if limit == 0 {
			limit = maxRequest
		}
		r.Body = http.MaxBytesReader(w, r.Body, limit)
		if rt.stream != nil {
			if err := rt.stream(w, r); err != nil {
				s.refuse(w, r, err)
			}
			return
		}
		key := r.Header.Get(keyHeader)
		if !rt.keyed() || key == "" || s.cfg.Store == nil {
			v, err := rt.do(r)
			s.audit(r, rt, t, err)
			s.say(w, r, v, err)
			return
		}
		s.again(w, r, rt, p, key, t)
	}
}

// say answers with a value or a refusal.
func (s *Server) say(w http.ResponseWriter, r *http.Request, v any, err error) {
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	answer(w, http.StatusOK, v)
}

func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	code, body := s.refusal(r, err)
	answer(w, code, body)
}

func (s *Server) refusal(r *http.Request, err error) (int, refusal) {
	f := fault.Of(err, r.Method, r.URL.Path)
	if f.Kind == fault.Internal {
		s.cfg.Log.Error("api request", "method", r.Method, "path", r.URL.Path, "error", f)
	}
	code := status(f.Kind)
	if _, known := auth.PrincipalOf(r.Context()); !known && code == http.StatusForbidden {
		code = http.StatusUnauthorized
	}
	return code, refusal{f}
}

func nowhere(r *http.Request) (any, error) {
	return nil, fault.New(fault.Usage, "call the API", "", fmt.Errorf("no %s here for %.256q", r.Method, r.URL.Path),
		"use the firstlight command of the same version as the appliance")
}

// emit records an event; that it could not be recorded undoes nothing.
func (s *Server) emit(r *http.Request, e fleet.Event) {
	e.Time, e.Source = fleet.At(s.cfg.Now()), "control"
	if err := s.cfg.Fleet.Emit(r.Context(), e); err != nil {
		s.cfg.Log.Error("record event", "kind", e.Kind, "error", err)
	}
}

func decode(r *http.Request, into any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return fmt.Errorf("request body: over %d bytes", large.Limit)
		}
		return fmt.Errorf("request body: %w", err)
	}
	return nil
}

// asked decodes a request's body; op and object are for the refusal.
func asked[T any](r *http.Request, op, object string) (T, error) {
	var in T
	if err := decode(r, &in); err != nil {
		return in, fault.New(fault.Usage, op, object, err, "use the firstlight command, or the description at /v1/openapi.json")
	}
	return in, nil
}

// number is a parameter of the query within bounds; without it, otherwise.
func number(r *http.Request, op, name string, otherwise, most int) (int, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, fault.New(fault.Usage, op, r.PathValue("name"), fmt.Errorf("%s %.64q: want 1 to %d", name, text, most), "give another "+name)
	}
	return n, nil
}

// head sets what every answer says: what it is, that it is nothing else, and that nobody keeps it.
func head(w http.ResponseWriter, kind string) {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
}

func encode(v any) ([]byte, error) {
	body, err := json.Marshal(v)
	return append(body, '\n'), err
}

func answer(w http.ResponseWriter, code int, v any) {
	body, err := encode(v)
	if err != nil {
		code, body = http.StatusInternalServerError, []byte(`{"error":{"kind":"internal","op":"answer","object":"","cause":"the answer does not encode","next":"see the appliance's log"}}`+"\n")
	}
	head(w, "application/json")
	w.WriteHeader(code)
	w.Write(body)
}

// replay answers with what was answered before.
func replay(w http.ResponseWriter, code int, body []byte) {
	head(w, "application/json")
	w.Header().Set("Idempotent-Replayed", "true")
	w.WriteHeader(code)
	w.Write(bytes.Clone(body))
}
