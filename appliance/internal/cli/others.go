package cli

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"runtime/debug"

	"firstlight/appliance"
	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/config"
	"firstlight/appliance/internal/fault"
)

type serve struct {
	Config string `required:"" placeholder:"FILE" help:"Configuration, TOML; the appliance's README lists the keys."`
}

// Run implements the command.
func (s *serve) Run(c *call) error {
	cfg, err := config.Load(s.Config)
	if err != nil {
		return fault.New(fault.Invalid, "start the appliance", s.Config, err, "correct the configuration and start it again")
	}
	app, err := appliance.New(appliance.Config{
		File: cfg, Version: version().Version, Log: slog.New(slog.NewTextHandler(c.Stderr, nil)),
		Ready: func() { fmt.Fprintln(c.Stderr, "firstlight: ready") }, Console: c.Stderr,
	})
	if err == nil {
		err = app.Run(c.ctx)
	}
	if err == nil {
		return nil
	}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f
	}
	return fault.New(fault.Internal, "run the appliance", cfg.SiteID, err, "remove the cause and start it again; it takes up where it stopped")
}

type imageAdd struct {
	Name string `arg:"" help:"Name for the image."`
	Dir  string `arg:"" help:"Output directory of imagebuild pack."`
}

// Run implements the command.
func (i *imageAdd) Run(c *call) error {
	dir, err := filepath.Abs(i.Dir)
	if err != nil {
		return fault.New(fault.Usage, "add image", i.Name, err, "name an existing directory")
	}
	out, err := c.client.AddImage(c.ctx, api.AddImage{Name: i.Name, Dir: dir})
	if err != nil {
		return err
	}
	return c.print(out, func(w io.Writer) { showAdded(w, out) })
}

type imageList struct{}

// Run implements the command.
func (*imageList) Run(c *call) error {
	all, err := c.client.Images(c.ctx)
	if err != nil {
		return err
	}
	return c.print(all, func(w io.Writer) { listImages(w, all) })
}

type events struct {
	Machine string `help:"Only of this machine."`
	Limit   int    `help:"How many of the newest." default:"200"`
	Follow  bool   `short:"f" help:"Go on with what happens, until interrupted."`
}

// Run implements the command.
func (e *events) Run(c *call) error {
	if e.Follow {
		return c.followEvents(e.Machine, e.Limit)
	}
	all, err := c.client.Events(c.ctx, e.Machine, e.Limit)
	if err != nil {
		return err
	}
	return c.print(all, func(w io.Writer) { listEvents(w, all) })
}

// versionInfo is both the command and its answer.
type versionInfo struct {
	Version string `kong:"-" json:"version"`
	Commit  string `kong:"-" json:"commit"`
	Go      string `kong:"-" json:"go"`
}

// Run implements the command.
func (*versionInfo) Run(c *call) error {
	v := version()
	return c.print(v, func(w io.Writer) { fmt.Fprintf(w, "firstlight %s (commit %s, %s)\n", v.Version, v.Commit, v.Go) })
}

// version is what the Go tool wrote into the program.
func version() versionInfo {
	v := versionInfo{Version: "devel", Commit: "unknown", Go: "unknown"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Go = info.GoVersion
	if m := info.Main.Version; m != "" && m != "(devel)" {
		v.Version = m
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Commit = s.Value
		}
	}
	return v
}
