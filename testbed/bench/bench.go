// Package bench measures the product beside its peers, as the project's table of targets says: both in one run, in turns, medians of
// the rounds, the processor time of the server alone.
//
// It is for `testbed bench`. The servers are the real programs in network namespaces: `firstlight serve`, and its site agent as a
// process of its own (`firstlight join`); the peers are Debian's, unpacked by peers.sh and started here by hand. Nothing in it is a
// test: no speed fails a build. It measures what it runs on; a machine that others use makes all figures worse, and ratios less so.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// Rounds of a run, without word to the contrary, and the least.
const (
	DefaultRounds = 5
	MinRounds     = 3
)

// ErrUsage is wrapped by errors for arguments that make no sense.
var ErrUsage = errors.New("usage")

// Options say what to measure.
type Options struct {
	// Bin is the folder of the project's programs, with the peers in its folder peers.
	Bin string
	// Only lists the targets; empty is all.
	Only []string
	// Rounds is how often ours and peer take turns.
	Rounds int
	// Out takes the progress.
	Out io.Writer
}

// target is a row of the table of targets that can be measured.
type target struct {
	id, what string
	// net says that it needs a network, site that it needs the site's agent in it.
	net, site bool
	measure   func(*bench, context.Context) error
}

// targets in the order of the table.
func targets() []target {
	return []target{
		{"P1", "TFTP beside tftpd-hpa, atftpd and dnsmasq", true, true, (*bench).measureTFTP},
		{"P2", "proxy-DHCP beside dnsmasq", true, true, (*bench).measureDHCP},
		{"P3", "boot and image files by HTTP beside nginx", true, true, (*bench).measureHTTP},
		{"P14", "one machine from power-on to active in QEMU", false, false, (*bench).measureProvision},
		{"page", "the list and the page at 10,000 machines", false, false, (*bench).measurePage},
	}
}

// IDs lists what can be measured.
func IDs() []string {
	var out []string
	for _, t := range targets() {
		out = append(out, t.id)
	}
	return out
}

// bench is one run.
type bench struct {
	Options
	room    *room
	content content
	site    *process
	results []Result
}

// Run measures and returns what was measured; with an error that is what was measured before it.
func Run(ctx context.Context, o Options) ([]Result, error) {
	if o.Rounds == 0 {
		o.Rounds = DefaultRounds
	}
	if o.Rounds < MinRounds {
		return nil, fmt.Errorf("%w: %d rounds: want at least %d", ErrUsage, o.Rounds, MinRounds)
	}
	for _, id := range o.Only {
		if !slices.ContainsFunc(IDs(), func(known string) bool { return strings.EqualFold(id, known) }) {
			return nil, fmt.Errorf("%w: target %q: want some of %s", ErrUsage, id, strings.Join(IDs(), ", "))
		}
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("measure: network namespaces need root: run it as root")
	}
	b := &bench{Options: o}
	var errs []error
	for _, t := range targets() {
		if !b.wanted(t.id) || ctx.Err() != nil {
			continue
		}
		// A target that cannot be measured leaves the others.
		if err := b.one(ctx, t); err != nil {
			errs = append(errs, fmt.Errorf("measure %s: %w", t.id, err))
		}
	}
	return b.results, errors.Join(append(errs, ctx.Err())...)
}

func (b *bench) wanted(id string) bool {
	return len(b.Only) == 0 || slices.ContainsFunc(b.Only, func(o string) bool { return strings.EqualFold(o, id) })
}

// one measures a target in a network of its own, so that none finds what another left behind.
func (b *bench) one(ctx context.Context, t target) (err error) {
	b.say("%s: %s", t.id, t.what)
	if !t.net {
		return t.measure(b, ctx)
	}
	if b.room, err = newRoom(ctx, b.Bin, b.say); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.room.close()) }()
	if t.site {
		if b.content, err = b.room.fill(); err != nil {
			return err
		}
		if b.site, err = b.room.startSite(ctx, b.content); err != nil {
			return err
		}
	}
	return t.measure(b, ctx)
}

// rounds runs f as often as is wanted; f measures ours and then each peer, and appends one figure to each series.
func (b *bench) rounds(ctx context.Context, f func() error) error {
	for range b.Rounds {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) add(results ...Result) { b.results = append(b.results, results...) }

// say tells of the progress.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.Out, time.Now().Format("15:04:05 ")+format+"\n", args...)
}
