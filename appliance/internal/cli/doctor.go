package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"firstlight/appliance/internal/config"
	"firstlight/appliance/internal/doctor"
	"firstlight/appliance/internal/fault"
)

type doctorCommand struct {
	Config string `required:"" placeholder:"FILE" help:"The appliance's configuration."`
}

// Run implements the command. It needs no appliance: it looks at the host itself.
func (d *doctorCommand) Run(c *call) error {
	const op = "look at what the appliance stands on"
	file, err := config.Load(d.Config)
	if err != nil {
		return fault.New(fault.Invalid, op, d.Config, err, "correct the configuration; the appliance's README lists the keys")
	}
	checks := doctor.Run(c.ctx, doctor.Config{File: file, Built: doctor.Built()})
	if err := c.print(checks, func(w io.Writer) { printChecks(w, checks) }); err != nil {
		return err
	}
	var failed []string
	for _, k := range checks {
		if k.State == doctor.Fail {
			failed = append(failed, k.Name)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return fault.New(fault.Internal, op, file.SiteID, errors.New(strings.Join(failed, "; ")+": not as it must be"), "do what the lines marked FAIL say, and run the doctor again")
}

// printChecks writes a line for each check, and under one that is not well what is wrong and what to do.
func printChecks(w io.Writer, checks []doctor.Check) {
	for _, k := range checks {
		what := k.What
		if k.State == doctor.Skipped {
			what = "not looked at: " + k.Why
		}
		mark := string(k.State)
		if k.State != doctor.OK && k.State != doctor.Skipped {
			mark = strings.ToUpper(mark)
		}
		fmt.Fprintf(w, "%-8s%s: %s\n", mark, k.Name, what)
		if k.State == doctor.Warn || k.State == doctor.Fail {
			fmt.Fprintf(w, "        why:  %s\n        next: %s\n", k.Why, k.Next)
		}
	}
}
