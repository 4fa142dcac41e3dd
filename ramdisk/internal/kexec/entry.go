// Package kexec finds the deployed system's kernel on the disk's EFI system partition, as its boot loader entry names it, and loads
// it for a jump without firmware.
//
// It is for ramdisk's boot.kexec. The entry format is the Boot Loader Specification, type 1. u-root's own reader is not used for the
// choice: it ignores loader.conf's default, takes one initrd, hides why an entry is passed over and follows paths out of the
// partition. Loading is u-root's kexec_file_load.
package kexec

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sort"
	"strings"
)

// Bounds of what is read from the partition.
const (
	maxConf    = 64 << 10
	maxEntries = 256
	maxInitrds = 16
	// MaxCommandLine is what the kernel takes; it cuts silently above.
	MaxCommandLine = 2047
)

var (
	// ErrNoEntry: the partition holds no entry that can be booted.
	ErrNoEntry = errors.New("no boot entry")
	// ErrAmbiguous: several entries, and nothing that chooses one.
	ErrAmbiguous = errors.New("several boot entries and no default")
)

// Entry is one boot entry. Paths are relative to the partition's root, without a leading slash.
type Entry struct {
	// ID is the file's name without ".conf".
	ID, Title string
	Linux     string
	Initrd    []string
	Options   string
}

// Choose reads loader/loader.conf and loader/entries of a partition: the only entry, or the one that loader.conf's default names.
func Choose(esp fs.FS) (Entry, error) {
	files, err := fs.ReadDir(esp, "loader/entries")
	if err != nil {
		return Entry{}, fmt.Errorf("read boot entries: %w: %w", ErrNoEntry, err)
	}
	if len(files) > maxEntries {
		return Entry{}, fmt.Errorf("read boot entries: %d files, want at most %d", len(files), maxEntries)
	}
	var entries []Entry
	var problems []error
	for _, f := range files {
		id, ok := strings.CutSuffix(f.Name(), ".conf")
		if !ok || f.IsDir() {
			continue
		}
		b, err := readConf(esp, path.Join("loader/entries", f.Name()))
		if err == nil {
			var e Entry
			if e, err = ParseEntry(id, b); err == nil {
				entries = append(entries, e)
				continue
			}
		}
		problems = append(problems, err)
	}
	if len(entries) == 0 {
		return Entry{}, fmt.Errorf("read boot entries: %w", errors.Join(append([]error{ErrNoEntry}, problems...)...))
	}
	return pick(entries, defaultOf(esp))
}

// pick takes the only entry, or the one that pattern, a glob over ids with or without ".conf", means.
func pick(entries []Entry, pattern string) (Entry, error) {
	sort.Slice(entries, func(i, j int) bool { return entries[i].ID < entries[j].ID })
	fit := entries
	if pattern != "" {
		fit = nil
		for _, e := range entries {
			a, _ := path.Match(pattern, e.ID)
			b, _ := path.Match(pattern, e.ID+".conf")
			if a || b {
				fit = append(fit, e)
			}
		}
	}
	switch {
	case len(fit) == 1:
		return fit[0], nil
	case len(fit) == 0 && len(entries) == 1:
		// A default that fits nothing is passed over by the boot loader too.
		return entries[0], nil
	}
	var ids []string
	for _, e := range entries {
		ids = append(ids, e.ID)
	}
	return Entry{}, fmt.Errorf("choose boot entry: %w (default %q): %s", ErrAmbiguous, pattern, strings.Join(ids, ", "))
}

func defaultOf(esp fs.FS) string {
	b, err := readConf(esp, "loader/loader.conf")
	if err != nil {
		return ""
	}
	value := ""
	lines(b, func(key, v string) {
		if key == "default" {
			value = v
		}
	})
	if strings.HasPrefix(value, "@") { // "@saved" and such live in the firmware's variables, not here.
		return ""
	}
	return value
}

func readConf(esp fs.FS, name string) ([]byte, error) {
	f, err := esp.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() > maxConf {
		return nil, fmt.Errorf("%s has %d bytes, want at most %d", name, st.Size(), maxConf)
	}
	return fs.ReadFile(esp, name)
}

// lines calls each for every "key value" line; comments and blank lines are left out.
func lines(b []byte, each func(key, value string)) {
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		line := strings.TrimSpace(s.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		i := strings.IndexAny(line, " \t")
		if i < 0 {
			continue
		}
		each(line[:i], strings.TrimSpace(line[i:]))
	}
}

// ParseEntry reads one entry.
func ParseEntry(id string, b []byte) (Entry, error) {
	if len(b) > maxConf {
		return Entry{}, fmt.Errorf("boot entry %q: %d bytes, want at most %d", id, len(b), maxConf)
	}
	e := Entry{ID: id}
	var err error
	file := func(value string) string {
		p := strings.TrimPrefix(value, "/")
		if !fs.ValidPath(p) || p == "." {
			err = fmt.Errorf("boot entry %q: %q is not a path on the partition", id, value)
		}
		return p
	}
	var options []string
	lines(b, func(key, value string) {
		switch key {
		case "title":
			e.Title = value
		case "linux":
			e.Linux = file(value)
		case "initrd":
			for _, f := range strings.Fields(value) {
				e.Initrd = append(e.Initrd, file(f))
			}
		case "options":
			options = append(options, value)
		case "devicetree":
			err = fmt.Errorf("boot entry %q: it needs a device tree, which is not supported", id)
		}
	})
	e.Options = strings.Join(options, " ")
	switch {
	case err != nil:
		return Entry{}, err
	case e.Linux == "":
		return Entry{}, fmt.Errorf("boot entry %q: it names no kernel", id)
	case len(e.Initrd) > maxInitrds:
		return Entry{}, fmt.Errorf("boot entry %q: %d initrds, want at most %d", id, len(e.Initrd), maxInitrds)
	case len(e.Options) > MaxCommandLine:
		return Entry{}, fmt.Errorf("boot entry %q: command line of %d bytes, the kernel takes %d", id, len(e.Options), MaxCommandLine)
	case strings.ContainsFunc(e.Options, func(r rune) bool { return r < 0x20 || r == 0x7f }):
		return Entry{}, fmt.Errorf("boot entry %q: its command line has control characters", id)
	}
	return e, nil
}
