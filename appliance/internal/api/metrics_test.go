package api

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Numbers about the site are for those who may read it.
func TestMetricsAreForThoseWhoMay(t *testing.T) {
	t.Parallel()
	s := NewServer(ServerConfig{Owner: 1000, Log: slog.New(slog.DiscardHandler),
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "firstlight_up 1\n") })})
	for _, c := range []struct {
		who  Peer
		code int
		body string
	}{{Peer{UID: 1000}, http.StatusOK, "firstlight_up 1\n"}, {Peer{}, http.StatusOK, "firstlight_up 1\n"}, {Peer{UID: 1001}, http.StatusForbidden, ""}} {
		r := httptest.NewRequest("GET", "/metrics", nil)
		r = r.WithContext(context.WithValue(r.Context(), peerKey{}, c.who))
		w := httptest.NewRecorder()
		s.http.Handler.ServeHTTP(w, r)
		if w.Code != c.code || c.body != "" && w.Body.String() != c.body {
			t.Errorf("uid %d: got %d %q, want %d %q", c.who.UID, w.Code, w.Body, c.code, c.body)
		}
	}
}
