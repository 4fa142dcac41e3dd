package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const wholeSite = `
data_dir = "data"
blob_dir = "/srv/blobs"
[boot]
interface = "eth0"
address = "10.77.0.2"
http_listen = "10.77.0.2:8080"
http_advertise = "10.77.0.2:8080"
firmware_dir = "/usr/lib/ipxe"
ramdisk_dir = "ramdisk"
`

func TestLoadSite(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "site.toml")
	load := func(text string) (*Site, error) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return LoadSite(path)
	}
	s, err := load(wholeSite)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(filepath.Dir(path), "data"); s.DataDir != want || s.BlobDir != "/srv/blobs" || !filepath.IsAbs(s.Boot.RAMDiskDir) {
		t.Errorf("got %+v, want paths that count from the file's directory", s)
	}
	for word, text := range map[string]string{
		"unknown key":        wholeSite + "\nport = 1",
		"data_dir":           strings.Replace(wholeSite, `data_dir = "data"`, "", 1),
		"blob_dir":           strings.Replace(wholeSite, `blob_dir = "/srv/blobs"`, "", 1),
		"appliance's to say": wholeSite + "\ndiscovery = true",
		"boot.address":       strings.Replace(wholeSite, `"10.77.0.2"`, `"::1"`, 1),
		"expected":           "data_dir",
	} {
		if _, err := load(text); err == nil || !strings.Contains(err.Error(), word) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, want an error that names it and the file", word, err)
		}
	}
	if _, err := LoadSite(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a missing file was read")
	}
}
