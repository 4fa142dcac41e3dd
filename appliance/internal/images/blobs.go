package images

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"firstlight/imagebuild/manifest"
)

// unfinished is what names of files have that are not blobs yet.
const unfinished = ".new-*"

// blobDir is a directory of files named by their SHA-256.
type blobDir struct{ dir string }

// openBlobs makes the directory when missing and removes what a crash left unfinished.
func openBlobs(dir string) (*blobDir, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	left, err := filepath.Glob(filepath.Join(dir, unfinished))
	if err != nil {
		return nil, err
	}
	for _, f := range left {
		if err := os.Remove(f); err != nil {
			return nil, err
		}
	}
	return &blobDir{dir: dir}, nil
}

// put stores data, whose digest d is; the name is durable only after sync. A blob that is there and whole stays; a damaged one is
// replaced.
func (b *blobDir) put(d manifest.Digest, data []byte) error {
	path := filepath.Join(b.dir, blobName(d))
	if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, data) {
		return nil
	}
	f, err := os.CreateTemp(b.dir, unfinished)
	if err != nil {
		return fmt.Errorf("store blob: %w", err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("store blob: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

// sync makes the names of all blobs durable.
func (b *blobDir) sync() error {
	d, err := os.Open(b.dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// free is the space that is left for blobs, in bytes.
func (b *blobDir) free() (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(b.dir, &s); err != nil {
		return 0, fmt.Errorf("ask for free space in %s: %w", b.dir, err)
	}
	return int64(s.Bavail) * s.Bsize, nil
}
