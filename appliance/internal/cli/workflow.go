package cli

import (
	"fmt"
	"io"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/fleet"
)

type provision struct {
	Name       string   `arg:"" help:"Name of the machine."`
	Image      string   `required:"" help:"Name of the image."`
	PauseAfter []string `placeholder:"STEP,…" help:"Steps after which to wait for resume, such as wipe or deploy."`
	DryRun     bool     `help:"Print which machine and which disks would be written, and send nothing."`
	Reinstall  bool     `help:"The machine is in use: wipe and install it all the same. A protected machine stays refused."`
	orderOf
}

// Run implements the command.
func (p *provision) Run(c *call) error {
	order := api.Provision{Image: p.Image, PauseAfter: p.PauseAfter, Reinstall: p.Reinstall}
	if p.DryRun {
		out, err := c.client.DryRun(c.ctx, p.Name, order)
		if err != nil {
			return err
		}
		return c.print(out, func(w io.Writer) { showPreview(w, out) })
	}
	var err error
	if order.Disks, order.Version, err = p.asked(c, "provision", p.Name, order); err != nil {
		return err
	}
	out, err := c.client.Provision(c.ctx, p.Name, order)
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
	out, err := c.client.Resume(c.ctx, r.Name, api.Act{})
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) { fmt.Fprintf(w, "machine %s goes on\n", out.Name) })
}

type cancel struct {
	Name   string `arg:"" help:"Name of the machine."`
	Reason string `help:"Why, for the record."`
}

// Run implements the command.
func (x *cancel) Run(c *call) error {
	out, err := c.client.Cancel(c.ctx, x.Name, api.Reason{Reason: x.Reason})
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) { showCancel(w, out.Machine) })
}

func showCancel(w io.Writer, m fleet.Machine) {
	x := m.Cancel
	switch {
	case x == nil:
		fmt.Fprintf(w, "machine %s is %s: its workflow ended by itself meanwhile\n", m.Name, m.State)
	case m.State == fleet.MachineCancelling:
		fmt.Fprintf(w, "machine %s is still being cancelled at step %s", m.Name, x.Step)
		if m.Waiting != nil {
			fmt.Fprintf(w, ": waiting for %s%s", plain(m.Waiting.For), until(m.Waiting.Until))
		}
		fmt.Fprintln(w)
	default:
		fmt.Fprintf(w, "machine %s is %s at step %s: %s\n", m.Name, m.State, x.Step, plain(x.Outcome))
	}
	for _, d := range m.DiskState {
		fmt.Fprintf(w, "disk %s holds %s: %s\n", plain(d.Serial), plain(d.Holds), plain(d.Why))
	}
	if x != nil {
		fmt.Fprintf(w, "next: %s\n", plain(x.Next))
	}
}

type stopAll struct {
	Reason string `help:"Why, for those who find everything stopped."`
}

// Run implements the command.
func (s *stopAll) Run(c *call) error {
	out, err := c.client.StopAll(c.ctx, s.Reason)
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) { showStopped(w, out) })
}

type resumeAll struct{}

// Run implements the command.
func (*resumeAll) Run(c *call) error {
	out, err := c.client.ResumeAll(c.ctx)
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) { showStopped(w, out) })
}

func showStopped(w io.Writer, s api.Stopped) {
	if s.Stop != nil {
		fmt.Fprintf(w, "%s\n", plain(s.Stop.String()))
	} else {
		fmt.Fprintln(w, "nothing is stopped any more")
	}
	if len(s.Workflows) == 0 {
		fmt.Fprintln(w, "no workflow was open")
	}
	for _, z := range s.Workflows {
		fmt.Fprintf(w, "%s: %s\n", z.Machine, plain(z.Text))
	}
	if s.Stop != nil {
		fmt.Fprintln(w, "next: firstlight resume-all, or firstlight resume NAME for one machine; no new workflow begins before")
	}
}
