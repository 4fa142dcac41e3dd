// Package appliance puts the control plane of one site together and runs it: store, keys, gateway, workflows, API and the
// embedded site agent, in one process.
//
// It is for the firstlight command (rank 3: it may import everything but testbed). It holds no logic of its own: what a part does
// is in appliance/internal and in the other folders, and this package says only who gets what, who starts first and who ends
// last. README.md has the picture.
package appliance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"firstlight/appliance/internal/config"
	"firstlight/appliance/internal/telemetry"
)

// endTimeout bounds how long the parts take to end once the context has; closing the store comes after, and 10 s is the promise.
const endTimeout = 7 * time.Second

// Config is what an Appliance is made of.
type Config struct {
	File *config.Config
	// Version is told to agents and people; empty is "devel".
	Version string
	// Ready is called once everything answers; nil is nobody.
	Ready func()
	// Console is where whoever starts it is told what is in no log: where the page is, and the one-time code of the first
	// administrator. nil discards.
	Console io.Writer
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Observe is told of every write to the store, before it is made and when it is durable, from the goroutine that writes and goes
	// on when Observe returns. It is for judges that end the process at a chosen moment; nil is nobody.
	Observe func(Write)
	// Log is where to tell; nil discards.
	Log *slog.Logger
}

// Write is one write to the store.
type Write struct {
	Key string
	// Durable is false before the write is made, and true once it survives a crash. A write that fails never becomes durable.
	Durable bool
}

// Load reads a configuration file, for Config.File.
func Load(path string) (*config.Config, error) { return config.Load(path) }

// Appliance is one site's control plane. Make it with New and run it once.
type Appliance struct {
	cfg Config
}

// New checks the configuration; it opens nothing yet.
func New(cfg Config) (*Appliance, error) {
	if cfg.File == nil {
		return nil, errors.New("appliance: no configuration")
	}
	if cfg.Version == "" {
		cfg.Version = "devel"
	}
	if cfg.Ready == nil {
		cfg.Ready = func() {}
	}
	if cfg.Console == nil {
		cfg.Console = io.Discard
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Log = slog.New(telemetry.LogHandler(cfg.Log.Handler()))
	return &Appliance{cfg: cfg}, nil
}

// Run serves until ctx ends (nil, within 10 s) or a part cannot go on. One process at a time runs on a data directory.
func (a *Appliance) Run(ctx context.Context) error {
	dir := a.cfg.File.DataDir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	p, err := a.open(ctx)
	if err != nil {
		return err
	}
	return p.run(ctx)
}

// lock takes the data directory for this process; the kernel gives it back however the process ends.
func lock(path string) (func(), error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock data directory %s: another appliance runs on it: %w", filepath.Dir(path), err), f.Close())
	}
	return func() { f.Close() }, nil
}
