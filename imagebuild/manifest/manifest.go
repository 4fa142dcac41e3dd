// Package manifest is the signed list of what one disk image is made of: its chunks with two digests each, its partitions and
// the digests of what it was built from.
//
// It is for whoever makes, signs, stores, serves or writes an image (rank 1; imports rank 0 only). It does no I/O and knows
// nothing of disks, HTTP or files: a reader gets a value that has passed every check that needs no disk.
//
// The body is canonical JSON: what Encode writes, and nothing else, is accepted by Decode. A chunk is one independent zstd frame
// of ChunkSize raw bytes (the last one may be shorter), stored under its compressed digest; a chunk that is all zero is absent.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Version is the only body version that this package reads and writes.
const Version = 1

// ChunkSize is the raw size of the chunks that imagebuild writes, in bytes. A reader takes any size that Decode accepts.
const ChunkSize = 4 << 20

// Bounds of a body. They are checked before memory is spent on its content.
const (
	MaxBody       = 24 << 20 // bytes of canonical JSON
	MaxChunks     = 1 << 16
	MinChunkSize  = 4 << 10  // one block of a 4Kn disk
	MaxChunkSize  = 16 << 20 // bytes
	MaxRawSize    = int64(16) << 40
	MaxPartitions = 128 // entries of a usual GPT
	MaxInputs     = 1024
	MaxName       = 63
	MaxInputName  = 255
	MaxLabel      = 36 // UTF-16 units of a GPT name; labels here are ASCII
	SectorSize    = 512
)

// Roles of partitions. The empty role says nothing.
const (
	RoleESP    = "esp"
	RoleConfig = "config"
	RoleRoot   = "root"
)

// ErrInvalid is wrapped by every complaint about a body.
var ErrInvalid = errors.New("invalid image manifest")

// Chunk is one stretch of the raw image that is not all zero.
type Chunk struct {
	// Offset is where the chunk starts in the raw image, in bytes; a multiple of ChunkSize.
	Offset int64 `json:"offset"`
	// RawSize is the length of the stretch: ChunkSize, or what is left of the image.
	RawSize int64 `json:"raw_size"`
	// Size is the length of its zstd frame, 1 to MaxCompressed(RawSize).
	Size int64 `json:"size"`
	// Raw is the SHA-256 of the stretch, Compressed that of its zstd frame and thereby its name in a blob store.
	Raw        Digest `json:"raw_sha256"`
	Compressed Digest `json:"sha256"`
}

// Partition is one entry of the image's partition table.
type Partition struct {
	// Number is the entry's number in the GPT, from 1.
	Number int `json:"number"`
	// Label is the GPT name; printable ASCII.
	Label string `json:"label"`
	// TypeGUID and UUID are lower-case 8-4-4-4-12 text.
	TypeGUID string `json:"type_guid"`
	UUID     string `json:"uuid"`
	// Start and Size are in bytes, multiples of SectorSize.
	Start int64 `json:"start"`
	Size  int64 `json:"size"`
	// Role is empty or one of the Role constants; each occurs at most once.
	Role string `json:"role,omitempty"`
}

// Input is one thing that the image was built from.
type Input struct {
	Name   string `json:"name"`
	SHA256 Digest `json:"sha256"`
}

// Manifest describes one image.
type Manifest struct {
	Version int `json:"version"`
	// Name is for people and records: 1 to MaxName of a-z, A-Z, 0-9, '.', '_', '-', first a letter or digit.
	Name string `json:"name"`
	// RawSize is the size of the whole image in bytes: the least size of a disk that takes it.
	RawSize int64 `json:"raw_size"`
	// ChunkSize is a power of two from MinChunkSize to MaxChunkSize.
	ChunkSize int64 `json:"chunk_size"`
	// Chunks ascend by offset and never overlap. What no chunk covers is zero.
	Chunks     []Chunk     `json:"chunks"`
	Partitions []Partition `json:"partitions"`
	Inputs     []Input     `json:"inputs"`
}

// MaxCompressed is the largest zstd frame that a chunk of raw bytes may have.
func MaxCompressed(raw int64) int64 { return raw + raw>>7 + 1024 }

// Partition returns the partition with that role.
func (m *Manifest) Partition(role string) (Partition, bool) {
	for _, p := range m.Partitions {
		if role != "" && p.Role == role {
			return p, true
		}
	}
	return Partition{}, false
}

// DataSize is the number of raw bytes that the chunks cover.
func (m *Manifest) DataSize() int64 {
	var n int64
	for _, c := range m.Chunks {
		n += c.RawSize
	}
	return n
}

// Encode returns the canonical body of a valid manifest.
func (m Manifest) Encode() ([]byte, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	body, err := m.canonical()
	if err != nil {
		return nil, err
	}
	if len(body) > MaxBody {
		return nil, fmt.Errorf("%w: %d bytes, at most %d allowed", ErrInvalid, len(body), MaxBody)
	}
	return body, nil
}

// canonical writes absent lists as empty ones, so that there is one spelling.
func (m Manifest) canonical() ([]byte, error) {
	if m.Chunks == nil {
		m.Chunks = []Chunk{}
	}
	if m.Partitions == nil {
		m.Partitions = []Partition{}
	}
	if m.Inputs == nil {
		m.Inputs = []Input{}
	}
	body, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode image manifest: %w", err)
	}
	return body, nil
}

// Decode reads a body. It accepts exactly what Encode writes.
func Decode(body []byte) (*Manifest, error) {
	if len(body) > MaxBody {
		return nil, fmt.Errorf("%w: %d bytes, at most %d allowed", ErrInvalid, len(body), MaxBody)
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	var m Manifest
	if err := d.Decode(&m); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("%w: bytes after the end", ErrInvalid)
	}
	if err := m.Validate(); err != nil {
		return nil, err
	}
	again, err := m.canonical()
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(again, body) {
		return nil, fmt.Errorf("%w: not in canonical form", ErrInvalid)
	}
	return &m, nil
}
