package deploy

import (
	"net/http"
	"testing"
	"time"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for v, want := range map[string]time.Duration{"": 0, "0": 0, " 7 ": 7 * time.Second, "-1": 0, "1.5": 0, "soon": 0, "4294967296": 0,
		"Fri, 02 Jan 2026 03:05:05 GMT": time.Minute, "Fri, 02 Jan 2026 03:04:00 GMT": 0} {
		if got := retryAfter(http.Header{"Retry-After": {v}}, now); got != want {
			t.Errorf("%q: got %s, want %s", v, got, want)
		}
	}
	// A date counts by the server's clock: the machine's may be years away.
	h := http.Header{"Retry-After": {"Fri, 02 Jan 2026 03:05:05 GMT"}, "Date": {"Fri, 02 Jan 2026 03:05:00 GMT"}}
	if got := retryAfter(h, time.Unix(0, 0)); got != 5*time.Second {
		t.Errorf("by the server's clock: got %s, want 5s", got)
	}
}

func FuzzRetryAfter(f *testing.F) {
	f.Add("7", "")
	f.Add("Fri, 02 Jan 2026 03:05:05 GMT", "Fri, 02 Jan 2026 03:05:00 GMT")
	f.Add("99999999999999999999", "x")
	f.Fuzz(func(t *testing.T, after, date string) {
		if d := retryAfter(http.Header{"Retry-After": {after}, "Date": {date}}, time.Unix(0, 0)); d < 0 {
			t.Fatalf("%q at %q asks to wait %s", after, date, d)
		}
	})
}
