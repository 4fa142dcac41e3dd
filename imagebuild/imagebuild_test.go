package imagebuild_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/klauspost/compress/zstd"
	"github.com/u-root/u-root/pkg/cpio"

	"firstlight/imagebuild"
	"firstlight/imagebuild/internal/kmodtest"
	"firstlight/imagebuild/manifest"
)

// inputs lays out a kernel package and a static program.
func inputs(t *testing.T) (agent, kernelDir string) {
	t.Helper()
	dir := t.TempDir()
	agent, kernelDir = filepath.Join(dir, "machine-agent"), filepath.Join(dir, "kernel")
	if err := os.WriteFile(agent, kmodtest.Program(""), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(kernelDir, kmodtest.Full()); err != nil {
		t.Fatal(err)
	}
	return agent, kernelDir
}

func read(t *testing.T, elem ...string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestRAMDiskTwiceIsEqual builds from two copies of the inputs that differ in every time and place.
func TestRAMDiskTwiceIsEqual(t *testing.T) {
	t.Parallel()
	var out []string
	for range 2 {
		agent, kernelDir := inputs(t)
		dir := filepath.Join(t.TempDir(), "out")
		r, err := imagebuild.RAMDisk(t.Context(), imagebuild.RAMDiskConfig{Agent: agent, KernelDir: kernelDir, Out: dir})
		if err != nil {
			t.Fatal(err)
		}
		if got := manifest.DigestOf(read(t, dir, imagebuild.RAMDiskFile)); got != r.RAMDisk {
			t.Errorf("digest: got %s, want that of the file, %s", r.RAMDisk, got)
		}
		out = append(out, dir)
	}
	for _, name := range []string{imagebuild.KernelFile, imagebuild.RAMDiskFile, imagebuild.InputsFile} {
		if !bytes.Equal(read(t, out[0], name), read(t, out[1], name)) {
			t.Errorf("%s: two builds from the same inputs differ", name)
		}
	}
}

// TestRAMDiskDebianKernel does the same with the real kernel package, where it is unpacked.
func TestRAMDiskDebianKernel(t *testing.T) {
	t.Parallel()
	const kernelDir = "../bin/inputs/kernel"
	if _, err := os.Stat(kernelDir + "/boot"); err != nil {
		t.Skip("reason: no Debian kernel package in bin/inputs/kernel (make setup unpacks one)")
	}
	agent, _ := inputs(t)
	var results []*imagebuild.RAMDiskResult
	for range 2 {
		r, err := imagebuild.RAMDisk(t.Context(), imagebuild.RAMDiskConfig{Agent: agent, KernelDir: kernelDir, Out: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, r)
	}
	if results[0].RAMDisk != results[1].RAMDisk {
		t.Errorf("two builds: got %s and %s, want the same", results[0].RAMDisk, results[1].RAMDisk)
	}
}

func TestRAMDiskContent(t *testing.T) {
	t.Parallel()
	agent, kernelDir := inputs(t)
	dir := t.TempDir()
	if _, err := imagebuild.RAMDisk(t.Context(), imagebuild.RAMDiskConfig{Agent: agent, KernelDir: kernelDir, Out: dir}); err != nil {
		t.Fatal(err)
	}
	packed := read(t, dir, imagebuild.RAMDiskFile)
	if len(packed)%4 != 0 {
		t.Errorf("got %d bytes, want a multiple of 4: the kernel looks there for the overlays behind it", len(packed))
	}
	d, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	archive, err := d.DecodeAll(packed, nil)
	for range 3 { // zeros that fill up behind the frame
		if err != nil {
			packed = packed[:len(packed)-1]
			archive, err = d.DecodeAll(packed, nil)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(bytes.NewReader(archive)))
	if err != nil {
		t.Fatal(err)
	}
	content := map[string]string{}
	for _, r := range records {
		b, err := io.ReadAll(io.NewSectionReader(r, 0, int64(r.FileSize)))
		if err != nil {
			t.Fatal(err)
		}
		content[r.Name] = string(b)
	}
	if content["init"] != string(read(t, agent)) {
		t.Error("init: got another program than the machine agent")
	}
	lists := "lib/modules/" + kmodtest.Release + "/"
	for name, want := range map[string]string{
		lists + "modules.dep":     "kernel/fs/ext4/ext4.ko: kernel/crypto/crc32c_generic.ko\n",
		lists + "modules.alias":   "alias pci:v00001AF4d*sv*sd*bc*sc*i* virtio_pci\n",
		lists + "modules.builtin": "kernel/fs/efivarfs/efivarfs.ko\n",
	} {
		if !strings.Contains(content[name], want) {
			t.Errorf("%s: got\n%swant a line %q", name, content[name], want)
		}
	}
	for _, name := range []string{"etc/firstlight", "dev/console", "proc", "sys", "run", "tmp"} {
		if _, ok := content[name]; !ok {
			t.Errorf("%s: got none, want it in the RAM disk", name)
		}
	}
	var list struct {
		KernelRelease string           `json:"kernel_release"`
		Inputs        []manifest.Input `json:"inputs"`
	}
	if err := json.Unmarshal(read(t, dir, imagebuild.InputsFile), &list); err != nil {
		t.Fatal(err)
	}
	want := manifest.Input{Name: "machine-agent", SHA256: manifest.DigestOf(read(t, agent))}
	if list.KernelRelease != kmodtest.Release || !slices.Contains(list.Inputs, want) {
		t.Errorf("inputs: got %+v, want the machine agent among them", list)
	}
}

func TestRAMDiskLacksModule(t *testing.T) {
	t.Parallel()
	agent, _ := inputs(t)
	dir := t.TempDir()
	if err := os.CopyFS(dir, fstest.MapFS(kmodtest.Kernel(map[string][]byte{"kernel/x.ko": kmodtest.Module()}))); err != nil {
		t.Fatal(err)
	}
	_, err := imagebuild.RAMDisk(t.Context(), imagebuild.RAMDiskConfig{Agent: agent, KernelDir: dir, Out: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "has no module virtio_pci") {
		t.Errorf("got error %v, want one that names the module", err)
	}
}
