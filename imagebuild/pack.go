package imagebuild

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"firstlight/imagebuild/internal/pack"
	"firstlight/imagebuild/internal/parttable"
	"firstlight/imagebuild/manifest"
)

// Names of what Pack writes.
const (
	ManifestFile = "manifest.json"
	BlobDir      = "blobs"
)

// maxInputs bounds a list of inputs that is read, in bytes.
const maxInputs = 4 << 20

// PackConfig says which image to pack.
type PackConfig struct {
	// Raw is the raw disk image: GPT, 512-byte sectors.
	Raw string
	// Name is the image's name.
	Name string
	// Inputs is the list of inputs that OS wrote. Empty means Raw+InputsSuffix, which may be missing.
	Inputs string
	// Out is the directory for the results; it is made if it is missing.
	Out      string
	Progress Progress
}

// PackResult is what Pack wrote.
type PackResult struct {
	Name     string          `json:"name"`
	RawSize  int64           `json:"raw_size"`
	Chunks   int             `json:"chunks"`
	DataSize int64           `json:"data_size"`
	Stored   int64           `json:"stored_size"`
	Manifest manifest.Digest `json:"manifest_sha256"`
}

// Pack writes the image's chunks and, last, the manifest's body. It does not sign: who takes the image in does.
func Pack(ctx context.Context, c PackConfig) (*PackResult, error) {
	if !manifest.ValidName(c.Name) {
		return nil, fmt.Errorf("image name %q: want 1 to %d letters, digits, '.', '_' or '-', first a letter or digit", c.Name, manifest.MaxName)
	}
	m := manifest.Manifest{Version: manifest.Version, Name: c.Name, ChunkSize: manifest.ChunkSize}
	var err error
	if m.Inputs, err = readInputs(c); err != nil {
		return nil, err
	}
	f, err := os.Open(c.Raw)
	if err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	if m.RawSize = st.Size(); !st.Mode().IsRegular() || m.RawSize == 0 || m.RawSize%manifest.SectorSize != 0 {
		return nil, fmt.Errorf("pack %s: not a raw disk image: want a file of a multiple of %d bytes, got %d", c.Raw, manifest.SectorSize, m.RawSize)
	}
	if m.Partitions, err = parttable.Read(f, m.RawSize); err != nil {
		return nil, fmt.Errorf("pack %s: %w", c.Raw, err)
	}
	blobs := filepath.Join(c.Out, BlobDir)
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	m.Chunks, err = pack.Chunks(ctx, f, m.RawSize, blobs, func(done, total int64) { c.Progress.say("pack", done, total) })
	if err != nil {
		return nil, err
	}
	body, err := m.Encode()
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", c.Raw, err)
	}
	if err := writeFile(filepath.Join(c.Out, ManifestFile), body); err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	r := &PackResult{Name: m.Name, RawSize: m.RawSize, Chunks: len(m.Chunks), DataSize: m.DataSize(), Manifest: manifest.DigestOf(body)}
	for _, c := range m.Chunks {
		r.Stored += c.Size
	}
	return r, nil
}

func readInputs(c PackConfig) ([]manifest.Input, error) {
	name := c.Inputs
	if name == "" {
		name = c.Raw + InputsSuffix
	}
	st, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) && c.Inputs == "" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the image's inputs: %w", err)
	}
	if st.Size() > maxInputs {
		return nil, fmt.Errorf("read the image's inputs: %s: %d bytes, at most %d allowed", name, st.Size(), maxInputs)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the image's inputs: %w", err)
	}
	var in inputsFile
	if err := json.Unmarshal(b, &in); err != nil {
		return nil, fmt.Errorf("read the image's inputs: %s: %w", name, err)
	}
	return in.Inputs, nil
}
