package parttable_test

import (
	"errors"
	"io"
	"io/fs"
	"testing"
	"time"

	"firstlight/imagebuild/internal/parttable"
)

// memory is a parttable.File in memory.
type memory struct {
	b   []byte
	pos int64
}

func (m *memory) Name() string               { return "memory" }
func (m *memory) Size() int64                { return int64(len(m.b)) }
func (m *memory) Mode() fs.FileMode          { return 0o600 }
func (m *memory) ModTime() time.Time         { return time.Time{} }
func (m *memory) IsDir() bool                { return false }
func (m *memory) Sys() any                   { return nil }
func (m *memory) Stat() (fs.FileInfo, error) { return m, nil }
func (m *memory) Close() error               { return nil }

func (m *memory) Read(p []byte) (int, error) {
	n, err := m.ReadAt(p, m.pos)
	m.pos += int64(n)
	return n, err
}

func (m *memory) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off >= int64(len(m.b)) {
		return 0, io.EOF
	}
	n := copy(p, m.b[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 || off+int64(len(p)) > int64(len(m.b)) {
		return 0, io.ErrShortWrite
	}
	return copy(m.b[off:], p), nil
}

func (m *memory) Seek(off int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		off += m.pos
	case io.SeekEnd:
		off += int64(len(m.b))
	}
	m.pos = off
	return off, nil
}

// FuzzRead spoils the first 4 KiB of an image: MBR, header and entries.
func FuzzRead(f *testing.F) {
	m := &memory{b: make([]byte, size)}
	if err := parttable.Write(m, size, "11111111-2222-4333-8444-555555555500", parts()); err != nil {
		f.Fatal(err)
	}
	f.Add(m.b[:4096])
	f.Add(m.b[:512])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, head []byte) {
		img := &memory{b: make([]byte, 64<<10)}
		copy(img.b, head)
		if _, err := parttable.Read(img, int64(len(img.b))); err != nil && !errors.Is(err, parttable.ErrNone) {
			t.Errorf("got error %v, want one that wraps ErrNone", err)
		}
	})
}
