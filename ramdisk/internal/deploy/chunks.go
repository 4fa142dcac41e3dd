package deploy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"firstlight/imagebuild/manifest"
	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/wipe"
)

// Attempts to get one chunk.
const (
	// FetchAttempts bounds tries of a transfer that broke.
	FetchAttempts = 4
	// DigestAttempts bounds tries of a transfer that was whole and wrong: one retry (DEP-03).
	DigestAttempts = 2
	// RetryDelay is the pause before a try; it doubles.
	RetryDelay = time.Second
)

// chunk fetches chunk i, checks its compressed digest, decodes it, checks its raw digest, and returns it in a buffer for direct I/O.
func (j *job) chunk(ctx context.Context, i int) ([]byte, error) {
	c := j.m.Chunks[i]
	where := fmt.Sprintf("chunk %d (bytes %d to %d)", i, c.Offset, c.Offset+c.RawSize-1)
	compressed, err := j.fetchChunk(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	raw, err := decode(compressed, c.RawSize)
	if err != nil {
		return nil, fmt.Errorf("%s: decompress: %w", where, err)
	}
	if got := manifest.DigestOf(raw); got != c.Raw {
		return nil, fmt.Errorf("%s: %w: raw content should be SHA-256 %s, is %s", where, ErrDigest, c.Raw, got)
	}
	return raw, nil
}

func (j *job) fetchChunk(ctx context.Context, c manifest.Chunk) ([]byte, error) {
	url := strings.TrimSuffix(j.req.ChunkBaseURL, "/") + "/" + c.Compressed.String()
	wrong := 0
	delay := RetryDelay
	for try := 1; ; try++ {
		b, err := j.Fetch.Fetch(ctx, url, c.Size)
		if err == nil && int64(len(b)) != c.Size {
			err = fmt.Errorf("%w: %d bytes, the manifest says %d", ErrDigest, len(b), c.Size)
		}
		if err == nil {
			got := manifest.DigestOf(b)
			if got == c.Compressed {
				return b, nil
			}
			err = fmt.Errorf("%w: compressed content should be SHA-256 %s, is %s", ErrDigest, c.Compressed, got)
		}
		if errors.Is(err, ErrDigest) {
			wrong++
		}
		if wrong >= DigestAttempts || try >= FetchAttempts || ctx.Err() != nil || errors.Is(err, ErrRefused) {
			return nil, fmt.Errorf("fetch, try %d: %w", try, err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(delay):
		}
		delay *= 2
	}
}

// decode undoes one zstd frame of exactly size bytes; more memory than that is never used for the result.
func decode(compressed []byte, size int64) ([]byte, error) {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(manifest.MaxChunkSize), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	buf := disk.Buffer(int(size))
	raw, err := z.DecodeAll(compressed, buf[:0])
	if err != nil {
		return nil, err
	}
	if int64(len(raw)) != size {
		return nil, fmt.Errorf("%d bytes, the manifest says %d", len(raw), size)
	}
	if &raw[0] != &buf[0] {
		copy(buf, raw)
	}
	return buf, nil
}

// write writes every chunk and flushes; it returns the bytes that the disk took.
func (j *job) write(ctx context.Context) (int64, error) {
	var mu sync.Mutex
	var written, total int64
	for _, c := range j.m.Chunks {
		total += c.RawSize
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(Workers)
	for i, c := range j.m.Chunks {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() (err error) {
			defer func() {
				if v := recover(); v != nil {
					err = fmt.Errorf("chunk %d: internal error: %v", i, v)
				}
			}()
			raw := j.first
			if i > 0 {
				if raw, err = j.chunk(ctx, i); err != nil {
					return err
				}
			}
			if _, err := j.claim.WriteAt(raw, c.Offset); err != nil {
				return fmt.Errorf("chunk %d: write at byte %d: %w", i, c.Offset, err)
			}
			mu.Lock()
			defer mu.Unlock()
			written += c.RawSize
			j.Progress("writing the image", written, total)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return written, err
	}
	if err := ctx.Err(); err != nil && written != total {
		return written, err
	}
	if err := j.claim.Flush(); err != nil {
		return written, fmt.Errorf("flush: %w", err)
	}
	return written, nil
}

// readBack reads every chunk from the disk, past the page cache, and compares raw digests; then what no chunk covers must be zero:
// within the image, and to the disk's end where it was erased just now.
func (j *job) readBack(ctx context.Context) (int64, error) {
	var verified, total int64
	for _, c := range j.m.Chunks {
		total += c.RawSize
	}
	buf := disk.Buffer(int(j.m.ChunkSize))
	for i, c := range j.m.Chunks {
		if err := ctx.Err(); err != nil {
			return verified, fmt.Errorf("read back: stopped: %w", err)
		}
		b := buf[:c.RawSize]
		if _, err := j.claim.ReadAt(b, c.Offset); err != nil {
			return verified, fmt.Errorf("read back chunk %d at byte %d: %w", i, c.Offset, err)
		}
		if got := manifest.DigestOf(b); got != c.Raw {
			return verified, fmt.Errorf("read back chunk %d at byte %d: %w: the disk does not hold what was written", i, c.Offset, ErrDigest)
		}
		verified += c.RawSize
		j.Progress("reading the image back", verified, total)
	}
	end := j.m.RawSize
	if !j.wiped {
		end = j.claim.Disk.Size
	}
	for _, h := range j.holes(end) {
		if err := wipe.Verify(ctx, j.claim, h, func(int64) {}); err != nil {
			return verified, fmt.Errorf("what the image leaves out: %w", err)
		}
	}
	return verified, nil
}
