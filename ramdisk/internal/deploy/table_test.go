package deploy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"firstlight/ramdisk/internal/deploy/deploytest"
	"firstlight/ramdisk/internal/disk/disktest"
	"firstlight/ramdisk/internal/gpt"
	"firstlight/ramdisk/internal/wipe"
)

// with makes the bench deploy img to d.
func (b *bench) with(t *testing.T, img *deploytest.Image, d *disktest.Disk) {
	t.Helper()
	signer, roots := images(t, b.now, "image-manifest")
	b.use(img)
	b.disk, b.machine.Disks, b.d.Roots = d, []*disktest.Disk{d}, roots
	b.sign(t, signer)
	if b.d.Ledger == nil {
		b.d.Ledger = &wipe.Ledger{}
	}
}

func TestDEP04_BlockSizesOfImageAndDisk(t *testing.T) {
	for _, c := range []struct {
		image, disk int
		ok          bool
	}{{512, 512, true}, {4096, 4096, true}, {512, 4096, false}, {4096, 512, false}} {
		t.Run(fmt.Sprintf("image of %d, disk of %d", c.image, c.disk), func(t *testing.T) {
			b := newBench(t)
			img := deploytest.New(t, deploytest.RootLast, int64(c.image), 128, nil)
			b.with(t, img, disktest.New("FL-1", diskSize).Blocks(c.disk))
			_, err := b.run(t)
			if c.ok {
				if err != nil {
					t.Fatal(err)
				}
				table, err := gpt.Read(bytes.NewReader(b.disk.Data()), diskSize, c.disk)
				if err != nil || table.Recovered || len(table.Partitions()) != 3 {
					t.Errorf("table on the disk: %v", err)
				}
				return
			}
			for _, w := range []string{"nothing was written", "FL-1", fmt.Sprintf("logical blocks of %d bytes, this disk has %d", c.image, c.disk),
				fmt.Sprintf("take an image made for blocks of %d bytes, or format the disk to blocks of %d bytes", c.disk, c.image)} {
				if !errors.Is(err, ErrBlockSize) || !strings.Contains(err.Error(), w) {
					t.Errorf("got %v, want ErrBlockSize that says %q", err, w)
				}
			}
			b.wantUntouched(t)
		})
	}
}

// TestDEP05_TableAfterTheDeploy looks at the bytes: both copies right for the larger disk, everything else as in the image.
func TestDEP05_TableAfterTheDeploy(t *testing.T) {
	flip := func(at int) func([]byte) { return func(raw []byte) { raw[at] ^= 1 } }
	for name, c := range map[string]struct {
		parts []deploytest.Part
		each  int64
		spoil func([]byte)
		fail  error
	}{
		"root last":                     {deploytest.RootLast, 128, nil, nil},
		"ESP last":                      {deploytest.ESPLast, 128, nil, nil},
		"entries of 256 bytes":          {deploytest.RootLast, 256, nil, nil},
		"second copy is damaged":        {deploytest.RootLast, 128, flip(deploytest.Size - 512 + 60), nil},
		"second copy is missing":        {deploytest.RootLast, 128, func(raw []byte) { clear(raw[deploytest.Size-33*512:]) }, nil},
		"first copy is damaged":         {deploytest.RootLast, 128, flip(512 + 60), nil},
		"first copy's entries are":      {deploytest.RootLast, 128, flip(1024 + 60), nil},
		"first copy has no signature":   {deploytest.RootLast, 128, flip(512), ErrImage},
		"both copies are damaged":       {deploytest.RootLast, 128, func(raw []byte) { flip(512 + 60)(raw); flip(deploytest.Size - 512 + 60)(raw) }, gpt.ErrNoTable},
		"no protective master boot rec": {deploytest.RootLast, 128, flip(511), nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			pristine := deploytest.New(t, c.parts, 512, c.each, nil)
			b.with(t, deploytest.New(t, c.parts, 512, c.each, c.spoil), disktest.New("FL-1", diskSize))
			_, err := b.run(t)
			if name == "no protective master boot rec" {
				b.wantUnbootable(t, err)
				return
			}
			if c.fail != nil {
				if !errors.Is(err, c.fail) {
					t.Errorf("got %v, want %v", err, c.fail)
				}
				if table, err := gpt.Read(bytes.NewReader(b.disk.Data()), diskSize, 512); err == nil {
					t.Errorf("a table was left: %+v", table.Partitions())
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			judgeTable(t, b.disk.Data(), pristine.Raw, 128*c.each)
			if c.each == 128 {
				sgdisk(t, b.disk.Data())
			}
		})
	}
}

// judgeTable compares by offset with the image (UEFI 2.10, table 5.5), without package gpt.
func judgeTable(t *testing.T, got, img []byte, entries int64) {
	t.Helper()
	u64 := func(b []byte, off int64) int64 { return int64(binary.LittleEndian.Uint64(b[off:])) }
	last := int64(len(got)/512 - 1)
	first, second := got[512:1024], got[last*512:]
	for _, c := range []struct {
		what      string
		got, want int64
	}{{"first copy, my block", u64(first, 24), 1}, {"first copy, other copy", u64(first, 32), last}, {"second copy, my block", u64(second, 24), last},
		{"second copy, other copy", u64(second, 32), 1}, {"last usable", u64(first, 48), last - entries/512 - 1}, {"last usable in the second", u64(second, 48), last - entries/512 - 1},
		{"first usable", u64(first, 40), u64(img[512:], 40)}, {"entries of the second", u64(second, 72), last - entries/512},
		{"protective size", int64(binary.LittleEndian.Uint32(got[446+12:])), last}} {
		if c.got != c.want {
			t.Errorf("%s: got %d, want %d", c.what, c.got, c.want)
		}
	}
	if !bytes.Equal(first[56:72], img[512+56:512+72]) {
		t.Error("the disk's GUID changed")
	}
	want := img[1024 : 1024+entries]
	if !bytes.Equal(got[1024:1024+entries], want) || !bytes.Equal(got[last*512-entries:last*512], want) {
		t.Error("an entry changed: identities, names and attributes must stay")
	}
	if !bytes.Equal(got[:440], img[:440]) {
		t.Error("boot code changed")
	}
}

// sgdisk is the second opinion, where there is one.
func sgdisk(t *testing.T, disk []byte) {
	t.Helper()
	prog, err := exec.LookPath("sgdisk")
	if err != nil {
		t.Log("no sgdisk here for a second opinion")
		return
	}
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, disk, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(prog, "--verify", file).CombinedOutput(); err != nil || !strings.Contains(string(out), "No problems found") {
		t.Errorf("sgdisk --verify: %v\n%s", err, out)
	}
}

// TestDEP11_PowerCutLeavesNothingThatStarts cuts the power before each change of a deploy, with a write cache that loses what it
// likes: unless the new image is whole, the disk has no partition table. Run again, the disk is the same to the byte.
func TestDEP11_PowerCutLeavesNothingThatStarts(t *testing.T) {
	t.Run("partitions after the first chunk", func(t *testing.T) { cutAnywhere(t, deploytest.New(t, deploytest.RootLast, 512, 128, nil)) })
	// As real images are: the first chunk is much larger than the table.
	parts := slices.Clone(deploytest.RootLast)
	parts[0].First = insideFirst
	t.Run("first partition in the first chunk", func(t *testing.T) {
		cutAnywhere(t, deploytest.New(t, parts, 512, 128, func(raw []byte) {
			for i := insideFirst; i < deploytest.ChunkSize; i++ {
				raw[i] = byte(i>>12 + 1)
			}
		}))
	})
}

// insideFirst is where the table's own blocks of the first chunk end.
const insideFirst = 32 << 10

func cutAnywhere(t *testing.T, img *deploytest.Image) {
	t.Helper()
	old := deploytest.New(t, deploytest.ESPLast, 512, 128, nil)
	for _, size := range []int64{deploytest.Size, diskSize} {
		for _, wiped := range []bool{false, true} {
			want := deployed(t, img, old, size, wiped, 0, 0).disk.Data()
			for n := 1; ; n++ {
				b := deployed(t, img, old, size, wiped, n, uint64(n))
				table, err := gpt.Read(bytes.NewReader(b.disk.Data()), size, 512)
				switch whole := missing(b.disk.Data(), img) == ""; {
				case err != nil || whole:
				case n <= 2 && !wiped && table.Partitions()[0].Name == "firstlight-root":
					// The old system's own table: nothing between the disk's ends is changed yet.
				default:
					t.Fatalf("size %d, wiped %v, cut before change %d: there is a table, and the image is not whole: %s", size, wiped, n, missing(b.disk.Data(), img))
				}
				if bytes.Equal(b.disk.Data(), want) {
					break // the deploy has no more changes than that
				}
				b.d.Ledger = &wipe.Ledger{} // another boot of the RAM disk
				b.disk.CutBefore(0, 0)
				if _, err := b.run(t); err != nil {
					t.Fatalf("size %d, wiped %v, after cut %d: %v", size, wiped, n, err)
				}
				if !bytes.Equal(b.disk.Data(), want) {
					t.Fatalf("size %d, wiped %v: after cut %d and another deploy the disk differs from one that was never cut", size, wiped, n)
				}
			}
		}
	}
}

// deployed deploys img onto a disk that held old, or was wiped, with the power cut before change n.
func deployed(t *testing.T, img, old *deploytest.Image, size int64, wiped bool, n int, seed uint64) *bench {
	t.Helper()
	b := newBench(t)
	d := disktest.New("FL-1", size)
	d.SetData(0, old.Raw)
	if wiped {
		d.SetData(0, make([]byte, size))
	}
	b.with(t, img, d.Cached())
	if wiped {
		b.d.Ledger.Record("wf-1", d.Info)
	}
	d.CutBefore(n, seed)
	if _, err := b.d.Run(t.Context(), b.req); n == 0 && err != nil {
		t.Fatal(err)
	}
	return b
}

// missing names the first chunk that is not on the disk; the table's own blocks, the last chunk and the configuration's may differ.
func missing(data []byte, img *deploytest.Image) string {
	config, _ := img.Manifest.Partition("config")
	if !bytes.Equal(data[insideFirst:deploytest.ChunkSize], img.Raw[insideFirst:deploytest.ChunkSize]) {
		return "chunk 0"
	}
	for i, c := range img.Manifest.Chunks {
		if i == 0 || i == len(img.Manifest.Chunks)-1 || (c.Offset < config.Start+config.Size && config.Start < c.Offset+c.RawSize) {
			continue
		}
		if !bytes.Equal(data[c.Offset:c.Offset+c.RawSize], img.Raw[c.Offset:c.Offset+c.RawSize]) {
			return fmt.Sprintf("chunk %d", i)
		}
	}
	return ""
}
