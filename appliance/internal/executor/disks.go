package executor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"firstlight/appliance/internal/fleet"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
)

// The kinds of commands that write to disks.
const (
	kindWipe   = "disk.wipe"
	kindDeploy = "deploy.image"
)

// destructive says whether a kind of command writes to disks.
func destructive(kind string) bool { return kind == kindWipe || kind == kindDeploy }

// nothingWritten is what a wipe or a deploy says that ended before its first write, and a wipe also of a single disk.
const nothingWritten = "nothing was written"

// interrupted begins what an agent says of a command in which it was killed and started again.
const interrupted = "interrupted"

// inherit is what a workflow's disks hold when it begins.
func inherit(rec *fleet.Record, last *fleet.Run, now time.Time) []fleet.DiskState {
	out := []fleet.DiskState{}
	for _, s := range rec.DiskSerials {
		d := fleet.DiskState{Serial: s, Holds: fleet.HoldsOldData, Since: fleet.At(now), Why: "this appliance never wrote to it"}
		if last != nil {
			d.Holds, d.Why = fleet.HoldsUnknown, fleet.NotInNewest
			if i := slices.IndexFunc(last.Disks, func(d fleet.DiskState) bool { return d.Serial == s }); i >= 0 {
				d = last.Disks[i]
			}
		}
		out = append(out, d)
	}
	return out
}

// targets are the serials of the disks that a command writes to: those of the record when the workflow began, in its order.
func (f *flow) targets(c *fleet.Command) []string {
	var out []string
	for _, d := range f.run.Disks {
		out = append(out, d.Serial)
	}
	if c.Kind == kindDeploy {
		return out[:min(1, len(out))]
	}
	return out
}

// hold notes what a report on a command that writes to disks means for them. What went on before it may never have been heard, so a
// command that ended badly has written, unless it says itself that it did not.
func (f *flow) hold(c *fleet.Command, r Report) {
	switch c.Kind {
	case kindWipe:
		f.holdWipe(c, r)
	case kindDeploy:
		f.holdDeploy(c)
	}
}

func (f *flow) holdWipe(c *fleet.Command, r Report) {
	if c.State == fleet.CommandRejected {
		return
	}
	if !c.State.Ended() {
		if c.State == fleet.CommandRunning && c.Progress != nil && c.Progress.Done > 0 {
			for _, s := range f.targets(c) {
				f.run.Hold(f.now, s, fleet.HoldsPartlyWiped, "a wipe of it runs")
			}
		}
		return
	}
	var res agentv1.DiskWipeResult
	if proto.Unmarshal(r.Result, &res) != nil {
		res.Reset()
	}
	for _, s := range f.targets(c) {
		i := slices.IndexFunc(res.Disks, func(d *agentv1.WipedDisk) bool { return d.Serial == s })
		switch {
		case c.State == fleet.CommandSucceeded:
			f.run.Hold(f.now, s, fleet.HoldsClean, "wiped, and read back whole")
		case i >= 0 && c.Attested && res.Disks[i].Outcome == "clean" && res.Disks[i].SizeBytes > 0 && res.Disks[i].BytesVerified == res.Disks[i].SizeBytes:
			f.run.Hold(f.now, s, fleet.HoldsClean, "wiped, and read back whole, before the wipe of all disks ended: "+c.Message)
		case i >= 0 && res.Disks[i].Outcome != "clean" && strings.Contains(res.Disks[i].Message, nothingWritten):
			f.why(s, "a wipe of it ended, and nothing was written: "+c.Message)
		case i >= 0:
			d := res.Disks[i]
			f.run.Hold(f.now, s, fleet.HoldsPartlyWiped, fmt.Sprintf("%d of %d bytes erased: %s", d.BytesErased, d.SizeBytes, c.Message))
		case len(res.Disks) == 0 && strings.Contains(c.Message, nothingWritten):
			f.why(s, "a wipe ended before it began: "+c.Message)
		default:
			f.run.Hold(f.now, s, fleet.HoldsPartlyWiped, "the wipe did not end well: "+c.Message)
		}
	}
}

func (f *flow) holdDeploy(c *fleet.Command) {
	for _, s := range f.targets(c) {
		switch {
		case c.State == fleet.CommandRunning && c.Progress != nil && c.Progress.Done > 0:
			f.run.Hold(f.now, s, fleet.HoldsPartlyWritten, "image "+f.run.Image+" is being written")
		case c.State == fleet.CommandSucceeded:
			f.run.Hold(f.now, s, fleet.HoldsImage(f.run.Image), "written, and read back whole")
		case c.State == fleet.CommandRejected || !c.State.Ended():
		case strings.Contains(c.Message, nothingWritten):
			f.why(s, "a deploy ended before it wrote: "+c.Message)
		default:
			f.run.Hold(f.now, s, fleet.HoldsPartlyWritten, c.Message)
		}
	}
}

// holding says what the disks hold, for people.
func holding(disks []fleet.DiskState) string {
	var out []string
	for _, d := range disks {
		out = append(out, fmt.Sprintf("disk %s holds %s", d.Serial, d.Holds))
	}
	return strings.Join(out, ", ")
}

// why keeps what a disk holds and says more about it.
func (f *flow) why(serial, why string) {
	for _, d := range f.run.Disks {
		if d.Serial == serial {
			f.run.Hold(f.now, serial, d.Holds, d.Why+"; "+why)
			return
		}
	}
}

// doubt notes what a command may have done that reached its agent and whose end is not known.
func (f *flow) doubt(c *fleet.Command) {
	holds := fleet.HoldsPartlyWiped
	switch c.Kind {
	case kindWipe:
	case kindDeploy:
		holds = fleet.HoldsPartlyWritten
	default:
		return
	}
	for _, s := range f.targets(c) {
		f.run.Hold(f.now, s, holds, fmt.Sprintf("the machine did not say how far %s came; %s", c.Kind, lastSaid(c)))
	}
}
