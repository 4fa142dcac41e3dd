package flood

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Usage is what a process holds, as the kernel says (proc(5), status).
type Usage struct {
	// RSS is in bytes; Anonymous is the part of it that is no file's.
	RSS, Anonymous int64
	Threads        int
	// Files is how many are open.
	Files int
}

// ReadUsage looks at a process of this host.
func ReadUsage(pid int) (Usage, error) { return readUsage(filepath.Join("/proc", strconv.Itoa(pid))) }

func readUsage(dir string) (u Usage, err error) {
	f, err := os.Open(filepath.Join(dir, "status"))
	if err != nil {
		return u, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	found := 0
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		words := strings.Fields(value)
		if len(words) == 0 {
			continue
		}
		n, err := strconv.ParseInt(words[0], 10, 64)
		if err != nil {
			continue
		}
		switch name {
		case "VmRSS":
			u.RSS = n << 10
		case "RssAnon":
			u.Anonymous = n << 10
		case "Threads":
			u.Threads = int(n)
		default:
			continue
		}
		found++
	}
	files, ferr := os.ReadDir(filepath.Join(dir, "fd"))
	u.Files = len(files)
	if found != 3 {
		return u, fmt.Errorf("read usage of %s: %d of 3 values", dir, found)
	}
	return u, errors.Join(lines.Err(), ferr)
}

// Drops adds up the datagrams that the kernel threw away because the program did not take them, from a namespace's
// /proc/net/udp and udp6, one after the other, for sockets of these ports.
func Drops(udp string, ports ...int) (int64, error) {
	total, seen := int64(0), 0
	for line := range strings.SplitSeq(udp, "\n") {
		words := strings.Fields(line)
		if len(words) < 13 || words[0] == "sl" {
			continue
		}
		_, hex, _ := strings.Cut(words[1], ":")
		port, err := strconv.ParseUint(hex, 16, 16)
		if err != nil {
			return 0, fmt.Errorf("read udp sockets: %w", err)
		}
		for _, p := range ports {
			if int(port) == p {
				n, err := strconv.ParseInt(words[len(words)-1], 10, 64)
				if err != nil {
					return 0, fmt.Errorf("read udp sockets: %w", err)
				}
				total, seen = total+n, seen+1
			}
		}
	}
	if seen < len(ports) {
		return 0, fmt.Errorf("read udp sockets: %d of %d are open", seen, len(ports))
	}
	return total, nil
}
