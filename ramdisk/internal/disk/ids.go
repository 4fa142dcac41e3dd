package disk

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// clean makes one line of printable ASCII of what a device says, without the padding that devices put around it.
func clean(b []byte) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case r == 0 || r == '\n' || r == '\r' || r == '\t':
			return ' '
		case r < 0x20 || r > 0x7e:
			return '?'
		}
		return r
	}, string(b)))
}

// absent says whether an id says nothing: empty, or zeroes (with the marks between them) only.
func absent(id string) bool {
	return strings.Trim(strings.ToLower(id), "0-:. x") == ""
}

// firstID returns the first id that is a world-wide one, in the form "naa.…", "eui.…" or "uuid.…", lower case.
// The kernel's substitutes ("nvme.…" and "t10.…", made of model and serial) are not.
func firstID(ids ...string) string {
	for _, id := range ids {
		if n := normalWWN(id); n != "" {
			return n
		}
	}
	return ""
}

func normalWWN(id string) string {
	s := strings.ToLower(strings.TrimSpace(id))
	prefix := ""
	for _, p := range []string{"naa.", "eui.", "uuid.", "0x"} {
		if rest, ok := strings.CutPrefix(s, p); ok {
			prefix, s = p, rest
			break
		}
	}
	digits := strings.NewReplacer("-", "", " ", "", ":", "").Replace(s)
	if digits == "" || absent(digits) || strings.Trim(digits, "0123456789abcdef") != "" {
		return ""
	}
	if prefix == "" || prefix == "0x" {
		switch len(digits) {
		case 16, 32:
			prefix = "eui."
			if prefixNAA(digits) {
				prefix = "naa."
			}
		default:
			return ""
		}
	}
	return prefix + digits
}

// prefixNAA: an unprefixed 8-byte id is a SCSI name when its first digit says NAA 5 or 3 (SPC-5, 7.7.6.6), the usual ones.
func prefixNAA(digits string) bool {
	return len(digits) == 16 && (digits[0] == '5' || digits[0] == '3')
}

// sameWWN compares ids with and without their prefix and marks.
func sameWWN(a, b string) bool {
	strip := func(s string) string {
		s = strings.ToLower(strings.TrimSpace(s))
		for _, p := range []string{"naa.", "eui.", "uuid.", "0x"} {
			s = strings.TrimPrefix(s, p)
		}
		return strings.NewReplacer("-", "", ":", "", " ", "").Replace(s)
	}
	return !absent(strip(a)) && strip(a) == strip(b)
}

// parseVPD80 reads the unit serial number page (SPC-5, 7.7.19): 4 bytes of header, then the serial, padded with spaces.
func parseVPD80(b []byte) string {
	if len(b) < 4 || b[1] != 0x80 {
		return ""
	}
	n := int(binary.BigEndian.Uint16(b[2:4]))
	if n > len(b)-4 {
		n = len(b) - 4
	}
	return clean(b[4 : 4+n])
}

func parseNumber(s string) (Number, error) {
	major, minor, ok := strings.Cut(s, ":")
	if !ok {
		return Number{}, fmt.Errorf("device number %q: want major:minor", s)
	}
	a, err := strconv.ParseUint(major, 10, 32)
	if err != nil {
		return Number{}, fmt.Errorf("device number %q: %w", s, err)
	}
	b, err := strconv.ParseUint(minor, 10, 32)
	if err != nil {
		return Number{}, fmt.Errorf("device number %q: %w", s, err)
	}
	return Number{uint32(a), uint32(b)}, nil
}
