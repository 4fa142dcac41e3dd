// Package imagebuild makes what a machine boots and what is written to its disk: the RAM disk of the machine agent, a small demo
// system as a raw disk image, and the chunks and manifest of any raw image.
//
// It is for the imagebuild command and whoever builds images in the same process (rank 1; imports rank 0 and nothing else of ours).
// It signs nothing and serves nothing. Each function reads its inputs, decides, writes its artefact under a temporary name, checks
// it and only then puts it in place.
package imagebuild

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"firstlight/imagebuild/internal/kmod"
	"firstlight/imagebuild/manifest"
)

// maxProgram bounds a program that is built in, in bytes.
const maxProgram = 128 << 20

// Progress is told how far a long work is: what is being done, and done of total units (bytes), both 0 where that is not known.
// It is called from one goroutine at a time. Nil tells nobody.
type Progress func(what string, done, total int64)

func (p Progress) say(what string, done, total int64) {
	if p != nil {
		p(what, done, total)
	}
}

// inputsFile is the list of inputs beside an artefact.
type inputsFile struct {
	KernelRelease string           `json:"kernel_release"`
	Inputs        []manifest.Input `json:"inputs"`
}

func openKernel(dir string) (*kmod.Kernel, error) {
	if st, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("open kernel package: %w; unpack a Debian linux-image package there (make setup does)", err)
	} else if !st.IsDir() {
		return nil, fmt.Errorf("open kernel package %s: not a directory", dir)
	}
	k, err := kmod.Open(os.DirFS(dir))
	if err != nil {
		return nil, fmt.Errorf("open kernel package %s: %w", dir, err)
	}
	return k, nil
}

// readProgram reads a Linux program for x86-64 that runs without any library. hint says how to get one.
func readProgram(what, name, hint string) ([]byte, error) {
	b, err := readFile(what, name, hint)
	if err != nil {
		return nil, err
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil || f.Machine != elf.EM_X86_64 {
		return nil, fmt.Errorf("%s %s is not a Linux program for x86-64; %s", what, name, hint)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return nil, fmt.Errorf("%s %s needs shared libraries, which the image does not have; %s", what, name, hint)
		}
	}
	return b, nil
}

func readFile(what, name, hint string) ([]byte, error) {
	st, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s %s is missing; %s", what, name, hint)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", what, err)
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("%s %s is not a file; %s", what, name, hint)
	case st.Size() > maxProgram:
		return nil, fmt.Errorf("%s %s: %d bytes, at most %d allowed", what, name, st.Size(), maxProgram)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return b, nil
}

// writeFile replaces the file in one step.
func writeFile(name string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".part-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := f.Write(content); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

func writeInputs(name, release string, inputs []manifest.Input) error {
	b, err := json.MarshalIndent(inputsFile{KernelRelease: release, Inputs: inputs}, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(name, append(b, '\n'))
}
