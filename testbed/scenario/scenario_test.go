package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"firstlight/testbed/judge"
	"firstlight/testbed/qemu"
)

func TestBreaksAreWhole(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	core := 0
	for _, b := range breakKinds() {
		if b.name == "" || b.what == "" || b.cause == nil || seen[b.name] || !slices.Contains(judge.Stages, b.stage) {
			t.Errorf("break %q: lacks a part, comes twice or fails in no stage (%q)", b.name, b.stage)
		}
		if (len(b.pauseAfter) > 0) != (b.paused != nil) {
			t.Errorf("break %q: pauses after %v without knowing what to do then", b.name, b.pauseAfter)
		}
		seen[b.name] = true
		if b.core {
			core++
		}
	}
	if core != 3 {
		t.Errorf("%d core breaks, want 3", core)
	}
}

// Where each break must fail first, as the issue of the chain lists them.
func TestBreaksFailWhereTheChainSays(t *testing.T) {
	t.Parallel()
	want := map[string]string{"tftp": "tftp", "script": "script", "assertion": "join", "pin": "join", "worker-key": "wipe", "wrong-serial": "wipe",
		"manifest": "deploy", "chunk": "deploy", "kexec": "kexec", "token": "node-join"}
	for _, b := range breakKinds() {
		if want[b.name] != b.stage {
			t.Errorf("break %s fails in %s, want %s", b.name, b.stage, want[b.name])
		}
		delete(want, b.name)
	}
	if len(want) > 0 {
		t.Errorf("breaks missing: %v", want)
	}
}

func TestWrongSerialNamesBoth(t *testing.T) {
	t.Parallel()
	b := findBreak("wrong-serial")
	const real = "FLT0a1b2c3d5"
	wrong := b.serial(real)
	if len(wrong) != len(real) || wrong == real || wrong[:len(wrong)-1] != real[:len(real)-1] {
		t.Errorf("serial %q for %q, want another last digit", wrong, real)
	}
	if !b.cause.MatchString("no disk with serial "+wrong+"; there is "+real) || b.cause.MatchString("no disk with serial "+wrong) {
		t.Error("the cause must name the serial that was wanted and the one that is there")
	}
}

func record(t *testing.T, text string) *judge.Record {
	t.Helper()
	var r judge.Record
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatal(err)
	}
	return &r
}

const midway = `{"name":"m","state":"paused","workflow":{"state":"paused","pause_after":["wipe","deploy"],"steps":[
{"name":"power-on","state":"done","start":"2026-05-01T12:00:00.000Z","end":"2026-05-01T12:00:01.500Z"},
{"name":"tftp","state":"skipped","why":"firmware skipped it","start":"2026-05-01T12:00:02.000Z","end":"2026-05-01T12:00:02.000Z"},
{"name":"wipe","state":"done","start":"2026-05-01T12:00:03.000Z","end":"2026-05-01T12:00:04.000Z"},
{"name":"diag","state":"running","start":"2026-05-01T12:00:05.000Z","end":null,"waiting":{"for":"the RAM disk to test the GPUs"}},
{"name":"deploy","state":"paused","start":null,"end":null},
{"name":"kexec","state":"pending","start":null,"end":null},
{"name":"active","state":"skipped","why":"not reached","start":null,"end":null}]}}`

func TestStagesAreThoseThatWereReached(t *testing.T) {
	t.Parallel()
	got := stages(record(t, midway), time.Date(2026, 5, 1, 12, 1, 0, 0, time.UTC))
	want := []Stage{
		{"power-on", "2026-05-01T12:00:00.000Z", "2026-05-01T12:00:01.500Z", "done", ""},
		{"tftp", "2026-05-01T12:00:02.000Z", "2026-05-01T12:00:02.000Z", "skipped", "firmware skipped it"},
		{"wipe", "2026-05-01T12:00:03.000Z", "2026-05-01T12:00:04.000Z", "done", ""},
		{"diag", "2026-05-01T12:00:05.000Z", "2026-05-01T12:01:00.000Z", "failed", "the run ended while this stage was under way; it waited for the RAM disk to test the GPUs"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := stages(nil, time.Now()); got == nil || len(got) != 0 {
		t.Errorf("stages of no record = %v, want an empty list", got)
	}
	if got := pausedAfter(record(t, midway)); got != "wipe" {
		t.Errorf("paused after %q, want wipe", got)
	}
}

func TestVerdictOfReports(t *testing.T) {
	t.Parallel()
	ok, bad := judge.Pass("a", "b"), judge.Fail("a", "b")
	for name, c := range map[string]struct {
		rep               Report
		satisfied, broken bool
	}{
		"good":                 {Report{Checks: []judge.Check{ok}}, true, false},
		"one check":            {Report{Checks: []judge.Check{ok, bad}}, false, false},
		"no check":             {Report{}, false, false},
		"an error":             {Report{Checks: []judge.Check{ok}, Errors: []string{"x"}}, false, false},
		"break as said":        {Report{Break: "tftp", met: true, Checks: []judge.Check{ok}, Errors: []string{"x"}}, false, true},
		"break elsewhere":      {Report{Break: "tftp", met: true, Checks: []judge.Check{bad}}, false, false},
		"break without an end": {Report{Break: "tftp", Checks: []judge.Check{ok}}, false, false},
	} {
		if got := c.rep.Satisfied(); got != c.satisfied {
			t.Errorf("%s: satisfied = %v, want %v", name, got, c.satisfied)
		}
		if got := c.rep.BrokeAsSaid(); got != c.broken {
			t.Errorf("%s: broke as said = %v, want %v", name, got, c.broken)
		}
	}
}

func TestWritesBeforeTheWipe(t *testing.T) {
	t.Parallel()
	var w writeLog
	early := record(t, `{"workflow":{"steps":[{"name":"join","state":"running","start":"2026-05-01T12:00:00.000Z"},{"name":"wipe","state":"paused","start":null}]}}`)
	w.add(early, blockStat(0))
	w.add(record(t, midway), blockStat(1<<20))
	if w.samples != 1 || w.before != 0 || len(w.lines) != 2 {
		t.Errorf("%d samples before the wipe with %d bytes, %d lines; want 1, 0, 2", w.samples, w.before, len(w.lines))
	}
	w.add(early, blockStat(512))
	if w.before != 512 {
		t.Errorf("%d bytes before the wipe, want 512", w.before)
	}
}

func TestRunRefusesBeforeItStarts(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{Scenario: "x"}, {Scenario: Provision, Firmware: "coreboot"}, {Scenario: Provision, Break: "x"}, {Scenario: "clock-past", HoldAfter: "wipe"}} {
		if rep, err := Run(context.Background(), o); rep != nil || !errors.Is(err, ErrUsage) {
			t.Errorf("%+v: report %v, error %v; want ErrUsage", o, rep, err)
		}
	}
}

func TestForwardJoinsBothWays(t *testing.T) {
	t.Parallel()
	listen := func() net.Listener {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		return ln
	}
	far, near := listen(), listen()
	go func() {
		c, err := far.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		io.CopyN(c, c, 5)
	}()
	go forward(t.Context(), near, (&net.Dialer{}).DialContext, far.Addr().String())
	c, err := net.Dial("tcp", near.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	io.WriteString(c, "hello")
	if b, _ := io.ReadAll(c); string(b) != "hello" {
		t.Errorf("echo = %q, want hello", b)
	}
}

func TestNewUUID(t *testing.T) {
	t.Parallel()
	if u := newUUID(); !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(u) {
		t.Errorf("uuid = %q", u)
	}
}

func TestProgressSaysEachChangeOnce(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	p := newProgress(&out)
	p.record(record(t, midway))
	p.record(record(t, midway))
	if n := strings.Count(out.String(), "\n"); n != 4 {
		t.Errorf("%d lines, want 4:\n%s", n, out.String())
	}
	if !strings.Contains(out.String(), "tftp       skipped (0.0 s): firmware skipped it") {
		t.Errorf("output lacks why a stage was skipped:\n%s", out.String())
	}
}

func blockStat(written int64) qemu.BlockStat { return qemu.BlockStat{WriteBytes: written} }
