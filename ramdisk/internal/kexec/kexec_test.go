package kexec

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/disk/disktest"
	"firstlight/ramdisk/internal/gpt"
	"firstlight/ramdisk/internal/gpt/gpttest"
	"firstlight/ramdisk/internal/twins"
)

func esp(entries map[string]string, files ...string) fstest.MapFS {
	f := fstest.MapFS{"loader/entries": {Mode: fs.ModeDir}}
	for name, text := range entries {
		f["loader/"+name] = &fstest.MapFile{Data: []byte(text)}
	}
	for _, name := range files {
		f[name] = &fstest.MapFile{Data: []byte("content of " + name)}
	}
	return f
}

const good = "title Firstlight\nlinux /vmlinuz\ninitrd /initrd.img\noptions root=PARTUUID=x\noptions console=ttyS0 quiet\n"

func TestChoose(t *testing.T) {
	other := strings.ReplaceAll(good, "/vmlinuz", "/old")
	for name, c := range map[string]struct {
		esp  fstest.MapFS
		want string
		err  error
	}{
		"the only one":             {esp(map[string]string{"entries/firstlight.conf": good, "loader.conf": "timeout 0\n"}), "firstlight", nil},
		"default by id":            {esp(map[string]string{"entries/a.conf": other, "entries/b.conf": good, "loader.conf": "default b\n"}), "b", nil},
		"default by file and glob": {esp(map[string]string{"entries/a.conf": other, "entries/fl-2.conf": good, "loader.conf": "# x\ndefault fl-*.conf\n"}), "fl-2", nil},
		"two, no default":          {esp(map[string]string{"entries/a.conf": other, "entries/b.conf": good}), "", ErrAmbiguous},
		"two, default fits both":   {esp(map[string]string{"entries/a.conf": other, "entries/b.conf": good, "loader.conf": "default *\n"}), "", ErrAmbiguous},
		"none":                     {esp(nil), "", ErrNoEntry},
		"no folder":                {fstest.MapFS{}, "", ErrNoEntry},
		"only a broken one":        {esp(map[string]string{"entries/a.conf": "title x\n"}), "", ErrNoEntry},
		"a path out":               {esp(map[string]string{"entries/a.conf": "linux /../etc/shadow\n"}), "", ErrNoEntry},
	} {
		e, err := Choose(c.esp)
		if e.ID != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: got %q, %v, want %q, %v", name, e.ID, err, c.want, c.err)
		}
	}
	e, err := Choose(esp(map[string]string{"entries/a.conf": good}))
	if err != nil || e.Options != "root=PARTUUID=x console=ttyS0 quiet" || e.Linux != "vmlinuz" {
		t.Errorf("got %+v, %v", e, err)
	}
}

// twin is Volumes and Loader.
type twin struct {
	esp     fs.FS
	loaded  string
	closed  int
	refuse  error
	parting disk.Partition
}

func (w *twin) Open(_ disk.Disk, p disk.Partition) (fs.FS, func() error, error) {
	w.parting = p
	return w.esp, func() error { w.closed++; return nil }, nil
}

func (w *twin) Load(kernel, initrd *os.File, line string) error {
	if w.refuse != nil {
		return w.refuse
	}
	k, _ := io.ReadAll(kernel)
	var i []byte
	if initrd != nil {
		i, _ = io.ReadAll(initrd)
	}
	w.loaded = fmt.Sprintf("%s|%s|%s", k, i, line)
	return nil
}

func machine(t *testing.T, espType string) *disktest.Machine {
	t.Helper()
	img := gpttest.Image(2048, 512, 128, 128, []gpttest.Partition{{Type: espType, Name: "esp", First: 64, Last: 127}})
	d := disktest.New("FL-1", int64(len(img)))
	d.SetData(0, img)
	d.Info.Partitions = []disk.Partition{{Name: "sda1", Number: 1, Start: 64 * 512, Size: 64 * 512}}
	return &disktest.Machine{Disks: []*disktest.Disk{d}}
}

func TestLoad(t *testing.T) {
	w := &twin{esp: esp(map[string]string{"entries/a.conf": good}, "vmlinuz", "initrd.img")}
	r, err := Load(context.Background(), machine(t, gpt.TypeESP), disk.Selector{Serial: "FL-1"}, w, w, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	kernel := "content of vmlinuz"
	if want := kernel + "|content of initrd.img|root=PARTUUID=x console=ttyS0 quiet"; w.loaded != want {
		t.Errorf("loaded %q, want %q", w.loaded, want)
	}
	if sum := sha256.Sum256([]byte(kernel)); string(sum[:]) != string(r.KernelSHA256) || r.Entry != "a" || w.closed != 1 || w.parting.Number != 1 {
		t.Errorf("got %+v", r)
	}
}

func TestLoadSaysWhatIsMissing(t *testing.T) {
	for name, c := range map[string]struct {
		m      *disktest.Machine
		esp    fstest.MapFS
		serial string
		want   string
	}{
		"kernel":       {machine(t, gpt.TypeESP), esp(map[string]string{"entries/a.conf": good}, "initrd.img"), "FL-1", "/vmlinuz"},
		"initrd":       {machine(t, gpt.TypeESP), esp(map[string]string{"entries/a.conf": good}, "vmlinuz"), "FL-1", "/initrd.img"},
		"ESP":          {machine(t, "0fc63daf-8483-4772-8e79-3d69d8477de4"), esp(nil), "FL-1", "no EFI system partition"},
		"disk":         {machine(t, gpt.TypeESP), esp(nil), "FL-2", "FL-1"},
		"boot entries": {machine(t, gpt.TypeESP), esp(nil), "FL-1", "no boot entry"},
	} {
		w := &twin{esp: c.esp}
		if _, err := Load(context.Background(), c.m, disk.Selector{Serial: c.serial}, w, w, t.TempDir()); err == nil || !strings.Contains(err.Error(), c.want) || w.loaded != "" {
			t.Errorf("%s: got %v, want an error that says %q", name, err, c.want)
		}
		if c.m.Disks[0].Changed() != 0 || c.m.Disks[0].Open() != 0 {
			t.Errorf("%s: disk changed or left open", name)
		}
	}
	w := &twin{esp: esp(map[string]string{"entries/a.conf": good}, "vmlinuz", "initrd.img"), refuse: errors.New("required key not available")}
	if _, err := Load(context.Background(), machine(t, gpt.TypeESP), disk.Selector{Serial: "FL-1"}, w, w, t.TempDir()); !errors.Is(err, w.refuse) || w.closed != 1 {
		t.Errorf("got %v, %d partitions given back, want the kernel's refusal and 1", err, w.closed)
	}
}

// TestDEP06_RootThatTwoDisksHaveIsNotEntered puts an earlier deploy of the same image on a second disk, a USB stick too.
func TestDEP06_RootThatTwoDisksHaveIsNotEntered(t *testing.T) {
	entry := strings.ReplaceAll(good, "PARTUUID=x", "PARTUUID="+strings.ToUpper(gpttest.GUID(1)))
	for name, c := range map[string]struct {
		excluded string
		guid     bool
	}{"another disk": {"", true}, "a disk that may not be written": {"attached by USB", true}, "other identities": {"", false}} {
		m := machine(t, gpt.TypeESP)
		other := disktest.New("FL-OLD", m.Disks[0].Info.Size+512).Named("sdb").At("PCI 0000:00:05.0")
		if c.guid {
			other.SetData(0, m.Disks[0].Data())
		}
		other.Info.Excluded = c.excluded
		m.Disks = append(m.Disks, other)
		w := &twin{esp: esp(map[string]string{"entries/a.conf": entry}, "vmlinuz", "initrd.img")}
		_, err := Load(context.Background(), m, disk.Selector{Serial: "FL-1"}, w, w, t.TempDir())
		if c.guid != errors.Is(err, twins.ErrTwin) || c.guid != (w.loaded == "") {
			t.Errorf("%s: got %v, loaded %q", name, err, w.loaded)
		}
		if c.guid && (!strings.Contains(err.Error(), "FL-OLD") || !strings.Contains(err.Error(), gpttest.GUID(1)) || !strings.Contains(err.Error(), "PCI 0000:00:05.0")) {
			t.Errorf("%s: got %v, want serial, place and PARTUUID of the twin", name, err)
		}
	}
}

func TestCancelledKexecDoesNotJump(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	operator := errors.New("cancelled: by the operator")
	w := &twin{esp: esp(map[string]string{"entries/a.conf": good}, "vmlinuz", "initrd.img")}
	m := machine(t, gpt.TypeESP)
	m.BeforeOpen = func(string) { cancel(operator) }
	if _, err := Load(ctx, m, disk.Selector{Serial: "FL-1"}, w, w, t.TempDir()); !errors.Is(err, operator) || !strings.Contains(err.Error(), "nothing was written") {
		t.Errorf("got %v, want the operator's reason and that nothing was written", err)
	}
}

func FuzzChoose(f *testing.F) {
	f.Add([]byte(good), []byte("default a\n"))
	f.Add([]byte("linux ../../x\n"), []byte("default [\n"))
	f.Add([]byte("linux\t/a\r\noptions \x00\n"), []byte("default @saved\n"))
	f.Fuzz(func(t *testing.T, entry, loader []byte) {
		e, err := Choose(fstest.MapFS{"loader/entries/a.conf": {Data: entry}, "loader/loader.conf": {Data: loader}})
		if err == nil && (!fs.ValidPath(e.Linux) || len(e.Options) > MaxCommandLine) {
			t.Fatalf("chose %+v", e)
		}
	})
}
