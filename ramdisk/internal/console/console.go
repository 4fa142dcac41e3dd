// Package console tells a person at the machine what the agent does: one line "firstlight: …" on every active console.
//
// It is for ramdisk. It is not a log: lines are for technicians, bounded, plain ASCII, and never hold a secret. A console that does
// not take its line within WriteTimeout (a serial line with flow control and nobody at the other end) is passed over.
package console

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Prefix starts each line.
const Prefix = "firstlight: "

// MaxLine bounds a line in bytes, prefix included. Longer text is cut and ends in "...".
const MaxLine = 1000

// WriteTimeout is how long one console may take for one line.
const WriteTimeout = 2 * time.Second

// maxConsoles bounds how many consoles are written to.
const maxConsoles = 8

// Console writes lines to all of its outputs. Safe from several goroutines.
type Console struct {
	mu   sync.Mutex
	outs []io.Writer
}

// New returns a console over the given outputs.
func New(outs ...io.Writer) *Console { return &Console{outs: outs} }

// Open opens every console that the kernel names as active in sys (the content of /sys), below dev ("/dev"). With none it falls
// back to dev/console, then to nothing: a machine without a console still works.
func Open(sys fs.FS, dev string) *Console {
	c := &Console{}
	b, _ := fs.ReadFile(sys, "class/tty/console/active")
	for _, name := range Active(string(b)) {
		if f := openTTY(dev + "/" + name); f != nil {
			c.outs = append(c.outs, f)
		}
	}
	if len(c.outs) == 0 {
		if f := openTTY(dev + "/console"); f != nil {
			c.outs = append(c.outs, f)
		}
	}
	return c
}

// Active reads the kernel's list of consoles: names such as "tty0 ttyS0". What is no plain name is left out.
func Active(s string) []string {
	var out []string
	for _, n := range strings.Fields(s) {
		if strings.HasPrefix(n, "tty") && !strings.ContainsAny(n, "/.") && len(out) < maxConsoles {
			out = append(out, n)
		}
	}
	return out
}

func openTTY(path string) *os.File {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), path)
}

// Say writes one line.
func (c *Console) Say(format string, args ...any) {
	line := []byte(Line(fmt.Sprintf(format, args...)))
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.outs {
		if d, ok := w.(interface{ SetWriteDeadline(time.Time) error }); ok {
			d.SetWriteDeadline(time.Now().Add(WriteTimeout))
		}
		w.Write(line)
	}
}

// Line is text as it goes to a console: prefix, one line, printable ASCII, bounded, ended by a newline.
func Line(text string) string {
	s := strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case r == '…':
			return '~'
		case r < 0x20 || r > 0x7e:
			return '?'
		}
		return r
	}, strings.TrimSpace(text))
	if limit := MaxLine - len(Prefix) - 1; len(s) > limit {
		s = s[:limit-3] + "..."
	}
	return Prefix + s + "\n"
}
