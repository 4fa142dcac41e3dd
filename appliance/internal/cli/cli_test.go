package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/rogpeppe/go-internal/testscript"

	"firstlight/appliance/internal/cli"
	"firstlight/imagebuild/manifest"
)

// patience bounds each wait for a process: starting includes an etcd member on a machine that may be busy.
const patience = 90 * time.Second

// endLimit is how long `firstlight serve` may take to end (README.md).
const endLimit = 10 * time.Second

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"firstlight": func() {
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
			err := cli.Run(ctx, cli.Program{Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Socket: os.Getenv("FIRSTLIGHT_SOCKET")})
			stop()
			os.Exit(cli.Report(os.Stderr, err))
		},
	})
}

// TestScripts runs every command against a real `firstlight serve`. Besides testscript's own commands there are
//
//	serve [CONFIG]     start the appliance and wait until it is ready
//	end                SIGTERM, and wait for it to end well within 10 s
//	crash              SIGKILL
//	packimage DIR FILL write an image as `imagebuild pack` does
//	exits CODE CMD …   run a command and hold its exit code
//	until RE CMD …     run a command again and again until its output matches
//	loseblob DIR       remove the last blob of an image's directory
//	begin CMD …        start a command that follows something
//	seen RE            wait until that command's output matches
//	finish             SIGTERM that command, which must end well; its output is in follower.out and follower.err
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Condition: func(name string) (bool, error) {
			if name != "root" {
				return false, fmt.Errorf("unknown condition %q", name)
			}
			return os.Geteuid() == 0, nil
		},
		Setup: func(env *testscript.Env) error {
			env.Setenv("FIRSTLIGHT_SOCKET", filepath.Join(env.WorkDir, "s"))
			env.Values[serverKey{}] = &server{}
			env.Values[followerKey{}] = &follower{}
			config := fmt.Sprintf("data_dir = \"data\"\nsocket = %q\n%s", filepath.Join(env.WorkDir, "s"), configRest)
			return os.WriteFile(filepath.Join(env.WorkDir, "config.toml"), []byte(config), 0o644)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"serve": cmdServe, "end": cmdEnd, "crash": cmdCrash, "packimage": cmdPackImage, "exits": cmdExits, "until": cmdUntil,
			"loseblob": cmdLoseBlob, "begin": cmdBegin, "seen": cmdSeen, "finish": cmdFinish,
		},
	})
}

// configRest lets an external site agent be advertised, so that workflows can be planned without ports 67 and 69.
const configRest = `site_id = "site-a"
trust_domain = "firstlight.test"
[gateway]
listen = "127.0.0.1:0"
server_name = "gw.site-a.firstlight.test"
[boot]
enabled = false
http_advertise = "10.77.0.2:8080"
`

type serverKey struct{}

type server struct {
	cmd  *exec.Cmd
	done chan error
	log  *bytes.Buffer
}

func cmdServe(ts *testscript.TestScript, neg bool, args []string) {
	s := ts.Value(serverKey{}).(*server)
	if neg || len(args) > 1 || s.cmd != nil {
		ts.Fatalf("usage: serve [CONFIG], one at a time")
	}
	config := "config.toml"
	if len(args) == 1 {
		config = args[0]
	}
	cmd := exec.Command("firstlight", "serve", "--config", ts.MkAbs(config))
	if path, err := lookPath(ts.Getenv("PATH"), "firstlight"); err == nil {
		cmd.Path, cmd.Err = path, nil
	}
	cmd.Dir = ts.Getenv("WORK")
	cmd.Env = append(os.Environ(), "FIRSTLIGHT_SOCKET="+ts.Getenv("FIRSTLIGHT_SOCKET"))
	stderr, err := cmd.StderrPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	s.cmd, s.done, s.log = cmd, make(chan error, 1), &bytes.Buffer{}
	ready := make(chan bool, 1)
	go func() {
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			fmt.Fprintln(s.log, lines.Text())
			if lines.Text() == "firstlight: ready" {
				ready <- true
			}
		}
		ready <- false
		s.done <- cmd.Wait()
	}()
	ts.Defer(func() {
		if s.cmd == cmd {
			cmd.Process.Kill()
			<-s.done
		}
	})
	select {
	case ok := <-ready:
		if !ok {
			ts.Fatalf("serve ended before it was ready:\n%s", s.log)
		}
	case <-time.After(patience):
		ts.Fatalf("serve is not ready within %v", patience)
	}
}

func lookPath(path, name string) (string, error) {
	for _, dir := range filepath.SplitList(path) {
		p := filepath.Join(dir, name)
		if info, err := os.Stat(p); err == nil && info.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", exec.ErrNotFound
}

func stop(ts *testscript.TestScript, sig os.Signal, limit time.Duration) error {
	s := ts.Value(serverKey{}).(*server)
	if s.cmd == nil {
		ts.Fatalf("nothing serves")
	}
	cmd := s.cmd
	s.cmd = nil
	ts.Check(cmd.Process.Signal(sig))
	select {
	case err := <-s.done:
		ts.Check(os.WriteFile(ts.MkAbs("serve.log"), s.log.Bytes(), 0o644))
		return err
	case <-time.After(limit):
		cmd.Process.Kill()
		<-s.done
		ts.Fatalf("serve did not end within %v:\n%s", limit, s.log)
		return nil
	}
}

func cmdEnd(ts *testscript.TestScript, neg bool, args []string) {
	if err := stop(ts, syscall.SIGTERM, endLimit); err != nil {
		ts.Fatalf("serve ended with %v:\n%s", err, ts.ReadFile("serve.log"))
	}
}

func cmdCrash(ts *testscript.TestScript, neg bool, args []string) {
	stop(ts, syscall.SIGKILL, patience)
}

func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: exits CODE CMD [ARG…]")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	if err != nil {
		if _, scanErr := fmt.Sscanf(err.Error(), "exit status %d", &got); scanErr != nil {
			ts.Fatalf("%v: %v", args[1:], err)
		}
	}
	if want := args[0]; fmt.Sprint(got) != want {
		ts.Fatalf("%v: got exit code %d, want %s", args[1:], got, want)
	}
}

// cmdUntil waits on a state with a bound; the last run's output is there to be matched.
func cmdUntil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until RE CMD [ARG…]")
	}
	re, end := regexp.MustCompile("(?m)"+args[0]), time.After(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		ts.Check(ts.Exec(args[1], args[2:]...))
		if re.MatchString(ts.ReadFile("stdout")) {
			return
		}
		select {
		case <-tick.C:
		case <-end:
			ts.Fatalf("%v: no %q within %v", args[1:], args[0], patience)
		}
	}
}

// cmdPackImage writes an image of 3 MiB with a hole in its middle.
func cmdPackImage(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: packimage DIR FILL")
	}
	const chunk = 1 << 20
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(filepath.Join(dir, "blobs"), 0o755))
	enc, err := zstd.NewWriter(nil)
	ts.Check(err)
	defer enc.Close()
	m := manifest.Manifest{Version: manifest.Version, Name: "demo", RawSize: 3 * chunk, ChunkSize: chunk}
	for i, offset := range []int64{0, 2 * chunk} {
		raw := bytes.Repeat([]byte(args[1]+fmt.Sprint(i)), chunk)[:chunk]
		blob := enc.EncodeAll(raw, nil)
		sum := manifest.DigestOf(blob)
		m.Chunks = append(m.Chunks, manifest.Chunk{Offset: offset, RawSize: chunk, Size: int64(len(blob)), Raw: manifest.DigestOf(raw), Compressed: sum})
		ts.Check(os.WriteFile(filepath.Join(dir, "blobs", sum.String()), blob, 0o644))
	}
	body, err := m.Encode()
	ts.Check(err)
	ts.Check(os.WriteFile(filepath.Join(dir, "manifest.json"), body, 0o644))
}

func TestReportWithoutWords(t *testing.T) {
	var out strings.Builder
	if code := cli.Report(&out, fmt.Errorf("disk\nfull")); code != 1 || strings.Count(out.String(), "\n") != 3 {
		t.Errorf("got code %d and %q, want 1 and three lines", code, out.String())
	}
	if code := cli.Report(&out, nil); code != 0 {
		t.Errorf("nil: got code %d, want 0", code)
	}
}
