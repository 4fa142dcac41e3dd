package osimage

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"firstlight/imagebuild/internal/kmodtest"
	"firstlight/imagebuild/manifest"
)

// fakeBIOS has the form of GRUB's images, and no code.
func fakeBIOS() *BIOS {
	b := &BIOS{Boot: bytes.Repeat([]byte{0xb0}, 512), Core: bytes.Repeat([]byte{0xc0}, 3*512+100)}
	b.Boot[510], b.Boot[511] = 0x55, 0xaa
	binary.LittleEndian.PutUint16(b.Core[508:], 3)
	binary.LittleEndian.PutUint16(b.Core[510:], 0x820)
	return b
}

// TestBuildBootCode: the MBR keeps its entry for the GPT beside the boot code, and each stage names the block of the next.
func TestBuildBootCode(t *testing.T) {
	t.Parallel()
	c := config(t, "nonce-1")
	img, r := build(t, c)
	mbr, core := make([]byte, 512), make([]byte, len(c.BIOS.Core))
	for at, b := range map[int64][]byte{0: mbr, r.BIOS().Start: core} {
		if _, err := img.ReadAt(b, at); err != nil {
			t.Fatal(err)
		}
	}
	le := binary.LittleEndian
	want := bytes.Clone(c.BIOS.Boot)
	le.PutUint64(want[0x5c:], 40)
	want[0x66], want[0x67] = 0x90, 0x90
	if !bytes.Equal(mbr[:440], want[:440]) {
		t.Errorf("boot code: got %x, want %x", mbr[:440], want[:440])
	}
	if mbr[450] != 0xee || le.Uint32(mbr[454:]) != 1 || mbr[510] != 0x55 || mbr[511] != 0xaa {
		t.Errorf("protective entry: got %x, want one of type ee from block 1", mbr[440:])
	}
	want = bytes.Clone(c.BIOS.Core)
	le.PutUint64(want[500:], 41)
	if !bytes.Equal(core, want) {
		t.Errorf("core image: got block list %x, want %x", core[500:512], want[500:512])
	}
}

func TestPlaceRefusals(t *testing.T) {
	t.Parallel()
	p := manifest.Partition{Start: biosAt, Size: align - biosAt}
	for want, spoil := range map[string]func(*BIOS){
		"no boot sector":         func(b *BIOS) { b.Boot[511] = 0 },
		"another version":        func(b *BIOS) { b.Core[508]++ },
		"at segment 0x821":       func(b *BIOS) { b.Core[510]++ },
		"at most 1028096":        func(b *BIOS) { b.Core = make([]byte, align) },
		"has 512 bytes":          func(b *BIOS) { b.Core = b.Core[:512] },
		"boot.img is no boot se": func(b *BIOS) { b.Boot = b.Boot[:511] },
	} {
		b := fakeBIOS()
		spoil(b)
		if _, _, err := b.place(p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}
	}
}

// TestMakeBIOS has the GRUB of this machine make the core image twice; it must have the form that place knows.
func TestMakeBIOS(t *testing.T) {
	t.Parallel()
	const dir = "/usr/lib/grub/i386-pc"
	mkimage, err := exec.LookPath("grub-mkimage")
	if err == nil {
		_, err = os.Stat(dir)
	}
	if err != nil {
		t.Skip("reason: no GRUB for BIOS on this machine (packages grub-common, grub-pc-bin; make setup installs them)")
	}
	var made []*BIOS
	for range 2 {
		b, err := MakeBIOS(t.Context(), mkimage, dir, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := b.place(manifest.Partition{Start: biosAt, Size: align - biosAt}); err != nil {
			t.Error(err)
		}
		made = append(made, b)
	}
	if !bytes.Equal(made[0].Core, made[1].Core) {
		t.Error("two core images from the same modules differ")
	}
	if _, err := MakeBIOS(t.Context(), mkimage, t.TempDir(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "boot.img") {
		t.Errorf("empty directory: got error %v, want one that names boot.img", err)
	}
}

// TestMakeBIOSPrefix: grub-mkimage's -m sets the prefix too, and then GRUB's root is the memory disk. -p has to come after it.
func TestMakeBIOSPrefix(t *testing.T) {
	t.Parallel()
	dir, mkimage := t.TempDir(), filepath.Join(t.TempDir(), "mkimage")
	for name, text := range map[string]string{
		filepath.Join(dir, "boot.img"): "boot", filepath.Join(dir, "linux.mod"): "module",
		mkimage: "#!/bin/sh\nfor a; do [ \"$before\" != -o ] || echo \"$@\" >\"$a\"; before=$a; done\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b, err := MakeBIOS(t.Context(), mkimage, dir, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if args := string(b.Core); !strings.Contains(args, " -p (,gpt1)/ ") || strings.Index(args, " -p ") < strings.Index(args, " -m ") {
		t.Errorf("got arguments %q, want -p (,gpt1)/ behind -m", args)
	}
}

// TestLoaderEntryIsOneForAll: GRUB runs the entry as commands, so every key must be a function of grub.cfg and nothing in it may mean
// something to its shell.
func TestLoaderEntryIsOneForAll(t *testing.T) {
	t.Parallel()
	entry := loaderEntry(kmodtest.Release, "11111111-2222-4333-8444-555555555503")
	if err := checkEntry(entry); err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(entry) {
		key, _, _ := strings.Cut(line, " ")
		if !strings.Contains(string(script("grub.cfg")), "\nfunction "+key+" {") {
			t.Errorf("grub.cfg: got no function for the key %q", key)
		}
	}
	if !strings.Contains(string(script("grub.cfg")), "\nset entry=/"+entryFile+"\n") {
		t.Errorf("grub.cfg: got another entry, want /%s", entryFile)
	}
	for _, bad := range []string{"options a;reboot", "options $x", "options \"a b\"", "title it's", "linux /a\\b", "options {", "options a|b", "options #x", "options \t"} {
		if err := checkEntry("title x\n" + bad + "\n"); err == nil || !strings.Contains(err.Error(), "means something to a shell") {
			t.Errorf("%q: got error %v, want a refusal", bad, err)
		}
	}
}
