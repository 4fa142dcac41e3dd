package machinelog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var epoch = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// slow is a clock that moves on with each look, so that no line comes too fast.
func slow() func() time.Time {
	now := epoch
	return func() time.Time { now = now.Add(time.Hour); return now }
}

func open(t *testing.T, dir string, now func() time.Time) *Logs {
	t.Helper()
	l, err := Open(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func say(t *testing.T, l *Logs, node string, texts ...string) {
	t.Helper()
	var lines []Line
	for _, s := range texts {
		lines = append(lines, Line{Time: epoch, Text: s})
	}
	if err := l.Append(node, "ramdisk", 0, lines); err != nil {
		t.Fatal(err)
	}
}

func tail(t *testing.T, l *Logs, node string, n int) []Line {
	t.Helper()
	out, err := l.Tail(node, n)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestTailOverARestart(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "logs")
	l := open(t, dir, slow())
	if got := tail(t, l, "node-1", 10); len(got) != 0 {
		t.Errorf("got %v before anything was said", got)
	}
	say(t, l, "node-1", "one", "two")
	say(t, l, "node-2", "other")
	// A crash in the middle of a line.
	f, err := os.OpenFile(filepath.Join(dir, "node-1", "0.jsonl"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"seq":3,"ti`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	l = open(t, dir, slow())
	say(t, l, "node-1", "three")
	got := tail(t, l, "node-1", 2)
	if len(got) != 2 || got[0].Text != "two" || got[1].Text != "three" || got[1].Seq != 3 || got[1].Source != "ramdisk" || !got[1].Time.Equal(epoch) {
		t.Errorf("got %+v, want two and three, numbered on", got)
	}
	for name, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, "node-1"): 0o700, filepath.Join(dir, "node-1", "0.jsonl"): 0o600} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: got %v, %v, want %v: others must not read along", name, info.Mode(), err, want)
		}
	}
}

// A machine that never stops talking costs a few files, and the newest lines are there.
func TestSpaceIsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, dir, slow())
	long := strings.Repeat("x", maxText-10)
	n := 0
	for n < (keptFiles+2)*maxFile/maxText {
		say(t, l, "node-1", fmt.Sprint(n, long))
		n++
	}
	var total int64
	files, err := os.ReadDir(filepath.Join(dir, "node-1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	if len(files) != keptFiles || total > keptFiles*maxFile || total < (keptFiles-1)*maxFile/2 {
		t.Errorf("got %d files of %d bytes, want %d of at most %d each", len(files), total, keptFiles, maxFile)
	}
	got := tail(t, l, "node-1", MaxTail)
	if len(got) < maxFile/maxText || !strings.HasPrefix(got[len(got)-1].Text, fmt.Sprint(n-1)) || got[len(got)-1].Seq != uint64(n) {
		t.Errorf("got %d lines, want those of the newest files to the last", len(got))
	}
	for i := 1; i < len(got); i++ {
		if got[i].Seq != got[i-1].Seq+1 {
			t.Fatalf("line %d follows %d", got[i].Seq, got[i-1].Seq)
		}
	}
}

// Too many lines at once are counted, and so are those that the agent lost.
func TestLostLinesAreCounted(t *testing.T) {
	t.Parallel()
	now := epoch
	l := open(t, t.TempDir(), func() time.Time { return now })
	for range (lineBurst + 128) / 64 {
		say(t, l, "node-1", make([]string, 64)...)
	}
	if got := tail(t, l, "node-1", MaxTail); len(got) != lineBurst {
		t.Errorf("got %d lines, want %d", len(got), lineBurst)
	}
	now = now.Add(time.Minute)
	if err := l.Append("node-1", "ramdisk", 7, []Line{{Text: "again"}}); err != nil {
		t.Fatal(err)
	}
	got := tail(t, l, "node-1", 3)
	for i, want := range []string{"(7 lines were lost: the agent said", "(128 lines were lost: more than", "again"} {
		if !strings.HasPrefix(got[i].Text, want) {
			t.Errorf("line %d: got %q, want %q", i, got[i].Text, want)
		}
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	l := open(t, t.TempDir(), slow())
	say(t, l, "node-1", "before")
	ctx, cancel := context.WithCancel(t.Context())
	before, lines, err := l.Follow(ctx, "node-1", 10)
	if err != nil || len(before) != 1 || before[0].Text != "before" {
		t.Fatalf("got %v, %v", before, err)
	}
	say(t, l, "node-2", "another's")
	say(t, l, "node-1", "after")
	if got := <-lines; got.Text != "after" || got.Seq != 2 {
		t.Errorf("got %+v, want the line after", got)
	}
	cancel()
	if _, open := <-lines; open {
		t.Error("got a line after the end")
	}
	say(t, l, "node-1", "to nobody")

	// Who does not read is let go, and whoever writes is not held up.
	_, lines, err = l.Follow(t.Context(), "node-1", 0)
	if err != nil {
		t.Fatal(err)
	}
	for range maxBehind + 1 {
		say(t, l, "node-1", "x")
	}
	n := 0
	for range lines {
		n++
	}
	if n != maxBehind {
		t.Errorf("got %d lines before the end, want %d", n, maxBehind)
	}

	for range maxFollowers {
		if _, _, err := l.Follow(t.Context(), "node-1", 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := l.Follow(t.Context(), "node-1", 0); !errors.Is(err, ErrTooMany) {
		t.Errorf("got %v, want %v", err, ErrTooMany)
	}
}

// What a machine says is text on one line, and its name leads nowhere else.
func TestHostileMachine(t *testing.T) {
	t.Parallel()
	l := open(t, t.TempDir(), slow())
	say(t, l, "node-1", "a\x1b[2J\nb\r\x00\u202ec\xff", "<script>", strings.Repeat("y", 3*maxText))
	got := tail(t, l, "node-1", 3)
	if got[0].Text != "a [2J b   c" || got[1].Text != "<script>" || len(got[2].Text) != maxText {
		t.Errorf("got %q, %q and %d bytes", got[0].Text, got[1].Text, len(got[2].Text))
	}
	for _, node := range []string{"", "..", "../x", "a/b", "node\x00"} {
		if err := l.Append(node, "node", 0, []Line{{Text: "x"}}); err == nil {
			t.Errorf("%q: got no error", node)
		}
		if _, err := l.Tail(node, 1); err == nil {
			t.Errorf("%q: got no error", node)
		}
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	l := open(t, t.TempDir(), slow())
	say(t, l, "node-1", "x")
	_, lines, err := l.Follow(t.Context(), "node-1", 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Remove("node-1"); err != nil {
		t.Fatal(err)
	}
	if _, open := <-lines; open || len(tail(t, l, "node-1", 1)) != 0 {
		t.Error("something is left")
	}
	say(t, l, "node-1", "anew")
	if got := tail(t, l, "node-1", 9); len(got) != 1 || got[0].Seq != 1 {
		t.Errorf("got %+v, want one line, counted from one", got)
	}
	if err := l.Remove("node-never"); err != nil {
		t.Error(err)
	}
}
