package cli_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"firstlight/imagebuild/manifest"
)

type followerKey struct{}

// follower is a command that runs beside the script.
type follower struct {
	cmd         *exec.Cmd
	done        chan error
	out, errOut lockedBuffer
}

// lockedBuffer can be read while a process writes to it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lockedBuffer) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Reset()
}

func cmdBegin(ts *testscript.TestScript, neg bool, args []string) {
	f := ts.Value(followerKey{}).(*follower)
	if neg || len(args) == 0 || f.cmd != nil {
		ts.Fatalf("usage: begin CMD [ARG…], one at a time")
	}
	f.out.reset()
	f.errOut.reset()
	cmd := exec.Command(args[0], args[1:]...)
	if path, err := lookPath(ts.Getenv("PATH"), args[0]); err == nil {
		cmd.Path, cmd.Err = path, nil
	}
	cmd.Dir, cmd.Env = ts.Getenv("WORK"), append(os.Environ(), "FIRSTLIGHT_SOCKET="+ts.Getenv("FIRSTLIGHT_SOCKET"))
	cmd.Stdout, cmd.Stderr = &f.out, &f.errOut
	ts.Check(cmd.Start())
	f.cmd, f.done = cmd, make(chan error, 1)
	go func() { f.done <- cmd.Wait() }()
	ts.Defer(func() {
		if f.cmd == cmd {
			cmd.Process.Kill()
			<-f.done
		}
	})
}

func cmdSeen(ts *testscript.TestScript, neg bool, args []string) {
	f := ts.Value(followerKey{}).(*follower)
	if neg || len(args) != 1 || f.cmd == nil {
		ts.Fatalf("usage: seen RE, after begin")
	}
	re, end := regexp.MustCompile("(?m)"+args[0]), time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !re.MatchString(f.out.take()) {
		select {
		case <-tick.C:
		case err := <-f.done:
			f.cmd = nil
			ts.Fatalf("%v ended with %v before %q was seen:\n%s%s", args, err, args[0], f.out.take(), f.errOut.take())
		case <-end:
			ts.Fatalf("no %q within %v:\n%s%s", args[0], patience, f.out.take(), f.errOut.take())
		}
	}
}

func cmdFinish(ts *testscript.TestScript, neg bool, args []string) {
	f := ts.Value(followerKey{}).(*follower)
	if neg || len(args) != 0 || f.cmd == nil {
		ts.Fatalf("usage: finish, after begin")
	}
	ts.Check(f.cmd.Process.Signal(syscall.SIGTERM))
	cmd := f.cmd
	f.cmd = nil
	select {
	case err := <-f.done:
		ts.Check(err)
	case <-time.After(endLimit):
		cmd.Process.Kill()
		<-f.done
		ts.Fatalf("it did not end within %v", endLimit)
	}
	ts.Check(os.WriteFile(ts.MkAbs("follower.out"), []byte(f.out.take()), 0o644))
	ts.Check(os.WriteFile(ts.MkAbs("follower.err"), []byte(f.errOut.take()), 0o644))
}

// cmdLoseBlob removes the blob of the last chunk, which is sent last.
func cmdLoseBlob(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: loseblob DIR")
	}
	dir := ts.MkAbs(args[0])
	body, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	ts.Check(err)
	m, err := manifest.Decode(body)
	ts.Check(err)
	ts.Check(os.Remove(filepath.Join(dir, "blobs", m.Chunks[len(m.Chunks)-1].Compressed.String())))
}
