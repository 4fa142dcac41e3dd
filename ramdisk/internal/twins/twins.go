// Package twins finds disks that carry the same partition identities as an image: an earlier deploy of it on another disk. A system
// that looks for its root by such an identity may take the wrong disk, so that whoever finds twins refuses (DEP-06).
//
// It is for ramdisk's deploy and kexec. It reads partition tables and writes nothing; identities inside file systems are not looked
// at, since images name their root by its partition.
package twins

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/gpt"
)

// ErrTwin: another disk of this machine has the same identities.
var ErrTwin = errors.New("another disk of this machine has the same partition identities")

// IDs are lower-case GUIDs. An empty Disk is not looked for.
type IDs struct {
	Disk       string
	Partitions []string
}

// Twin is one disk with at least one of the identities.
type Twin struct {
	Disk disk.Disk
	// Same says in words which ones.
	Same []string
}

// Found is what was found.
type Found struct {
	Twins []Twin
	// Unread are disks whose table could not be read, with the reason: a system that starts cannot read them either.
	Unread []string
}

// Find looks at every disk but target, those that may never be written too: an initial RAM disk searches them all.
func Find(sys disk.System, disks []disk.Disk, target disk.Disk, ids IDs) (Found, error) {
	var out Found
	r, ok := sys.(disk.Reader)
	if !ok {
		return out, errors.New("look for twins: the disks cannot be opened for reading")
	}
	for _, d := range disks {
		if d.Size <= 0 || d.LogicalBlock <= 0 || !d.Kind() || (d.Name == target.Name && d.Sequence == target.Sequence) {
			continue
		}
		t, err := read(r, d)
		switch {
		case errors.Is(err, gpt.ErrNoTable):
		case err != nil:
			out.Unread = append(out.Unread, fmt.Sprintf("%s: %v", d, err))
		default:
			if same := compare(t, ids); len(same) > 0 {
				out.Twins = append(out.Twins, Twin{d, same})
			}
		}
	}
	return out, nil
}

func read(r disk.Reader, d disk.Disk) (*gpt.Table, error) {
	s, err := r.OpenRead(d)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return gpt.Read(disk.Unaligned{R: s}, d.Size, d.LogicalBlock)
}

func compare(t *gpt.Table, ids IDs) []string {
	var same []string
	if ids.Disk != "" && t.DiskGUID() == ids.Disk {
		same = append(same, "disk GUID "+ids.Disk)
	}
	for _, p := range t.Partitions() {
		if slices.Contains(ids.Partitions, p.GUID) {
			same = append(same, fmt.Sprintf("partition %d PARTUUID %s", p.Number, p.GUID))
		}
	}
	return same
}

// Refuse is nil without twins, else ErrTwin with each of them named and what to do.
func (f Found) Refuse() error {
	if len(f.Twins) == 0 {
		return nil
	}
	var names []string
	for _, t := range f.Twins {
		names = append(names, fmt.Sprintf("%s has %s", t.Disk, strings.Join(t.Same, ", ")))
	}
	return fmt.Errorf("%w, so the deployed system could start from the wrong one: %s; wipe that disk in the same workflow, or take it out",
		ErrTwin, strings.Join(names, "; "))
}
