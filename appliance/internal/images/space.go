package images

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"firstlight/imagebuild/manifest"
)

// What images never take of their volume, because the appliance's database, journal and logs are on it too: a twentieth of it, but
// at least and at most so many bytes; of inodes a twentieth.
const (
	reserveShare = 20
	reserveMin   = 512 << 20
	reserveMax   = 16 << 30
)

// Space is how full a volume is. Inodes is zero where the file system has no such limit.
type Space struct {
	Free, Total        int64
	FreeInodes, Inodes int64
}

// Reserve is what images leave free, in bytes.
func (s Space) Reserve() int64 { return min(max(s.Total/reserveShare, reserveMin), reserveMax) }

// volume asks the kernel.
func volume(dir string) (Space, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return Space{}, fmt.Errorf("ask for free space in %s: %w", dir, err)
	}
	return Space{Free: int64(s.Bavail) * s.Bsize, Total: int64(s.Blocks) * s.Bsize, FreeInodes: int64(s.Ffree), Inodes: int64(s.Files)}, nil
}

// fits refuses so many bytes in so many files when they would touch the reserve.
func (l *Library) fits(bytes, files int64) error {
	s, err := l.space(l.blobs.dir)
	if err != nil {
		return err
	}
	if reserve := s.Reserve(); bytes > s.Free-reserve {
		return fmt.Errorf("%w: it needs %d MiB, and of the %d MiB that are free in %s, %d MiB stay reserved for the appliance's own database",
			ErrNoRoom, (bytes+1<<20-1)>>20, s.Free>>20, l.blobs.dir, reserve>>20)
	}
	if s.Inodes > 0 && files > s.FreeInodes-s.Inodes/reserveShare {
		return fmt.Errorf("%w: it needs %d files, and of the %d inodes that are free in %s, %d stay reserved for the appliance's own database",
			ErrNoRoom, files, s.FreeInodes, l.blobs.dir, s.Inodes/reserveShare)
	}
	return nil
}

// room refuses what cannot end well: too many images, or too little space for the blobs that are not here and for what other uploads
// were promised. own is an upload's id.
func (l *Library) room(ctx context.Context, m *manifest.Manifest, own string) error {
	all, err := l.List(ctx)
	if err != nil {
		return err
	}
	if len(all) >= MaxImages {
		return fmt.Errorf("%w: there are %d images, the limit", ErrNoRoom, MaxImages)
	}
	bytes, files := l.promised(own)
	for _, c := range unique(m) {
		if !l.blobs.has(c.Compressed, c.Size) {
			bytes, files = bytes+c.Size, files+1
		}
	}
	if files == 0 {
		return nil
	}
	return l.fits(bytes, files)
}

// put stores a verified blob, unless that would touch the reserve: the volume may have filled since the upload began.
func (l *Library) put(c manifest.Chunk, blob []byte) error {
	if !l.blobs.has(c.Compressed, c.Size) {
		if err := l.fits(c.Size, 1); err != nil {
			return err
		}
	}
	return l.blobs.put(c.Compressed, blob)
}
