package manifest

import (
	"fmt"
	"math/bits"
)

// Validate checks everything about a manifest that can be checked without its chunks.
func (m *Manifest) Validate() error {
	switch {
	case m.Version != Version:
		return fmt.Errorf("%w: version %d, this program reads version %d", ErrInvalid, m.Version, Version)
	case !ValidName(m.Name):
		return fmt.Errorf("%w: name %q: want 1 to %d letters, digits, '.', '_' or '-', first a letter or digit", ErrInvalid, m.Name, MaxName)
	case m.RawSize <= 0 || m.RawSize > MaxRawSize || m.RawSize%SectorSize != 0:
		return fmt.Errorf("%w: raw size %d: want a multiple of %d up to %d", ErrInvalid, m.RawSize, SectorSize, MaxRawSize)
	case m.ChunkSize < MinChunkSize || m.ChunkSize > MaxChunkSize || bits.OnesCount64(uint64(m.ChunkSize)) != 1:
		return fmt.Errorf("%w: chunk size %d: want a power of two from %d to %d", ErrInvalid, m.ChunkSize, MinChunkSize, MaxChunkSize)
	}
	for _, check := range []func() error{m.validateChunks, m.validatePartitions, m.validateInputs} {
		if err := check(); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	return nil
}

// ValidName says whether s can be an image's name.
func ValidName(s string) bool {
	if s == "" || len(s) > MaxName {
		return false
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case (c == '.' || c == '_' || c == '-') && i > 0:
		default:
			return false
		}
	}
	return true
}

func (m *Manifest) validateChunks() error {
	if len(m.Chunks) > MaxChunks {
		return fmt.Errorf("%d chunks, at most %d allowed", len(m.Chunks), MaxChunks)
	}
	next := int64(0)
	for i, c := range m.Chunks {
		switch {
		case c.Offset < 0 || c.Offset%m.ChunkSize != 0 || c.Offset >= m.RawSize:
			return fmt.Errorf("chunk %d: offset %d is not a chunk of an image of %d bytes", i, c.Offset, m.RawSize)
		case c.Offset < next:
			return fmt.Errorf("chunk %d: offset %d does not ascend", i, c.Offset)
		case c.RawSize != min(m.ChunkSize, m.RawSize-c.Offset):
			return fmt.Errorf("chunk %d: raw size %d, want %d", i, c.RawSize, min(m.ChunkSize, m.RawSize-c.Offset))
		case c.Size < 1 || c.Size > MaxCompressed(c.RawSize):
			return fmt.Errorf("chunk %d: size %d, want 1 to %d", i, c.Size, MaxCompressed(c.RawSize))
		case c.Raw.IsZero() || c.Compressed.IsZero():
			return fmt.Errorf("chunk %d: digest missing", i)
		}
		next = c.Offset + m.ChunkSize
	}
	return nil
}

func (m *Manifest) validatePartitions() error {
	if len(m.Partitions) > MaxPartitions {
		return fmt.Errorf("%d partitions, at most %d allowed", len(m.Partitions), MaxPartitions)
	}
	last := 0
	roles, uuids := map[string]bool{}, map[string]bool{}
	for i, p := range m.Partitions {
		switch {
		case p.Number <= last || p.Number > MaxPartitions:
			return fmt.Errorf("partition %d: number does not ascend from 1 to %d", p.Number, MaxPartitions)
		case len(p.Label) > MaxLabel || !printable(p.Label):
			return fmt.Errorf("partition %d: label %q: want at most %d printable ASCII characters", p.Number, p.Label, MaxLabel)
		case !validGUID(p.TypeGUID) || !validGUID(p.UUID):
			return fmt.Errorf("partition %d: type %q or uuid %q is not a lower-case GUID", p.Number, p.TypeGUID, p.UUID)
		case uuids[p.UUID]:
			return fmt.Errorf("partition %d: uuid %s occurs twice", p.Number, p.UUID)
		case p.Start <= 0 || p.Size <= 0 || p.Start%SectorSize != 0 || p.Size%SectorSize != 0 || p.Start > m.RawSize || p.Size > m.RawSize-p.Start:
			return fmt.Errorf("partition %d: %d bytes from %d do not lie in an image of %d", p.Number, p.Size, p.Start, m.RawSize)
		case p.Role != "" && p.Role != RoleESP && p.Role != RoleConfig && p.Role != RoleRoot:
			return fmt.Errorf("partition %d: unknown role %q", p.Number, p.Role)
		case p.Role != "" && roles[p.Role]:
			return fmt.Errorf("partition %d: role %q occurs twice", p.Number, p.Role)
		}
		for _, o := range m.Partitions[:i] {
			if p.Start < o.Start+o.Size && o.Start < p.Start+p.Size {
				return fmt.Errorf("partition %d overlaps partition %d", p.Number, o.Number)
			}
		}
		last, roles[p.Role], uuids[p.UUID] = p.Number, true, true
	}
	return nil
}

func (m *Manifest) validateInputs() error {
	if len(m.Inputs) > MaxInputs {
		return fmt.Errorf("%d inputs, at most %d allowed", len(m.Inputs), MaxInputs)
	}
	seen := map[string]bool{}
	for _, in := range m.Inputs {
		switch {
		case in.Name == "" || len(in.Name) > MaxInputName || !printable(in.Name):
			return fmt.Errorf("input %q: want a name of 1 to %d printable ASCII characters", in.Name, MaxInputName)
		case seen[in.Name]:
			return fmt.Errorf("input %q occurs twice", in.Name)
		case in.SHA256.IsZero():
			return fmt.Errorf("input %q: digest missing", in.Name)
		}
		seen[in.Name] = true
	}
	return nil
}

func printable(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

func validGUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
	}
	return true
}
