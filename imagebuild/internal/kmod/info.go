package kmod

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"strings"
)

// maxModinfo bounds a module's .modinfo section, in bytes. The largest in Linux 6.1 (device tables) are under 100 KiB.
const maxModinfo = 1 << 20

// Info is what the .modinfo section of a module says about loading it.
type Info struct {
	// Depends are the modules that must be loaded before it.
	Depends []string
	// SoftPre and SoftPost are the modules that should be loaded before and after it.
	SoftPre, SoftPost []string
	// Alias are the patterns of the devices and names that it serves.
	Alias []string
	// Firmware are the files that it may ask for.
	Firmware []string
}

// ReadInfo reads the .modinfo section of a module (an ELF relocatable object).
func ReadInfo(r io.ReaderAt) (Info, error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return Info{}, fmt.Errorf("read ELF: %w", err)
	}
	s := f.Section(".modinfo")
	if s == nil {
		return Info{}, errors.New("no .modinfo section")
	}
	if s.Size > maxModinfo {
		return Info{}, fmt.Errorf(".modinfo of %d bytes, at most %d allowed", s.Size, maxModinfo)
	}
	b, err := s.Data()
	if err != nil {
		return Info{}, fmt.Errorf("read .modinfo: %w", err)
	}
	return ParseInfo(b), nil
}

// ParseInfo reads the content of a .modinfo section: key=value pairs, each ended by NUL. Unknown keys are skipped.
func ParseInfo(b []byte) Info {
	var in Info
	for field := range bytes.SplitSeq(b, []byte{0}) {
		key, value, ok := strings.Cut(string(field), "=")
		if !ok || value == "" {
			continue
		}
		switch key {
		case "depends":
			for d := range strings.SplitSeq(value, ",") {
				if d = strings.TrimSpace(d); d != "" {
					in.Depends = append(in.Depends, Name(d))
				}
			}
		case "softdep":
			in.softdep(value)
		case "alias":
			in.Alias = append(in.Alias, value)
		case "firmware":
			in.Firmware = append(in.Firmware, value)
		}
	}
	return in
}

// softdep reads "pre: a b post: c"; the same words as in modprobe.d(5).
func (in *Info) softdep(value string) {
	var list *[]string
	for w := range strings.FieldsSeq(value) {
		switch w {
		case "pre:":
			list = &in.SoftPre
		case "post:":
			list = &in.SoftPost
		default:
			if list != nil {
				*list = append(*list, Name(w))
			}
		}
	}
}
