package osimage

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"

	"firstlight/imagebuild/internal/initramfs"
	"firstlight/imagebuild/internal/kmod"
	"firstlight/imagebuild/manifest"
)

// parts is everything that goes into the image, before it has a place.
type parts struct {
	kernel       []byte
	initrd, root *initramfs.Tree
	inputs       []manifest.Input
}

func collect(c Config) (*parts, error) {
	kernel, err := c.Kernel.ReadImage()
	if err != nil {
		return nil, fmt.Errorf("read the kernel: %w", err)
	}
	early, err := c.Kernel.Resolve(initrdModules...)
	if err != nil {
		return nil, fmt.Errorf("modules of the initial RAM disk: %w", err)
	}
	late, err := c.Kernel.Resolve(rootModules...)
	if err != nil {
		return nil, fmt.Errorf("modules of the root file system: %w", err)
	}
	p := &parts{kernel: kernel}
	if p.initrd, err = initrdTree(c.Busybox, early); err != nil {
		return nil, err
	}
	if p.root, err = rootTree(c.Busybox, c.Agent, c.Nonce, late); err != nil {
		return nil, err
	}
	p.inputs = inputs(c, kernel, early, late)
	return p, nil
}

// inputs are the digests of everything that the image is made from, sorted by name.
func inputs(c Config, kernel []byte, sets ...*kmod.Set) []manifest.Input {
	content := map[string][]byte{
		"kernel/" + c.Kernel.Image: kernel,
		"busybox":                  c.Busybox,
		"machine-agent":            c.Agent,
		"systemd-boot":             c.Bootloader,
		"grub/boot.img":            c.BIOS.Boot,
		"grub/core.img":            c.BIOS.Core,
	}
	for _, s := range sets {
		for _, m := range s.Modules {
			content["kernel/modules/"+m.Path] = m.Data
		}
	}
	for _, name := range []string{"init", "lib.sh", "inittab", "rcS", "network", "agent", "udhcpc.script"} {
		content["demo/"+name] = script(name)
	}
	var out []manifest.Input
	for name, b := range content {
		out = append(out, manifest.Input{Name: name, SHA256: manifest.DigestOf(b)})
	}
	slices.SortFunc(out, func(a, b manifest.Input) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// seed stands for the inputs and the nonce: two images have the same identifiers only when they are the same.
func (p *parts) seed(nonce string) [32]byte {
	h := sha256.New()
	for _, in := range p.inputs {
		fmt.Fprintf(h, "%s %s\n", in.SHA256, in.Name)
	}
	fmt.Fprintf(h, "nonce %s\n", nonce)
	return [32]byte(h.Sum(nil))
}
