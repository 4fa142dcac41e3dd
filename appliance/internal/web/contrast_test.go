package web

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// themes reads the colour tokens of both themes from the style sheet itself.
func themes(t *testing.T) map[string]map[string]string {
	t.Helper()
	data, err := files.ReadFile("assets/tokens.css")
	if err != nil {
		t.Fatal(err)
	}
	light, dark, ok := strings.Cut(string(data), "@media (prefers-color-scheme: dark)")
	if !ok {
		t.Fatal("tokens.css has no dark theme")
	}
	token := regexp.MustCompile(`--([a-z-]+): (#[0-9a-f]{6});`)
	out := map[string]map[string]string{"light": {}, "dark": {}}
	for name, css := range map[string]string{"light": light, "dark": dark} {
		for _, m := range token.FindAllStringSubmatch(css, -1) {
			out[name][m[1]] = m[2]
		}
	}
	if len(out["light"]) != len(out["dark"]) || len(out["light"]) < 21 {
		t.Fatalf("%d colours in light, %d in dark: want the same, at least 21", len(out["light"]), len(out["dark"]))
	}
	return out
}

// luminance is WCAG 2.2's relative luminance.
func luminance(hex string) float64 {
	n, _ := strconv.ParseUint(hex[1:], 16, 32)
	lin := func(v uint64) float64 {
		c := float64(v&255) / 255
		if c <= 0.04045 {
			return c / 12.92
		}
		return math.Pow((c+0.055)/1.055, 2.4)
	}
	return 0.2126*lin(n>>16) + 0.7152*lin(n>>8) + 0.0722*lin(n)
}

func contrast(a, b string) float64 {
	x, y := luminance(a), luminance(b)
	return (math.Max(x, y) + 0.05) / (math.Min(x, y) + 0.05)
}

func TestContrastRatioIsWCAGs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		a, b string
		want float64
	}{{"#000000", "#ffffff", 21}, {"#777777", "#ffffff", 4.48}, {"#ffffff", "#ffffff", 1}} {
		if got := contrast(tc.a, tc.b); math.Abs(got-tc.want) > 0.01 {
			t.Errorf("%s on %s: %.2f, want %.2f", tc.a, tc.b, got, tc.want)
		}
	}
}

// TestContrast holds every pair of colours that the page puts on each other: text 4.5 to 1, marks and the edges of fields 3 to 1
// (WCAG 2.2 AA, 1.4.3 and 1.4.11).
func TestContrast(t *testing.T) {
	t.Parallel()
	for name, c := range themes(t) {
		check := func(front, back string, want float64) {
			if c[front] == "" || c[back] == "" {
				t.Fatalf("%s: no colour %s or %s", name, front, back)
			}
			if got := contrast(c[front], c[back]); got < want {
				t.Errorf("%s: %s %s on %s %s has %.2f to 1, want %.1f", name, front, c[front], back, c[back], got, want)
			}
		}
		for _, ground := range []string{"paper", "card", "neutral-tint", "blue-tint"} {
			check("ink", ground, 4.5)
			check("dim", ground, 4.5)
		}
		check("card", "ink", 4.5)
		for _, ground := range []string{"paper", "card"} {
			check("edge", ground, 3)
		}
		for _, tone := range []string{"neutral", "blue", "green", "amber", "red"} {
			check("ink", tone+"-tint", 4.5)
			for _, ground := range []string{"paper", "card", tone + "-tint"} {
				check(tone+"-text", ground, 4.5)
				check(tone+"-mark", ground, 3)
			}
			check("card", tone+"-mark", 3)
		}
		check("blue-mark", "neutral-tint", 3)
	}
}

// TestNoOtherColours keeps the tokens the only place where a colour is written.
func TestNoOtherColours(t *testing.T) {
	t.Parallel()
	colour := regexp.MustCompile(`#[0-9a-fA-F]{3,8}\b|rgba?\(|hsla?\(`)
	for _, name := range []string{"base.css", "pages.css", "small.css"} {
		data, err := files.ReadFile("assets/" + name)
		if err != nil {
			t.Fatal(err)
		}
		screen, print, _ := strings.Cut(string(data), "@media print")
		if found := colour.FindAllString(screen, -1); len(found) > 0 {
			t.Errorf("%s has colours of its own: %v", name, found)
		}
		_ = print
	}
	if n := len(marks); n != 5 {
		t.Errorf("%d tones, want five", n)
	}
	shapes := map[string]string{}
	for tone, svg := range marks {
		shape := fmt.Sprint(svg[strings.Index(string(svg), ">"):])
		if other, ok := shapes[shape]; ok {
			t.Errorf("%s and %s have the same shape", tone, other)
		}
		shapes[shape] = tone
	}
}
