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
	From       string   `placeholder:"FOUND" help:"A discovered machine that becomes this one, with its MACs, UUID and inventory."`
	MAC        []string `name:"mac" help:"MAC of each network card that may boot; repeat or separate by commas."`
	UUID       string   `name:"uuid" help:"SMBIOS system UUID, where known."`
	DiskSerial []string `required:"" sep:"none" help:"Serial number of each disk that may be wiped; the first gets the image. Repeat for more."`
	Place      string   `help:"Where people find it, such as rack and unit."`
	Firmware   string   `placeholder:"uefi|bios" help:"Firmware mode to order with a network boot; without it, what the machine's inventory says, and before the first one the mode is left as it is."`
	BMC        struct {
		URL          string `name:"url" required:"" placeholder:"https://ADDRESS" help:"The management controller."`
		User         string `required:"" help:"Its user."`
		PasswordFile string `required:"" placeholder:"FILE" help:"File that holds the user's password; - is standard input."`
		CertSHA256   string `name:"cert-sha256" required:"" placeholder:"HEX" help:"SHA-256 of the controller's certificate (openssl's form with colons is fine)."`
	} `embed:"" prefix:"bmc-"`
}

// Run implements the command.
func (m *machineAdd) Run(c *call) error {
	if m.From == "" && len(m.MAC) == 0 {
		return fault.New(fault.Usage, "add machine", m.Name, errors.New("neither --mac nor --from is given"), "name its network cards with --mac")
	}
	password, err := readPassword(m.BMC.PasswordFile, c.Stdin)
	if err != nil {
		return fault.New(fault.Invalid, "add machine", m.Name, err, "put the password alone into a file and name it with --bmc-password-file")
	}
	out, err := c.client.AddMachine(c.ctx, api.AddMachine{
		Name: m.Name, MACs: m.MAC, UUID: m.UUID, DiskSerials: m.DiskSerial, BMCURL: m.BMC.URL, BMCUser: m.BMC.User,
		BMCPassword: password, BMCCertificateSHA256: digest(m.BMC.CertSHA256), From: m.From, Firmware: m.Firmware, Place: m.Place,
	})
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) { fmt.Fprintf(w, "machine %s added as %s\n", out.Name, out.NodeID) })
}

// digest takes openssl's form of a digest too.
func digest(s string) string { return strings.ToLower(strings.ReplaceAll(s, ":", "")) }

type machineAdopt struct {
	Name       string   `arg:"" help:"Name of the machine: a-z, 0-9, '.', '-'."`
	MAC        []string `name:"mac" help:"MAC of each of its network cards; repeat or separate by commas. Without it the machine is known already."`
	From       string   `placeholder:"FOUND" help:"A discovered machine that becomes this one."`
	Reason     string   `help:"Why, for those who meet its protection."`
	UUID       string   `name:"uuid" help:"SMBIOS system UUID, where known."`
	DiskSerial []string `sep:"none" help:"Serial number of each of its disks, where known. Repeat for more."`
	BMC        struct {
		URL          string `name:"url" placeholder:"https://ADDRESS" help:"The management controller, where known; then the other three too."`
		User         string `help:"Its user."`
		PasswordFile string `placeholder:"FILE" help:"File that holds the user's password; - is standard input."`
		CertSHA256   string `name:"cert-sha256" placeholder:"HEX" help:"SHA-256 of the controller's certificate."`
	} `embed:"" prefix:"bmc-"`
}

// Run implements the command.
func (m *machineAdopt) Run(c *call) error {
	if m.From != "" || len(m.MAC) == 0 {
		return m.known(c)
	}
	in := api.AddMachine{Name: m.Name, MACs: m.MAC, UUID: m.UUID, DiskSerials: m.DiskSerial, Adopt: true,
		BMCURL: m.BMC.URL, BMCUser: m.BMC.User, BMCCertificateSHA256: digest(m.BMC.CertSHA256)}
	if m.BMC.PasswordFile != "" {
		var err error
		if in.BMCPassword, err = readPassword(m.BMC.PasswordFile, c.Stdin); err != nil {
			return fault.New(fault.Invalid, "adopt machine", m.Name, err, "put the password alone into a file and name it with --bmc-password-file")
		}
	}
	out, err := c.client.AddMachine(c.ctx, in)
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) { showAdopted(w, out) })
}

// known adopts a machine that is recorded, or was discovered.
func (m *machineAdopt) known(c *call) error {
	if len(m.MAC) > 0 || m.UUID != "" || len(m.DiskSerial) > 0 || m.BMC.URL != "" || m.BMC.User != "" || m.BMC.PasswordFile != "" || m.BMC.CertSHA256 != "" {
		return fault.New(fault.Usage, "adopt machine", m.Name, errors.New("a machine that is known is adopted as it is recorded"),
			"leave the rest out and correct the record with `firstlight machine set`")
	}
	name, in := m.Name, api.Adopt{Reason: m.Reason}
	if m.From != "" {
		name, in.Name = m.From, m.Name
	}
	out, err := c.client.Adopt(c.ctx, name, in)
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) { showAdopted(w, out) })
}

func showAdopted(w io.Writer, m api.Machine) {
	fmt.Fprintf(w, "machine %s adopted as %s; it is protected: nothing touches its disks before `firstlight machine unprotect %s`\n", m.Name, m.NodeID, m.Name)
}

type machineProtect struct {
	Name   string `arg:"" help:"Name of the machine."`
	Reason string `help:"Why, for those who meet the refusal."`
}

// Run implements the command.
func (m *machineProtect) Run(c *call) error {
	out, err := c.client.Protect(c.ctx, m.Name, api.Reason{Reason: m.Reason})
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) {
		fmt.Fprintf(w, "machine %s is %s\n", out.Name, plain(out.Protected.String()))
		if out.Workflow != nil && out.Workflow.State.Open() {
			fmt.Fprintf(w, "its workflow is open and fails before its next order that touches a disk; an order already in hand goes on: see `firstlight machine show %s`, `firstlight cancel %s`\n",
				out.Name, out.Name)
		}
	})
}

type machineUnprotect struct {
	Name string `arg:"" help:"Name of the machine."`
}

// Run implements the command.
func (m *machineUnprotect) Run(c *call) error {
	out, err := c.client.Unprotect(c.ctx, m.Name, api.Act{})
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) {
		fmt.Fprintf(w, "machine %s is not protected any more: `firstlight provision` may wipe its recorded disks\n", out.Name)
	})
}

type discovered struct{}

// Run implements the command.
func (*discovered) Run(c *call) error {
	found, err := c.client.Discovered(c.ctx)
	if err != nil {
		return err
	}
	return c.print(found, func(w io.Writer) { listDiscovered(w, found) })
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
	return c.print(out, func(w io.Writer) { showMachine(w, out.Machine) })
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
