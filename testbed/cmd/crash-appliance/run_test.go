package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"firstlight/appliance"
)

func TestFuseBurnsAtItsWriteAndEdge(t *testing.T) {
	t.Parallel()
	writes := []appliance.Write{{Key: "machines/a"}, {Key: "machines/a", Durable: true}, {Key: "workflows/w"}, {Key: "workflows/w", Durable: true},
		{Key: "workflows/w"}, {Key: "workflows/w"}, {Key: "workflows/w", Durable: true}}
	for _, c := range []struct {
		name string
		at   int
		edge string
		want int // index of the write that kills; -1 is none
	}{
		{"never", 0, edgeAfter, -1}, {"before the first", 1, edgeBefore, 2}, {"after the first", 1, edgeAfter, 3},
		{"a write that failed is never durable", 2, edgeAfter, 6}, {"before the third", 3, edgeBefore, 5}, {"beyond the last", 9, edgeBefore, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			log := filepath.Join(t.TempDir(), "log")
			got := -1
			at := 0
			f := &fuse{at: c.at, edge: c.edge, prefix: "workflows/", log: log}
			f.kill = func() {
				if got < 0 {
					got = at
				}
			}
			for at = range writes {
				f.observe(writes[at])
			}
			if got != c.want {
				t.Errorf("got write %d, want %d", got, c.want)
			}
			if line, _ := os.ReadFile(log); (c.want >= 0) != strings.HasSuffix(string(line), "workflows/w\n") {
				t.Errorf("got note %q", line)
			}
		})
	}
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"edge": {"--edge", "beside"}, "number": {"--at", "-1"}, "flag": {"--x"}, "configuration": {"--config", filepath.Join(t.TempDir(), "none")}} {
		if err := run(t.Context(), args, nil, nil, &bytes.Buffer{}); err == nil {
			t.Errorf("%s: got no error for %q", name, args)
		}
	}
}
