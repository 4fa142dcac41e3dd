package parttable_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"firstlight/imagebuild/internal/parttable"
	"firstlight/imagebuild/manifest"
)

const size = 16 << 20

func parts() []manifest.Partition {
	return []manifest.Partition{
		{Number: 1, Label: parttable.LabelESP, TypeGUID: parttable.TypeESP, UUID: "11111111-2222-4333-8444-555555555501", Start: 1 << 20, Size: 2 << 20, Role: manifest.RoleESP},
		{Number: 2, Label: parttable.LabelConfig, TypeGUID: parttable.TypeData, UUID: "11111111-2222-4333-8444-555555555502", Start: 3 << 20, Size: 4 << 20, Role: manifest.RoleConfig},
		{Number: 3, Label: parttable.LabelRoot, TypeGUID: parttable.TypeRoot, UUID: "11111111-2222-4333-8444-555555555503", Start: 7 << 20, Size: 5 << 20, Role: manifest.RoleRoot},
		{Number: 4, Label: "data", TypeGUID: parttable.TypeData, UUID: "11111111-2222-4333-8444-555555555504", Start: 12 << 20, Size: 1 << 20},
	}
}

func table(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	if err := parttable.Write(f, size, "11111111-2222-4333-8444-555555555500", parts()); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestWriteRead(t *testing.T) {
	t.Parallel()
	got, err := parttable.Read(table(t), size)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, parts()) {
		t.Errorf("read back: got %+v, want %+v", got, parts())
	}
}

// TestReadDamaged: an image whose table is damaged in either copy is not packed.
func TestReadDamaged(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]int64{"primary header": 512 + 16, "primary entries": 1024 + 4, "backup header": size - 512 + 16} {
		f := table(t)
		b := make([]byte, 1)
		if _, err := f.ReadAt(b, at); err != nil {
			t.Fatal(err)
		}
		b[0] ^= 0xff
		if _, err := f.WriteAt(b, at); err != nil {
			t.Fatal(err)
		}
		if _, err := parttable.Read(f, size); !errors.Is(err, parttable.ErrNone) {
			t.Errorf("%s: got error %v, want ErrNone", name, err)
		}
	}
	f := table(t)
	if err := f.Truncate(size + 1<<20); err != nil {
		t.Fatal(err)
	}
	if _, err := parttable.Read(f, size+1<<20); !errors.Is(err, parttable.ErrNone) {
		t.Errorf("backup not at the end: got error %v, want ErrNone", err)
	}
}

func TestReadNothing(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, n := range []int64{0, 512, 4096, 1 << 20} {
		if err := f.Truncate(n); err != nil {
			t.Fatal(err)
		}
		if _, err := parttable.Read(f, n); !errors.Is(err, parttable.ErrNone) {
			t.Errorf("%d zero bytes: got error %v, want ErrNone", n, err)
		}
	}
}
