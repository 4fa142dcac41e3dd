package imagebuild

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"firstlight/imagebuild/internal/initramfs"
	"firstlight/imagebuild/internal/kmod"
	"firstlight/imagebuild/manifest"
)

// Names of the files that RAMDisk writes; a site serves the first two under the same names.
const (
	KernelFile  = "vmlinuz"
	RAMDiskFile = "ramdisk.cpio.zst"
	InputsFile  = "inputs.json"
)

const agentHint = "build it with CGO_ENABLED=0 go build ./ramdisk/cmd/machine-agent (make build does)"

// ramdiskModules is what the machine agent may need on the machines that are provisioned: buses, network cards, disks, the file
// systems of images. The agent loads what the devices ask for.
var ramdiskModules = []string{
	"virtio_pci", "virtio_net", "virtio_blk", "virtio_scsi", "virtio_rng",
	"nvme", "ahci", "sd_mod",
	"e1000e", "igb", "ixgbe",
	"crc32c_generic", "crct10dif_generic", "crc64_rocksoft_generic",
	"ext4", "vfat", "nls_cp437", "nls_ascii", "nls_utf8", "efivarfs",
}

// RAMDiskConfig is what a RAM disk is made from.
type RAMDiskConfig struct {
	// Agent is the path of the static machine agent; it becomes /init.
	Agent string
	// KernelDir is an unpacked Debian linux-image package.
	KernelDir string
	// Out is the directory for the results; it is made if it is missing.
	Out      string
	Progress Progress
}

// RAMDiskResult is what RAMDisk wrote.
type RAMDiskResult struct {
	KernelRelease string           `json:"kernel_release"`
	Kernel        manifest.Digest  `json:"kernel_sha256"`
	RAMDisk       manifest.Digest  `json:"ramdisk_sha256"`
	Inputs        []manifest.Input `json:"inputs"`
}

// RAMDisk writes the kernel, the RAM disk and the list of their inputs. The same inputs give the same bytes.
func RAMDisk(ctx context.Context, c RAMDiskConfig) (*RAMDiskResult, error) {
	agent, err := readProgram("machine agent", c.Agent, agentHint)
	if err != nil {
		return nil, err
	}
	k, err := openKernel(c.KernelDir)
	if err != nil {
		return nil, err
	}
	c.Progress.say("choose kernel modules", 0, 0)
	kernel, err := k.ReadImage()
	if err != nil {
		return nil, fmt.Errorf("read the kernel: %w", err)
	}
	set, err := k.Resolve(ramdiskModules...)
	if err != nil {
		return nil, fmt.Errorf("modules of the RAM disk: %w", err)
	}
	tree, err := ramdiskTree(agent, set)
	if err != nil {
		return nil, err
	}
	c.Progress.say("compress the RAM disk", 0, 0)
	var packed bytes.Buffer
	if err := tree.Compress(&packed); err != nil {
		return nil, err
	}
	packed.Write(make([]byte, -packed.Len()&(initrdAlign-1)))
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r := &RAMDiskResult{KernelRelease: k.Release, Kernel: manifest.DigestOf(kernel), RAMDisk: manifest.DigestOf(packed.Bytes()),
		Inputs: ramdiskInputs(k, kernel, agent, set)}
	if err := os.MkdirAll(c.Out, 0o755); err != nil {
		return nil, fmt.Errorf("write the RAM disk: %w", err)
	}
	for _, f := range []struct {
		name    string
		content []byte
	}{{KernelFile, kernel}, {RAMDiskFile, packed.Bytes()}} {
		if err := writeFile(filepath.Join(c.Out, f.name), f.content); err != nil {
			return nil, fmt.Errorf("write the RAM disk: %w", err)
		}
	}
	if err := writeInputs(filepath.Join(c.Out, InputsFile), k.Release, r.Inputs); err != nil {
		return nil, fmt.Errorf("write the RAM disk's inputs: %w", err)
	}
	return r, nil
}

// initrdAlign is what the RAM disk's size divides by, filled with zeros: behind it the kernel looks for the next initrd (the site's
// overlays), and an archive that is not compressed is only found at a multiple of four.
const initrdAlign = 4

func ramdiskTree(agent []byte, set *kmod.Set) (*initramfs.Tree, error) {
	var t initramfs.Tree
	steps := []error{
		t.File("init", agent, 0o755),
		t.Modules(set),
		t.CharDevice("dev/console", 0o600, 5, 1),
		t.CharDevice("dev/null", 0o666, 1, 3),
		t.Dir("etc/firstlight", 0o755),
		t.Dir("proc", 0o755), t.Dir("sys", 0o755), t.Dir("run", 0o755), t.Dir("tmp", 0o777|0o1000),
	}
	for _, err := range steps {
		if err != nil {
			return nil, err
		}
	}
	return &t, nil
}

func ramdiskInputs(k *kmod.Kernel, kernel, agent []byte, set *kmod.Set) []manifest.Input {
	in := []manifest.Input{
		{Name: "kernel/" + k.Image, SHA256: manifest.DigestOf(kernel)},
		{Name: "machine-agent", SHA256: manifest.DigestOf(agent)},
	}
	for _, m := range set.Modules {
		in = append(in, manifest.Input{Name: "kernel/modules/" + m.Path, SHA256: manifest.DigestOf(m.Data)})
	}
	slices.SortFunc(in, func(a, b manifest.Input) int { return cmp.Compare(a.Name, b.Name) })
	return in
}
