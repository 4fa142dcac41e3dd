package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"firstlight/imagebuild/manifest"
	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/wipe"
)

// DigestAttempts bounds tries of a transfer that was whole and wrong: one retry (DEP-03).
const DigestAttempts = 2

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
	for try := 1; ; try++ {
		b, err := j.fetch.Fetch(ctx, url, c.Size)
		got := manifest.DigestOf(b)
		switch {
		case errors.Is(err, ErrTooLong):
			err = fmt.Errorf("%w: %w", ErrDigest, err)
		case err != nil:
			return nil, err
		case int64(len(b)) != c.Size:
			err = fmt.Errorf("%w: %d bytes, the manifest says %d", ErrDigest, len(b), c.Size)
		case got != c.Compressed:
			err = fmt.Errorf("%w: compressed content should be SHA-256 %s, is %s", ErrDigest, c.Compressed, got)
		default:
			return b, nil
		}
		if try == DigestAttempts {
			return nil, fmt.Errorf("wrong content, fetched %d times: %w", try, err)
		}
		if err := pause(ctx, RetryDelay); err != nil {
			return nil, err
		}
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

// writing is what a deploy does while it writes the image.
const writing = "writing the image and reading it back"

// headBytes are the first two blocks of a disk of either block size: the master boot record and the header of the table's first copy,
// without which no firmware starts anything.
const headBytes = 2 * 4096

// write brings the image onto the disk in an order in which a power cut leaves nothing that starts (DEP-11): first everything
// between the two copies of the partition table, flushed and read back, also what the first chunk holds beside the table (of a real
// image, the beginning of its first partition), then the last chunk, and the disk's first blocks last.
func (j *job) write(ctx context.Context) (written, verified int64, err error) {
	w := &writer{job: j, total: j.m.DataSize()}
	last := len(j.m.Chunks) - 1
	var between, ends []int
	for i := 1; i < last; i++ {
		between = append(between, i)
	}
	if last > 0 {
		ends = []int{last}
	}
	ends = append(ends, 0)
	if err := w.stage(ctx, between); err != nil {
		return w.written, w.verified, err
	}
	if err := j.holesAreZero(ctx); err != nil {
		return w.written, w.verified, err
	}
	if err := w.body(); err != nil {
		return w.written, w.verified, err
	}
	for _, i := range ends {
		if err := w.stage(ctx, []int{i}); err != nil {
			return w.written, w.verified, err
		}
	}
	return w.written, w.verified, nil
}

// writer counts, in bytes.
type writer struct {
	*job
	mu                       sync.Mutex
	written, verified, total int64
}

// count tells how far it is: writing and reading back take turns, stage by stage, so both make one number that only grows.
func (w *writer) count() {
	w.tell(writing, w.written+w.verified, 2*w.total)
}

// stage writes chunks, flushes, and reads them back past the page cache.
func (w *writer) stage(ctx context.Context, chunks []int) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(Workers)
	for _, i := range chunks {
		if gctx.Err() != nil {
			break
		}
		g.Go(func() (err error) {
			defer func() {
				if v := recover(); v != nil {
					err = fmt.Errorf("chunk %d: internal error: %v", i, v)
				}
			}()
			return w.one(gctx, i)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := w.claim.Flush(); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	buf := disk.Buffer(int(w.m.ChunkSize))
	for _, i := range chunks {
		if err := w.back(ctx, i, buf); err != nil {
			return err
		}
	}
	return nil
}

// body writes the first chunk but for its head, flushes it and reads it back.
func (w *writer) body() error {
	if len(w.first) <= headBytes {
		return nil
	}
	if _, err := w.claim.WriteAt(w.first[headBytes:], headBytes); err != nil {
		return fmt.Errorf("chunk 0: write at byte %d: %w", headBytes, err)
	}
	if err := w.claim.Flush(); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	b := disk.Buffer(len(w.first) - headBytes)
	if _, err := w.claim.ReadAt(b, headBytes); err != nil {
		return fmt.Errorf("read back chunk 0 at byte %d: %w", headBytes, err)
	}
	if !bytes.Equal(b, w.first[headBytes:]) {
		return fmt.Errorf("read back chunk 0 at byte %d: %w: the disk does not hold what was written", headBytes, ErrDigest)
	}
	return nil
}

func (w *writer) one(ctx context.Context, i int) error {
	c, raw := w.m.Chunks[i], w.first[:min(headBytes, len(w.first))]
	if i > 0 {
		var err error
		if raw, err = w.chunk(ctx, i); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if _, err := w.claim.WriteAt(raw, c.Offset); err != nil {
		return fmt.Errorf("chunk %d: write at byte %d: %w", i, c.Offset, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written += c.RawSize
	w.count()
	return nil
}

func (w *writer) back(ctx context.Context, i int, buf []byte) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	c := w.m.Chunks[i]
	b := buf[:c.RawSize]
	if _, err := w.claim.ReadAt(b, c.Offset); err != nil {
		return fmt.Errorf("read back chunk %d at byte %d: %w", i, c.Offset, err)
	}
	if got := manifest.DigestOf(b); got != c.Raw {
		return fmt.Errorf("read back chunk %d at byte %d: %w: the disk does not hold what was written", i, c.Offset, ErrDigest)
	}
	w.verified += c.RawSize
	w.count()
	return nil
}

// holesAreZero reads what no chunk covers: within the image, and to the disk's end where it was erased just now.
func (j *job) holesAreZero(ctx context.Context) error {
	end := j.m.RawSize
	if !j.wiped {
		end = j.claim.Disk.Size
	}
	for _, h := range j.holes(end) {
		if err := wipe.Verify(ctx, j.claim, h, func(int64) {}); err != nil {
			return fmt.Errorf("what the image leaves out: %w", err)
		}
	}
	return nil
}
