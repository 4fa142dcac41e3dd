// Package parttable writes and reads GUID partition tables of disk images as the manifest's partitions.
//
// It is for imagebuild only: a thin layer over go-diskfs that fixes what the manifest fixes (512-byte sectors, bytes instead of
// sectors, lower-case GUIDs, roles).
package parttable

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/diskfs/go-diskfs/partition/gpt"

	"firstlight/imagebuild/manifest"
)

// GPT type GUIDs (UEFI specification 5.3.3; Discoverable Partitions Specification).
const (
	TypeESP  = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"
	TypeData = "ebd0a0a2-b9e5-4433-87c0-68b6b72699c7"
	TypeRoot = "4f68bce3-e8cd-4db1-96e7-fbcaf984b709" // root of an x86-64 system
	TypeBIOS = "21686148-6449-6e6f-744e-656564454649" // GRUB's core image, where the firmware is no UEFI (GRUB manual, BIOS installation)
)

// GPT names. All but LabelBIOS give a partition its role.
const (
	LabelESP    = "firstlight-esp"
	LabelConfig = "firstlight-config"
	LabelRoot   = "firstlight-root"
	LabelBIOS   = "firstlight-bios"
)

// ErrNone means that there is no valid GPT with 512-byte sectors.
var ErrNone = errors.New("no valid partition table (GPT, 512-byte sectors)")

// File is what a table is written to and read from; *os.File is one.
type File interface {
	fs.File
	io.ReaderAt
	io.WriterAt
	io.Seeker
}

// Write writes the protective MBR and both copies of the GPT of an image of size bytes.
func Write(f File, size int64, disk string, parts []manifest.Partition) error {
	t := &gpt.Table{LogicalSectorSize: manifest.SectorSize, PhysicalSectorSize: manifest.SectorSize, GUID: strings.ToUpper(disk), ProtectiveMBR: true}
	for _, p := range parts {
		t.Partitions = append(t.Partitions, &gpt.Partition{
			Index: p.Number, Start: uint64(p.Start / manifest.SectorSize), End: uint64((p.Start+p.Size)/manifest.SectorSize - 1),
			Size: uint64(p.Size), Type: gpt.Type(strings.ToUpper(p.TypeGUID)), Name: p.Label, GUID: strings.ToUpper(p.UUID),
		})
	}
	if err := t.Write(f, size); err != nil {
		return fmt.Errorf("write partition table: %w", err)
	}
	return nil
}

// Read reads the table of an image of size bytes. Both copies must be whole: an image with a damaged table is not one to deploy.
func Read(f File, size int64) ([]manifest.Partition, error) {
	t, err := gpt.Read(f, manifest.SectorSize, manifest.SectorSize)
	if err != nil {
		return nil, fmt.Errorf("read partition table: %w: %w", ErrNone, err)
	}
	if t.RecoveredFromBackup {
		return nil, fmt.Errorf("read partition table: %w: only the backup copy is whole", ErrNone)
	}
	if err := t.Verify(f, uint64(size)); err != nil {
		return nil, fmt.Errorf("read partition table: %w: backup copy: %w", ErrNone, err)
	}
	var out []manifest.Partition
	for i, p := range t.Partitions {
		if p.Type == gpt.Unused {
			continue
		}
		n := p.Index
		if n == 0 {
			n = i + 1
		}
		q := manifest.Partition{
			Number: n, Label: p.Name, TypeGUID: strings.ToLower(string(p.Type)), UUID: strings.ToLower(p.GUID),
			Start: int64(p.Start) * manifest.SectorSize, Size: int64(p.End-p.Start+1) * manifest.SectorSize,
		}
		q.Role = role(q)
		out = append(out, q)
	}
	slices.SortFunc(out, func(a, b manifest.Partition) int { return cmp.Compare(a.Number, b.Number) })
	return out, nil
}

func role(p manifest.Partition) string {
	switch {
	case p.TypeGUID == TypeESP:
		return manifest.RoleESP
	case p.Label == LabelConfig:
		return manifest.RoleConfig
	case p.Label == LabelRoot, p.TypeGUID == TypeRoot:
		return manifest.RoleRoot
	}
	return ""
}
