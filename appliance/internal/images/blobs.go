package images

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

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

// has says whether a blob of this size is there; what it holds is not looked at.
func (b *blobDir) has(d manifest.Digest, size int64) bool {
	info, err := os.Stat(filepath.Join(b.dir, blobName(d)))
	return err == nil && info.Mode().IsRegular() && info.Size() == size
}

// whole says whether a blob is there with the content of its name.
func (b *blobDir) whole(d manifest.Digest) bool {
	data, err := os.ReadFile(filepath.Join(b.dir, blobName(d)))
	return err == nil && manifest.DigestOf(data) == d
}

// sweep removes every blob that is not to be kept, and returns how many.
func (b *blobDir) sweep(keep map[string]bool) (int, error) {
	names, err := os.ReadDir(b.dir)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, e := range names {
		if _, err := manifest.ParseDigest(e.Name()); err != nil || keep[e.Name()] {
			continue
		}
		if err := os.Remove(filepath.Join(b.dir, e.Name())); err != nil {
			return n, err
		}
		n++
	}
	return n, b.sync()
}
