package judge

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"

	"firstlight/imagebuild/manifest"
	"firstlight/testbed/fixtures"
)

const testSerial = "FLTEST01"

func patternDisk(t *testing.T, size int64) (string, fixtures.Pattern) {
	t.Helper()
	p := fixtures.Pattern{Serial: testSerial}
	path := filepath.Join(t.TempDir(), "disk.raw")
	if err := p.WriteDisk(path, size); err != nil {
		t.Fatal(err)
	}
	return path, p
}

func writeAt(t *testing.T, path string, off int64, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
}

func wantCheck(t *testing.T, c Check, ok bool) {
	t.Helper()
	if c.OK != ok || c.Detail == "" || c.Name == "" {
		t.Errorf("%s: got ok=%v (%s), want ok=%v", c.Name, c.OK, c.Detail, ok)
	}
}

func TestUntouchedSeesOneByte(t *testing.T) {
	t.Parallel()
	path, p := patternDisk(t, 9<<20)
	wantCheck(t, Untouched(path, p), true)
	writeAt(t, path, 8<<20+77, []byte{0})
	wantCheck(t, Untouched(path, p), false)
	wantCheck(t, Untouched(filepath.Join(t.TempDir(), "none"), p), false)
}

func TestNoTraceSeesWhatIsLeft(t *testing.T) {
	t.Parallel()
	path, p := patternDisk(t, 9<<20)
	wantCheck(t, NoTrace(path, p), false)
	writeAt(t, path, 0, make([]byte, 9<<20))
	wantCheck(t, NoTrace(path, p), true)
	wantCheck(t, AllZero("zero", path, 0, 0), true)

	// One serial number across the border of two blocks, and nothing else.
	writeAt(t, path, block-3, []byte(testSerial))
	wantCheck(t, NoTrace(path, p), false)
	wantCheck(t, AllZero("zero", path, 0, 0), false)
	wantCheck(t, AllZero("zero end", path, -1<<20, 0), true)
	wantCheck(t, AllZero("zero start", path, 0, 1<<20), true)
}

// sampleImage is an image of three chunks and a hole, with partition tables and a configuration partition.
func sampleImage(t *testing.T) (raw []byte, m *manifest.Manifest, blobs string) {
	t.Helper()
	const size, chunk = 1 << 20, 256 << 10
	raw = make([]byte, size)
	rand.Read(raw)
	clear(raw[2*chunk : 3*chunk])
	gpt(raw)
	m = &manifest.Manifest{Version: manifest.Version, Name: "demo", RawSize: size, ChunkSize: chunk, Partitions: []manifest.Partition{
		{Number: 2, Role: manifest.RoleConfig, Start: 64 << 10, Size: 64 << 10}}}
	blobs = t.TempDir()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, off := range []int64{0, chunk, 3 * chunk} {
		part := raw[off : off+chunk]
		packed := z.EncodeAll(part, nil)
		c := manifest.Chunk{Offset: off, RawSize: chunk, Size: int64(len(packed)), Raw: sha256.Sum256(part), Compressed: sha256.Sum256(packed)}
		if err := os.WriteFile(filepath.Join(blobs, c.Compressed.String()), packed, 0o600); err != nil {
			t.Fatal(err)
		}
		m.Chunks = append(m.Chunks, c)
	}
	return raw, m, blobs
}

// gpt writes both tables of a disk, with no partition in them.
func gpt(disk []byte) {
	last := uint64(len(disk)/512 - 1)
	entries := make([]byte, 128*gptEntrySize)
	put := func(my, other, entriesAt uint64) {
		h := make([]byte, 512)
		le := binary.LittleEndian
		copy(h, gptSignature)
		le.PutUint32(h[8:], 0x10000)
		le.PutUint32(h[12:], gptHeaderSize)
		le.PutUint64(h[24:], my)
		le.PutUint64(h[32:], other)
		le.PutUint64(h[40:], 34)
		le.PutUint64(h[48:], last-33)
		le.PutUint64(h[72:], entriesAt)
		le.PutUint32(h[80:], 128)
		le.PutUint32(h[84:], gptEntrySize)
		le.PutUint32(h[88:], crc32.ChecksumIEEE(entries))
		le.PutUint32(h[16:], crc32.ChecksumIEEE(h[:gptHeaderSize]))
		copy(disk[my*512:], h)
		copy(disk[entriesAt*512:], entries)
	}
	put(1, last, 2)
	put(last, 1, last-32)
}

func TestDeployed(t *testing.T) {
	t.Parallel()
	raw, m, blobs := sampleImage(t)
	const disk = 2 << 20
	good := func() []byte {
		d := make([]byte, disk)
		copy(d, raw)
		clear(d[len(raw)-gptArea+512 : len(raw)])
		gpt(d)
		copy(d[70<<10:], "this machine's own configuration")
		return d
	}
	for name, c := range map[string]struct {
		spoil               func(d []byte)
		chunks, hole, table bool
	}{
		"as deployed":            {func([]byte) {}, true, true, true},
		"one bit of a chunk":     {func(d []byte) { d[300<<10] ^= 1 }, false, true, true},
		"beside the config":      {func(d []byte) { d[128<<10] ^= 1 }, false, true, true},
		"old data in the hole":   {func(d []byte) { d[600<<10] = 1 }, true, false, true},
		"old data behind":        {func(d []byte) { d[1<<20+5000] = 1 }, true, false, true},
		"second table not moved": {func(d []byte) { clear(d[disk-512:]) }, true, true, false},
		"boot code is another":   {func(d []byte) { d[bootCode-1] ^= 1 }, false, true, true},
		"disk signature":         {func(d []byte) { d[bootCode] ^= 1 }, true, true, true},
		"first table spoiled":    {func(d []byte) { d[512+50] ^= 1 }, true, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := good()
			c.spoil(d)
			path := filepath.Join(t.TempDir(), "disk.raw")
			if err := os.WriteFile(path, d, 0o600); err != nil {
				t.Fatal(err)
			}
			got := Deployed(path, m, blobs)
			if len(got) != 3 {
				t.Fatalf("%d checks, want 3: %v", len(got), got)
			}
			wantCheck(t, got[0], c.chunks)
			wantCheck(t, got[1], c.hole)
			wantCheck(t, got[2], c.table)
		})
	}
}

// What the deployed system writes into its own partition is no difference; what it writes beside it is one.
func TestDeployedBeside(t *testing.T) {
	t.Parallel()
	raw, m, blobs := sampleImage(t)
	m.Partitions = append(m.Partitions, manifest.Partition{Number: 3, Role: manifest.RoleRoot, Start: 160 << 10, Size: 32 << 10})
	for _, c := range []struct {
		at            int64
		whole, beside bool
	}{{-1, true, true}, {161 << 10, false, true}, {300 << 10, false, false}} {
		d := make([]byte, 2<<20)
		copy(d, raw)
		clear(d[len(raw)-gptArea+512 : len(raw)])
		gpt(d)
		if c.at >= 0 {
			d[c.at] ^= 1
		}
		path := filepath.Join(t.TempDir(), "disk.raw")
		if err := os.WriteFile(path, d, 0o600); err != nil {
			t.Fatal(err)
		}
		wantCheck(t, Deployed(path, m, blobs)[0], c.whole)
		wantCheck(t, DeployedBeside(path, m, blobs, manifest.RoleRoot)[0], c.beside)
	}
}

func FuzzParseGPT(f *testing.F) {
	d := make([]byte, 1<<20)
	gpt(d)
	f.Add(d[512:1024])
	f.Add(bytes.Repeat([]byte{0xff}, 512))
	f.Add([]byte(gptSignature))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := parseGPT(b); err == nil && len(b) < gptHeaderSize {
			t.Errorf("%d bytes make a header %+v", len(b), h)
		}
	})
}
