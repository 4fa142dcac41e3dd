// Package systest holds /sys and /proc as kernels really showed them, captured in virtual machines (TestVMCapture of package ramdisk
// makes them again), for tests and as fuzz seeds. Nothing in production imports it.
//
// A capture is text: "F path base64" is a file, "L path target" a symbolic link, "D path" an empty folder; paths start with "sys/" or
// "proc/".
package systest

import (
	"embed"
	"encoding/base64"
	"fmt"
	"io/fs"
	"path"
	"sort"
	"strings"
	"testing"
	"testing/fstest"
)

//go:embed captures
var captures embed.FS

// MaxEntries bounds a capture that is parsed.
const MaxEntries = 8192

// Names are the captures.
func Names(tb testing.TB) []string {
	tb.Helper()
	entries, err := captures.ReadDir("captures")
	if err != nil {
		tb.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// Text is a capture as text.
func Text(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := captures.ReadFile(path.Join("captures", name))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// Load returns a capture's /sys and /proc.
func Load(tb testing.TB, name string) (sys, proc fs.FS) {
	tb.Helper()
	sys, proc, err := Parse(Text(tb, name))
	if err != nil {
		tb.Fatal(err)
	}
	return sys, proc
}

// Parse reads a capture.
func Parse(text []byte) (sys, proc fs.FS, err error) {
	trees := map[string]fstest.MapFS{"sys": {}, "proc": {}}
	for n, line := range strings.Split(string(text), "\n") {
		f := strings.SplitN(line, " ", 3)
		root, name, ok := strings.Cut(strings.Join(f[min(1, len(f)):min(2, len(f))], ""), "/")
		if line == "" {
			continue
		}
		if !ok || trees[root] == nil || !fs.ValidPath(name) || n >= MaxEntries {
			return nil, nil, fmt.Errorf("capture line %d: %.60q", n+1, line)
		}
		switch {
		case f[0] == "F" && len(f) == 3:
			b, err := base64.StdEncoding.DecodeString(f[2])
			if err != nil {
				return nil, nil, fmt.Errorf("capture line %d: %w", n+1, err)
			}
			trees[root][name] = &fstest.MapFile{Data: b}
		case f[0] == "L" && len(f) == 3:
			trees[root][name] = &fstest.MapFile{Data: []byte(f[2]), Mode: fs.ModeSymlink}
		case f[0] == "D":
			trees[root][name] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
		default:
			return nil, nil, fmt.Errorf("capture line %d: %.60q", n+1, line)
		}
	}
	for _, m := range trees {
		for name, f := range m {
			if f.Mode&fs.ModeSymlink != 0 && loops(m, name) {
				return nil, nil, fmt.Errorf("capture: link %.60q leads nowhere", name)
			}
		}
	}
	return trees["sys"], trees["proc"], nil
}

// maxLinks is how many links a path may go through, as in the kernel.
const maxLinks = 40

// loops says whether following a path does not end: fstest.MapFS would follow it for ever.
func loops(m fstest.MapFS, name string) bool {
	for range maxLinks {
		next := follow(m, name)
		if next == "" {
			return false
		}
		if name = next; len(name) > 4096 {
			return true
		}
	}
	return true
}

// follow replaces the first link in a path by where it leads; empty when there is none.
func follow(m fstest.MapFS, name string) string {
	for i := 0; i <= len(name); i++ {
		if i < len(name) && name[i] != '/' {
			continue
		}
		if f := m[name[:i]]; f != nil && f.Mode&fs.ModeSymlink != 0 {
			return path.Join(path.Dir(name[:i]), string(f.Data)) + name[i:]
		}
	}
	return ""
}

// Tidy sorts a capture's lines and leaves double ones out.
func Tidy(lines []string) []byte {
	sort.Strings(lines)
	var b strings.Builder
	for i, l := range lines {
		if i == 0 || l != lines[i-1] {
			b.WriteString(l + "\n")
		}
	}
	return []byte(b.String())
}
