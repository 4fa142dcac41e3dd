package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// listLimit is the bound of a page of the list at 10,000 machines, in milliseconds.
const listLimit = 20

// listAsks is how often a round asks.
const listAsks = 400

// measurePage runs the Go benchmarks of the list and of the page, which make a fleet of 10,000 machines in memory: to add them one
// by one over the API is ten thousand durable writes, each after a look at all before it, and not what is measured here.
func (b *bench) measurePage(ctx context.Context) error {
	source := filepath.Dir(b.Bin)
	if _, err := os.Stat(filepath.Join(source, "go.mod")); err != nil {
		return fmt.Errorf("find the project's source beside %s: %w (make bench runs from there)", b.Bin, err)
	}
	for _, g := range []struct{ what, pkg, name string }{
		{"list at 10,000 machines as JSON (GET /v1/machines), orders and searches in turn", "./appliance/internal/api", "BenchmarkList10k"},
		{"page at 10,000 machines (GET /), signed in, orders and searches in turn", "./appliance/internal/web", "BenchmarkPage10k"},
	} {
		said, err := goBenchmark(ctx, source, g.pkg, g.name, b.Rounds)
		if err != nil {
			return err
		}
		b.say("page: %s: p99 %.3g ms, of processor time %.3g ms", g.name, said["p99-ms"], said["p99-cpu-ms"])
		b.add(alone("page", g.what+": p99 in ms", atMostOf(listLimit, "ms"), said["p99-ms"]),
			alone("page", g.what+": p99 of the processor time in ms, which other work on the machine does not touch", atMostOf(listLimit, "ms"), said["p99-cpu-ms"]))
	}
	return nil
}

// goBenchmark runs a benchmark n times, each listAsks requests, and returns its metrics.
func goBenchmark(ctx context.Context, source, pkg, name string, n int) (map[string]series, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^"+name+"$", "-benchtime", fmt.Sprintf("%dx", listAsks), "-count", strconv.Itoa(n), pkg)
	cmd.Dir = source
	// go test leaves its test behind when it is ended itself: both go.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = endLimit
	out, err := cmd.Output()
	if err != nil {
		said := out
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			said = append(said, exit.Stderr...)
		}
		return nil, fmt.Errorf("go test -bench %s %s: %w: %s", name, pkg, err, said[max(0, len(said)-maxWords):])
	}
	m, err := metrics(strings.NewReader(string(out)), name)
	if err != nil {
		return nil, err
	}
	for _, unit := range []string{"p99-ms", "p99-cpu-ms"} {
		if len(m[unit]) != n {
			return nil, fmt.Errorf("go test -bench %s: %d figures of %s, want %d", name, len(m[unit]), unit, n)
		}
	}
	return m, nil
}

// metrics reads what a benchmark's lines say (go.dev/design/14313-benchmark-format): name, count, then pairs of figure and unit.
func metrics(r io.Reader, name string) (map[string]series, error) {
	out := map[string]series{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 4 || f[0] != name && !strings.HasPrefix(f[0], name+"-") {
			continue
		}
		for i := 2; i+1 < len(f); i += 2 {
			v, err := strconv.ParseFloat(f[i], 64)
			if err != nil {
				return nil, fmt.Errorf("read the line of %s: %w", name, err)
			}
			out[f[i+1]] = append(out[f[i+1]], v)
		}
	}
	return out, lines.Err()
}
