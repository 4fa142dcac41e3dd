package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"firstlight/appliance"
	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/config"
	"firstlight/appliance/internal/fault"
)

type joinToken struct {
	Life time.Duration `default:"10m" help:"How long it is good; it is good once."`
}

// Run implements the command. The answer is JSON in any case: it is for a file that goes to the agent's host.
func (j *joinToken) Run(c *call) error {
	out, err := c.client.MintJoin(c.ctx, api.MintJoin{LifeS: int64(j.Life / time.Second)})
	if err != nil {
		return err
	}
	fmt.Fprintf(c.Stderr, "this token is good once, until %s, for the site's agent: firstlight join FILE --config SITE.toml\n", day(out.Expires))
	if err := json.NewEncoder(c.Stdout).Encode(out); err != nil {
		return fault.Of(err, "print the token", "")
	}
	return nil
}

type join struct {
	Token  string `arg:"" optional:"" help:"File of join-token; - is standard input. Left out by an agent that joined before."`
	Config string `required:"" placeholder:"FILE" help:"Configuration of the agent, TOML; the appliance's README lists the keys."`
}

// Run implements the command.
func (j *join) Run(c *call) error {
	const op = "run the site agent"
	cfg, err := config.LoadSite(j.Config)
	if err != nil {
		return fault.New(fault.Invalid, op, j.Config, err, "correct the configuration and start it again")
	}
	sc := appliance.SiteConfig{File: cfg, Version: version().Version, Log: slog.New(slog.NewTextHandler(c.Stderr, nil))}
	switch {
	case j.Token == "-":
		sc.Token = c.Stdin
	case j.Token != "":
		f, err := os.Open(j.Token)
		if err != nil {
			return fault.New(fault.Invalid, op, j.Config, err, "make a token with `firstlight join-token` at the appliance and bring its file here")
		}
		defer f.Close()
		sc.Token = io.Reader(f)
	}
	if err := appliance.RunSite(c.ctx, sc); err != nil {
		return fault.New(fault.Internal, op, cfg.Boot.Interface, err, "remove the cause and start it again; a token that was used needs a new one")
	}
	return nil
}
