package demo

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// beat is how often what goes on is said where nothing can be drawn again.
const beat = 15 * time.Second

// tookColumn is where a line's duration begins, where the terminal is as wide.
const tookColumn = 68

// screen shows lines: those that are over stay, those that go on are drawn again below them on a terminal, and elsewhere said now and
// then.
type screen struct {
	out io.Writer
	// width is the terminal's number of columns; nil where out is none.
	width  func() int
	colour bool
	said   map[string]bool
	// drawn is how many lines of what goes on stand below.
	drawn int
	last  time.Time
}

func newScreen(out io.Writer, noColour bool) *screen {
	s := &screen{out: out, said: map[string]bool{}}
	if f, ok := out.(*os.File); ok && columns(f) > 0 {
		s.width = func() int { return columns(f) }
		s.colour = !noColour
	}
	return s
}

// columns is the width of the terminal that f is; 0 when it is none.
func columns(f *os.File) int {
	w, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	if w.Col == 0 {
		return 80 // a terminal that does not know
	}
	return int(w.Col)
}

// add says what is over; a line with a key that was said already is left out.
func (s *screen) add(lines ...line) {
	var text []string
	for _, l := range lines {
		if l.key != "" && s.said[l.key] {
			continue
		}
		if l.key != "" {
			s.said[l.key] = true
		}
		text = append(text, l.format(s.colour)...)
	}
	if len(text) > 0 {
		s.print(text...)
	}
}

// print writes lines as they are. What goes on is drawn again at the next live.
func (s *screen) print(lines ...string) {
	io.WriteString(s.out, s.erase()+strings.Join(lines, "\n")+"\n")
	s.last = time.Now()
}

// live shows what goes on; the zero time shows it in any case, and no lines take it away.
func (s *screen) live(now time.Time, lines []line) {
	if s.width == nil {
		if len(lines) == 0 || !now.IsZero() && now.Sub(s.last) < beat {
			return
		}
		for _, l := range lines {
			s.print(l.format(false)...)
		}
		return
	}
	var b strings.Builder
	b.WriteString(s.erase())
	for _, l := range lines {
		for _, text := range l.format(s.colour) {
			b.WriteString(cut(text, s.width()-1) + "\n")
			s.drawn++
		}
	}
	io.WriteString(s.out, b.String())
}

// erase takes what goes on away.
func (s *screen) erase() string {
	n := s.drawn
	s.drawn = 0
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\x1b[J", n)
}

// The marks and their colours (ECMA-48 SGR).
var (
	shapes  = map[mark]string{markDone: "✓", markSkipped: "–", markWorking: "◐", markWaiting: "●", markFailed: "✗"}
	colours = map[mark]string{markDone: "32", markSkipped: "2", markWorking: "34", markWaiting: "33", markFailed: "31"}
)

// format gives a line's text: clock, mark, machine, what, duration, and further lines below what.
func (l line) format(colour bool) []string {
	shape := shapes[l.mark]
	if colour {
		shape = "\x1b[" + colours[l.mark] + "m" + shape + "\x1b[0m"
	}
	at := l.at.Truncate(time.Second)
	head := fmt.Sprintf("%3d:%02d  ", int(at.Minutes()), int(at.Seconds())%60)
	who := ""
	if l.who != "" {
		who = l.who + "  "
	}
	text := who + l.text
	if l.took > 0 {
		pad := max(2, tookColumn-len(head)-3-len([]rune(text)))
		text += strings.Repeat(" ", pad) + exact(l.took)
	}
	out := []string{head + shape + "  " + text}
	for _, m := range l.more {
		out = append(out, strings.Repeat(" ", len(head)+3+len(who))+m)
	}
	return out
}

// cut shortens text to n columns, escape sequences not counted.
func cut(text string, n int) string {
	seen, escape, reset := 0, false, ""
	for i, r := range text {
		switch {
		case r == '\x1b':
			escape, reset = true, "\x1b[0m"
		case escape:
			escape = r != 'm'
		default:
			if seen++; seen > n {
				return text[:i] + reset
			}
		}
	}
	return text
}
