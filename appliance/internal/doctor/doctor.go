// Package doctor looks at what the appliance stands on and says what to change: its network, ports, clock, disk, files, and who else
// answers boots on its segment.
//
// It is for the command and for the page, and works with and without a running appliance. It changes nothing: it writes one small
// file in the data directory to time the disk, and asks the boot segment as a machine would. A check that cannot be made is skipped
// and says why; it never passes.
//
// For appliance only.
package doctor

import (
	"context"
	"time"

	"firstlight/appliance/internal/config"
	"firstlight/appliance/internal/store"
)

// State is how a check ended.
type State string

// The states, from well to worst; skipped is none of them.
const (
	OK      State = "ok"
	Warn    State = "warn"
	Fail    State = "fail"
	Skipped State = "skipped"
)

// Check is one thing that was looked at. All texts are one line.
type Check struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	// What is the evidence: what was found, with numbers.
	What string `json:"what"`
	// Why says what is wrong with it, or why it was not looked at; Next what to change. Both are empty for one that is well.
	Why  string `json:"why"`
	Next string `json:"next"`
}

// Config says what to look at.
type Config struct {
	File *config.Config
	// Built is when this program's source was committed, zero where nobody knows: no right clock is before it.
	Built time.Time
	// Process is the appliance that runs, where the caller knows it; 0 looks for the one that holds the data directory.
	Process int
	// Space looks at the running store; nil where that is another process's.
	Space func() store.Space
	// Clock, Disk and Network are the host's where they are nil.
	Clock   Clock
	Disk    Disk
	Network Network
	// Listen is how long other DHCP servers have to answer; zero is listenFor.
	Listen time.Duration
}

// Run makes every check, in the order in which a person would. It takes a few seconds: other DHCP servers are waited for.
func Run(ctx context.Context, cfg Config) []Check {
	if cfg.Clock == nil {
		cfg.Clock = hostClock{}
	}
	if cfg.Disk == nil {
		cfg.Disk = hostDisk{}
	}
	if cfg.Network == nil {
		cfg.Network = hostNetwork{}
	}
	if cfg.Listen == 0 {
		cfg.Listen = listenFor
	}
	var out []Check
	holder := cfg.Process
	if holder == 0 {
		holder = serving(cfg.File.DataDir, procRoot)
	}
	out = append(out, cfg.networkChecks()...)
	out = append(out, cfg.portChecks(ctx, holder)...)
	out = append(out, cfg.otherServers(ctx))
	out = append(out, cfg.clockChecks()...)
	out = append(out, cfg.diskChecks()...)
	out = append(out, cfg.storeCheck())
	return append(out, cfg.fileChecks()...)
}

// Worst is the state of the whole: the worst of those that were looked at.
func Worst(checks []Check) State {
	worst := OK
	for _, c := range checks {
		if c.State == Fail || c.State == Warn && worst == OK {
			worst = c.State
		}
	}
	return worst
}

func well(name, what string) Check { return Check{Name: name, State: OK, What: what} }

func skipped(name, why string) Check { return Check{Name: name, State: Skipped, Why: why} }

func bad(state State, name, what, why, next string) Check {
	return Check{Name: name, State: state, What: what, Why: why, Next: next}
}

const noBoot = "boot.enabled = false: this appliance serves no boots itself"
