package judge

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"

	"firstlight/imagebuild/manifest"
	"firstlight/testbed/fixtures"
)

// block is how much of a disk is looked at in one piece, in bytes; a multiple of every sector size.
const block = 4 << 20

// gptArea is what a partition table takes at each end of a disk with 512-byte sectors, in bytes: protective MBR, header, 128 entries.
const gptArea = 34 * fixtures.SectorSize

// bootCode is what the first sector holds before the protective MBR's own fields, in bytes: the image's (UEFI 2.10, table 5.3).
const bootCode = 440

// span is a stretch of a disk, in bytes: from inclusive, to exclusive.
type span struct{ from, to int64 }

// eachBlock calls f with every block of the file.
func eachBlock(path string, f func(offset int64, b []byte)) (size int64, err error) {
	disk, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer disk.Close()
	buf := make([]byte, block)
	for {
		n, err := io.ReadFull(disk, buf)
		if n > 0 {
			f(size, buf[:n])
			size += int64(n)
		}
		if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
			return size, nil
		}
		if err != nil {
			return size, err
		}
	}
}

// Untouched checks that every sector of the disk file still holds the pattern.
func Untouched(path string, p fixtures.Pattern) Check {
	const name = "disk untouched"
	first, changed := int64(-1), 0
	size, err := eachBlock(path, func(off int64, b []byte) {
		if p.Matches(b, off) {
			return
		}
		for at := 0; at < len(b); at += fixtures.SectorSize {
			if s := b[at:min(at+fixtures.SectorSize, len(b))]; !p.Matches(s, off+int64(at)) {
				changed++
				if first < 0 {
					first = off + int64(at)
				}
			}
		}
	})
	if err != nil {
		return Fail(name, "read disk file: %v", err)
	}
	if changed > 0 || size == 0 {
		return Fail(name, "%d of %d sectors no longer hold the pattern, the first at byte %d", changed, size/fixtures.SectorSize, first)
	}
	return Pass(name, "all %d sectors still hold the pattern of %s", size/fixtures.SectorSize, p.Serial)
}

// NoTrace checks that no byte of the pattern is left anywhere in the disk file, aligned or not.
func NoTrace(path string, p fixtures.Pattern) Check {
	const name = "no trace of the pattern"
	needles := [][]byte{[]byte(fixtures.Magic), []byte(p.Serial)}
	found, first, nonzero := 0, int64(-1), int64(0)
	var tail []byte
	size, err := eachBlock(path, func(off int64, b []byte) {
		// What lies across two blocks is seen in the end of the one and the start of the other.
		joined := append(bytes.Clone(tail), b[:min(len(b), 64)]...)
		for _, n := range needles {
			if at := bytes.Index(b, n); at >= 0 {
				found += bytes.Count(b, n)
				if first < 0 {
					first = off + int64(at)
				}
			}
			if at := bytes.Index(joined, n); at >= 0 && at < len(tail) && first < 0 {
				found, first = found+1, off-int64(len(tail)-at)
			}
		}
		if len(bytes.Trim(b, "\x00")) > 0 {
			nonzero += int64(len(b))
		}
		tail = append(tail[:0], b[max(0, len(b)-64):]...)
	})
	if err != nil {
		return Fail(name, "read disk file: %v", err)
	}
	if found > 0 || size == 0 {
		return Fail(name, "%d traces left in %d bytes, the first at byte %d", found, size, first)
	}
	return Pass(name, "%d bytes read, no trace of the pattern of %s; %d bytes in blocks that are not all zero", size, p.Serial, nonzero)
}

// AllZero checks that the bytes from up to (not including) to are zero; a negative from or to counts from the disk's end, to 0 is the end.
func AllZero(name, path string, from, to int64) Check {
	info, err := os.Stat(path)
	if err != nil {
		return Fail(name, "%v", err)
	}
	if from < 0 {
		from += info.Size()
	}
	if to <= 0 {
		to += info.Size()
	}
	n, first, err := nonZero(path, []span{{from, to}})
	if err != nil {
		return Fail(name, "read disk file: %v", err)
	}
	if n > 0 {
		return Fail(name, "%d bytes from %d to %d are not zero, the first at %d", n, from, to, first)
	}
	return Pass(name, "bytes %d to %d are zero", from, to)
}

// nonZero counts the bytes in spans that are not zero and returns where the first one is.
func nonZero(path string, spans []span) (n, first int64, err error) {
	first = -1
	_, err = eachBlock(path, func(off int64, b []byte) {
		for _, s := range spans {
			lo, hi := max(s.from, off), min(s.to, off+int64(len(b)))
			if lo >= hi {
				continue
			}
			part := b[lo-off : hi-off]
			if len(bytes.Trim(part, "\x00")) == 0 {
				continue
			}
			for i, v := range part {
				if v != 0 {
					n++
					if first < 0 {
						first = lo + int64(i)
					}
				}
			}
		}
	})
	return n, first, err
}

// Deployed compares the disk file with the image: every chunk, every hole and what lies behind the image. Left out are the
// configuration partition, which is this machine's own, and the partition tables, which move to the disk's end.
// blobs is the folder with the chunks' compressed bytes.
func Deployed(path string, m *manifest.Manifest, blobs string) []Check {
	return DeployedBeside(path, m, blobs)
}

// DeployedBeside is Deployed without the partitions of these roles, which the deployed system has written to since.
func DeployedBeside(path string, m *manifest.Manifest, blobs string, roles ...string) []Check {
	info, err := os.Stat(path)
	if err != nil {
		return []Check{Fail("deployed chunks", "%v", err)}
	}
	own := ownSpans(m, info.Size())
	for _, role := range roles {
		if p, ok := m.Partition(role); ok {
			own = append(own, span{p.Start, p.Start + p.Size})
		}
	}
	return []Check{chunks(path, m, blobs, own), holes(path, m, info.Size(), own), tables(path, info.Size())}
}

// ownSpans are the stretches that differ from the image by design.
func ownSpans(m *manifest.Manifest, disk int64) []span {
	spans := []span{{bootCode, gptArea}, {m.RawSize - gptArea, m.RawSize}, {disk - gptArea, disk}}
	if p, ok := m.Partition(manifest.RoleConfig); ok {
		spans = append(spans, span{p.Start, p.Start + p.Size})
	}
	return spans
}

func chunks(path string, m *manifest.Manifest, blobs string, own []span) Check {
	const name = "deployed chunks"
	disk, err := os.Open(path)
	if err != nil {
		return Fail(name, "%v", err)
	}
	defer disk.Close()
	whole, partly := 0, 0
	buf := make([]byte, m.ChunkSize)
	for _, c := range m.Chunks {
		got := buf[:c.RawSize]
		if _, err := disk.ReadAt(got, c.Offset); err != nil {
			return Fail(name, "read chunk at %d: %v", c.Offset, err)
		}
		if sha256.Sum256(got) == c.Raw {
			whole++
			continue
		}
		if !overlaps(own, c.Offset, c.RawSize) {
			return Fail(name, "chunk at %d does not have the manifest's raw digest %s", c.Offset, c.Raw)
		}
		want, err := rawChunk(blobs, c)
		if err != nil {
			return Fail(name, "chunk at %d: %v", c.Offset, err)
		}
		mask(got, c.Offset, own)
		mask(want, c.Offset, own)
		if !bytes.Equal(got, want) {
			return Fail(name, "chunk at %d differs from the image outside the configuration partition and the partition tables", c.Offset)
		}
		partly++
	}
	return Of(name, whole > 0, "%d chunks have the manifest's raw digest, %d more equal the image beside the configuration partition and the partition tables",
		whole, partly)
}

// rawChunk is the image's own content of a chunk, checked against both of its digests.
func rawChunk(blobs string, c manifest.Chunk) ([]byte, error) {
	packed, err := os.ReadFile(filepath.Join(blobs, c.Compressed.String()))
	if err != nil {
		return nil, err
	}
	d, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(uint64(manifest.MaxChunkSize)+1<<20))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	raw, err := d.DecodeAll(packed, nil)
	if err != nil {
		return nil, fmt.Errorf("unpack blob %s: %w", c.Compressed, err)
	}
	if sha256.Sum256(raw) != c.Raw {
		return nil, fmt.Errorf("blob %s does not unpack to its raw digest", c.Compressed)
	}
	return raw, nil
}

func overlaps(spans []span, off, n int64) bool {
	for _, s := range spans {
		if s.from < off+n && off < s.to {
			return true
		}
	}
	return false
}

// mask clears what lies in spans in b, which starts at off.
func mask(b []byte, off int64, spans []span) {
	for _, s := range spans {
		lo, hi := max(s.from, off), min(s.to, off+int64(len(b)))
		if lo < hi {
			clear(b[lo-off : hi-off])
		}
	}
}

// holes checks that nothing lies where the image has nothing.
func holes(path string, m *manifest.Manifest, disk int64, own []span) Check {
	const name = "holes stay empty"
	var gaps []span
	at := int64(0)
	for _, c := range m.Chunks {
		gaps = append(gaps, span{at, c.Offset})
		at = c.Offset + c.RawSize
	}
	gaps = subtract(append(gaps, span{at, disk}), own)
	var size int64
	for _, g := range gaps {
		size += g.to - g.from
	}
	n, first, err := nonZero(path, gaps)
	if err != nil {
		return Fail(name, "read disk file: %v", err)
	}
	if n > 0 {
		return Fail(name, "%d bytes are not zero where the image has nothing, the first at %d", n, first)
	}
	return Pass(name, "%d bytes that no chunk covers are zero", size)
}

// subtract returns what is left of a when b is taken away; empty spans are dropped.
func subtract(a, b []span) []span {
	for _, cut := range b {
		var left []span
		for _, s := range a {
			if cut.to <= s.from || s.to <= cut.from {
				left = append(left, s)
				continue
			}
			left = append(left, span{s.from, cut.from}, span{cut.to, s.to})
		}
		a = left
	}
	var left []span
	for _, s := range a {
		if s.from < s.to {
			left = append(left, s)
		}
	}
	return left
}
