package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fault"
)

// terminal says whether a person is on the other side.
func terminal(x any) bool {
	f, ok := x.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// line reads one line that a person types.
func (c *call) line(prompt string) (string, error) {
	fmt.Fprint(c.Stderr, prompt)
	text, err := bufio.NewReader(io.LimitReader(c.Stdin, 1024)).ReadString('\n')
	if err != nil && text == "" {
		return "", errors.New("nothing was typed")
	}
	return strings.TrimSpace(text), nil
}

func typed(c *call, op, name string, want int) (*int, error) {
	text, err := c.line("type the number of disks that will be wiped: ")
	if err != nil {
		return nil, fault.New(fault.Usage, op, name, err, "type the number, or give it with --disks")
	}
	n, err := strconv.Atoi(text)
	if err != nil || n != want {
		return nil, fault.New(fault.Conflict, op, name, fmt.Errorf("%q was typed, and %d would be wiped", plain(text), want), "look at the disks again; nothing was sent")
	}
	return &n, nil
}

// showWould says what an order touches, for somebody who is about to give it.
func showWould(w io.Writer, p executor.Preview) {
	fmt.Fprintf(w, "machine %s (%s), MACs %s, controller %s\n", p.Machine, p.NodeID, strings.Join(p.MACs, " "), controller(p.BMC))
	for _, d := range p.Disks {
		fmt.Fprintf(w, "  disk %s will be %s; model %s, %s, holds %s\n", plain(d.Serial), d.Would, dash(plain(d.Model)), size(int64(d.SizeBytes)), d.Holds)
		if d.Doubt != "" {
			fmt.Fprintf(w, "    doubt: %s\n", plain(d.Doubt))
		}
	}
}

// sure has a person type a name before something is removed; a program says --yes.
func (c *call) sure(op, name, what string, yes bool) error {
	if yes {
		return nil
	}
	if !terminal(c.Stdin) {
		return fault.New(fault.Usage, op, name, errors.New("nobody is there to be asked"), "say --yes when it is meant")
	}
	text, err := c.line(what + "; type its name: ")
	if err == nil && text != name {
		err = fmt.Errorf("%q was typed", plain(text))
	}
	if err != nil {
		return fault.New(fault.Conflict, op, name, err, "nothing was sent")
	}
	return nil
}

// orderOf is the part of provision and retry that asks.
type orderOf struct {
	Disks *int `placeholder:"N" help:"The number of disks that will be wiped; a person at a terminal is asked for it."`
	Yes   bool `help:"Do not ask."`
}

// asked is the number of disks that an order says it wipes: the one that was given, or the one that a person types after having read
// which they are; then the version is that of the machine which he read of, so that the order is for those disks and no others. Without a
// terminal nothing is asked; the appliance then decides whether the number may be left out.
func (o orderOf) asked(c *call, op, name string, in api.Provision) (disks *int, version string, err error) {
	if o.Disks != nil || o.Yes || c.json || !terminal(c.Stdin) {
		return o.Disks, "", nil
	}
	m, err := c.client.Machine(c.ctx, name)
	if err != nil {
		return nil, "", err
	}
	in.Version = m.Version
	p, err := c.client.DryRun(c.ctx, name, in)
	if err != nil {
		return nil, "", err
	}
	showWould(c.Stderr, p)
	disks, err = typed(c, op, name, len(p.Disks))
	return disks, m.Version, err
}
