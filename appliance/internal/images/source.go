package images

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"

	"firstlight/imagebuild/manifest"
)

// source is a directory as `imagebuild pack` writes it. Nothing outside it is read, whatever its links say.
type source struct {
	root *os.Root
	zstd *zstd.Decoder
}

func newDecoder(concurrency int) (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(concurrency), zstd.WithDecoderMaxMemory(manifest.MaxChunkSize))
}

func openSource(dir string) (*source, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	d, err := newDecoder(1)
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return &source{root: root, zstd: d}, nil
}

func (s *source) Close() error {
	s.zstd.Close()
	return s.root.Close()
}

func (s *source) manifest() ([]byte, *manifest.Manifest, error) {
	body, err := s.read("manifest.json", manifest.MaxBody)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	m, err := manifest.Decode(body)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: manifest.json: %w", ErrInvalid, err)
	}
	return body, m, nil
}

// chunk returns the chunk's blob after checking its size and both digests.
func (s *source) chunk(c manifest.Chunk) ([]byte, error) {
	name := "blobs/" + blobName(c.Compressed)
	blob, err := s.read(name, c.Size)
	if err != nil {
		return nil, err
	}
	if err := verify(s.zstd, c, blob); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return blob, nil
}

// verify checks a chunk's blob: its size and both digests.
func verify(d *zstd.Decoder, c manifest.Chunk, blob []byte) error {
	if int64(len(blob)) != c.Size {
		return fmt.Errorf("%d bytes, the manifest says %d", len(blob), c.Size)
	}
	if got := manifest.DigestOf(blob); got != c.Compressed {
		return fmt.Errorf("SHA-256 is %s", got)
	}
	raw, err := d.DecodeAll(blob, make([]byte, 0, c.RawSize))
	if err != nil {
		return err
	}
	if int64(len(raw)) != c.RawSize {
		return fmt.Errorf("%d bytes raw, the manifest says %d", len(raw), c.RawSize)
	}
	if got := manifest.DigestOf(raw); got != c.Raw {
		return fmt.Errorf("raw SHA-256 is %s, the manifest says %s", got, c.Raw)
	}
	return nil
}

func (s *source) read(name string, limit int64) ([]byte, error) {
	f, err := s.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", name)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s: over %d bytes", name, limit)
	}
	return data, nil
}
