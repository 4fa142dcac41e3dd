package demo

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestScreenDrawsAgainOnATerminal(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	s := newScreen(&out, false)
	s.width, s.colour = func() int { return 40 }, true
	working := line{mark: markWorking, who: "r1u01", text: "Writing image demo, 62 %, 40 s left; active in about 2 min"}
	s.live(at(1), []line{working})
	if text := out.String(); !strings.Contains(text, "\x1b[34m◐\x1b[0m  r1u01  Writing") || strings.Contains(text, "active") {
		t.Errorf("got %q, want a blue mark and what fits in 40 columns", text)
	}
	out.Reset()
	s.live(at(2), []line{working, working})
	if !strings.HasPrefix(out.String(), "\x1b[1A\x1b[J") {
		t.Errorf("got %q, want the one line taken away first", out.String())
	}
	out.Reset()
	s.add(line{mark: markDone, text: "Fetched iPXE"})
	if text := out.String(); !strings.HasPrefix(text, "\x1b[2A\x1b[J") || !strings.HasSuffix(text, "Fetched iPXE\n") {
		t.Errorf("got %q, want what is over in the place of what goes on", text)
	}
	out.Reset()
	s.live(at(3), nil)
	if out.Len() != 0 {
		t.Errorf("got %q, want nothing: nothing is drawn and nothing goes on", out.String())
	}
}

func TestScreenSaysPlainLinesElsewhere(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	s := newScreen(&out, false)
	l := line{mark: markWorking, text: "Wiping"}
	start := time.Now()
	s.live(start, []line{l})
	for i := range 14 {
		s.live(start.Add(time.Duration(i)*time.Second), []line{l})
	}
	if n := strings.Count(out.String(), "Wiping"); n != 1 {
		t.Errorf("said %d times in 14 s, want once", n)
	}
	s.live(start.Add(beat+time.Second), []line{l})
	if n := strings.Count(out.String(), "Wiping"); n != 2 {
		t.Errorf("said %d times after a beat, want twice", n)
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("got %q, want no escape sequence", out.String())
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text string
		n    int
		want string
	}{
		{"short", 10, "short"}, {"äöü", 2, "äö"}, {"\x1b[34m◐\x1b[0m ab", 3, "\x1b[34m◐\x1b[0m a\x1b[0m"}, {"ab", 0, ""},
	} {
		if got := cut(tc.text, tc.n); got != tc.want {
			t.Errorf("%q to %d: got %q, want %q", tc.text, tc.n, got, tc.want)
		}
	}
}

func TestListenPage(t *testing.T) {
	t.Parallel()
	ln, err := listenPage(0)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	port := ln.Addr().(*net.TCPAddr).Port
	if other, err := listenPage(port); err == nil {
		other.Close()
		t.Error("a port that was asked for is in use: want an error")
	} else if !strings.Contains(err.Error(), "--port") {
		t.Errorf("got %v, want what to do", err)
	}
	second, err := listenPage(0)
	if err != nil {
		t.Fatalf("got %v, want another port where the usual one is in use", err)
	}
	second.Close()
}

func TestFold(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text  string
		width int
		want  []string
	}{
		{"why   short", 20, []string{"why   short"}},
		{"why   one two three four", 14, []string{"why   one two", "three", "four"}},
		{"why   averylongwordthatstayswhole then", 16, []string{"why   averylongwordthatstayswhole", "then"}},
		{"", 10, []string{""}},
		{"ab cd", -3, []string{"ab", "cd"}},
	} {
		if got := fold(tc.text, tc.width); !slices.Equal(got, tc.want) {
			t.Errorf("%q to %d: got %q, want %q", tc.text, tc.width, got, tc.want)
		}
	}
}
