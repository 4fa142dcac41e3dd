package web_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/roster"
	"firstlight/appliance/internal/store/storetest"
	"firstlight/appliance/internal/web"
	"firstlight/appliance/internal/web/webtest"
)

// BenchmarkPage10k is the fleet's page at 10,000 machines for somebody who is signed in, from the request to the last byte of HTML,
// over the real API. Its p99 is to be at most 20 ms.
func BenchmarkPage10k(b *testing.B) {
	store := storetest.New()
	for i := range 10_000 {
		name := fmt.Sprintf("r%03du%02d", i/40, i%40)
		v, err := json.Marshal(fleet.Record{Name: name, NodeID: fmt.Sprintf("node-%06d", i), MACs: []string{fmt.Sprintf("52:54:00:%02x:%02x:%02x", i>>16, i>>8&255, i&255)},
			UUID: fmt.Sprintf("4c4c4544-0000-0000-0000-%012d", i), DiskSerials: []string{fmt.Sprintf("S4X%06d", i)}, Place: fmt.Sprintf("rack %d unit %d", i/40, i%40), Added: fleet.At(time.Now())})
		if err == nil {
			_, err = store.Put(b.Context(), "machines/"+name, v, 0)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	repo := fleet.NewRepo(store)
	list := roster.New(roster.Config{Source: repo, Now: time.Now})
	if err := list.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	srv := api.NewServer(api.ServerConfig{Fleet: repo, Roster: list, Now: time.Now, Log: quiet})
	page, err := web.New(web.Config{API: api.InProcess(srv.Handler()), Accounts: webtest.NewAccounts(time.Now, false), Site: "site-a", Version: "1.0-test", Now: time.Now, Log: quiet})
	if err != nil {
		b.Fatal(err)
	}
	cookie := enter(b, page)
	queries := []string{"", "?q=r249u39", "?q=52-54-00-00-27", "?q=rack+2&sort=-changed", "?sort=place", "?state=need&sort=since", "?q=nothing+has+this", "?sort=-name"}
	var took, used []time.Duration
	for i := 0; b.Loop(); i++ {
		r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "http://site/"+queries[i%len(queries)], nil)
		r.AddCookie(cookie)
		w := httptest.NewRecorder()
		begin, busy := time.Now(), processorTime(b)
		page.ServeHTTP(w, r)
		took, used = append(took, time.Since(begin)), append(used, processorTime(b)-busy)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "</html>") {
			b.Fatalf("%s: got %d %.300s", r.URL, w.Code, w.Body)
		}
	}
	slices.Sort(took)
	slices.Sort(used)
	b.ReportMetric(float64(used[len(used)*99/100])/1e6, "p99-cpu-ms")
	b.ReportMetric(float64(took[len(took)*99/100])/1e6, "p99-ms")
	b.ReportMetric(float64(took[len(took)/2])/1e6, "p50-ms")
}

// enter signs in and returns the session's cookie.
func enter(b *testing.B, page http.Handler) *http.Cookie {
	b.Helper()
	form := url.Values{"name": {"anna"}, "password": {webtest.Password}}
	r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "http://site/login", strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Origin", "http://site")
	w := httptest.NewRecorder()
	page.ServeHTTP(w, r)
	if cookies := w.Result().Cookies(); w.Code == http.StatusSeeOther && len(cookies) == 1 {
		return cookies[0]
	}
	b.Fatalf("sign in: got %d %.300s", w.Code, w.Body)
	return nil
}

// processorTime is what this process has used so far: what others do on the machine is not in it.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ts.Nano())
}
