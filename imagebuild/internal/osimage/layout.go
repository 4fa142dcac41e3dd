package osimage

import (
	"crypto/sha256"
	"fmt"

	"github.com/google/uuid"

	"firstlight/imagebuild/internal/parttable"
	"firstlight/imagebuild/manifest"
)

const mib = 1 << 20

// Sizes in bytes.
const (
	MaxImage = 160 * mib
	espSize  = 48 * mib // FAT32 needs 65,525 clusters: 33 MiB of the smallest ones
	espFree  = 16 * mib // left on the ESP for a second kernel
	cfgSize  = 8 * mib
	rootMin  = 48 * mib
	rootFree = 16 * mib // left on the root, its journal and inode tables counted
	align    = mib      // every partition starts at a multiple
	tailSize = mib      // behind the last partition: the backup partition table
	biosAt   = 20 << 10 // GRUB's core image lies between the partition table and the first MiB, on a physical block of 4 KiB
)

// Layout is where everything lies in the image.
type Layout struct {
	Size       int64
	DiskGUID   string
	RootFSUUID string
	Partitions []manifest.Partition
}

// Root is the root partition.
func (l Layout) Root() manifest.Partition { return l.Partitions[2] }

// BIOS is the partition of GRUB's core image.
func (l Layout) BIOS() manifest.Partition { return l.Partitions[3] }

// plan decides the layout for a root file system with that much content, in bytes. The GUIDs follow from seed, so that the same
// inputs give the same ones and other inputs other ones.
func plan(seed [32]byte, rootContent int64) (Layout, error) {
	root := max(rootMin, roundUp(rootContent+rootContent/8+rootFree, 8*mib))
	l := Layout{DiskGUID: guid(seed, "disk"), RootFSUUID: guid(seed, "root file system")}
	at := int64(align)
	for i, p := range []manifest.Partition{
		{Label: parttable.LabelESP, TypeGUID: parttable.TypeESP, Size: espSize, Role: manifest.RoleESP},
		{Label: parttable.LabelConfig, TypeGUID: parttable.TypeData, Size: cfgSize, Role: manifest.RoleConfig},
		{Label: parttable.LabelRoot, TypeGUID: parttable.TypeRoot, Size: root, Role: manifest.RoleRoot},
	} {
		p.Number, p.Start, p.UUID = i+1, at, guid(seed, "partition "+p.Label)
		at += p.Size
		l.Partitions = append(l.Partitions, p)
	}
	l.Partitions = append(l.Partitions, manifest.Partition{Number: 4, Label: parttable.LabelBIOS, TypeGUID: parttable.TypeBIOS,
		UUID: guid(seed, "partition "+parttable.LabelBIOS), Start: biosAt, Size: align - biosAt})
	l.Size = at + tailSize
	if l.Size > MaxImage {
		return Layout{}, fmt.Errorf("plan the image: %d MiB, at most %d MiB allowed: the root file system's content is %d MiB",
			l.Size/mib, MaxImage/mib, rootContent/mib)
	}
	return l, nil
}

func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }

// guid derives a GUID (RFC 9562, version 8: vendor's own) from the seed and what it is for.
func guid(seed [32]byte, what string) string {
	sum := sha256.Sum256(append(seed[:], what...))
	var u uuid.UUID
	copy(u[:], sum[:])
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80
	return u.String()
}
