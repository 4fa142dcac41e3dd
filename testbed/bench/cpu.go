package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cpu is the processor time that the process and those that descend from it have used so far. Children that came and went between
// two calls are not in it: it is for servers that keep theirs.
func (p *process) cpu() (time.Duration, error) {
	parents, err := parents("/proc")
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, pid := range family(p.cmd.Process.Pid, parents) {
		// clock_getcpuclockid(3): a process's own clock, in nanoseconds, with the threads that have ended.
		const perProcess = 2
		var ts unix.Timespec
		if err := unix.ClockGettime(int32(^pid<<3|perProcess), &ts); err != nil {
			return 0, fmt.Errorf("processor time of %s, process %d: %w", p.name, pid, err)
		}
		sum += time.Duration(ts.Nano())
	}
	return sum, nil
}

// parents reads who is whose parent.
func parents(proc string) (map[int]int, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	out := map[int]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join(proc, e.Name(), "stat"))
		if err != nil {
			continue // it ended
		}
		// proc(5): the name, field 2, may hold spaces and parentheses; the parent is field 4.
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(fields) < 2 {
			continue
		}
		if parent, err := strconv.Atoi(fields[1]); err == nil {
			out[pid] = parent
		}
	}
	return out, nil
}

// family is a process and those that descend from it.
func family(pid int, parents map[int]int) []int {
	out := []int{pid}
	for i := 0; i < len(out); i++ {
		for child, parent := range parents {
			if parent == out[i] {
				out = append(out, child)
			}
		}
	}
	return out
}
