package cli

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"firstlight/appliance/internal/fleet"
)

var update = flag.Bool("update", false, "write the golden files")

func at(seconds int) fleet.Time {
	return fleet.At(time.Date(2026, 5, 4, 12, 0, seconds, 0, time.UTC))
}

func step(name string, state fleet.StepState, start, end int, why string) fleet.Step {
	s := fleet.Step{Name: name, State: state, Why: why}
	if start > 0 {
		s.Start = at(start)
	}
	if end > 0 {
		s.End = at(end)
	}
	return s
}

func working() fleet.Machine {
	wipe := step(fleet.StepWipe, fleet.StepRunning, 50, 0, "")
	wipe.Commands = []fleet.Command{{Kind: "disk.wipe", State: fleet.CommandRunning,
		Progress: &fleet.Progress{What: "reading DISK0001 back", Done: 128 << 20, Total: 512 << 20, Unit: "bytes"}}}
	return fleet.Machine{
		Name: "m1", NodeID: "node-a", State: fleet.MachineProvisioning, MACs: []string{"52:54:00:00:00:0a"}, DiskSerials: []string{"DISK0001"},
		BMC: fleet.BMC{URL: "https://10.78.0.10", User: "admin"}, Image: "demo",
		Waiting:   &fleet.Waiting{For: "the wipe of DISK0001", Since: at(50), Until: at(59), Next: "look at its console"},
		Connected: &fleet.Connection{Role: "ramdisk", BootID: "boot-1", Since: at(40)},
		Hardware:  &fleet.Hardware{Manufacturer: "QEMU", Product: "Standard PC", FirmwareMode: "uefi", FirmwareVersion: "0.0.0"},
		Workflow: &fleet.Workflow{ID: "wf-1", Started: at(1), Steps: []fleet.Step{
			step(fleet.StepPowerOn, fleet.StepDone, 1, 4, ""),
			step(fleet.StepTFTP, fleet.StepSkipped, 5, 6, "the firmware is iPXE already"),
			wipe,
			step(fleet.StepDeploy, fleet.StepPending, 0, 0, ""),
		}},
		Alarms: []fleet.Alarm{{Time: at(2), Text: "a second machine\x1b[2J presented the secret of m1"}},
	}
}

func failed() fleet.Machine {
	m := working()
	m.State, m.Waiting, m.Connected, m.Alarms = fleet.MachineFailed, nil, nil, nil
	m.Workflow.Steps[2] = step(fleet.StepWipe, fleet.StepFailed, 50, 51, "no disk DISK0001")
	m.Failure = &fleet.Failure{Step: fleet.StepWipe, What: "erase disk DISK0001", Why: "no disk has this serial number; there are DISK0002 (vda, 512 MiB)",
		Next: "correct the serial number of m1, or put the disk in"}
	return m
}

func cancelling() fleet.Machine {
	m := working()
	m.State, m.Alarms = fleet.MachineCancelling, nil
	m.Cancel = &fleet.Cancel{By: "uid 0 (root)", Reason: "wrong rack", Since: at(55), Until: at(59), Step: fleet.StepWipe, Next: "begin again"}
	m.Waiting = &fleet.Waiting{For: "the ramdisk agent to stop disk.wipe, as uid 0 (root) ordered", Since: at(55), Until: at(59), Next: "wait"}
	m.DiskState = []fleet.DiskState{{Serial: "DISK0001", Holds: fleet.HoldsPartlyWiped, Since: at(51), Why: "a wipe of it runs"}}
	return m
}

func cancelled() fleet.Machine {
	m := cancelling()
	m.State, m.Waiting = fleet.MachineCancelled, nil
	m.Cancel.Outcome = "disk.wipe cancelled: stopped by the operator"
	m.Workflow.Steps[2] = step(fleet.StepWipe, fleet.StepCancelled, 50, 56, "cancelled by uid 0 (root): wrong rack")
	m.DiskState[0].Why = "7 of 512 bytes erased"
	return m
}

func found() fleet.Machine {
	return fleet.View(&fleet.Record{Name: "found-52540000000a", NodeID: "node-b", MACs: []string{"52:54:00:00:00:0a"}, Discovered: at(3),
		Hardware: &fleet.Hardware{Manufacturer: "QEMU", Product: "Standard\x1b[2J PC", Serial: "SN1", Disks: []fleet.Disk{{Serial: "DISK0001"}}}}, nil)
}

func adopted() fleet.Machine {
	return fleet.View(&fleet.Record{Name: "db", NodeID: "node-c", MACs: []string{"52:54:00:00:00:0b"}, DiskSerials: []string{"DISK0009"}, Adopted: true,
		Protected: &fleet.Protection{Since: at(4), By: "uid 0 (root)", Why: "customer data"}}, nil)
}

// The golden files are what a technician reads; -update writes them.
func TestShowMachine(t *testing.T) {
	screens := map[string]func(w *strings.Builder){
		"discovered":     func(w *strings.Builder) { listDiscovered(w, []fleet.Machine{found()}) },
		"cancel-answer":  func(w *strings.Builder) { showCancel(w, cancelled()) },
		"cancel-pending": func(w *strings.Builder) { showCancel(w, cancelling()) },
		"list":           func(w *strings.Builder) { listMachines(w, []fleet.Machine{working(), cancelled(), found(), adopted()}) },
	}
	for name, m := range map[string]fleet.Machine{"working": working(), "failed": failed(), "cancelling": cancelling(), "cancelled": cancelled(),
		"found": found(), "adopted": adopted()} {
		screens[name] = func(w *strings.Builder) { showMachine(w, m) }
	}
	for name, show := range screens {
		var out strings.Builder
		show(&out)
		path := filepath.Join("testdata", "show-"+name+".golden")
		if *update {
			if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if out.String() != string(want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, out.String(), want)
		}
		if strings.Contains(out.String(), "\x1b") {
			t.Errorf("%s: text from the wire can move the cursor", name)
		}
	}
}
