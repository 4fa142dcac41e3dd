// Package demo shows the product on a machine without any hardware: an appliance with its page, and a virtual rack of three machines,
// one that is provisioned, one that nobody enrolled and one whose record is wrong.
//
// It is for testbed/cmd/testbed. It judges nothing: it uses the rack of package scenario and watches the appliance through its API, as
// any client would. What a person reads is made by [render], a pure function of what the API said. Everything is in bin/demo/run and in
// namespaces that carry this process's name: both are gone when Run returns, and the next Run takes away what a killed one left.
package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"firstlight/testbed/scenario"
)

// DefaultPort is where the page is on this machine's loopback, when nobody says otherwise and it is free.
const DefaultPort = 8080

// activeLimit bounds the time from the first order to the first machine that is active.
const activeLimit = 20 * time.Minute

// Options say how to show it.
type Options struct {
	// Bin holds firstlight, imagebuild, machine-agent and inputs; what the demo makes goes to its folder demo.
	Bin string
	// Port is the page's; 0 is DefaultPort, or any free one.
	Port int
	// Exit ends the demo once the first machine is active; otherwise it goes on until ctx ends.
	Exit bool
	Out  io.Writer
	// NoColor leaves colours out on a terminal too.
	NoColor bool
}

// The machines of the rack.
const (
	first   = "r1u01"
	unknown = "r1u02"
	wrong   = "r1u03"
)

// rack is the cabling list. The record of the last machine names a disk that is in no machine.
func rack() []scenario.RoomMachine {
	return []scenario.RoomMachine{
		{Name: first, Place: "rack 1, unit 1", Firmware: scenario.UEFI, Disk: "FLD-R1U01-A"},
		{Name: unknown, Firmware: scenario.BIOS, Disk: "FLD-R1U02-A", Unknown: true},
		{Name: wrong, Place: "rack 1, unit 3", Firmware: scenario.BIOS, Disk: "FLD-R1U03-A", Record: "FLD-R1U03-B"},
	}
}

// demo is one demo: what it was told, what it made, what it saw.
type demo struct {
	Options
	started time.Time
	screen  *screen
	folder  *folder
	past    past
	console console
	page    net.Listener
	room    *scenario.Room
	api     *client
	// seen are the machines of the rack, in its order.
	seen []seen
}

// Run shows the demo until ctx ends, which is how it is meant to end: nil, unless the first machine is not active by then. It needs
// root.
func Run(ctx context.Context, o Options) error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces and taps need root: run it as root")
	}
	d := &demo{Options: o, started: time.Now(), screen: newScreen(o.Out, o.NoColor)}
	f, err := openFolder(filepath.Join(o.Bin, "demo"))
	if err != nil {
		return err
	}
	d.folder, d.past = f, readPast(f.past())
	if f.leftover {
		d.say(markDone, "Took away what a demo that was killed had left")
	}
	err = d.show(ctx)
	switch {
	case ctx.Err() != nil && d.stands():
		err = nil
	case ctx.Err() != nil: // whatever else went wrong did so because of it
		err = errors.New("interrupted before the first machine was active")
	}
	return errors.Join(err, d.end())
}

// stands says whether the first machine is active.
func (d *demo) stands() bool { return len(d.seen) > 0 && d.seen[0].state() == "active" }

// show is the demo from its beginning to the end of ctx, or to the first active machine.
func (d *demo) show(ctx context.Context) error {
	if err := d.start(ctx); err != nil {
		return err
	}
	if err := d.order(ctx, first); err != nil {
		return err
	}
	if err := d.firstActive(ctx); err != nil || d.Exit {
		return err
	}
	if err := d.others(ctx); err != nil {
		return err
	}
	d.screen.print(d.summary()...)
	return d.watch(ctx, func() bool { return false })
}

// start makes everything but the machines' power.
func (d *demo) start(ctx context.Context) error {
	ln, err := listenPage(d.Port)
	if err != nil {
		return err
	}
	d.page = ln
	d.room, err = scenario.NewRoom(scenario.RoomConfig{Bin: d.Bin, Dir: d.folder.run(), Machines: rack(), Page: ln.Addr().String(), Told: d.console.tell})
	if err != nil {
		return err
	}
	if err := d.timed(ctx, "RAM disk, image and disks", "build", d.room.Build); err != nil {
		return err
	}
	if err := d.timed(ctx, "Network and appliance", "start", d.room.Start); err != nil {
		return err
	}
	d.api = newClient(d.room.Socket())
	go d.room.Forward(ctx, ln)
	for _, m := range rack() {
		d.seen = append(d.seen, seen{who: m.Name, mac: d.room.MAC(m.Name), unknown: m.Unknown, goal: m.Name == first})
	}
	d.screen.print(d.address()...)
	return nil
}

// listenPage takes the page's port on this machine's loopback.
func listenPage(port int) (net.Listener, error) {
	ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", cmp.Or(port, DefaultPort)))
	if err != nil && port == 0 && errors.Is(err, syscall.EADDRINUSE) {
		ln, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return nil, fmt.Errorf("listen for browsers: %w (another --port may be free)", err)
	}
	return ln, nil
}

// timed does one thing, says how long it took, and while it runs what it is and how long it took last time.
func (d *demo) timed(ctx context.Context, what, key string, f func(context.Context) error) error {
	begun := time.Now()
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			if err != nil {
				return err
			}
			took := time.Since(begun)
			d.past[key] = took.Seconds()
			d.screen.add(line{at: time.Since(d.started), mark: markDone, text: what, took: took})
			return nil
		case now := <-tick.C:
			d.screen.live(now, []line{{at: now.Sub(d.started), mark: markWorking, text: what + d.past.left(key, now.Sub(begun))}})
		}
	}
}

func (d *demo) say(m mark, format string, args ...any) {
	d.screen.add(line{at: time.Since(d.started), mark: m, text: fmt.Sprintf(format, args...)})
}

// order has a machine provisioned, as an operator would.
func (d *demo) order(ctx context.Context, name string) error {
	_, err := d.room.Command(ctx, "provision", name, "--image", d.room.Image())
	return err
}

// firstActive watches until the first machine is active.
func (d *demo) firstActive(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, activeLimit)
	defer cancel()
	err := d.watch(limited, func() bool { return d.seen[0].settled() })
	switch {
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s was not active within %s", first, activeLimit)
	case err != nil:
		return err
	case !d.stands():
		return fmt.Errorf("%s did not become active; the lines above say why", first)
	}
	d.say(markDone, "%s is active %s after the start", first, exact(time.Since(d.started)))
	return d.remember()
}

// others switches the other two machines on and watches them to where they stay.
func (d *demo) others(ctx context.Context) error {
	if err := d.order(ctx, wrong); err != nil {
		return err
	}
	if err := d.room.PowerOn(ctx, unknown); err != nil {
		return err
	}
	d.seen[1].since = time.Now()
	err := d.watch(ctx, func() bool { return d.seen[1].settled() && d.seen[2].settled() })
	return errors.Join(err, d.remember())
}

// remember keeps how long each part took, for the time left that the next demo says.
func (d *demo) remember() error {
	for _, s := range d.seen {
		d.past.learn(s)
	}
	return d.past.write(d.folder.past())
}

// end takes everything away, whatever happened, and says so.
func (d *demo) end() error {
	d.screen.live(time.Time{}, []line{{at: time.Since(d.started), mark: markWorking, text: "Ending: machines, appliance, network"}})
	var errs []error
	if d.page != nil {
		if err := d.page.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if d.room != nil {
		errs = append(errs, d.folder.keepLog(d.room.Log()), d.room.Close())
	}
	errs = append(errs, d.folder.close())
	err := errors.Join(errs...)
	if err == nil {
		d.say(markDone, "Everything that the demo made is gone but the appliance's log, %s", d.shorter(d.folder.log()))
	}
	d.screen.live(time.Time{}, nil)
	return err
}

// shorter is path from the working directory where that is shorter.
func (d *demo) shorter(path string) string {
	wd, err := os.Getwd()
	if err != nil {
		return path
	}
	if rel, err := filepath.Rel(wd, path); err == nil && len(rel) < len(path) && !strings.HasPrefix(rel, "..") {
		return rel
	}
	return path
}
