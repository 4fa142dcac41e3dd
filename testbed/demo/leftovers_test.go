package demo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// asDemo makes this test's program the demo itself: its bin folder is the value.
const asDemo = "FIRSTLIGHT_TEST_DEMO"

// Bounds of waiting for what happens once the demo was told.
const (
	sayLimit  = 3 * time.Minute // RAM disk and image may be built first
	goneLimit = 30 * time.Second
	lookEvery = 50 * time.Millisecond
)

func TestMain(m *testing.M) {
	bin := os.Getenv(asDemo)
	if bin == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := Run(ctx, Options{Bin: bin, Out: os.Stdout}); err != nil {
		fmt.Println("demo:", err)
		os.Exit(1)
	}
}

// place is a demo's surroundings: everything that it makes has the place's path or the demo's process id in its name.
type place struct{ bin, tmp, pids string }

// guest stands in for QEMU: it is started in the machine's namespace as QEMU is, and never answers.
const guest = "#!/bin/sh\necho $$ >> %s\nexec sleep 600\n"

func newPlace(t *testing.T) place {
	t.Helper()
	switch {
	case testing.Short():
		t.Skip("starts appliances")
	case os.Geteuid() != 0:
		t.Skip("network namespaces and taps need root")
	}
	built, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := place{bin: filepath.Join(dir, "bin"), tmp: filepath.Join(dir, "tmp"), pids: filepath.Join(dir, "pids")}
	for _, d := range []string{p.bin, p.tmp, filepath.Join(built, "cache")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"firstlight", "imagebuild", "machine-agent", "inputs", "cache"} {
		if _, err := os.Stat(filepath.Join(built, name)); err != nil {
			t.Skipf("%v: make build makes it", err)
		}
		if err := os.Symlink(filepath.Join(built, name), filepath.Join(p.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(p.bin, "qemu-system-x86_64"), fmt.Appendf(nil, guest, p.pids), 0o755); err != nil {
		t.Fatal(err)
	}
	return p
}

// running is a demo in a process of its own.
type running struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan string
	said  []string
}

func (p place) start(t *testing.T) *running {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asDemo+"="+p.bin, "TMPDIR="+p.tmp, "PATH="+p.bin+":"+os.Getenv("PATH"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	r := &running{t: t, cmd: cmd, lines: make(chan string, 1000)}
	go func() {
		defer close(r.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			r.lines <- s.Text()
		}
		io.Copy(io.Discard, out)
	}()
	return r
}

// says waits for a line with that text.
func (r *running) says(text string) {
	r.t.Helper()
	limit := time.After(sayLimit)
	for {
		select {
		case l, ok := <-r.lines:
			if !ok {
				r.t.Fatalf("the demo ended before it said %q:\n%s", text, strings.Join(r.said, "\n"))
			}
			r.said = append(r.said, l)
			if strings.Contains(l, text) {
				return
			}
		case <-limit:
			r.t.Fatalf("the demo did not say %q within %s:\n%s", text, sayLimit, strings.Join(r.said, "\n"))
		}
	}
}

func (r *running) signal(sig os.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(sig); err != nil {
		r.t.Fatal(err)
	}
}

// servesPage asks for the page at the address that was said, as a browser of this machine.
func (r *running) servesPage() {
	r.t.Helper()
	said := address.FindStringSubmatch(strings.Join(r.said, "\n"))
	if said == nil {
		r.t.Fatalf("no address in\n%s", strings.Join(r.said, "\n"))
	}
	c := &http.Client{Timeout: askLimit, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := c.Get(said[1])
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != "/setup" {
		r.t.Errorf("the page answers %s and %q, want it to send the first one who comes to /setup", resp.Status, resp.Header.Get("Location"))
	}
}

var address = regexp.MustCompile(`Page +(http://127\.0\.0\.1:[0-9]+/)`)

// holdsNo looks for a secret in every file of the demo.
func (p place) holdsNo(t *testing.T, secret string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(filepath.Join(p.bin, "demo"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.HasSuffix(path, ".raw") {
			return err
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		files++
		if bytes.Contains(b, []byte(secret)) {
			t.Errorf("%s holds the one-time code", path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) || files < 10 {
		t.Errorf("looked at %d files: %v", files, err)
	}
}

// ends waits for the demo's end and gives everything that it said, and its exit code.
func (r *running) ends() (said string, code int) {
	for l := range r.lines {
		r.said = append(r.said, l)
	}
	r.cmd.Wait()
	return strings.Join(r.said, "\n"), r.cmd.ProcessState.ExitCode()
}

// until waits for a state.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for limit := time.Now().Add(goneLimit); !ok(); <-tick.C {
		if time.Now().After(limit) {
			t.Fatalf("%s: not within %s", what, goneLimit)
		}
	}
}

// left lists what there is of a demo with that process id: namespaces (taps and bridges live in them), processes inside them or with
// files of its place, links and mounts that were not there before, files.
func (p place) left(t *testing.T, pid int, before map[string]bool) []string {
	t.Helper()
	var out []string
	mine := fmt.Sprintf("fltb-%d-", pid)
	spaces, _ := filepath.Glob("/run/netns/" + mine + "*")
	out = append(out, spaces...)
	for what := range host(t) {
		if !before[what] && strings.Contains(what, mine) {
			out = append(out, what)
		}
	}
	out = append(out, p.processes(mine)...)
	if _, err := os.Lstat(filepath.Join(p.bin, "demo", "run")); err == nil {
		out = append(out, "folder bin/demo/run")
	}
	files, _ := filepath.Glob(p.tmp + "/*")
	return append(out, files...)
}

// processes are those whose command line or root of mounts has to do with the place or with namespaces of that name.
func (p place) processes(mine string) []string {
	var out []string
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range all {
		line, err := os.ReadFile(filepath.Join(proc, "cmdline"))
		if err != nil || proc == fmt.Sprintf("/proc/%d", os.Getpid()) {
			continue
		}
		text := string(bytes.ReplaceAll(line, []byte{0}, []byte(" ")))
		if strings.Contains(text, p.bin) || strings.Contains(text, mine) {
			out = append(out, "process "+filepath.Base(proc)+": "+text)
		}
	}
	started, _ := os.ReadFile(p.pids)
	for _, pid := range strings.Fields(string(started)) {
		if line, err := os.ReadFile("/proc/" + pid + "/cmdline"); err == nil && bytes.HasPrefix(line, []byte("sleep\x00600")) {
			out = append(out, "guest "+pid)
		}
	}
	return out
}

// host are the links and mounts outside all namespaces.
func host(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for what, args := range map[string][]string{"link ": {"ip", "-o", "link"}, "mount ": {"cat", "/proc/self/mountinfo"}} {
		text, err := exec.Command(args[0], args[1:]...).Output()
		if err != nil {
			t.Fatal(err)
		}
		for l := range strings.Lines(string(text)) {
			out[what+strings.TrimSpace(l)] = true
		}
	}
	return out
}

// guestRuns waits until the first machine was switched on.
func (p place) guestRuns(t *testing.T) {
	t.Helper()
	until(t, "a guest is started", func() bool {
		b, err := os.ReadFile(p.pids)
		return err == nil && len(b) > 0
	})
}

func TestNothingIsLeftBehind(t *testing.T) {
	for _, tc := range []struct {
		name string
		stop func(p place, r *running)
	}{
		{"Ctrl-C, twice", func(p place, r *running) {
			r.says("one-time code")
			p.guestRuns(r.t)
			r.servesPage()
			p.holdsNo(r.t, setupCode.FindStringSubmatch(r.said[len(r.said)-1])[1])
			if n := len(p.left(r.t, r.cmd.Process.Pid, nil)); n < 5 {
				r.t.Fatalf("%d things while the demo runs: this test looks at the wrong ones", n)
			}
			r.signal(os.Interrupt)
			r.says("Ending")
			r.signal(os.Interrupt)
		}},
		{"SIGTERM while it starts", func(p place, r *running) {
			r.says("RAM disk")
			r.signal(syscall.SIGTERM)
		}},
		{"a failure", func(p place, r *running) {
			r.says("one-time code")
			p.guestRuns(r.t)
			pid := p.process(r.t, "firstlight")
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				r.t.Fatal(err)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p, before := newPlace(t), host(t)
			r := p.start(t)
			tc.stop(p, r)
			said, code := r.ends()
			if code != 1 || !strings.Contains(said, "Everything that the demo made is gone") {
				t.Errorf("exit code %d, want 1 for a demo that ended before a machine was active:\n%s", code, said)
			}
			if left := p.left(t, r.cmd.Process.Pid, before); len(left) > 0 {
				t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
			}
		})
	}
}

// process finds the one process of the place that runs that program.
func (p place) process(t *testing.T, program string) int {
	t.Helper()
	for _, l := range p.processes(p.bin) {
		var pid int
		if _, err := fmt.Sscanf(l, "process %d:", &pid); err == nil && strings.Contains(l, p.bin+"/"+program+" serve") {
			return pid
		}
	}
	t.Fatalf("no process runs %s", program)
	return 0
}

func TestTheNextDemoTakesAwayWhatAKilledOneLeft(t *testing.T) {
	t.Parallel()
	p, before := newPlace(t), host(t)
	killed := p.start(t)
	killed.says("one-time code")
	p.guestRuns(t)
	killed.signal(syscall.SIGKILL)
	killed.ends()
	pid := killed.cmd.Process.Pid
	// Most of its children go with it; its namespaces and files cannot.
	if left := p.left(t, pid, before); len(left) < 6 {
		t.Fatalf("a killed demo leaves %q: there is nothing to take away", left)
	}
	next := p.start(t)
	next.says("Took away what a demo that was killed had left")
	next.says("one-time code")
	if spaces, _ := filepath.Glob(fmt.Sprintf("/run/netns/fltb-%d-*", pid)); len(spaces) > 0 {
		t.Errorf("the next demo runs, and of the killed one there are %q", spaces)
	}
	next.signal(os.Interrupt)
	next.ends()
	for _, id := range []int{pid, next.cmd.Process.Pid} {
		if left := p.left(t, id, before); len(left) > 0 {
			t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
		}
	}
}

func TestTwoDemosOfOneCheckout(t *testing.T) {
	t.Parallel()
	f, err := openFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(f.run(), "file")
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openFolder(f.dir); err == nil || !strings.Contains(err.Error(), "another demo") {
		t.Errorf("got %v, want a refusal: the first one still runs", err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("the refused demo touched the running one's folder: %v", err)
	}
	if err := f.close(); err != nil {
		t.Fatal(err)
	}
	again, err := openFolder(f.dir)
	if err != nil || again.leftover {
		t.Fatalf("got %+v, %v, want a folder that an orderly end left empty", again, err)
	}
	if err := again.unlock(); err != nil { // as if killed: the run folder stays
		t.Fatal(err)
	}
	third, err := openFolder(f.dir)
	if err != nil || !third.leftover {
		t.Fatalf("got %+v, %v, want what the killed one left to be seen", third, err)
	}
	if err := third.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := openFolder(filepath.Join(f.dir, strings.Repeat("long/", 20))); err == nil || !strings.Contains(err.Error(), "shorter path") {
		t.Errorf("got %v, want advice on a path that is too long for a socket", err)
	}
}
