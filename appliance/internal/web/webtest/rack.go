package webtest

import (
	"fmt"
	"strings"
	"time"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/images"
)

// Hostile are names as any host on the network can send them (APP-03).
var Hostile = []string{
	`<img src=x onerror=alert(1)>`, `" onmouseover="alert(1)`, `</script><script>alert(1)</script>`, `javascript:alert(1)`,
	"abc\u202egnp.exe", "line\nbreak\x1b[2J", `{{.F.CSRF}}`, `'; drop table`, strings.Repeat("A", 64<<10),
}

// New returns an appliance with a rack in every state that there is.
func New(now func() time.Time) *Appliance {
	a := Empty(now)
	t := now()
	a.images = []images.Image{
		{Name: "debian-12", ManifestSHA256: strings.Repeat("5e1f", 16), RawSize: 4 << 30, StoredSize: 612 << 20, Chunks: 1024, Added: t.Add(-50 * time.Hour)},
		{Name: "demo", ManifestSHA256: strings.Repeat("09ac", 16), RawSize: 512 << 20, StoredSize: 41 << 20, Chunks: 128, Added: t.Add(-3 * time.Hour)},
	}
	a.users = []api.User{{Name: "anna", Role: "admin", Created: fleet.At(t.Add(-90 * 24 * time.Hour))}, {Name: "omar", Role: "operator", Created: fleet.At(t.Add(-30 * 24 * time.Hour)), LastLogin: fleet.At(t.Add(-40 * time.Minute))},
		{Name: "tina", Role: "technician", Created: fleet.At(t.Add(-12 * 24 * time.Hour)), LastLogin: fleet.At(t.Add(-3 * time.Minute))}, {Name: "vera", Role: "viewer", Created: fleet.At(t.Add(-2 * time.Hour))}}
	a.tokens = []api.Token{{Name: "ci", Role: "operator", Created: fleet.At(t.Add(-9 * 24 * time.Hour)), Expires: fleet.At(t.Add(81 * 24 * time.Hour)), By: "anna", Used: fleet.At(t.Add(-11 * time.Minute))}}
	a.audit = auditLog(t)
	a.health = healthOf(t)
	for i := range 36 {
		m := Machine10(fmt.Sprintf("r12u%02d", i+5), i, t)
		a.set(At(m, fleet.StepActive, t))
	}
	a.set(At(Machine10("r12u01", 41, t), fleet.StepDeploy, t))
	a.set(At(Machine10("r12u02", 42, t), fleet.StepWipe, t))
	a.set(At(Machine10("r12u03", 43, t), fleet.StepDHCP, t))
	a.set(Failed(Machine10("r12u04", 44, t), t))
	a.set(frozen(Machine10("r13u07", 45, t), t))
	a.set(pausedAt(Machine10("r13u08", 46, t), t))
	p := At(Machine10("r13u09", 47, t), fleet.StepActive, t)
	p.Protected = &fleet.Protection{Since: fleet.At(t.Add(-26 * time.Hour)), By: "omar", Why: "holds the ledger until the migration"}
	a.set(p)
	for i := range 4 {
		n := Machine10(fmt.Sprintf("r14u%02d", i+1), 50+i, t)
		n.State, n.Row.Line, n.Row.Since = fleet.MachineNew, "Ready to be provisioned", fleet.At(t.Add(-time.Duration(i+1)*time.Hour))
		a.set(n)
	}
	for i, name := range []string{"unknown-3f9a", "unknown-77c2"} {
		a.set(Unknown(name, 60+i, t))
	}
	return a
}

// Machine10 is a ten-core server with two disks that may be written, and nothing done to it yet.
func Machine10(name string, n int, t time.Time) Machine {
	m := Machine{}
	m.Name, m.State, m.NodeID = name, fleet.MachineNew, fmt.Sprintf("node-01j%07xq8w3z5kx", 1000+n*7919)
	m.MACs = []string{fmt.Sprintf("52:54:00:12:%02x:%02x", n, (n*37)%256)}
	m.UUID = fmt.Sprintf("4c4c4544-0044-3510-8052-b4c04f%06x", 4660+n*97)
	m.DiskSerials = []string{fmt.Sprintf("S4XANE0M1%04d", 1000+n), fmt.Sprintf("S4XANE0M2%04d", 1000+n)}
	m.BMC = fleet.BMC{URL: fmt.Sprintf("https://10.0.12.%d", n+10), User: "firstlight"}
	m.Hardware = &fleet.Hardware{Manufacturer: "Dell Inc.", Product: "PowerEdge R760", Serial: fmt.Sprintf("7KX%04dQ", 1200+n*13), UUID: m.UUID, FirmwareMode: "UEFI",
		FirmwareVersion: "2.3.5", Kernel: "6.1.0-28-amd64", CPU: "Intel Xeon Gold 6430", Threads: 64, MemoryBytes: 512 << 30,
		Disks: []fleet.Disk{{Name: "nvme0n1", Serial: m.DiskSerials[0], Model: "SAMSUNG MZQL23T8HCLS", SizeBytes: 3840755982336, Candidate: true},
			{Name: "nvme1n1", Serial: m.DiskSerials[1], Model: "SAMSUNG MZQL23T8HCLS", SizeBytes: 3840755982336, Candidate: true},
			{Name: "sda", Serial: "AA00000000000489", Model: "Virtual Floppy", SizeBytes: 1474560, ExcludedBecause: "it is removable"}},
		NICs: []fleet.NIC{{Name: "eno1", MAC: m.MACs[0], Driver: "ice", Link: true}, {Name: "eno2", MAC: "52:54:00:99:00:01", Driver: "ice"}}}
	m.DiskState = []fleet.DiskState{{Serial: m.DiskSerials[0], Holds: fleet.HoldsUnknown, Why: "this appliance never wrote to it"}, {Serial: m.DiskSerials[1], Holds: fleet.HoldsUnknown, Why: "this appliance never wrote to it"}}
	m.Row.Place = fmt.Sprintf("rack %s, unit %s", strings.TrimLeft(name[1:3], "0"), strings.TrimLeft(name[4:], "0"))
	m.Row.Since, m.Row.Changed = fleet.At(t.Add(-time.Duration(n+2)*time.Hour)), fleet.At(t.Add(-time.Duration(n*11+1)*time.Minute))
	m.Alarms = []fleet.Alarm{}
	return m
}

// stepTook is how long each step lasts in this rack.
var stepTook = map[string]time.Duration{fleet.StepPowerOn: 12 * time.Second, fleet.StepDHCP: 48 * time.Second, fleet.StepTFTP: 2 * time.Second, fleet.StepScript: time.Second,
	fleet.StepKernel: 9 * time.Second, fleet.StepJoin: 14 * time.Second, fleet.StepInventory: 3 * time.Second, fleet.StepWipe: 64 * time.Second, fleet.StepDiag: 0,
	fleet.StepDeploy: 95 * time.Second, fleet.StepKexec: 6 * time.Second, fleet.StepNodeJoin: 22 * time.Second, fleet.StepActive: time.Second}

// lines are what a machine at a step says of itself.
var lines = map[string]string{
	fleet.StepPowerOn: "Waiting for the BMC to power it on, 12 s of 3 min", fleet.StepDHCP: "Waiting for its first DHCP packet, 40 s of 3 min",
	fleet.StepTFTP: "Fetching its boot file", fleet.StepScript: "Fetching this boot's script", fleet.StepKernel: "Fetching kernel and RAM disk",
	fleet.StepJoin: "Waiting for the RAM disk to join", fleet.StepInventory: "Reporting its hardware", fleet.StepWipe: "Wiping 2 disks, 1 done, about 50 s left",
	fleet.StepDiag: "Testing GPUs", fleet.StepDeploy: "Writing image debian-12, 62 %, about 40 s left", fleet.StepKexec: "Restarting into the installed system",
	fleet.StepNodeJoin: "Waiting for the installed system to join", fleet.StepActive: "Running debian-12",
}

// waits are what each step waits for.
var waits = map[string]string{
	fleet.StepPowerOn: "the BMC to power-cycle the machine into a network boot", fleet.StepDHCP: "the machine's firmware to ask for a network boot",
	fleet.StepWipe: "the RAM disk to wipe the disks and to read them back", fleet.StepDeploy: "the RAM disk to write image debian-12 and to read it back",
}

// At returns m in the middle of a provisioning, at one step; at the last step it is done.
func At(m Machine, step string, t time.Time) Machine {
	done := step == fleet.StepActive
	m.State, m.Image, m.Failure, m.Cancel = fleet.MachineProvisioning, "debian-12", nil, nil
	w := &fleet.Workflow{ID: "wf-01jd8q", Generation: 1, Image: m.Image, State: fleet.WorkflowRunning, PauseAfter: []string{}}
	m.Timeline = nil
	var total time.Duration
	for _, s := range fleet.StepNames() {
		total += stepTook[s]
		if s == step {
			break
		}
	}
	begun := t.Add(-total)
	if done {
		begun = m.Row.Changed.Add(-total)
	}
	w.Started = fleet.At(begun)
	past := true
	for _, s := range fleet.StepNames() {
		st := fleet.Step{Name: s, State: fleet.StepPending, Commands: []fleet.Command{}}
		switch {
		case s == step && !done:
			st.State, st.Start, past = fleet.StepRunning, fleet.At(begun), false
			m.Timeline = append(m.Timeline, api.TimelineEntry{Time: st.Start, Of: api.TimelineStep, Kind: s, State: "running", Text: "Step " + s + " began", Source: "control"})
		case past && s == fleet.StepDiag:
			st.State, st.Why = fleet.StepSkipped, "the machine has no GPU"
		case past:
			st.State, st.Start = fleet.StepDone, fleet.At(begun)
			begun = begun.Add(stepTook[s])
			st.End = fleet.At(begun)
			m.Timeline = append(m.Timeline, happened(m, s, st)...)
		}
		w.Steps = append(w.Steps, st)
	}
	m.Workflow, m.Workflows = w, 1
	m.Row.Line, m.Row.Since, m.Row.Percent, m.Row.LeftS = lines[step], fleet.At(begun), nil, nil
	m.Row.Need, m.Row.Why, m.Row.Next = false, "", ""
	m.Waiting = &fleet.Waiting{For: waits[step], Since: fleet.At(begun), Until: fleet.At(begun.Add(3 * time.Minute)), Next: "nothing to do: it goes on by itself"}
	if done {
		m.State, w.State, w.Ended, m.Waiting = fleet.MachineActive, fleet.WorkflowDone, fleet.At(begun), nil
		m.Connected = &fleet.Connection{Role: "node", Since: fleet.At(begun)}
		m.Row.Changed = fleet.At(begun)
		for i := range m.DiskState {
			m.DiskState[i] = fleet.DiskState{Serial: m.DiskState[i].Serial, Holds: fleet.HoldsClean, Since: fleet.At(begun), Why: "wiped and read back"}
		}
		m.DiskState[0].Holds = fleet.HoldsImage("debian-12")
	} else {
		m.Row.Changed = fleet.At(t)
	}
	progress(&m, step, t)
	reverse(m.Timeline)
	m.Log = logOf(m)
	return m
}

func progress(m *Machine, step string, t time.Time) {
	set := func(percent int, left int64, p fleet.Progress) {
		m.Row.Percent, m.Row.LeftS = &percent, &left
		for i := range m.Workflow.Steps {
			if s := &m.Workflow.Steps[i]; s.Name == step {
				s.Commands = []fleet.Command{{ID: "c1", Kind: "deploy.image", State: fleet.CommandRunning, Issued: fleet.At(t), Progress: &p}}
			}
		}
	}
	switch step {
	case fleet.StepDeploy:
		set(62, 40, fleet.Progress{What: "writing image debian-12", Done: 2663000000, Total: 4294967296, Unit: "bytes"})
	case fleet.StepWipe:
		set(50, 50, fleet.Progress{What: "wiping disks", Done: 1, Total: 2, Unit: "disks"})
	}
}

func reverse(e []api.TimelineEntry) {
	for i, j := 0, len(e)-1; i < j; i, j = i+1, j-1 {
		e[i], e[j] = e[j], e[i]
	}
}

var told = map[string]string{
	fleet.StepPowerOn: "The BMC power-cycled it into a network boot", fleet.StepDHCP: "DHCP request from %s, answered with boot file ipxe.efi",
	fleet.StepTFTP: "Boot file ipxe.efi sent, 1.1 MB", fleet.StepScript: "Signed boot script sent", fleet.StepKernel: "Kernel and RAM disk sent, 61 MB",
	fleet.StepJoin: "RAM disk joined, key k-3f2a…", fleet.StepInventory: "Inventory received: 2 disks, 2 network cards", fleet.StepWipe: "2 disks wiped and read back, attested",
	fleet.StepDeploy: "Image debian-12 written and read back, attested", fleet.StepKexec: "Entering the installed system", fleet.StepNodeJoin: "Node agent joined as provisioned", fleet.StepActive: "Node answered a signed request",
}

func happened(m Machine, step string, st fleet.Step) []api.TimelineEntry {
	text := told[step]
	if strings.Contains(text, "%s") {
		text = fmt.Sprintf(text, m.MACs[0])
	}
	return []api.TimelineEntry{
		{Time: st.Start, Of: api.TimelineEvent, Kind: step + ".seen", Text: text, Source: "site"},
		{Time: st.End, Of: api.TimelineStep, Kind: step, State: "done", Text: "Step " + step + " is done", Source: "control"},
	}
}

func logOf(m Machine) []api.LogLine {
	var out []api.LogLine
	for i := len(m.Timeline) - 1; i >= 0; i-- {
		e := m.Timeline[i]
		out = append(out, api.LogLine{Seq: uint64(len(out) + 1), Time: e.Time, Source: e.Source, Kind: e.Kind, Text: e.Kind + ": " + e.Text})
	}
	return out
}

// Failed is a machine whose boot a second DHCP server stopped.
func Failed(m Machine, t time.Time) Machine {
	m = At(m, fleet.StepDHCP, t.Add(-4*time.Minute))
	m.State, m.Waiting, m.Workflow.State, m.Workflow.Ended = fleet.MachineFailed, nil, fleet.WorkflowFailed, fleet.At(t.Add(-4*time.Minute))
	m.Failure = &fleet.Failure{Step: fleet.StepDHCP, What: "Boot stopped: a second DHCP server is on the segment",
		Why:  "10.0.12.250 (52:54:00:aa:bb:cc, TP-Link) offered 192.168.1.20 two milliseconds before the site's own server, and the firmware took it",
		Next: "unplug the device with MAC 52:54:00:aa:bb:cc from port 14 of the rack's switch, then retry"}
	for i := range m.Workflow.Steps {
		if s := &m.Workflow.Steps[i]; s.Name == fleet.StepDHCP {
			s.State, s.End, s.Why = fleet.StepFailed, fleet.At(t.Add(-4*time.Minute)), m.Failure.Why
		}
	}
	m.Row.Since, m.Row.Changed = fleet.At(t.Add(-4*time.Minute)), fleet.At(t.Add(-4*time.Minute))
	m.Timeline = append([]api.TimelineEntry{{Time: fleet.At(t.Add(-4 * time.Minute)), Of: api.TimelineStep, Kind: fleet.StepDHCP, State: "failed", Text: m.Failure.What, Source: "control"},
		{Time: fleet.At(t.Add(-4 * time.Minute)), Of: api.TimelineAlarm, Kind: "alarm", Text: "A second DHCP server answers on this segment: 10.0.12.250", Source: "site"}}, m.Timeline...)
	return m
}

func frozen(m Machine, t time.Time) Machine {
	m = At(m, fleet.StepWipe, t.Add(-9*time.Minute))
	m.State, m.Waiting, m.Workflow.State = fleet.MachineFailed, nil, fleet.WorkflowFailed
	m.Failure = &fleet.Failure{Step: fleet.StepWipe, What: "Drive " + m.DiskSerials[1] + " refused to be sanitized: it is frozen",
		Why: "its security state reads frozen since the firmware locked it at power on", Next: "power the machine off and on by its BMC, not by a restart, then retry"}
	for i := range m.Workflow.Steps {
		if s := &m.Workflow.Steps[i]; s.Name == fleet.StepWipe {
			s.State, s.End = fleet.StepFailed, fleet.At(t.Add(-9*time.Minute))
		}
	}
	m.DiskState[1] = fleet.DiskState{Serial: m.DiskSerials[1], Holds: fleet.HoldsOldData, Since: fleet.At(t.Add(-9 * time.Minute)), Why: "the wipe was refused by the drive"}
	m.Row.Since, m.Row.Percent = fleet.At(t.Add(-9*time.Minute)), nil
	return m
}

func pausedAt(m Machine, t time.Time) Machine {
	m = At(m, fleet.StepDeploy, t.Add(-20*time.Minute))
	m.State, m.Workflow.State = fleet.MachinePaused, fleet.WorkflowPaused
	m.Row.Line, m.Row.Percent, m.Row.LeftS = "Paused after the wipe, as ordered", nil, nil
	m.Row.Need, m.Row.Why, m.Row.Next = true, "the order said to stop here until a person looked", "look at the disks, then let it go on"
	m.Row.Since = fleet.At(t.Add(-20 * time.Minute))
	m.Waiting = &fleet.Waiting{For: "a person to let it go on", Since: m.Row.Since, Next: "look at the disks, then let it go on"}
	return m
}

// Unknown is a machine that booted here and is nobody's.
func Unknown(name string, n int, t time.Time) Machine {
	m := Machine10("r00u00", n, t)
	m.Name, m.State, m.DiskSerials, m.DiskState, m.BMC, m.Row.Place = name, fleet.MachineDiscovered, []string{}, nil, fleet.BMC{}, ""
	m.Waiting = &fleet.Waiting{For: "a person to enrol it", Since: fleet.At(t.Add(-time.Duration(n-55) * time.Minute)), Next: "give it a name, or leave it"}
	m.Row.Line, m.Row.Since = "Waiting for a person to enrol it", m.Waiting.Since
	return m
}

// HostileMachine has a hostile text in every field that comes from a wire.
func HostileMachine(name, text string, t time.Time) Machine {
	m := At(Machine10("r99u99", 90, t), fleet.StepDeploy, t)
	m.Name = name
	h := *m.Hardware
	h.Manufacturer, h.Product, h.Serial, h.CPU, h.FirmwareVersion, h.Kernel = text, text, text, text, text, text
	h.Disks = []fleet.Disk{{Name: text, Serial: text, Model: text, Candidate: true, SizeBytes: 1 << 30}, {Name: text, Serial: "x", Model: text, ExcludedBecause: text}}
	h.NICs = []fleet.NIC{{Name: text, MAC: text, Driver: text}}
	m.Hardware, m.DiskSerials = &h, []string{text}
	m.DiskState = []fleet.DiskState{{Serial: text, Holds: text, Why: text}}
	m.Row.Place, m.Row.Line, m.Row.Why, m.Row.Next, m.Row.Need, m.Image = text, text, text, text, true, text
	m.Workflow.Image = text
	m.Timeline = []api.TimelineEntry{{Time: fleet.At(t), Of: api.TimelineEvent, Kind: text, Text: text, Source: text}}
	m.Log = []api.LogLine{{Time: fleet.At(t), Text: text, Kind: text, Source: text}}
	m.Waiting.For, m.Waiting.Next = text, text
	return m
}

func auditLog(t time.Time) []api.AuditEntry {
	at := func(min int) fleet.Time { return fleet.At(t.Add(-time.Duration(min) * time.Minute)) }
	return []api.AuditEntry{
		{Seq: 6, Time: at(2), Who: "tina", Role: "technician", From: "10.0.0.31", What: "provision machine", Object: "r12u01", Outcome: "done", Detail: "image debian-12, 2 disks"},
		{Seq: 5, Time: at(7), Who: "vera", Role: "viewer", From: "10.0.0.40", What: "cancel machine", Object: "r12u02", Outcome: "denied", Detail: "the role viewer may not repair"},
		{Seq: 4, Time: at(31), Who: "token ci", Role: "operator", From: "10.0.0.9", What: "add image", Object: "demo", Outcome: "done"},
		{Seq: 3, Time: at(95), Who: "omar", Role: "operator", From: "10.0.0.22", What: "protect machine", Object: "r13u09", Outcome: "done", Detail: "holds the ledger until the migration"},
		{Seq: 2, Time: at(200), Who: "anna", Role: "admin", From: "10.0.0.20", What: "add user", Object: "vera", Outcome: "done"},
		{Seq: 1, Time: at(260), Who: "mallory", From: "10.0.0.66", What: "sign in", Object: "mallory", Outcome: "denied", Detail: "name and password do not fit"},
	}
}

func healthOf(t time.Time) api.Health {
	return api.Health{State: "fail", Checked: fleet.At(t.Add(-20 * time.Second)), Checks: []api.HealthCheck{
		{Name: "dhcp", State: "fail", What: "Another DHCP server answers on eth1", Why: "10.0.12.250 (52:54:00:aa:bb:cc) offered an address to our probe 20 s ago", Next: "unplug it, or set it not to serve this segment"},
		{Name: "disk", State: "warn", What: "The data disk is 83 % full", Why: "/var/lib/firstlight has 61 GB of 360 GB left; images take 240 GB", Next: "remove images that no machine needs"},
		{Name: "clock", State: "ok", What: "The clock is synchronized, 2 ms off"}, {Name: "port-67", State: "ok", What: "UDP port 67 is ours on eth1"},
		{Name: "port-69", State: "ok", What: "UDP port 69 is ours on eth1"}, {Name: "store", State: "ok", What: "The store answers, 14 MB of 2 GB used"},
	}}
}
