// Package gpt reads a GUID partition table and moves its second copy to the end of a larger disk (UEFI 2.10, 5.3.2).
//
// It is for ramdisk's deploy and kexec. It makes no tables and grows no partitions: entries are carried over byte for byte, so that
// identities, names and attributes stay what the image says. It reads through io.ReaderAt and returns what to write; it writes nothing.
package gpt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"unicode/utf16"
)

// Bounds of a table that is read.
const (
	// MaxEntryBytes bounds the entry array.
	MaxEntryBytes = 1 << 20
	minHeader     = 92
	signature     = "EFI PART"
)

// TypeESP is the partition type of an EFI system partition.
const TypeESP = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"

// ErrNoTable: neither copy of a partition table is valid.
var ErrNoTable = errors.New("no valid GUID partition table")

// Partition is one used entry. Offsets and sizes are in bytes.
type Partition struct {
	Number      int
	Type, GUID  string
	Name        string
	Start, Size int64
}

// Table is a valid table.
type Table struct {
	// Recovered says that the first copy is damaged and this is the second.
	Recovered bool

	block   int64
	header  []byte // one block, as read
	entries []byte
}

// Write is one block-aligned write.
type Write struct {
	Off  int64
	Data []byte
}

// Read reads the table of a disk with blocks of block bytes. The first copy counts; when it is damaged, the second one at the end
// of the first size bytes, which is where an image of that size has it.
func Read(r io.ReaderAt, size int64, block int) (*Table, error) {
	if block < 512 || block > 4096 || block&(block-1) != 0 {
		return nil, fmt.Errorf("read partition table: block size %d", block)
	}
	b := int64(block)
	t, first := readAt(r, size, b, 1)
	if first == nil {
		return t, nil
	}
	t, second := readAt(r, size, b, size/b-1)
	if second != nil {
		return nil, fmt.Errorf("read partition table: %w: first copy: %w; second copy: %w", ErrNoTable, first, second)
	}
	t.Recovered = true
	return t, nil
}

// ReadFirst reads the first copy alone, from the beginning of an image of size bytes.
func ReadFirst(r io.ReaderAt, size int64, block int) (*Table, error) {
	t, err := readAt(r, size, int64(block), 1)
	if err != nil {
		return nil, fmt.Errorf("read partition table: %w: first copy: %w", ErrNoTable, err)
	}
	return t, nil
}

func readAt(r io.ReaderAt, size, block, lba int64) (*Table, error) {
	if lba < 1 || (lba+1)*block > size {
		return nil, errors.New("outside the disk")
	}
	h := make([]byte, block)
	if _, err := r.ReadAt(h, lba*block); err != nil {
		return nil, err
	}
	if string(h[:8]) != signature {
		return nil, errors.New("no signature")
	}
	n := binary.LittleEndian.Uint32(h[12:])
	if n < minHeader || int64(n) > block || headerCRC(h) != binary.LittleEndian.Uint32(h[16:]) {
		return nil, errors.New("header checksum is wrong")
	}
	t := &Table{block: block, header: h}
	count, each := t.u32(80), t.u32(84)
	if each < 128 || each%8 != 0 || count == 0 || uint64(count)*uint64(each) > MaxEntryBytes {
		return nil, fmt.Errorf("%d entries of %d bytes", count, each)
	}
	if t.u64(24) != uint64(lba) {
		return nil, fmt.Errorf("header says that it is block %d, it is block %d", t.u64(24), lba)
	}
	length := roundUp(int64(count)*int64(each), block)
	start := t.u64(72)
	if start < 1 || start > uint64(size/block) || int64(start)*block+length > size {
		return nil, errors.New("entries lie outside the disk")
	}
	t.entries = make([]byte, length)
	if _, err := r.ReadAt(t.entries, int64(start)*block); err != nil {
		return nil, err
	}
	if crc32.ChecksumIEEE(t.entries[:int64(count)*int64(each)]) != t.u32(88) {
		return nil, errors.New("entries' checksum is wrong")
	}
	return t, nil
}

func (t *Table) u32(off int) uint32 { return binary.LittleEndian.Uint32(t.header[off:]) }
func (t *Table) u64(off int) uint64 { return binary.LittleEndian.Uint64(t.header[off:]) }

func headerCRC(h []byte) uint32 {
	n := binary.LittleEndian.Uint32(h[12:])
	c := append([]byte(nil), h[:n]...)
	clear(c[16:20])
	return crc32.ChecksumIEEE(c)
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

// DiskGUID is the disk's own GUID, as text.
func (t *Table) DiskGUID() string { return guid(t.header[56:72]) }

// Partitions lists the used entries in their order.
func (t *Table) Partitions() []Partition {
	each := int(t.u32(84))
	var out []Partition
	for i := range int(t.u32(80)) {
		e := t.entries[i*each : (i+1)*each]
		if bytes.Equal(e[:16], make([]byte, 16)) {
			continue
		}
		first, last := binary.LittleEndian.Uint64(e[32:]), binary.LittleEndian.Uint64(e[40:])
		const most = 1 << 50
		if first > last || last > most {
			continue
		}
		out = append(out, Partition{Number: i + 1, Type: guid(e[:16]), GUID: guid(e[16:32]), Name: name(e[56:128]),
			Start: int64(first) * t.block, Size: int64(last-first+1) * t.block})
	}
	return out
}

// guid writes the mixed-endian bytes of a GUID as text (UEFI 2.10, appendix A).
func guid(b []byte) string {
	return fmt.Sprintf("%08x-%04x-%04x-%x-%x", binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint16(b[4:]),
		binary.LittleEndian.Uint16(b[6:]), b[8:10], b[10:16])
}

func name(b []byte) string {
	var u []uint16
	for i := 0; i+1 < len(b); i += 2 {
		c := binary.LittleEndian.Uint16(b[i:])
		if c == 0 {
			break
		}
		u = append(u, c)
	}
	return string(utf16.Decode(u))
}

// Fit returns the writes, in their order, after which the table is right for a disk of size bytes: the second copy at the disk's
// end, then the first copy, then the protective MBR. None when it already is. A flush belongs after each.
func (t *Table) Fit(r io.ReaderAt, size int64) ([]Write, error) {
	last := size/t.block - 1
	blocks := int64(len(t.entries)) / t.block
	backupEntries := last - blocks
	usable := backupEntries - 1
	for _, p := range t.Partitions() {
		if p.Start+p.Size > (usable+1)*t.block {
			return nil, fmt.Errorf("fit partition table: partition %d ends at byte %d, the disk takes partitions up to byte %d", p.Number, p.Start+p.Size, (usable+1)*t.block)
		}
	}
	if usable < int64(t.u64(40)) {
		return nil, errors.New("fit partition table: the disk is too small for it")
	}
	mbr, mbrChanged, err := t.mbr(r, last)
	if err != nil {
		return nil, err
	}
	primary := t.with(1, last, int64(t.primaryEntries()), usable)
	backup := t.with(last, 1, backupEntries, usable)
	var out []Write
	out = append(out, Write{backupEntries * t.block, t.entries}, Write{last * t.block, backup})
	if t.Recovered {
		out = append(out, Write{t.primaryEntries() * t.block, t.entries})
	}
	out = append(out, Write{t.block, primary})
	if mbrChanged {
		out = append(out, Write{0, mbr})
	}
	for _, w := range out {
		have := make([]byte, len(w.Data))
		if _, err := r.ReadAt(have, w.Off); err != nil {
			return nil, fmt.Errorf("fit partition table: %w", err)
		}
		if !bytes.Equal(have, w.Data) {
			return out, nil
		}
	}
	return nil, nil
}

// primaryEntries is the first block of the first copy's entries: right after its header unless the first copy says otherwise.
func (t *Table) primaryEntries() int64 {
	if t.Recovered {
		return 2
	}
	return int64(t.u64(72))
}

func (t *Table) with(my, alternate, entries, usable int64) []byte {
	h := append([]byte(nil), t.header...)
	put := func(off int, v int64) { binary.LittleEndian.PutUint64(h[off:], uint64(v)) }
	put(24, my)
	put(32, alternate)
	put(48, usable)
	put(72, entries)
	binary.LittleEndian.PutUint32(h[16:], headerCRC(h))
	return h
}

// mbr returns block 0 with the protective entry's size set to the whole disk (UEFI 2.10, table 5.4); its boot code stays. A hybrid
// MBR, which has further entries, is the image's own affair and stays as it is: its protective entry ends where the others begin.
func (t *Table) mbr(r io.ReaderAt, last int64) ([]byte, bool, error) {
	b := make([]byte, t.block)
	if _, err := r.ReadAt(b, 0); err != nil {
		return nil, false, fmt.Errorf("read protective MBR: %w", err)
	}
	if b[510] != 0x55 || b[511] != 0xaa {
		return nil, false, errors.New("fit partition table: block 0 is no protective MBR")
	}
	protective, others := -1, false
	for e := 446; e < 510; e += 16 {
		switch {
		case protective < 0 && b[e+4] == 0xee && binary.LittleEndian.Uint32(b[e+8:]) == 1:
			protective = e
		case b[e+4] != 0:
			others = true
		}
	}
	switch {
	case protective < 0:
		return nil, false, errors.New("fit partition table: block 0 has no protective entry")
	case others:
		return b, false, nil
	}
	size := uint32(min(last, 0xffffffff))
	changed := binary.LittleEndian.Uint32(b[protective+12:]) != size
	binary.LittleEndian.PutUint32(b[protective+12:], size)
	return b, changed, nil
}
