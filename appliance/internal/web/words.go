package web

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"firstlight/appliance/internal/fleet"
)

// How much of a text from outside is shown, in characters.
const (
	maxWord = 80
	maxText = 400
	maxLine = 160
	maxLong = 4000
)

// bidi are the characters that turn the direction of what follows them, and the ones nobody can see: shown by their number, or a
// name could read as another one (APP-03).
func bidi(r rune) bool {
	switch {
	case r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r == 0x200e, r == 0x200f, r == 0x061c:
		return true
	case r == 0x200b, r == 0x2060, r == 0xfeff, r == 0x00ad, r >= 0xe0000 && r <= 0xe007f:
		return true
	}
	return false
}

// plain makes a text from outside safe to read: valid, without control and direction characters. keep says whether line ends stay.
func plain(s string, keep bool) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' && keep, r == '\t' && keep:
			return r
		case r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0):
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\ufffd"))
}

func visible(s string) string {
	if !strings.ContainsFunc(s, bidi) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if bidi(r) {
			fmt.Fprintf(&b, "[U+%04X]", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// cut shows at most limit characters of a text from outside, isolated from the writing around it, and says how much is missing.
func cut(s string, limit int, keep bool) template.HTML {
	// What is far too long is not looked at as a whole.
	head, whole := s, len(s)
	if len(head) > limit*utf8.UTFMax {
		head = head[:limit*utf8.UTFMax]
	}
	runes := []rune(plain(head, keep))
	if len(runes) > limit {
		runes = runes[:limit]
	}
	shown := string(runes)
	out := "<bdi>" + template.HTMLEscapeString(visible(shown)) + "</bdi>"
	if len(shown) < whole && utf8.ValidString(s) && len(runes) == limit {
		out += ` <span class="cut">… cut here, ` + bytesOf(uint64(whole)) + ` in all</span>`
	}
	return template.HTML(out)
}

func word(s string) template.HTML  { return cut(s, maxWord, false) }
func text(s string) template.HTML  { return cut(s, maxText, false) }
func brief(s string) template.HTML { return cut(s, maxLine, false) }
func long(s string) template.HTML  { return cut(s, maxLong, true) }

// attr is a text from outside for an attribute such as a title: html/template escapes it.
func attr(s string) string {
	r := []rune(visible(plain(s, false)))
	if len(r) > maxText {
		r = append(r[:maxText], '…')
	}
	return string(r)
}

// dom is the id of the element that shows an object, whatever its name.
func dom(kind, name string) string {
	sum := sha256.Sum256([]byte(name))
	return kind + "-" + hex.EncodeToString(sum[:6])
}

// bytesOf is a size as people say it: decimal units, as on a disk's label.
func bytesOf(n uint64) string {
	units := []string{"B", "kB", "MB", "GB", "TB", "PB"}
	f, i := float64(n), 0
	for f >= 1000 && i < len(units)-1 {
		f, i = f/1000, i+1
	}
	if i == 0 || f >= 99.95 {
		return fmt.Sprintf("%.0f %s", f, units[i])
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") + " " + units[i]
}

// memory is a memory size, in binary units as it is sold.
func memory(n uint64) string {
	const gib, mib = 1 << 30, 1 << 20
	if n >= gib {
		return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/gib), ".0") + " GiB"
	}
	return strconv.FormatUint(n/mib, 10) + " MiB"
}

// count is a number with separators: 1,771.
func count(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// span is a duration as people say it, one unit too few rather than one too many. page.js says it the same way.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 60*time.Second:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 60*time.Minute:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 24*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	case d < 48*time.Hour:
		return "1 day"
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// ago is a moment as people say it, with the exact one on hover; style is "ago", "for" (how long already) or "in" (a moment to come).
func ago(now time.Time, t fleet.Time, style string) template.HTML {
	if t.IsZero() {
		return "–"
	}
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s" data-say="%s" tabindex="0">%s</time>`,
		t.UTC().Format(time.RFC3339), t.UTC().Format("2006-01-02 15:04:05 UTC"), style, say(now, t.Time, style)))
}

func say(now, t time.Time, style string) string {
	switch d := now.Sub(t); {
	case style == "for":
		return span(d)
	case style == "in" && d < 0:
		return "in " + span(-d)
	case d < 5*time.Second:
		return "just now"
	default:
		return span(d) + " ago"
	}
}

// left is how long something still takes.
func left(seconds *int64) string {
	if seconds == nil {
		return ""
	}
	return "about " + span(time.Duration(*seconds)*time.Second) + " left"
}

// upper makes the first letter of a sentence a capital.
func upper(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 || r == utf8.RuneError {
		return s
	}
	return strings.ToUpper(string(r)) + s[n:]
}
