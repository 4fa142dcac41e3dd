package cli

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/fault"
)

type usersList struct{}

// Run implements the command.
func (*usersList) Run(c *call) error {
	all, err := c.client.Users(c.ctx)
	if err != nil {
		return err
	}
	return c.print(all, func(w io.Writer) {
		if len(all) == 0 {
			fmt.Fprintln(w, "no users yet; add one with `firstlight users add`")
			return
		}
		t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		defer t.Flush()
		fmt.Fprintln(t, "NAME\tROLE\tCREATED\tLAST LOGIN")
		for _, u := range all {
			last := "never"
			if !u.LastLogin.IsZero() {
				last = day(u.LastLogin)
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", plain(u.Name), u.Role, day(u.Created), last)
		}
	})
}

type usersAdd struct {
	Name         string `arg:"" help:"Name of the user."`
	Role         string `required:"" placeholder:"ROLE" help:"viewer, technician, operator or admin."`
	PasswordFile string `required:"" placeholder:"FILE" help:"File that holds the password; - is standard input."`
}

// Run implements the command.
func (u *usersAdd) Run(c *call) error {
	p, err := readPassword(u.PasswordFile, c.Stdin)
	if err != nil {
		return fault.New(fault.Invalid, "add user", u.Name, err, "put the password alone into a file and name it with --password-file")
	}
	out, err := c.client.AddUser(c.ctx, api.AddUser{Name: u.Name, Role: u.Role, Password: p})
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) { fmt.Fprintf(w, "user %s added as %s\n", plain(out.Name), out.Role) })
}

type usersSet struct {
	Name         string `arg:"" help:"Name of the user."`
	Role         string `placeholder:"ROLE" help:"viewer, technician, operator or admin."`
	PasswordFile string `placeholder:"FILE" help:"File that holds the new password; - is standard input."`
}

// Run implements the command.
func (u *usersSet) Run(c *call) error {
	in := api.SetUser{Role: u.Role}
	if u.PasswordFile != "" {
		var err error
		if in.Password, err = readPassword(u.PasswordFile, c.Stdin); err != nil {
			return fault.New(fault.Invalid, "set user", u.Name, err, "put the password alone into a file and name it with --password-file")
		}
	}
	out, err := c.client.SetUser(c.ctx, u.Name, in)
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) {
		fmt.Fprintf(w, "user %s is %s; sessions that were open have ended\n", plain(out.Name), out.Role)
	})
}

type usersRemove struct {
	Name string `arg:"" help:"Name of the user."`
	Yes  bool   `help:"Do not ask."`
}

// Run implements the command.
func (u *usersRemove) Run(c *call) error {
	if err := c.sure("remove user", u.Name, "user "+plain(u.Name)+" will be removed", u.Yes); err != nil {
		return err
	}
	out, err := c.client.RemoveUser(c.ctx, u.Name)
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) {
		fmt.Fprintf(w, "user %s is removed; sessions that were open have ended\n", plain(out.Name))
	})
}

type tokensList struct{}

// Run implements the command.
func (*tokensList) Run(c *call) error {
	all, err := c.client.Tokens(c.ctx)
	if err != nil {
		return err
	}
	return c.print(all, func(w io.Writer) {
		if len(all) == 0 {
			fmt.Fprintln(w, "no tokens yet; make one with `firstlight tokens add`")
			return
		}
		t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		defer t.Flush()
		fmt.Fprintln(t, "NAME\tROLE\tBY\tEXPIRES\tUSED")
		for _, k := range all {
			used := "never"
			if !k.Used.IsZero() {
				used = day(k.Used)
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", plain(k.Name), k.Role, plain(k.By), day(k.Expires), used)
		}
	})
}

type tokensAdd struct {
	Name string        `arg:"" help:"Name for the token."`
	Role string        `required:"" placeholder:"ROLE" help:"viewer, technician, operator or admin."`
	Life time.Duration `default:"2160h" help:"How long it is good."`
}

// Run implements the command. The value is the answer's one line on standard output, so that it can go into a file.
func (k *tokensAdd) Run(c *call) error {
	out, err := c.client.MintToken(c.ctx, api.MintToken{Name: k.Name, Role: k.Role, LifeS: int64(k.Life / time.Second)})
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) {
		fmt.Fprintf(c.Stderr, "token %s is %s until %s; its value is shown this once\n", plain(out.Name), out.Role, day(out.Expires))
		fmt.Fprintln(w, out.Value)
	})
}

type tokensRevoke struct {
	Name string `arg:"" help:"Name of the token."`
}

// Run implements the command.
func (k *tokensRevoke) Run(c *call) error {
	out, err := c.client.RevokeToken(c.ctx, k.Name)
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) { fmt.Fprintf(w, "token %s is not good any more\n", plain(out.Name)) })
}

type audit struct {
	Limit int `help:"How many of the newest." default:"50"`
}

// Run implements the command.
func (a *audit) Run(c *call) error {
	all := []api.AuditEntry{}
	var before uint64
	for len(all) < a.Limit || a.Limit < 1 {
		page, err := c.client.Audit(c.ctx, min(max(a.Limit-len(all), 0), api.MaxAudit), before)
		if err != nil {
			return err
		}
		all = append(all, page.Entries...)
		if before = page.Before; before == 0 {
			break
		}
	}
	return c.print(all, func(w io.Writer) {
		t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		defer t.Flush()
		for _, e := range all {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", day(e.Time), plain(e.Who), dash(plain(e.From)), plain(e.What), dash(plain(e.Object)), e.Outcome, plain(e.Detail))
		}
		if len(all) == 0 {
			fmt.Fprintln(w, "nobody did anything yet")
		}
	})
}
