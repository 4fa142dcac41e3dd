package osimage

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem"
	"github.com/diskfs/go-diskfs/filesystem/fat16"
	"github.com/diskfs/go-diskfs/filesystem/fat32"

	"firstlight/imagebuild/manifest"
)

// Labels of the FAT file systems.
const (
	fatLabelESP    = "FLESP"
	fatLabelConfig = "FLCONFIG"
)

// epoch is the time of every file in the image: 2025-01-01, later than any time that FAT cannot say.
var epoch = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

// espFile is one file on the ESP, in the order in which it is written.
type espFile struct {
	name string
	data []byte
}

// writeESP makes the EFI system partition and reads every file back.
func writeESP(img *os.File, p manifest.Partition, files []espFile) error {
	var need int64
	for _, f := range files {
		need += roundUp(int64(len(f.data)), 512)
	}
	if room := p.Size - espFree; need > room {
		return fmt.Errorf("EFI system partition: its files take %d MiB, at most %d MiB allowed, so that room for another kernel is left", need/mib, room/mib)
	}
	fs, err := fat32.Create(file.New(img, false), p.Size, p.Start, manifest.SectorSize, fatLabelESP, true)
	if err != nil {
		return fmt.Errorf("EFI system partition: %w", err)
	}
	dirs := map[string]bool{"/": true}
	var made []string
	for _, f := range files {
		name := "/" + f.name
		if d := path.Dir(name); !dirs[d] {
			if err := fs.Mkdir(d); err != nil {
				return fmt.Errorf("EFI system partition: make %s: %w", d, err)
			}
			for ; !dirs[d]; d = path.Dir(d) {
				dirs[d], made = true, append(made, d)
			}
		}
		if err := writeFAT(fs, name, f.data); err != nil {
			return fmt.Errorf("EFI system partition: %w", err)
		}
	}
	for _, d := range made {
		if err := fs.Chtimes(d, epoch, epoch, epoch); err != nil {
			return fmt.Errorf("EFI system partition: set the time of %s: %w", d, err)
		}
	}
	return nil
}

func writeFAT(fs filesystem.FileSystem, name string, data []byte) error {
	w, err := fs.OpenFile(name, os.O_CREATE|os.O_RDWR|os.O_TRUNC)
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	if _, err := w.Write(data); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := fs.Chtimes(name, epoch, epoch, epoch); err != nil {
		return fmt.Errorf("set the time of %s: %w", name, err)
	}
	r, err := fs.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return fmt.Errorf("read %s back: %w", name, err)
	}
	// In one read from the start: go-diskfs 1.9.4 returns too many bytes when a later read begins inside the file's last cluster.
	got := make([]byte, len(data)+1)
	n, err := r.Read(got)
	if err != nil && err != io.EOF {
		return fmt.Errorf("read %s back: %w", name, err)
	}
	if !bytes.Equal(got[:n], data) {
		return fmt.Errorf("read %s back: got other bytes than were written", name)
	}
	return r.Close()
}

// writeConfig makes the empty file system into which a deploy writes the node's configuration.
func writeConfig(img *os.File, p manifest.Partition) error {
	if _, err := fat16.Create(file.New(img, false), p.Size, p.Start, manifest.SectorSize, fatLabelConfig, true); err != nil {
		return fmt.Errorf("configuration partition: %w", err)
	}
	return nil
}
