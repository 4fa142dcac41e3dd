package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/fault"
)

type machines struct {
	Query string `arg:"" optional:"" help:"Found in serial, MAC in any notation, name, place, image, state, UUID or node id."`
	State string `placeholder:"STATE,…" help:"Only in these states; also need and working."`
	Sort  string `placeholder:"FIELD" help:"name, place, state, since, image or changed; --sort=-FIELD is descending."`
	Limit int    `help:"How many at most; 0 is all." default:"0"`
}

// Run implements the command.
func (m *machines) Run(c *call) error {
	out, err := m.all(c)
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) { listRows(w, out) })
}

// all reads page after page; counts and those that need a person are of the first.
func (m *machines) all(c *call) (api.MachinePage, error) {
	q := api.Query{Q: m.Query, State: m.State, Sort: m.Sort, Limit: api.MaxPage}
	if m.Limit > 0 {
		q.Limit = min(m.Limit, api.MaxPage)
	}
	out, err := c.client.Page(c.ctx, q)
	for err == nil && out.Next != "" && (m.Limit == 0 || len(out.Rows) < m.Limit) {
		var more api.MachinePage
		q.Cursor = out.Next
		if more, err = c.client.Page(c.ctx, q); err == nil {
			out.Rows, out.Next = append(out.Rows, more.Rows...), more.Next
		}
	}
	if m.Limit > 0 && len(out.Rows) > m.Limit {
		out.Rows = out.Rows[:m.Limit]
	}
	return out, err
}

func listRows(w io.Writer, p api.MachinePage) {
	if p.Counts["all"] == 0 {
		fmt.Fprintln(w, "no machines yet; add one with `firstlight machine add`")
		return
	}
	if p.Stop != nil {
		fmt.Fprintf(w, "%s\n  next: firstlight resume-all\n", plain(p.Stop.String()))
	}
	if n := p.Counts["need"]; n > 0 {
		fmt.Fprintf(w, "need you %d\n", n)
		for _, r := range p.NeedYou {
			fmt.Fprintf(w, "  %s: %s\n", r.Name, plain(r.Line))
			if r.Why != "" {
				fmt.Fprintf(w, "    why:  %s\n", plain(r.Why))
			}
			fmt.Fprintf(w, "    next: %s\n", plain(r.Next))
		}
	} else {
		fmt.Fprintln(w, "no machine needs you")
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	defer t.Flush()
	fmt.Fprintln(t, "NAME\tPLACE\tSTATE\tNOW\tIMAGE\tSERIAL")
	for _, r := range p.Rows {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Name, dash(plain(r.Place)), r.State, plain(r.Line), dash(r.Image), dash(plain(r.Serial)))
	}
	fmt.Fprintf(t, "%d of %d\n", len(p.Rows), p.Total)
}

type machineSet struct {
	Name       string    `arg:"" help:"Name of the machine."`
	Place      *string   `help:"Where people find it, such as rack and unit."`
	MAC        *[]string `name:"mac" help:"MAC of each network card that may boot; repeat or separate by commas."`
	UUID       *string   `name:"uuid" help:"SMBIOS system UUID."`
	DiskSerial *[]string `sep:"none" help:"Serial number of each disk that may be wiped; the first gets the image. Repeat for more."`
	Firmware   *string   `placeholder:"uefi|bios" help:"Firmware mode to order with a network boot."`
	BMC        struct {
		URL          *string `name:"url" placeholder:"https://ADDRESS" help:"The management controller."`
		User         *string `help:"Its user."`
		PasswordFile string  `placeholder:"FILE" help:"File that holds the user's password; - is standard input."`
		CertSHA256   *string `name:"cert-sha256" placeholder:"HEX" help:"SHA-256 of the controller's certificate."`
	} `embed:"" prefix:"bmc-"`
}

// Run implements the command.
func (m *machineSet) Run(c *call) error {
	in := api.SetMachine{Place: m.Place, MACs: m.MAC, UUID: m.UUID, DiskSerials: m.DiskSerial, Firmware: m.Firmware, BMCURL: m.BMC.URL, BMCUser: m.BMC.User}
	if m.BMC.CertSHA256 != nil {
		d := digest(*m.BMC.CertSHA256)
		in.BMCCertificateSHA256 = &d
	}
	if m.BMC.PasswordFile != "" {
		p, err := readPassword(m.BMC.PasswordFile, c.Stdin)
		if err != nil {
			return fault.New(fault.Invalid, "set machine", m.Name, err, "put the password alone into a file and name it with --bmc-password-file")
		}
		in.BMCPassword = &p
	}
	out, err := c.client.SetMachine(c.ctx, m.Name, in)
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) { fmt.Fprintf(w, "machine %s changed\n", out.Name) })
}

type machineRemove struct {
	Name string `arg:"" help:"Name of the machine."`
	Yes  bool   `help:"Do not ask."`
}

// Run implements the command.
func (m *machineRemove) Run(c *call) error {
	const op = "remove machine"
	seen, err := c.client.Machine(c.ctx, m.Name)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("machine %s (%s, disks %s) will be forgotten; nothing is done to it", seen.Name, seen.State, dash(plain(strings.Join(seen.DiskSerials, " "))))
	if err := c.sure(op, m.Name, what, m.Yes); err != nil {
		return err
	}
	out, err := c.client.RemoveMachine(c.ctx, m.Name, seen.Version)
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) { fmt.Fprintf(w, "machine %s is forgotten\n", out.Name) })
}

type retry struct {
	Name string `arg:"" help:"Name of the machine."`
	orderOf
}

// Run implements the command.
func (r *retry) Run(c *call) error {
	const op = "retry"
	m, err := c.client.Machine(c.ctx, r.Name)
	if err != nil {
		return err
	}
	if m.Workflow == nil {
		return fault.New(fault.Conflict, op, r.Name, errors.New("it never had a workflow"), "begin one with `firstlight provision "+r.Name+" --image IMAGE`")
	}
	disks, version, err := r.asked(c, op, r.Name, api.Provision{Image: m.Workflow.Image, PauseAfter: m.Workflow.PauseAfter})
	if err != nil {
		return err
	}
	out, err := c.client.Retry(c.ctx, r.Name, api.Retry{Disks: disks, Version: version})
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) {
		fmt.Fprintf(w, "machine %s is being provisioned again with image %s; follow it with `firstlight machine show %s`\n", out.Name, out.Image, out.Name)
	})
}
