package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"

	"golang.org/x/net/netutil"

	"firstlight/testbed/netlab"
)

// maxForwarded bounds the connections that Room.Forward carries at a time; more wait to be taken.
const maxForwarded = 128

// Room is a rack with its appliance and nobody who judges it: the machinery of a run for a demonstration. Make it with NewRoom, then
// call Build, Start and, whatever happened, Close. Its other methods are for the time between Start and Close, from any goroutine.
type Room struct{ run *run }

// RoomConfig declares a room.
type RoomConfig struct {
	// Bin holds firstlight, imagebuild, machine-agent and inputs.
	Bin string
	// Dir is an empty folder for everything that is made, its path short enough for a unix socket in it. Close leaves it.
	Dir      string
	Machines []RoomMachine
	// Page is the loopback address and port, in the appliance's namespace, where it serves its page in plain HTTP; empty is no page.
	Page string
	// Told takes the lines by which the appliance tells whoever started it where the page is, and the one-time code, which is in no
	// file. It is called from another goroutine, and not at a time.
	Told func(line string)
}

// RoomMachine declares a machine with one disk. It is off, and enrolled unless Unknown.
type RoomMachine struct {
	Name string
	// Place is where people find it, for its record; empty is none.
	Place string
	// Firmware is UEFI or BIOS.
	Firmware string
	Unknown  bool
	// Disk is the serial of its disk. Record is the one that its record names, when it is another one.
	Disk, Record string
}

// NewRoom checks the declaration; nothing is made yet.
func NewRoom(c RoomConfig) (*Room, error) {
	if len(c.Machines) == 0 || len(c.Machines) > netlab.MaxMachines {
		return nil, fmt.Errorf("make room: %d machines, want 1 to %d", len(c.Machines), netlab.MaxMachines)
	}
	if c.Dir == "" || c.Told == nil {
		return nil, errors.New("make room: no folder, or nobody to tell")
	}
	var boxes []box
	for _, m := range c.Machines {
		b := box{name: m.Name, place: m.Place, firmware: m.Firmware, saysFirmware: true, unknown: m.Unknown, disks: []drive{{serial: m.Disk, size: smallDisk}}}
		if m.Record != "" {
			b.says = func(*run) string { return m.Record }
		}
		boxes = append(boxes, b)
	}
	r := &run{Options: Options{Bin: c.Bin, Out: io.Discard}, out: newProgress(io.Discard), dir: c.Dir, told: c.Told, uncaptured: true,
		scenario: Scenario{Name: "room", machines: boxes, appliance: settings{discovery: true, page: c.Page}}}
	r.declare(boxes)
	return &Room{r}, nil
}

// Build makes what needs no network: RAM disk and image, from the cache where they are there, and the disks.
func (o *Room) Build(ctx context.Context) error { return o.run.prepare(ctx) }

// Start cables the rack, starts the appliance and tells it of the image and of the machines that are not unknown.
func (o *Room) Start(ctx context.Context) error { return o.run.start(ctx) }

// Close takes everything away but the folder, in any state of the room; a second Close does nothing.
func (o *Room) Close() error { return errors.Join(o.run.closeAll()...) }

// Image is what the image is called in the appliance.
func (o *Room) Image() string { return imageName }

// Socket is the appliance's.
func (o *Room) Socket() string { return o.run.serve.Socket }

// Log is the file with what the appliance logs.
func (o *Room) Log() string { return filepath.Join(o.run.dir, "serve.log") }

// Command runs a command of the appliance's own command line and returns what it printed.
func (o *Room) Command(ctx context.Context, args ...string) ([]byte, error) {
	return o.run.firstlight(ctx, args...)
}

// PowerOn presses a machine's button; it boots from the network first.
func (o *Room) PowerOn(ctx context.Context, name string) error {
	m, err := o.machine(name)
	if err != nil {
		return err
	}
	return o.run.powerOn(ctx, m)
}

// Controller is what a person who enrols a machine by hand must know of its controller; all of it is empty for a name that is not
// declared.
func (o *Room) Controller(name string) (address, user, password, certificateSHA256 string) {
	m, err := o.machine(name)
	if err != nil || m.bmc == nil {
		return "", "", "", ""
	}
	return "https://" + m.bmc.address, m.bmc.user, m.bmc.password, m.bmc.certificateHex()
}

// MAC is the address of a machine's network card; empty for a name that is not declared.
func (o *Room) MAC(name string) string {
	m, err := o.machine(name)
	if err != nil {
		return ""
	}
	return m.mac
}

func (o *Room) machine(name string) (*machine, error) {
	at := slices.IndexFunc(o.run.machines, func(m *machine) bool { return m.name == name })
	if at < 0 {
		return nil, fmt.Errorf("no machine %q in this room", name)
	}
	return o.run.machines[at], nil
}

// Exited is closed when the appliance has ended; LastWords is then the last line of its log.
func (o *Room) Exited() <-chan struct{} { return o.run.appliance.exited }

// LastWords is the last line of the appliance's log.
func (o *Room) LastWords() string { return o.run.lastServeLine() }

// Forward carries connections of ln to the page, until ln is closed.
func (o *Room) Forward(ctx context.Context, ln net.Listener) {
	forward(ctx, netutil.LimitListener(ln, maxForwarded), o.run.lab.DialContext(netlab.Site), o.run.serve.Web.Listen)
}
