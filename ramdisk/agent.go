// Package ramdisk is the machine agent: the program that inspects, wipes, tests and images a machine from its RAM disk (role
// ramdisk), and that stays on the deployed system as its node agent (role node).
//
// It is for cmd/machine-agent; what it does is in internal/. It may import public packages of gateway-client and imagebuild, and never
// site. README.md draws the way of one boot.
package ramdisk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"firstlight/gateway-client/envelope"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/gateway-client/session"
	"firstlight/ramdisk/internal/identity"
	"firstlight/ramdisk/internal/inventory"
	"firstlight/ramdisk/internal/wipe"
)

// Role is what the agent is on this machine.
type Role string

// Roles.
const (
	// RAMDisk runs once per boot from memory and ends in a jump or a restart.
	RAMDisk Role = "ramdisk"
	// Node runs for good on the deployed system.
	Node Role = "node"
)

// Where things are unless Config says otherwise.
const (
	// OverlayDir is where the site's and the boot's overlay initrds put their files.
	OverlayDir = "/etc/firstlight"
	// RAMDiskState keeps identity and journal of one boot, in memory.
	RAMDiskState = "/run/firstlight/state"
)

// Config is what the agent needs to know at its start.
type Config struct {
	Role Role
	// Version is this program's, for the gateway.
	Version string
	// StateDir holds key, certificates and journal. Empty in role ramdisk means RAMDiskState; role node requires it.
	StateDir string
	// OverlayDir is used in role ramdisk; empty means OverlayDir.
	OverlayDir string
	// ConfigFile is the node's config.toml; used in role node.
	ConfigFile string
	// JoinOnly makes a node agent end once it has an identity.
	JoinOnly bool
	// Say tells a person at the machine; it must be safe from several goroutines. nil is nobody.
	Say func(format string, args ...any)
	// Log is where the session tells; nil discards.
	Log *slog.Logger
}

// Agent is one machine's agent.
type Agent struct {
	cfg    Config
	p      platform
	ledger wipe.Ledger
	boot   string
	claims inventory.Claims
	found  time.Time
	// offset is added to the machine's clock, in nanoseconds, while that clock is not to be believed.
	offset atomic.Int64
	// lines go to the appliance.
	lines session.Lines
}

// now is the clock against which everything is checked.
func (a *Agent) now() time.Time { return a.p.now().Add(time.Duration(a.offset.Load())) }

// New checks the configuration. Nothing is touched before Run.
func New(cfg Config) (*Agent, error) {
	return newAgent(cfg, linux())
}

func newAgent(cfg Config, p platform) (*Agent, error) {
	switch {
	case cfg.Role == RAMDisk:
		if cfg.StateDir == "" {
			cfg.StateDir = RAMDiskState
		}
		if cfg.OverlayDir == "" {
			cfg.OverlayDir = OverlayDir
		}
	case cfg.Role != Node:
		return nil, fmt.Errorf("machine agent: role %q: want %q or %q", cfg.Role, RAMDisk, Node)
	case cfg.StateDir == "" || cfg.ConfigFile == "":
		return nil, errors.New("machine agent: role node needs a state folder and a configuration file")
	}
	if cfg.Say == nil {
		cfg.Say = func(string, ...any) {}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Agent{cfg: cfg, p: p}, nil
}

// Run runs the role until ctx ends. In role ramdisk it returns an error only after it has said why and asked the kernel to restart;
// in role node it returns when the gateway refuses the node for good.
func (a *Agent) Run(ctx context.Context) error {
	a.boot = inventory.BootID(a.p.proc)
	if a.cfg.Role == Node {
		return a.runNode(ctx)
	}
	return a.runRAMDisk(ctx)
}

// say tells the person at the machine and, once there is a session, the people at the appliance.
func (a *Agent) say(format string, args ...any) {
	a.cfg.Say(format, args...)
	a.lines.Add(a.now(), fmt.Sprintf(format, args...))
}

// hold runs the session with what was joined, until ctx ends or the gateway refuses for good. heard is told the gateway's time of
// every session.
func (a *Agent) hold(ctx context.Context, c session.Config, heard func(server time.Time)) error {
	c.BootID, c.Version, c.Log = a.boot, a.cfg.Version, a.cfg.Log
	c.JournalPath = a.cfg.StateDir + "/journal.db"
	c.Hardware = claimsMessage(a.claims, a.found)
	c.Inventory = func(context.Context) (map[string][]byte, error) { return sections(a.p) }
	c.Now = a.now
	c.Lines = &a.lines
	welcomed := false
	c.OnWelcome = func(w *agentv1.Welcome) {
		if w.ServerTime.IsValid() {
			a.correctClock(w.ServerTime.AsTime())
			heard(w.ServerTime.AsTime())
		}
		if !welcomed {
			a.say("session: connected to the gateway as %s; waiting for commands", c.Identity.NodeID)
		}
		welcomed = true
	}
	s, err := session.New(c)
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// correctClock follows the gateway's clock once the machine's is further away than the role's slack.
func (a *Agent) correctClock(server time.Time) {
	slack := clockSlack
	if a.cfg.Role == Node {
		slack = nodeClockSlack
	}
	off := server.Sub(a.p.now())
	if off.Abs() <= slack {
		a.offset.Store(0)
		return
	}
	if err := a.p.setClock(server); err != nil {
		a.offset.Store(int64(off))
		a.say("the clock is %s off and could not be set: %v", off.Round(time.Second), err)
		return
	}
	a.offset.Store(0)
	a.say("clock corrected by %s to the gateway's", off.Round(time.Second))
}

const (
	// clockSlack is how far the RAM disk's clock may be from the gateway's.
	clockSlack = 2 * time.Second
	// nodeClockSlack is the same for a deployed system, whose own time service has the first word.
	nodeClockSlack = 5 * time.Minute
)

// handler wraps a command: it is said aloud, its progress too, and a panic in it is its failure and nobody else's.
func (a *Agent) handler(lane commonv1.Lane, run func(context.Context, *session.Call) (proto.Message, error)) session.Handler {
	return session.Handler{Lane: lane, Run: func(ctx context.Context, c *session.Call) (m proto.Message, err error) {
		start := time.Now()
		a.say("command %s: started (%s)", c.Kind, c.CommandID)
		defer func() {
			if v := recover(); v != nil {
				m, err = nil, fmt.Errorf("%s: internal error: %v", c.Kind, v)
			}
			took := time.Since(start).Round(100 * time.Millisecond)
			if err != nil {
				a.say("command %s: FAILED after %s: %v", c.Kind, took, err)
			} else {
				a.say("command %s: done after %s", c.Kind, took)
			}
		}()
		return run(ctx, c)
	}}
}

// step is what a command does now: what for people, with numbers where they help, and the phase, which changes rarely.
type step struct{ what, phase string }

// progress tells the gateway every step and the console some of them: each new phase, and one line every consoleEvery.
func (a *Agent) progress(c *session.Call, unit string) func(s step, done, total int64) {
	var mu sync.Mutex
	var last time.Time
	var phase string
	return func(s step, done, total int64) {
		if c.Progress != nil {
			c.Progress(&agentv1.Progress{What: s.what, Done: uint64(max(done, 0)), Total: uint64(max(total, 0)), Unit: unit})
		}
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); s.phase != phase || now.Sub(last) >= consoleEvery {
			last, phase = now, s.phase
			if total > 0 && !strings.Contains(s.what, "%") {
				a.say("command %s: %s, %d %%", c.Kind, s.what, percent(done, total))
			} else {
				a.say("command %s: %s", c.Kind, s.what)
			}
		}
	}
}

func percent(n, of int64) int64 { return int64(float64(n) / float64(of) * 100) }

// consoleEvery is how often a command's progress is said at the console.
const consoleEvery = 5 * time.Second

// imageRoots are the roots to which image signers chain: those of the command signers, with another purpose.
func imageRoots(id *session.Identity) (envelope.Roots, error) {
	return envelope.ParseRoots(id.Trust.GetCommandSigningRoots())
}

func openState(dir string) (*identity.Store, error) { return identity.Open(dir) }
