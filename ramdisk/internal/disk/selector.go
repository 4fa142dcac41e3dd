package disk

import (
	"errors"
	"fmt"
	"strings"
)

// Selector names one disk for good: every field that is set must match. Zero fields are not looked at.
type Selector struct {
	Serial, WWN, Model string
	Size               int64
	Namespace          uint32
}

func (s Selector) String() string {
	var parts []string
	add := func(name, v string) {
		if v != "" {
			parts = append(parts, name+" "+v)
		}
	}
	add("serial", s.Serial)
	add("WWN", s.WWN)
	add("model", s.Model)
	if s.Namespace != 0 {
		add("namespace", fmt.Sprint(s.Namespace))
	}
	if s.Size != 0 {
		add("size", fmt.Sprint(s.Size))
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

var (
	// ErrUnnamed: the selector names neither a serial number nor a WWN.
	ErrUnnamed = errors.New("the command names no serial number and no WWN")
	// ErrNotFound: no disk has that name.
	ErrNotFound = errors.New("no such disk in this machine")
	// ErrAmbiguous: more than one disk fits.
	ErrAmbiguous = errors.New("more than one disk fits")
	// ErrExcluded: the disk is there and may never be written.
	ErrExcluded = errors.New("that disk is never wiped or written")
	// ErrDiffers: the disk that is there is not the disk of the plan.
	ErrDiffers = errors.New("the disk is not the disk of the plan")
)

// notFound is ErrNotFound in one sentence for people.
type notFound struct {
	named   Selector
	present string
}

func (e *notFound) Error() string {
	return fmt.Sprintf("no disk with %s in this machine; %s", e.named, e.present)
}

func (*notFound) Unwrap() error { return ErrNotFound }

// Select returns the one candidate that fits. Every error lists what is there, so that a person can name the right one.
func Select(disks []Disk, s Selector) (Disk, error) {
	if absent(s.Serial) && !sameWWN(s.WWN, s.WWN) {
		return Disk{}, fmt.Errorf("choose disk: %w; %s", ErrUnnamed, listing(disks))
	}
	var named, full []Disk
	for _, d := range disks {
		if !s.names(d) {
			continue
		}
		named = append(named, d)
		if s.differs(d) == "" {
			full = append(full, d)
		}
	}
	switch {
	case len(named) == 0:
		return Disk{}, &notFound{s, listing(disks)}
	case len(full) == 0 && len(named) == 1:
		return Disk{}, fmt.Errorf("choose disk %s: %w: %s", s, ErrDiffers, s.differs(named[0]))
	case len(full) == 0:
		return Disk{}, fmt.Errorf("choose disk %s: %w: %d disks have that name, none fits in full; %s", s, ErrDiffers, len(named), listing(named))
	case len(full) > 1 || !s.tellsApart(full[0], named):
		return Disk{}, fmt.Errorf("choose disk %s: %w; %s", s, ErrAmbiguous, listing(named))
	case full[0].Excluded != "":
		return Disk{}, fmt.Errorf("choose disk %s: %w: %s", s, ErrExcluded, full[0].Excluded)
	}
	return full[0], nil
}

// names says whether d has the serial or the WWN of s.
func (s Selector) names(d Disk) bool {
	return (!absent(s.Serial) && sameSerial(s.Serial, d.Serial)) || sameWWN(s.WWN, d.WWN)
}

// differs says in which set fields d is not what s says; empty when it fits.
func (s Selector) differs(d Disk) string {
	var out []string
	add := func(bad bool, what string, want, got any) {
		if bad {
			out = append(out, fmt.Sprintf("%s should be %v, is %v", what, want, got))
		}
	}
	add(s.Serial != "" && !sameSerial(s.Serial, d.Serial), "serial", s.Serial, orNone(d.Serial))
	add(s.WWN != "" && !sameWWN(s.WWN, d.WWN), "WWN", s.WWN, orNone(d.WWN))
	add(s.Model != "" && strings.TrimSpace(s.Model) != d.Model, "model", s.Model, orNone(d.Model))
	add(s.Size != 0 && s.Size != d.Size, "size", s.Size, d.Size)
	add(s.Namespace != 0 && s.Namespace != d.Namespace, "namespace", s.Namespace, d.Namespace)
	return strings.Join(out, "; ")
}

// tellsApart says whether what s gives is enough to tell chosen from the other disks of that name: a namespace, a WWN or a
// serial number. Size and model alone are no name.
func (s Selector) tellsApart(chosen Disk, named []Disk) bool {
	for _, d := range named {
		if d.Name == chosen.Name {
			continue
		}
		strong := (s.Namespace != 0 && d.Namespace != s.Namespace) ||
			(s.WWN != "" && !sameWWN(s.WWN, d.WWN)) ||
			(s.Serial != "" && !sameSerial(s.Serial, d.Serial))
		if !strong {
			return false
		}
	}
	return true
}

// sameSerial compares serial numbers exactly, but for the spaces with which devices and people pad them. Case, zeroes and spaces
// inside count: "S1" is neither "S10" nor "s1" nor "S 1".
func sameSerial(a, b string) bool { return strings.TrimSpace(a) == strings.TrimSpace(b) }

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// maxListed bounds how many disks an error lists.
const maxListed = 32

func listing(disks []Disk) string {
	var can, cannot []string
	for _, d := range disks {
		if d.Excluded == "" {
			can = append(can, d.String())
		} else if reDisk.MatchString(d.Name) {
			cannot = append(cannot, d.String()+": "+d.Excluded)
		}
	}
	if len(can) > maxListed {
		can = append(can[:maxListed], "…")
	}
	out := "this machine's disks: " + strings.Join(can, ", ")
	if len(can) == 0 {
		out = "this machine has no disk that may be written"
	}
	if len(cannot) > 0 {
		if len(cannot) > maxListed {
			cannot = append(cannot[:maxListed], "…")
		}
		out += "; never written: " + strings.Join(cannot, ", ")
	}
	return out
}
