// Package gpttest makes disk images with a partition table for tests. Nothing in production imports it.
package gpttest

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"strings"
)

// Partition is one entry; First and Last are blocks.
type Partition struct {
	Type, Name  string
	First, Last int64
}

// Image returns blocks of block bytes with a protective MBR and both copies of a table of count entries of each bytes. Every
// partition has attribute bits set and a GUID made of its number.
func Image(blocks, block, count, each int64, ps []Partition) []byte {
	m := make([]byte, blocks*block)
	m[510], m[511] = 0x55, 0xaa
	m[446+4] = 0xee
	binary.LittleEndian.PutUint32(m[446+8:], 1)
	binary.LittleEndian.PutUint32(m[446+12:], uint32(blocks-1))
	entries := make([]byte, count*each)
	for i, p := range ps {
		e := entries[int64(i)*each:]
		copy(e, guid(p.Type))
		copy(e[16:], bytes.Repeat([]byte{0xa0 + byte(i)}, 16))
		binary.LittleEndian.PutUint64(e[32:], uint64(p.First))
		binary.LittleEndian.PutUint64(e[40:], uint64(p.Last))
		binary.LittleEndian.PutUint64(e[48:], 0x8000000000000005)
		for j, c := range p.Name {
			binary.LittleEndian.PutUint16(e[56+2*j:], uint16(c))
		}
	}
	eb := (count*each + block - 1) / block
	header := func(my, alt, at int64) {
		h := m[my*block : (my+1)*block]
		copy(h, "EFI PART")
		binary.LittleEndian.PutUint32(h[8:], 0x10000)
		binary.LittleEndian.PutUint32(h[12:], 92)
		for off, v := range map[int]int64{24: my, 32: alt, 40: 2 + eb, 48: blocks - 2 - eb, 72: at} {
			binary.LittleEndian.PutUint64(h[off:], uint64(v))
		}
		copy(h[56:72], bytes.Repeat([]byte{0xd5}, 16))
		binary.LittleEndian.PutUint32(h[80:], uint32(count))
		binary.LittleEndian.PutUint32(h[84:], uint32(each))
		binary.LittleEndian.PutUint32(h[88:], crc32.ChecksumIEEE(entries))
		clear(h[16:20])
		binary.LittleEndian.PutUint32(h[16:], crc32.ChecksumIEEE(h[:92]))
		copy(m[at*block:], entries)
	}
	header(blocks-1, 1, blocks-1-eb)
	header(1, blocks-1, 2)
	return m
}

// GUID is the GUID that Image gives partition number n, as text.
func GUID(n int) string {
	b := hex.EncodeToString(bytes.Repeat([]byte{0xa0 + byte(n-1)}, 16))
	return strings.Join([]string{b[:8], b[8:12], b[12:16], b[16:20], b[20:]}, "-")
}

func guid(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(b) != 16 {
		panic("gpttest: not a GUID: " + s)
	}
	return []byte{b[3], b[2], b[1], b[0], b[5], b[4], b[7], b[6], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]}
}
