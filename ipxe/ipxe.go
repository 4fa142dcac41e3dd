// Package ipxe writes iPXE scripts from values.
//
// It is for the site agent, which serves one script per boot. It is not a template engine: a value either is text that iPXE
// passes on word for word, or Script refuses it and names the field. It does no I/O, imports nothing of ours, and any package
// of rank 2 or more may import it.
//
// The rules follow iPXE's own reader (src/core/exec.c): a line is split at white space and nowhere else; there is no quoting
// and no escape; the words ";", "||" and "&&" separate commands; a word that begins with "#" ends the line; "${name}" is
// expanded in every word after the split.
package ipxe

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

const (
	// MaxText bounds one value in bytes.
	MaxText = 512
	// MaxCommandLine bounds the kernel's command line in bytes: x86 Linux cuts it silently at 2,048 with its end mark, and iPXE
	// puts the image's name before it.
	MaxCommandLine = 2000
	// MaxInitrds bounds the initrds of one boot.
	MaxInitrds = 8
	// failurePause is how long a message stays on the screen before the firmware goes on, in seconds.
	failurePause = 10
)

// ErrUnsafe is wrapped by every refusal of a value that iPXE would not pass on as it is.
var ErrUnsafe = errors.New("not safe in an iPXE script")

// Image is one file that iPXE loads.
type Image struct {
	// Name is what the image is called in iPXE's list and on the kernel's command line: letters, digits, '.', '-', '_', first a
	// letter. It is never derived from the URL.
	Name string
	// URL is absolute and http; its host should be an address, because names may not resolve during a network boot.
	URL string
}

// Boot is one boot of a Linux kernel.
type Boot struct {
	// Banner is shown before anything is loaded; empty shows a general one.
	Banner string
	Kernel Image
	// Initrds are handed over in this order, each named on the kernel's command line. Their names differ from each other and from
	// the kernel's.
	Initrds []Image
	// Args follow the initrds and BOOTIF on the kernel's command line, those that name a console last and in their order: the last
	// one backs /dev/console. Of two for one console the later counts. An argument with blanks must be quoted in the way that the
	// kernel reads; iPXE passes quotes on.
	Args []string
	// FailURL, when set, is fetched with "/" and the name of the image that did not load appended, so that the server learns what
	// the screen says. The word "start" stands for the kernel's start itself.
	FailURL string
}

// Script returns the script: "#!ipxe" in byte 0, LF line ends, LF at the end.
//
// It adds BOOTIF=01-<address of the network card that iPXE booted from>, the one thing of the machine on the command line.
// When an image does not load, the script says so, fetches FailURL and gives control back to the firmware.
func (b Boot) Script() ([]byte, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	banner := b.Banner
	if banner == "" {
		banner = "network boot"
	}
	args := append(b.initrdArgs(), bootIF)
	args = append(args, consolesLast(b.Args)...)
	line := strings.Join(args, " ")
	if n := len(b.Kernel.Name) + 1 + len(line) + len(macText) - len(macSetting); n > MaxCommandLine {
		return nil, fmt.Errorf("ipxe script: kernel command line of %d bytes, the most is %d", n, MaxCommandLine)
	}
	var s bytes.Buffer
	fmt.Fprintf(&s, "#!ipxe\necho Firstlight: %s\n:again\nimgfree\n", banner)
	fmt.Fprintf(&s, "set image %s\nkernel --name %s %s %s || goto failed\n", b.Kernel.Name, b.Kernel.Name, b.Kernel.URL, line)
	for _, i := range b.Initrds {
		fmt.Fprintf(&s, "set image %s\ninitrd --name %s %s || goto failed\n", i.Name, i.Name, i.URL)
	}
	fmt.Fprintf(&s, "set image %s\nboot || goto failed\n:failed\ninc tries\niseq ${tries} %d || goto retry\necho Firstlight: ${image} failed, back to the firmware in %d seconds\n", start, maxTries, failurePause)
	if b.FailURL != "" {
		fmt.Fprintf(&s, "imgfetch --name report %s/${image} ||\n", b.FailURL)
	}
	fmt.Fprintf(&s, "sleep %d\nexit 1\n:retry\necho Firstlight: ${image} failed, again in %d seconds\nsleep %d\ngoto again\n", failurePause, retryPause, retryPause)
	return s.Bytes(), nil
}

// Notice returns a script that shows one sentence and gives control back to the firmware.
func Notice(text string) ([]byte, error) {
	if err := CheckText("text", text); err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "#!ipxe\necho Firstlight: %s\nsleep %d\nexit 1\n", text, failurePause), nil
}

// maxTries bounds how often a script tries to load its images; retryPause is how long it waits in between, in seconds.
const (
	maxTries   = 10
	retryPause = 5
)

// start is the "image" of which the script speaks once all are loaded.
const start = "start"

// The booted card's address as iPXE writes it; netX is the device opened last, which net0 need not be.
const (
	macSetting = "${netX/mac:hexhyp}"
	macText    = "00-00-00-00-00-00"
	bootIF     = "BOOTIF=01-" + macSetting
)

// consolesLast moves the arguments that name a console to the end, and keeps the last one for each device.
func consolesLast(args []string) []string {
	var others, consoles []string
	for _, a := range args {
		device, ok := console(a)
		if !ok {
			others = append(others, a)
			continue
		}
		consoles = slices.DeleteFunc(consoles, func(c string) bool { d, _ := console(c); return d == device })
		consoles = append(consoles, a)
	}
	return append(others, consoles...)
}

// console returns the device of "console=device,options".
func console(arg string) (device string, ok bool) {
	value, ok := strings.CutPrefix(arg, "console=")
	device, _, _ = strings.Cut(value, ",")
	return device, ok
}

func (b Boot) initrdArgs() []string {
	var args []string
	for _, i := range b.Initrds {
		args = append(args, "initrd="+i.Name)
	}
	return args
}

func (b Boot) check() error {
	if len(b.Initrds) > MaxInitrds {
		return fmt.Errorf("ipxe script: %d initrds, the most is %d", len(b.Initrds), MaxInitrds)
	}
	if b.Banner != "" {
		if err := CheckText("banner", b.Banner); err != nil {
			return err
		}
	}
	seen := map[string]bool{start: true}
	for n, i := range append([]Image{b.Kernel}, b.Initrds...) {
		field := "kernel"
		if n > 0 {
			field = fmt.Sprintf("initrd %d", n)
		}
		if err := i.check(field); err != nil {
			return err
		}
		if seen[i.Name] {
			return fmt.Errorf("ipxe script: %s: name %q is taken", field, i.Name)
		}
		seen[i.Name] = true
	}
	for n, a := range b.Args {
		if err := CheckText(fmt.Sprintf("argument %d", n+1), a); err != nil {
			return err
		}
	}
	if b.FailURL != "" {
		return checkURL("failure address", b.FailURL)
	}
	return nil
}

func (i Image) check(field string) error {
	for n, c := range []byte(i.Name) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (n == 0 || !(c >= '0' && c <= '9' || strings.IndexByte(".-_", c) >= 0)) {
			return fmt.Errorf("ipxe script: %s: name %q: %w: want letters, digits, '.', '-', '_', first a letter", field, i.Name, ErrUnsafe)
		}
	}
	if i.Name == "" || len(i.Name) > MaxText {
		return fmt.Errorf("ipxe script: %s: name of %d bytes: want 1 to %d", field, len(i.Name), MaxText)
	}
	return checkURL(field+" address", i.URL)
}

func checkURL(field, u string) error {
	if err := CheckWord(field, u); err != nil {
		return err
	}
	if !strings.HasPrefix(u, "http://") {
		return fmt.Errorf("ipxe script: %s %q: want an absolute http address", field, u)
	}
	return nil
}
