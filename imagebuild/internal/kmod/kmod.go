// Package kmod reads an unpacked Debian kernel package and picks the kernel modules that an initial RAM disk needs.
//
// It does what depmod and modprobe would do, for a chosen few modules and without either: it reads depends=, softdep= and alias=
// from each module's .modinfo section, knows which modules are built in, and puts the rest into an order in which they load.
// It is for imagebuild only. It loads nothing and runs nothing.
package kmod

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Bounds on what is read from a kernel package.
const (
	MaxModule  = 64 << 20  // bytes of one module file
	MaxKernel  = 128 << 20 // bytes of the kernel image
	maxIndex   = 100_000   // modules in a kernel package
	maxBuiltin = 16 << 20  // bytes of modules.builtin
)

// Kernel is one unpacked kernel package.
type Kernel struct {
	// Release is what uname -r says under this kernel.
	Release string
	// Image is the path of the kernel image inside the package.
	Image string

	fsys    fs.FS
	dir     string            // lib/modules/<release>
	paths   map[string]string // module name → path below dir
	builtin map[string]string
	infos   map[string]Info
}

// Open reads a kernel package that was unpacked into fsys: boot/vmlinuz-<release> and lib/modules/<release> (or below usr).
func Open(fsys fs.FS) (*Kernel, error) {
	images, err := fs.Glob(fsys, "boot/vmlinuz-*")
	if err != nil {
		return nil, err
	}
	switch len(images) {
	case 1:
	case 0:
		return nil, errors.New("no boot/vmlinuz-* in it: want an unpacked Debian linux-image package")
	default:
		return nil, fmt.Errorf("more than one kernel in it: %s", strings.Join(images, ", "))
	}
	k := &Kernel{fsys: fsys, Image: images[0], Release: strings.TrimPrefix(images[0], "boot/vmlinuz-"), infos: map[string]Info{}}
	for _, d := range []string{"lib/modules/", "usr/lib/modules/"} {
		if st, err := fs.Stat(fsys, d+k.Release); err == nil && st.IsDir() {
			k.dir = d + k.Release
			break
		}
	}
	if k.dir == "" {
		return nil, fmt.Errorf("no modules for kernel %s in it: want lib/modules/%s", k.Release, k.Release)
	}
	if err := k.index(); err != nil {
		return nil, err
	}
	return k, k.readBuiltin()
}

// Name turns a module's file name or spelling into the name that the kernel uses: no directory, no suffix, underscores.
func Name(s string) string {
	return strings.ReplaceAll(strings.TrimSuffix(path.Base(s), ".ko"), "-", "_")
}

func (k *Kernel) index() error {
	k.paths = map[string]string{}
	compressed := 0
	err := fs.WalkDir(k.fsys, k.dir, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return nil
		case strings.HasSuffix(p, ".ko.xz"), strings.HasSuffix(p, ".ko.zst"), strings.HasSuffix(p, ".ko.gz"):
			compressed++
			return nil
		case !strings.HasSuffix(p, ".ko"):
			return nil
		}
		if len(k.paths) >= maxIndex {
			return fmt.Errorf("more than %d modules", maxIndex)
		}
		k.paths[Name(p)] = strings.TrimPrefix(p, k.dir+"/")
		return nil
	})
	if err == nil && len(k.paths) == 0 && compressed > 0 {
		err = fmt.Errorf("its %d modules are compressed files, which this program does not read", compressed)
	}
	if err != nil {
		return fmt.Errorf("modules of kernel %s: %w", k.Release, err)
	}
	return nil
}

func (k *Kernel) readBuiltin() error {
	k.builtin = map[string]string{}
	b, err := k.read(path.Join(k.dir, "modules.builtin"), maxBuiltin)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		if line := strings.TrimSpace(s.Text()); line != "" {
			k.builtin[Name(line)] = line
		}
	}
	return nil
}

// ReadImage returns the kernel image.
func (k *Kernel) ReadImage() ([]byte, error) { return k.read(k.Image, MaxKernel) }

func (k *Kernel) read(name string, limit int64) ([]byte, error) {
	st, err := fs.Stat(k.fsys, name)
	if err != nil {
		return nil, err
	}
	if st.Size() > limit {
		return nil, fmt.Errorf("%s: %d bytes, at most %d allowed", name, st.Size(), limit)
	}
	return fs.ReadFile(k.fsys, name)
}

// Builtin says whether the module is part of the kernel image itself.
func (k *Kernel) Builtin(name string) bool { return k.builtin[Name(name)] != "" }

// Has says whether the package holds the module as a file.
func (k *Kernel) Has(name string) bool { return k.paths[Name(name)] != "" }

func (k *Kernel) info(name string) (Info, error) {
	if in, ok := k.infos[name]; ok {
		return in, nil
	}
	b, err := k.read(path.Join(k.dir, k.paths[name]), MaxModule)
	if err != nil {
		return Info{}, err
	}
	in, err := ReadInfo(bytes.NewReader(b))
	if err != nil {
		return Info{}, fmt.Errorf("module %s: %w", name, err)
	}
	k.infos[name] = in
	return in, nil
}

// soft finds the module that stands for the name of a soft dependency: the module itself, or the generic implementation of a
// crypto algorithm ("crc32c" → crc32c_generic). Empty when it is built in or there is none: a soft dependency may be missing.
func (k *Kernel) soft(name string) (string, error) {
	name = Name(name)
	if k.Has(name) {
		return name, nil
	}
	if k.Builtin(name) {
		return "", nil
	}
	var found []string
	for n, p := range k.paths {
		if !strings.HasPrefix(p, "kernel/crypto/") {
			continue
		}
		in, err := k.info(n)
		if err != nil {
			return "", err
		}
		if slices.ContainsFunc(in.Alias, func(a string) bool { return Name(a) == name || Name(a) == "crypto_"+name }) {
			found = append(found, n)
		}
	}
	slices.Sort(found)
	for _, n := range found {
		if strings.HasSuffix(n, "_generic") {
			return n, nil
		}
	}
	if len(found) > 0 {
		return found[0], nil
	}
	return "", nil
}
