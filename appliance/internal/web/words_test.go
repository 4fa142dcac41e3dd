package web

import (
	"strings"
	"testing"
	"time"

	"firstlight/appliance/internal/fleet"
)

// APP-03: a text from a wire is text, cut with a marker, and cannot turn the writing direction.
func TestTextFromTheWire(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, in, want string }{
		{"plain", "r12u04", "<bdi>r12u04</bdi>"},
		{"markup", `<img src=x onerror=alert(1)>`, "<bdi>&lt;img src=x onerror=alert(1)&gt;</bdi>"},
		{"quote", `" onmouseover=`, "<bdi>&#34; onmouseover=</bdi>"},
		{"direction", "abc\u202egnp.exe", "<bdi>abc[U+202E]gnp.exe</bdi>"},
		{"isolates", "a\u2066b\u2069", "<bdi>a[U+2066]b[U+2069]</bdi>"},
		{"invisible", "a\u200bb\ufeff", "<bdi>a[U+200B]b[U+FEFF]</bdi>"},
		{"control", "a\x1b[2Jb\x00c\u0085d", "<bdi>a [2Jb c d</bdi>"},
		{"no UTF-8", "a\xffb", "<bdi>a\ufffdb</bdi>"},
		{"right to left letters stay", "שלום", "<bdi>שלום</bdi>"},
		{"empty", "", "<bdi></bdi>"},
	} {
		if got := string(word(tc.in)); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestLongTextIsCutWithAMarker(t *testing.T) {
	t.Parallel()
	for _, in := range []string{strings.Repeat("A", 64<<10), strings.Repeat("ä", 40<<10), strings.Repeat("\u202e", 30<<10)} {
		got := string(text(in))
		if !strings.Contains(got, "cut here") || !strings.Contains(got, bytesOf(uint64(len(in)))+" in all") {
			t.Errorf("text of %d bytes has no marker: %.80q … %.80q", len(in), got, got[max(0, len(got)-80):])
		}
		if len(got) > maxText*10+200 {
			t.Errorf("text of %d bytes is still %d long", len(in), len(got))
		}
	}
	if got := string(text(strings.Repeat("A", maxText))); strings.Contains(got, "cut") {
		t.Error("a text of exactly the limit is cut")
	}
}

func TestAttributeTextIsBounded(t *testing.T) {
	t.Parallel()
	if got := attr(strings.Repeat("A", 64<<10)); len(got) > maxText+4 {
		t.Errorf("got %d bytes", len(got))
	}
	if got := attr("a\u202eb\nc"); got != "a[U+202E]b c" {
		t.Errorf("got %q", got)
	}
}

func TestMoments(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 21, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		style string
		back  time.Duration
		want  string
	}{
		{"ago", 2 * time.Second, "just now"}, {"ago", 59 * time.Second, "59 s ago"}, {"ago", 119 * time.Second, "1 min ago"}, {"ago", 23 * time.Hour, "23 h ago"},
		{"ago", 30 * time.Hour, "1 day ago"}, {"ago", 72 * time.Hour, "3 days ago"}, {"for", 61 * time.Minute, "1 h"}, {"in", -90 * time.Second, "in 1 min"}, {"in", time.Hour, "1 h ago"},
	} {
		if got := say(now, now.Add(-tc.back), tc.style); got != tc.want {
			t.Errorf("%s %v: got %q, want %q", tc.style, tc.back, got, tc.want)
		}
	}
	html := string(ago(now, fleet.At(now.Add(-time.Hour)), "ago"))
	for _, want := range []string{`datetime="2026-11-30T20:00:00Z"`, `title="2026-11-30 20:00:00 UTC"`, ">1 h ago<"} {
		if !strings.Contains(html, want) {
			t.Errorf("%s has no %s", html, want)
		}
	}
}

func TestSizes(t *testing.T) {
	t.Parallel()
	for n, want := range map[uint64]string{0: "0 B", 999: "999 B", 1000: "1 kB", 1550000: "1.6 MB", 3840755982336: "3.8 TB", 612 << 20: "642 MB"} {
		if got := bytesOf(n); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
	for n, want := range map[int]string{0: "0", 12: "12", 1771: "1,771", 1234567: "1,234,567"} {
		if got := count(n); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}

func TestInside(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{"/": true, "/machines/a?tab=log": true, "//evil.example": false, "https://evil.example/": false, `/\evil.example`: false,
		"javascript:alert(1)": false, "": false, "machines": false, "/a\nb": false} {
		if got := inside(path); got != want {
			t.Errorf("%q: got %v", path, got)
		}
	}
}

func FuzzTextFromTheWire(f *testing.F) {
	f.Add("<script>", 10)
	f.Add("\u202e\xff\x00", 1)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		if limit < 1 || limit > 10000 {
			return
		}
		got := string(cut(s, limit, true))
		inner := strings.TrimPrefix(got, "<bdi>")
		inner, rest, ok := strings.Cut(inner, "</bdi>")
		if !ok || strings.ContainsAny(inner, "<>\"\u202e\u2066") || strings.Contains(strings.TrimPrefix(rest, ` <span class="cut">`), "<s") {
			t.Errorf("%q became %q", s, got)
		}
	})
}
