package ipxe_test

import "strings"

// command is one command as iPXE runs it.
type command struct {
	words []string
	// after is what joins it to the one before: "", ";", "||" or "&&". "" begins a line.
	after string
}

// split is a small model of how iPXE 1.0.0+ reads a script (src/image/script.c, src/core/exec.c): lines end at LF; a line is
// split at C's isspace; a word that begins with '#' drops the rest; separators are words of their own.
func split(script []byte) []command {
	var all []command
	for line := range strings.SplitSeq(string(script), "\n") {
		words := strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\n\v\f\r", r) })
		c := command{}
		for _, w := range words {
			if w[0] == '#' {
				break
			}
			if w == ";" || w == "||" || w == "&&" {
				if len(c.words) > 0 {
					all = append(all, c)
				}
				c = command{after: w}
				continue
			}
			c.words = append(c.words, w)
		}
		if len(c.words) > 0 {
			all = append(all, c)
		}
	}
	return all
}
