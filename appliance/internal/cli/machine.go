package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/fault"
)

// maxPasswordFile bounds what is read as a password, in bytes.
const maxPasswordFile = 4 << 10

type machineAdd struct {
	Name       string   `arg:"" help:"Name of the machine: a-z, 0-9, '.', '-'."`
	MAC        []string `name:"mac" required:"" help:"MAC of each network card that may boot; repeat or separate by commas."`
	UUID       string   `name:"uuid" help:"SMBIOS system UUID, where known."`
	DiskSerial []string `required:"" sep:"none" help:"Serial number of each disk that may be wiped; the first gets the image. Repeat for more."`
	BMC        struct {
		URL          string `name:"url" required:"" placeholder:"https://ADDRESS" help:"The management controller."`
		User         string `required:"" help:"Its user."`
		PasswordFile string `required:"" placeholder:"FILE" help:"File that holds the user's password; - is standard input."`
		CertSHA256   string `name:"cert-sha256" required:"" placeholder:"HEX" help:"SHA-256 of the controller's certificate (openssl's form with colons is fine)."`
	} `embed:"" prefix:"bmc-"`
}

// Run implements the command.
func (m *machineAdd) Run(c *call) error {
	password, err := readPassword(m.BMC.PasswordFile, c.Stdin)
	if err != nil {
		return fault.New(fault.Invalid, "add machine", m.Name, err, "put the password alone into a file and name it with --bmc-password-file")
	}
	out, err := c.client.AddMachine(c.ctx, api.AddMachine{
		Name: m.Name, MACs: m.MAC, UUID: m.UUID, DiskSerials: m.DiskSerial, BMCURL: m.BMC.URL, BMCUser: m.BMC.User,
		BMCPassword: password, BMCCertificateSHA256: strings.ToLower(strings.ReplaceAll(m.BMC.CertSHA256, ":", "")),
	})
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) { fmt.Fprintf(w, "machine %s added as %s\n", out.Name, out.NodeID) })
}

// readPassword reads a password and drops one newline at its end.
func readPassword(path string, stdin io.Reader) (string, error) {
	in := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", fmt.Errorf("read password: %w", err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxPasswordFile+1))
	if err != nil {
		return "", fmt.Errorf("read password: %w", err)
	}
	data = bytes.TrimSuffix(bytes.TrimSuffix(data, []byte("\n")), []byte("\r"))
	switch {
	case len(data) > maxPasswordFile:
		return "", fmt.Errorf("read password: over %d bytes", maxPasswordFile)
	case len(data) == 0:
		return "", errors.New("read password: it is empty")
	case bytes.ContainsAny(data, "\n\r\x00"):
		return "", errors.New("read password: more than one line")
	}
	return string(data), nil
}

type machineShow struct {
	Name string `arg:"" help:"Name of the machine."`
}

// Run implements the command.
func (m *machineShow) Run(c *call) error {
	out, err := c.client.Machine(c.ctx, m.Name)
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) { showMachine(w, out) })
}

type machineList struct{}

// Run implements the command.
func (*machineList) Run(c *call) error {
	all, err := c.client.Machines(c.ctx)
	if err != nil {
		return err
	}
	return c.print(all, func(w io.Writer) { listMachines(w, all) })
}

type provision struct {
	Name       string   `arg:"" help:"Name of the machine."`
	Image      string   `required:"" help:"Name of the image."`
	PauseAfter []string `placeholder:"STEP,…" help:"Steps after which to wait for resume, such as wipe or deploy."`
}

// Run implements the command.
func (p *provision) Run(c *call) error {
	out, err := c.client.Provision(c.ctx, p.Name, api.Provision{Image: p.Image, PauseAfter: p.PauseAfter})
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) {
		fmt.Fprintf(w, "machine %s is being provisioned with image %s; follow it with `firstlight machine show %s`\n", out.Name, out.Image, out.Name)
	})
}

type resume struct {
	Name string `arg:"" help:"Name of the machine."`
}

// Run implements the command.
func (r *resume) Run(c *call) error {
	out, err := c.client.Resume(c.ctx, r.Name)
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) { fmt.Fprintf(w, "machine %s goes on\n", out.Name) })
}
