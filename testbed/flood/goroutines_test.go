package flood

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestGoroutinesAreReadFromMetrics(t *testing.T) {
	t.Parallel()
	const text = "# HELP firstlight_goroutines Number of goroutines that currently exist.\n# TYPE firstlight_goroutines gauge\nfirstlight_goroutines 143\ngo_threads 9\n"
	if n, err := Goroutines(strings.NewReader(text)); err != nil || n != 143 {
		t.Errorf("got %d, %v, want 143", n, err)
	}
	for _, bad := range []string{"", "firstlight_goroutines_total 1\n", "firstlight_goroutines many\n"} {
		if n, err := Goroutines(strings.NewReader(bad)); err == nil {
			t.Errorf("%q: got %d, want an error", bad, n)
		}
	}
}

// What falls slowly is waited for; what goes up and down counts by its lowest.
func TestSettledIsTheLowest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		n, err := settled(t.Context(), func(context.Context) (int, error) {
			after := int(time.Since(start) / time.Second)
			return max(40, 60-after) + after%3, nil
		})
		if err != nil || n != 40 || time.Since(start) < 20*time.Second+quiet {
			t.Errorf("got %d, %v after %s, want 40 once it stays", n, err, time.Since(start))
		}
		gone := errors.New("gone")
		if _, err := settled(t.Context(), func(context.Context) (int, error) { return 0, gone }); !errors.Is(err, gone) {
			t.Errorf("got %v, want the reader's error", err)
		}
	})
}
