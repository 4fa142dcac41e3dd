package inventory

import (
	_ "embed"
	"strings"
)

//go:embed placeholders.txt
var placeholderList string

// placeholders are the phrases of placeholders.txt, whole ones and beginnings.
var placeholders, placeholderPrefixes = parsePlaceholders(placeholderList)

func parsePlaceholders(text string) (map[string]bool, []string) {
	whole, prefixes := map[string]bool{}, []string(nil)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if p, ok := strings.CutPrefix(line, "prefix "); ok {
			prefixes = append(prefixes, p)
		} else {
			whole[line] = true
		}
	}
	return whole, prefixes
}

// Placeholder says whether a firmware string names nothing: a known phrase in any case, with padding, dots, control or other bytes
// around it, or one digit or letter repeated.
func Placeholder(s string) bool {
	s = strings.ToLower(strings.Trim(Clean([]byte(s)), " ._-*"))
	if s == "" || placeholders[s] {
		return true
	}
	for _, p := range placeholderPrefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	bare := strings.NewReplacer("-", "", " ", "", ".", "").Replace(s)
	return strings.Trim(bare, "0") == "" || strings.Trim(bare, "f") == "" || strings.Trim(bare, "x") == ""
}
