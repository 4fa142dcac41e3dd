package judge

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"
)

// OSLine matches the one line, with its end, that the deployed system prints when it is up.
var OSLine = regexp.MustCompile(`FIRSTLIGHT-OS nonce=([!-~]+) disk-serial=([!-~]+) boot-id=([0-9a-f-]{36}) uptime=([0-9.]+)[\r\n]`)

// clockLine matches what the machine agent says of the clock that it found.
var clockLine = regexp.MustCompile(`firstlight: clock found ([0-9T:.Z+-]+), set to ([0-9T:.Z+-]+)`)

// maxSerialLog bounds how much of a serial log is read, in bytes.
const maxSerialLog = 16 << 20

// OS is what the deployed system said of itself.
type OS struct {
	Nonce, DiskSerial, BootID, Uptime string
}

// ParseOS reads the submatches of OSLine.
func ParseOS(m []string) (OS, error) {
	if len(m) != 5 {
		return OS{}, fmt.Errorf("the deployed system's line has %d parts, want 4", max(0, len(m)-1))
	}
	return OS{Nonce: m[1], DiskSerial: m[2], BootID: m[3], Uptime: m[4]}, nil
}

// ReadSerial returns the serial log, the last maxSerialLog bytes of it when it is longer.
func ReadSerial(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	off := max(0, info.Size()-maxSerialLog)
	buf := make([]byte, info.Size()-off)
	n, err := f.ReadAt(buf, off)
	if n < len(buf) && err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// Clock checks the line on which the machine agent says what clock it found and to what it set it. A zero year accepts any clock
// found. now is when the run ended, by the testbed's clock; the clock must have been set to a time in the window before it.
func Clock(serial string, year int, now time.Time, window time.Duration) Check {
	const name = "serial: clock found and set"
	m := clockLine.FindStringSubmatch(serial)
	if m == nil {
		return Fail(name, "the machine agent did not say what clock it found")
	}
	found, err1 := time.Parse(time.RFC3339, m[1])
	set, err2 := time.Parse(time.RFC3339, m[2])
	if err1 != nil || err2 != nil {
		return Fail(name, "%q holds no two times", m[0])
	}
	ok := set.After(now.Add(-window)) && !set.After(now.Add(time.Minute))
	if year != 0 {
		// A run that starts on New Year's Eve of its machine's own calendar is no reason to complain.
		ok = ok && (found.Year() == year || found.Add(-time.Hour).Year() == year)
	}
	return Of(name, ok, "%s", strings.TrimPrefix(m[0], "firstlight: "))
}

// LastWords returns the last lines that the machine agent or a boot script said, at most n.
func LastWords(serial string, n int) []string {
	var out []string
	lines := strings.FieldsFunc(serial, func(r rune) bool { return r == '\n' || r == '\r' })
	for i := len(lines) - 1; i >= 0 && len(out) < n; i-- {
		if at := strings.Index(lines[i], "firstlight: "); at >= 0 {
			out = append([]string{printable(lines[i][at:])}, out...)
		}
	}
	return out
}

// printable drops what could steer a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0xfffd {
			return -1
		}
		return r
	}, s)
}
