// Package pack cuts a raw disk image into the chunks that a manifest lists.
//
// A chunk is manifest.ChunkSize bytes (the last may be shorter) in one independent zstd frame, stored under the SHA-256 of the
// frame. Chunks that are all zero are left out. It is for imagebuild only; what it writes is what site and appliance serve.
package pack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"

	"firstlight/imagebuild/manifest"
)

// Chunks reads size bytes of raw image from r, writes every frame into the directory dir and returns the chunks by offset. Each
// frame is unpacked again and compared before it counts. progress may be nil; it is called from one goroutine at a time.
func Chunks(ctx context.Context, r io.ReaderAt, size int64, dir string, progress func(done, total int64)) ([]manifest.Chunk, error) {
	n := int((size + manifest.ChunkSize - 1) / manifest.ChunkSize)
	if n > manifest.MaxChunks {
		return nil, fmt.Errorf("pack: image of %d bytes has more than %d chunks", size, manifest.MaxChunks)
	}
	var (
		mu    sync.Mutex
		next  int
		done  int64
		first error
		found = make([]*manifest.Chunk, n)
		wg    sync.WaitGroup
	)
	take := func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		if first == nil {
			first = ctx.Err()
		}
		if first != nil || next == n {
			return 0, false
		}
		next++
		return next - 1, true
	}
	finish := func(i int, c *manifest.Chunk, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			if first == nil {
				first = fmt.Errorf("pack: chunk at %d: %w", int64(i)*manifest.ChunkSize, err)
			}
			return
		}
		found[i] = c
		done += min(manifest.ChunkSize, size-int64(i)*manifest.ChunkSize)
		if progress != nil {
			progress(done, size)
		}
	}
	for range min(n, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			w, err := newWorker(dir)
			if err != nil {
				finish(0, nil, err)
				return
			}
			defer w.close()
			for i, ok := take(); ok; i, ok = take() {
				off := int64(i) * manifest.ChunkSize
				c, err := w.chunk(r, off, min(manifest.ChunkSize, size-off))
				finish(i, c, err)
			}
		})
	}
	wg.Wait()
	if first != nil {
		return nil, first
	}
	var out []manifest.Chunk
	for _, c := range found {
		if c != nil {
			out = append(out, *c)
		}
	}
	return out, nil
}

// worker owns the buffers of one goroutine.
type worker struct {
	dir        string
	raw, again []byte
	frame      []byte
	enc        *zstd.Encoder
	dec        *zstd.Decoder
}

func newWorker(dir string) (*worker, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault))
	if err != nil {
		return nil, err
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(2*manifest.MaxChunkSize))
	if err != nil {
		return nil, err
	}
	return &worker{dir: dir, raw: make([]byte, manifest.ChunkSize), enc: enc, dec: dec}, nil
}

func (w *worker) close() { w.dec.Close() }

// chunk packs one stretch; nil for one that is all zero.
func (w *worker) chunk(r io.ReaderAt, off, n int64) (*manifest.Chunk, error) {
	raw := w.raw[:n]
	if got, err := r.ReadAt(raw, off); got != len(raw) {
		return nil, fmt.Errorf("read: %w", err)
	}
	if allZero(raw) {
		return nil, nil
	}
	w.frame = w.enc.EncodeAll(raw, w.frame[:0])
	var err error
	if w.again, err = w.dec.DecodeAll(w.frame, w.again[:0]); err != nil {
		return nil, fmt.Errorf("unpack again: %w", err)
	}
	if !bytes.Equal(w.again, raw) {
		return nil, errors.New("unpack again: got other bytes than were packed")
	}
	c := &manifest.Chunk{Offset: off, RawSize: n, Size: int64(len(w.frame)), Raw: manifest.DigestOf(raw), Compressed: manifest.DigestOf(w.frame)}
	return c, writeBlob(w.dir, c.Compressed, w.frame)
}

func allZero(b []byte) bool {
	for len(b) >= len(zeros) {
		if !bytes.Equal(b[:len(zeros)], zeros[:]) {
			return false
		}
		b = b[len(zeros):]
	}
	return bytes.Equal(b, zeros[:len(b)])
}

var zeros [4096]byte

// writeBlob puts the frame in place under its digest; a name that is there holds the whole frame.
func writeBlob(dir string, d manifest.Digest, frame []byte) error {
	f, err := os.CreateTemp(dir, ".part-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := f.Write(frame); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(dir, d.String()))
}
