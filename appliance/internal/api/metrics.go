package api

import (
	"net/http"

	"firstlight/appliance/internal/fault"
)

// metrics answers a scrape: the one route whose answer is not ours to word.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	if err := s.check(r); err != nil {
		f := fault.Of(err, r.Method, r.URL.Path)
		answer(w, status(f.Kind), refusal{f})
		return
	}
	s.cfg.Metrics.ServeHTTP(w, r)
}
