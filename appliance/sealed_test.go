package appliance

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// No key of the site lies in the clear anywhere below data_dir, but for the vault's own and the embedded agent's.
func TestKeysAtRest(t *testing.T) {
	p := start(t)
	sealed := 0
	err := filepath.WalkDir(p.cfg.File.DataDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if bytes.Contains(data, []byte("BEGIN FIRSTLIGHT SEALED KEY")) {
			sealed++
		}
		if bytes.Contains(data, []byte("PRIVATE KEY-----")) {
			t.Errorf("%s holds a key in the clear", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if sealed < 8 {
		t.Errorf("got %d sealed keys, want the eight of the site at least", sealed)
	}
}
