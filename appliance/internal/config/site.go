package config

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/BurntSushi/toml"
)

// Site is the file of a site agent that runs in a process of its own (`firstlight join`).
type Site struct {
	// DataDir is this agent's alone: key, certificate, journal, open leases. Relative paths count from the file's directory.
	DataDir string `toml:"data_dir"`
	// BlobDir is where the appliance's images are: its own blobs directory, shared or mirrored.
	BlobDir string `toml:"blob_dir"`
	// Boot is as in the appliance's own file, but for what the appliance decides.
	Boot Boot `toml:"boot"`
}

// LoadSite reads and checks the file of a site agent.
func LoadSite(path string) (*Site, error) {
	text, base, err := read(path)
	if err != nil {
		return nil, err
	}
	s := Site{Boot: Boot{Enabled: true}}
	meta, err := toml.Decode(text, &s)
	if err == nil {
		if unknown := meta.Undecoded(); len(unknown) > 0 {
			err = fmt.Errorf("unknown key %q", unknown[0])
		}
	}
	if err == nil {
		for _, p := range []*string{&s.DataDir, &s.BlobDir, &s.Boot.FirmwareDir, &s.Boot.RAMDiskDir} {
			if *p != "" && !filepath.IsAbs(*p) {
				*p = filepath.Join(base, *p)
			}
		}
		err = s.check()
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration %s: %w", path, err)
	}
	return &s, nil
}

func (s *Site) check() error {
	switch {
	case s.DataDir == "":
		return errors.New("data_dir is missing")
	case s.BlobDir == "":
		return errors.New("blob_dir is missing")
	case !s.Boot.Enabled || s.Boot.Discovery || s.Boot.ReplaceROMiPXE:
		return errors.New("boot.enabled, boot.discovery and boot.replace_rom_ipxe are the appliance's to say, in its own file")
	}
	return s.Boot.check()
}
