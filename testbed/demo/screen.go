package demo

import (
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// beat is how often what goes on is said where nothing can be drawn again.
const beat = 15 * time.Second

const (
	// tookColumn is where a line's duration begins.
	tookColumn = 68
	// plainWidth is how many columns are used where out is no terminal.
	plainWidth = 110
)

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

// terminal is an out that may be one.
type terminal interface{ Fd() uintptr }

func newScreen(out io.Writer, noColour bool) *screen {
	s := &screen{out: out, said: map[string]bool{}}
	if f, ok := out.(terminal); ok && columns(f) > 0 {
		s.width = func() int { return columns(f) }
		s.colour = !noColour
	}
	return s
}

// columns is the width of the terminal that f is; 0 when it is none.
func columns(f terminal) int {
	w, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	if w.Col == 0 {
		return 80 // a terminal that does not know
	}
	return int(w.Col)
}

func (s *screen) columns() int {
	if s.width == nil {
		return plainWidth
	}
	return s.width()
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
		text = append(text, l.format(s.colour, s.columns())...)
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
			s.print(l.format(false, plainWidth)...)
		}
		return
	}
	var b strings.Builder
	b.WriteString(s.erase())
	for _, l := range lines {
		for _, text := range l.format(s.colour, s.columns()) {
			b.WriteString(cut(text, s.columns()-1) + "\n")
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

// format gives a line's text: clock, mark, machine, what, duration, and further lines below what, folded to width.
func (l line) format(colour bool, width int) []string {
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
	indent := strings.Repeat(" ", len(head)+3+len(who))
	for _, m := range l.more {
		for i, text := range fold(m, width-1-len(indent)) {
			if i > 0 {
				text = strings.Repeat(" ", labelWidth) + text
			}
			out = append(out, indent+text)
		}
	}
	return out
}

// labelWidth is the width of the word that begins a further line, such as "why   ".
const labelWidth = 6

// fold cuts text between words into lines of at most width columns; later ones have a label's room less. A longer word stays whole.
func fold(text string, width int) []string {
	var out []string
	limit, label := width, labelWidth // what is before label is no place to cut
	for {
		runes := []rune(text)
		if len(runes) <= limit {
			return append(out, text)
		}
		end := max(0, limit)
		for end > label && runes[end] != ' ' {
			end--
		}
		if end <= label {
			for end = max(0, limit); end < len(runes) && runes[end] != ' '; end++ {
			}
		}
		out = append(out, string(runes[:end]))
		if text = strings.TrimLeft(string(runes[end:]), " "); text == "" {
			return out
		}
		limit, label = width-labelWidth, 0
	}
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
