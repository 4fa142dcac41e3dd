package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"firstlight/testbed/fixtures"
	"firstlight/testbed/judge"
	"firstlight/testbed/netlab"
	"firstlight/testbed/qemu"
	"firstlight/testbed/rack"
)

// What the first machine is called in the appliance, and a second one that is only ever a record.
const (
	machineName = "rack1-node1"
	otherName   = "rack1-node2"
)

// diskSize is a disk, in bytes, where the cabling list says nothing else.
const diskSize = 512 << 20

// box declares a machine.
type box struct {
	// name is what it is called in the appliance; empty is rack1-node<place in the list>.
	name string
	// place is what the record says of where it is; empty is nothing.
	place string
	// firmware is UEFI or BIOS; empty is what the run was told.
	firmware string
	// saysFirmware: the record names it; otherwise the appliance does not know it before the first inventory.
	saysFirmware bool
	// disks in the order in which the machine finds them; empty is one disk.
	disks []drive
	// target is the place in disks of the one that the record names and the image goes to.
	target int
	// says is the disk serial that the record names; nil is that of the target.
	says func(r *run) string
	// unknown machines are cabled and have a BMC, and nobody told the appliance of them.
	unknown bool
	// uuid is empty for a random one.
	uuid string
	// rtc is the machine's clock at power on; empty is the host's. year is what the agent must then find.
	rtc  string
	year int
}

// drive declares a disk; every one holds its pattern before the machine is switched on.
type drive struct {
	// serial is empty for a random one; driver for "virtio-blk"; size, in bytes, for diskSize.
	serial string
	driver string
	size   int64
}

// disk is a drive that was made.
type disk struct {
	drive
	path string
	// pattern is what it held first; its text is in no other disk's.
	pattern fixtures.Pattern
}

// machine is one machine of a run.
type machine struct {
	box   box
	index int
	name  string
	dir   string
	mac   string
	uuid  string
	disks []disk
	rack  *rack.Machine
	bmc   *controller
	pcap  string
	say   *progress

	// Seen on the way: the newest record, the counters of the disks at the pauses by the stage before, who wrote when.
	record     *judge.Record
	recordJSON []byte
	stats      map[string][]qemu.BlockStat
	writes     writeLog
}

// declare makes the machines of the cabling list, on paper.
func (r *run) declare(boxes []box) {
	for i, b := range boxes {
		if b.firmware == "" {
			b.firmware = r.Firmware
		}
		if b.name == "" {
			b.name = fmt.Sprintf("rack1-node%d", i+1)
		}
		if b.uuid == "" {
			b.uuid = newUUID()
		}
		if len(b.disks) == 0 {
			b.disks = []drive{{}}
		}
		m := &machine{box: b, index: i, name: b.name, uuid: b.uuid, stats: map[string][]qemu.BlockStat{}, say: r.out}
		if len(boxes) > 1 {
			m.say = r.out.labelled(b.name)
		}
		r.machines = append(r.machines, m)
	}
	r.machine = r.machines[0]
}

// folder is where machine i keeps its things inside the run's.
func (m *machine) folder(base string) string {
	if m.index == 0 {
		return filepath.Join(base, "machine")
	}
	return filepath.Join(base, fmt.Sprintf("machine%d", m.index+1))
}

// fill makes the machine's folder and its disks.
func (m *machine) fill(base string) error {
	m.dir = m.folder(base)
	if err := os.Mkdir(m.dir, 0o700); err != nil {
		return err
	}
	m.pcap = filepath.Join(m.dir, "segment.pcap")
	for i, d := range m.box.disks {
		text := "FLT" + randomHex(4) + "5"
		if d.serial == "" {
			d.serial = text
		}
		if d.driver == "" {
			d.driver = "virtio-blk"
		}
		if d.size == 0 {
			d.size = diskSize
		}
		made := disk{drive: d, path: filepath.Join(m.dir, fmt.Sprintf("disk%d.raw", i)), pattern: fixtures.Pattern{Serial: text}}
		if err := made.pattern.WriteDisk(made.path, d.size); err != nil {
			return err
		}
		m.disks = append(m.disks, made)
	}
	return nil
}

// saysFirmware are the words with which an operator gives the machine's firmware mode, none where he does not.
func (m *machine) saysFirmware() []string {
	if !m.box.saysFirmware {
		return nil
	}
	return []string{"--firmware", m.box.firmware}
}

// disk is the one that the image goes to.
func (m *machine) disk() disk { return m.disks[m.box.target] }

func (m *machine) serialPath() string { return filepath.Join(m.dir, qemu.SerialLog) }

// cable connects the machine to the lab: tap, capture, BMC. It stays off.
func (m *machine) cable(ctx context.Context, r *run) (err error) {
	m.mac = r.lab.MAC(m.index)
	if !r.uncaptured {
		// The capture outlives ctx: an interrupted run still closes it in order.
		stop, err := r.lab.Capture(context.WithoutCancel(ctx), m.index, m.pcap)
		if err != nil {
			return err
		}
		r.onClose("capture", stop)
	}
	c := qemu.Config{Name: m.name, Dir: m.dir, NetNS: r.lab.NS(netlab.Segment), Firmware: m.box.firmware, MemoryMiB: 1024,
		Tap: r.lab.Tap(m.index), MAC: m.mac, UUID: m.uuid, RTCBase: m.box.rtc}
	if m.box.firmware == UEFI {
		// Without IPv6 the firmware still has two network boots to give up before it starts from its disk; with it, a third one.
		c.ExtraArgs = []string{"-fw_cfg", "name=opt/org.tianocore/IPv6Support,string=no"}
	}
	for _, d := range m.disks {
		c.Disks = append(c.Disks, qemu.Disk{Path: d.path, Serial: d.serial, Driver: d.driver})
	}
	m.rack = rack.New(c)
	r.onClose("machine "+m.name, m.powerOff)
	m.bmc, err = r.startBMC(m.rack, bmcPort+m.index)
	return err
}

// powerOff ends the machine when the run does.
func (m *machine) powerOff() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	return m.rack.PowerOff(ctx)
}

// resets are the RESET events of the machine since from, over all power-ons.
func (m *machine) resets(from time.Time) int {
	n := 0
	for _, e := range m.rack.Events() {
		if e.Name == "RESET" && !e.Time.Before(from) {
			n++
		}
	}
	return n
}

// counters reads the counters of every disk, in the order of the cabling list.
func (m *machine) counters(ctx context.Context) ([]qemu.BlockStat, error) {
	vm := m.rack.VM()
	if vm == nil {
		return nil, errors.New("machine is off")
	}
	return vm.BlockStats(ctx)
}

// pause stops the machine's processors; nothing when it is off.
func (m *machine) pause(ctx context.Context) error {
	vm := m.rack.VM()
	if vm == nil {
		return nil
	}
	return vm.Pause(ctx)
}

// untouched checks that not one byte of the disks changed, by their content and by the counters; but for the disks at the places
// named in except.
func (m *machine) untouched(ctx context.Context, except ...int) []judge.Check {
	stats, err := m.counters(ctx)
	var out []judge.Check
	for i, d := range m.disks {
		if slices.Contains(except, i) {
			continue
		}
		prefix := ""
		if len(m.disks) > 1 {
			prefix = fmt.Sprintf("disk %d (%s): ", i, d.serial)
		}
		out = append(out, named(prefix, judge.Untouched(d.path, d.pattern)))
		if err != nil {
			out = append(out, judge.Fail(prefix+"nothing was written", "%v", err))
			continue
		}
		s := stats[i]
		out = append(out, judge.Of(prefix+"nothing was written", s.WriteOps == 0 && s.UnmapOps == 0, "%d writes, %d discards since power on", s.WriteOps, s.UnmapOps))
	}
	return out
}
