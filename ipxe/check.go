package ipxe

import (
	"fmt"
	"strings"
)

// CheckWord says whether s is exactly one word to iPXE, passed on as it is: printable ASCII without blanks, not "${", not a
// separator (";", "||", "&&"), not beginning with "#", not ending in a backslash, 1 to MaxText bytes. The error names field and
// wraps ErrUnsafe.
func CheckWord(field, s string) error {
	if strings.Contains(s, " ") {
		return unsafe(field, s, "contains a blank")
	}
	return CheckText(field, s)
}

// CheckText is CheckWord for one or more words, each parted from the next by one blank.
func CheckText(field, s string) error {
	switch {
	case s == "":
		return unsafe(field, s, "is empty")
	case len(s) > MaxText:
		return unsafe(field, s[:16], fmt.Sprintf("(and more) is %d bytes long, the most is %d", len(s), MaxText))
	case strings.Contains(s, "${"):
		return unsafe(field, s, `contains "${", which iPXE expands`)
	case strings.HasSuffix(s, `\`):
		return unsafe(field, s, "ends in a backslash")
	}
	for i := 0; i < len(s); i++ {
		if s[i] < 0x20 || s[i] > 0x7e {
			return unsafe(field, s, fmt.Sprintf("contains byte %#02x, which is not printable ASCII", s[i]))
		}
	}
	for word := range strings.SplitSeq(s, " ") {
		switch {
		case word == "":
			return unsafe(field, s, "has a blank at an end or two in a row, which iPXE drops")
		case word == ";" || word == "||" || word == "&&":
			return unsafe(field, s, fmt.Sprintf("has the word %q, which starts another command", word))
		case word[0] == '#':
			return unsafe(field, s, `has a word that begins with "#", which ends the line`)
		}
	}
	return nil
}

func unsafe(field, s, why string) error {
	return fmt.Errorf("ipxe script: %s %q: %w: %s", field, s, ErrUnsafe, why)
}
