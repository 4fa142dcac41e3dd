package judge

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"

	"firstlight/testbed/fixtures"
)

// UEFI specification 2.10, section 5.3.2: the GPT header.
const (
	gptSignature  = "EFI PART"
	gptHeaderSize = 92
	gptEntrySize  = 128
)

// gptHeader is what the judge looks at in one of a disk's two partition table headers.
type gptHeader struct {
	my, other, lastUsable, entriesAt uint64
	entries, entriesCRC              uint32
}

// parseGPT reads one header from its sector and checks its own checksum.
func parseGPT(sector []byte) (gptHeader, error) {
	if len(sector) < gptHeaderSize || string(sector[:8]) != gptSignature {
		return gptHeader{}, fmt.Errorf("no partition table header")
	}
	le := binary.LittleEndian
	if n := le.Uint32(sector[12:]); n != gptHeaderSize {
		return gptHeader{}, fmt.Errorf("partition table header says %d bytes, want %d", n, gptHeaderSize)
	}
	head := append([]byte(nil), sector[:gptHeaderSize]...)
	want := le.Uint32(head[16:])
	clear(head[16:20])
	if got := crc32.ChecksumIEEE(head); got != want {
		return gptHeader{}, fmt.Errorf("partition table header has checksum %08x, says %08x", got, want)
	}
	if n := le.Uint32(head[84:]); n != gptEntrySize {
		return gptHeader{}, fmt.Errorf("partition table entries have %d bytes, want %d", n, gptEntrySize)
	}
	return gptHeader{my: le.Uint64(head[24:]), other: le.Uint64(head[32:]), lastUsable: le.Uint64(head[48:]),
		entriesAt: le.Uint64(head[72:]), entries: le.Uint32(head[80:]), entriesCRC: le.Uint32(head[88:])}, nil
}

// tables checks that both partition tables are whole, agree, and that the second one lies at the disk's very end.
func tables(path string, size int64) Check {
	const name = "partition tables"
	f, err := os.Open(path)
	if err != nil {
		return Fail(name, "%v", err)
	}
	defer f.Close()
	last := size/fixtures.SectorSize - 1
	read := func(lba int64) (gptHeader, error) {
		sector := make([]byte, fixtures.SectorSize)
		if _, err := f.ReadAt(sector, lba*fixtures.SectorSize); err != nil {
			return gptHeader{}, err
		}
		h, err := parseGPT(sector)
		if err != nil {
			return h, err
		}
		if h.entries > 128 || h.entriesAt > uint64(last) {
			return h, fmt.Errorf("partition table has %d entries at sector %d", h.entries, h.entriesAt)
		}
		entries := make([]byte, h.entries*gptEntrySize)
		if _, err := f.ReadAt(entries, int64(h.entriesAt)*fixtures.SectorSize); err != nil {
			return h, err
		}
		if crc32.ChecksumIEEE(entries) != h.entriesCRC {
			return h, fmt.Errorf("partition table entries do not have the header's checksum")
		}
		return h, nil
	}
	first, err := read(1)
	if err != nil {
		return Fail(name, "first table: %v", err)
	}
	second, err := read(last)
	if err != nil {
		return Fail(name, "second table at the disk's last sector %d: %v", last, err)
	}
	if first.my != 1 || first.other != uint64(last) || second.my != uint64(last) || second.other != 1 || first.entriesCRC != second.entriesCRC {
		return Fail(name, "the two tables do not point at each other: first %d, %d; second %d, %d", first.my, first.other, second.my, second.other)
	}
	return Pass(name, "both tables are whole and agree; the second one is at the disk's last sector %d", last)
}
