// Package fleet is what the control plane knows: machines, workflows, boot leases, join secrets and events, as values with a JSON
// form, and the one repository that keeps them in the store.
//
// It is for appliance and its internal packages. It decides nothing: the planner plans, the executor moves workflows, the control
// package judges joins. [Machine] and what hangs on it is exactly what `firstlight machine show --json` prints; additive only.
// [Record], [Run], [Lease] and [NodeSecret] are what is stored; they hold more than anybody may see.
//
// Who writes what: a [Record] by anybody through [Repo.Update]; a [Run] only by its executor goroutine; a [Lease] is opened and
// cancelled by the executor and consumed by a join, always by compare-and-swap.
package fleet

import (
	"encoding/json"
	"fmt"
	"time"
)

// Time is a moment in UTC with milliseconds, in JSON as RFC 3339 text; its zero value is null.
type Time struct{ time.Time }

// timeLayout is RFC 3339 with exactly three decimals.
const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// At returns t in UTC, cut to milliseconds.
func At(t time.Time) Time {
	if t.IsZero() {
		return Time{}
	}
	return Time{t.UTC().Truncate(time.Millisecond)}
}

// MarshalJSON implements json.Marshaler.
func (t Time) MarshalJSON() ([]byte, error) {
	if t.IsZero() {
		return []byte("null"), nil
	}
	return []byte(`"` + t.UTC().Format(timeLayout) + `"`), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *Time) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*t = Time{}
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("parse time: %w", err)
	}
	p, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return fmt.Errorf("parse time: %w", err)
	}
	*t = At(p)
	return nil
}

func (t Time) String() string { return t.UTC().Format(timeLayout) }

// MachineState is a machine's state in one word.
type MachineState string

// The states of a machine. They follow from its newest workflow; a machine without one is new.
const (
	MachineNew          MachineState = "new"
	MachineProvisioning MachineState = "provisioning"
	MachinePaused       MachineState = "paused"
	MachineActive       MachineState = "active"
	MachineFailed       MachineState = "failed"
	// MachineCancelling: a person ended its workflow, and the command in hand is not over yet.
	MachineCancelling MachineState = "cancelling"
	MachineCancelled  MachineState = "cancelled"
	// MachineAdopted runs what others installed; MachineDiscovered booted here and is nobody's yet. Neither had a workflow.
	MachineAdopted    MachineState = "adopted"
	MachineDiscovered MachineState = "discovered"
)

// WorkflowState is a workflow's state. Done, failed and cancelled are final; cancelling leads to cancelled only.
type WorkflowState string

// The states of a workflow.
const (
	WorkflowRunning WorkflowState = "running"
	WorkflowPaused  WorkflowState = "paused"
	WorkflowDone    WorkflowState = "done"
	WorkflowFailed  WorkflowState = "failed"
	// WorkflowCancelling waits for the command in hand to end; nothing new is begun.
	WorkflowCancelling WorkflowState = "cancelling"
	WorkflowCancelled  WorkflowState = "cancelled"
)

// Open says whether the workflow may still change its machine.
func (s WorkflowState) Open() bool {
	return s == WorkflowRunning || s == WorkflowPaused || s == WorkflowCancelling
}

// StepState is a step's state: pending → running or paused → done, failed, cancelled or skipped. Skipped always says why. A step that
// had begun is paused while everything is stopped, and runs on after that.
type StepState string

// The states of a step.
const (
	StepPending StepState = "pending"
	StepRunning StepState = "running"
	StepPaused  StepState = "paused"
	StepDone    StepState = "done"
	StepFailed  StepState = "failed"
	StepSkipped StepState = "skipped"
	// StepCancelled: the step in which a person ended the workflow.
	StepCancelled StepState = "cancelled"
)

// Ended says whether the step is over.
func (s StepState) Ended() bool {
	return s == StepDone || s == StepFailed || s == StepSkipped || s == StepCancelled
}

// The steps of a provisioning workflow, in their order.
const (
	StepPowerOn   = "power-on"
	StepDHCP      = "dhcp"
	StepTFTP      = "tftp"
	StepScript    = "script"
	StepKernel    = "kernel"
	StepJoin      = "join"
	StepInventory = "inventory"
	StepWipe      = "wipe"
	StepDiag      = "diag"
	StepDeploy    = "deploy"
	StepKexec     = "kexec"
	StepNodeJoin  = "node-join"
	StepActive    = "active"
)

// StepNames lists the steps in their order.
func StepNames() []string {
	return []string{StepPowerOn, StepDHCP, StepTFTP, StepScript, StepKernel, StepJoin, StepInventory, StepWipe, StepDiag,
		StepDeploy, StepKexec, StepNodeJoin, StepActive}
}

// Firmware modes.
const (
	FirmwareUEFI = "uefi"
	FirmwareBIOS = "bios"
)

// Machine is one machine as people and programs see it.
type Machine struct {
	Name        string       `json:"name"`
	NodeID      string       `json:"node_id"`
	State       MachineState `json:"state"`
	MACs        []string     `json:"macs"`
	UUID        string       `json:"uuid"`
	DiskSerials []string     `json:"disk_serials"`
	BMC         BMC          `json:"bmc"`
	// Firmware is the firmware mode as a person gave it, "uefi" or "bios"; empty when nobody did. What the machine itself says is in
	// Hardware.
	Firmware string `json:"firmware"`
	// Place is where people find it, such as rack and unit; empty when nobody said.
	Place string `json:"place"`
	// Added is when it became known, null for a machine of an earlier version that did not keep it.
	Added Time `json:"added"`
	// Image is the name of the newest workflow's image.
	Image string `json:"image"`
	// Waiting is what the newest workflow waits for, nil when it waits for nothing.
	Waiting *Waiting `json:"waiting"`
	Failure *Failure `json:"failure"`
	// Cancel is the newest workflow's cancellation, nil when nobody cancelled it.
	Cancel *Cancel `json:"cancel"`
	// Protected is nil for a machine that may be provisioned.
	Protected *Protection `json:"protected"`
	// DiskState says what each disk that may be written holds, as far as this appliance knows.
	DiskState []DiskState `json:"disk_state"`
	// NodeKeyID is the RFC 7638 thumbprint of the key of the node agent's certificate; empty before the first join as node.
	NodeKeyID string      `json:"node_key_id"`
	Connected *Connection `json:"connected"`
	// Hardware is nil before the first inventory.
	Hardware *Hardware `json:"hardware"`
	Workflow *Workflow `json:"workflow"`
	// Workflows counts the workflows that this machine ever had.
	Workflows int     `json:"workflows"`
	Alarms    []Alarm `json:"alarms"`
}

// BMC is where the management controller is. The password is not part of any record that is shown.
type BMC struct {
	URL  string `json:"url"`
	User string `json:"user"`
}

// Waiting says what is waited for, since and until when, and what a person can do.
type Waiting struct {
	For   string `json:"for"`
	Since Time   `json:"since"`
	// Until is null where nothing but a person ends the wait.
	Until Time   `json:"until"`
	Next  string `json:"next"`
}

// Failure names the step, what was being done, the cause, and the next action.
type Failure struct {
	Step string `json:"step"`
	What string `json:"what"`
	Why  string `json:"why"`
	Next string `json:"next"`
}

// Cancel says who ended a workflow, and how it ended.
type Cancel struct {
	By     string `json:"by"`
	Reason string `json:"reason"`
	Since  Time   `json:"since"`
	// Until bounds the wait for the command in hand.
	Until Time `json:"until"`
	// Step is the one that the workflow was at.
	Step string `json:"step"`
	// Outcome says how the command in hand ended; empty while it has not.
	Outcome string `json:"outcome"`
	Next    string `json:"next"`
}

// Protection says that no workflow may touch the machine's disks, and who said so.
type Protection struct {
	Since Time   `json:"since"`
	By    string `json:"by"`
	Why   string `json:"why"`
}

func (p *Protection) String() string {
	s := fmt.Sprintf("protected since %s by %s", p.Since, p.By)
	if p.Why != "" {
		s += ": " + p.Why
	}
	return s
}

// DiskState is what one disk holds.
type DiskState struct {
	Serial string `json:"serial"`
	// Holds is "unknown", "old data", "partly wiped", "clean", "partly written" or "image NAME".
	Holds string `json:"holds"`
	// Since is when that became so, null when this appliance does not know.
	Since Time   `json:"since"`
	Why   string `json:"why"`
}

// What a disk may hold besides "image NAME".
const (
	HoldsUnknown       = "unknown"
	HoldsOldData       = "old data"
	HoldsPartlyWiped   = "partly wiped"
	HoldsClean         = "clean"
	HoldsPartlyWritten = "partly written"
)

// HoldsImage is what a disk holds after an image was written and read back whole.
func HoldsImage(name string) string { return "image " + name }

// Connection is the machine's open session.
type Connection struct {
	// Role is "ramdisk" or "node".
	Role   string `json:"role"`
	BootID string `json:"boot_id"`
	Since  Time   `json:"since"`
}

// Alarm is something that a person must look at. It stays until the record is bounded: MaxAlarms, oldest dropped first.
type Alarm struct {
	Time Time   `json:"time"`
	Text string `json:"text"`
}

// Hardware is the last inventory in short.
type Hardware struct {
	Manufacturer    string `json:"manufacturer"`
	Product         string `json:"product"`
	Serial          string `json:"serial"`
	UUID            string `json:"uuid"`
	FirmwareMode    string `json:"firmware_mode"`
	FirmwareVersion string `json:"firmware_version"`
	Kernel          string `json:"kernel"`
	CPU             string `json:"cpu"`
	Threads         int    `json:"threads"`
	MemoryBytes     uint64 `json:"memory_bytes"`
	Disks           []Disk `json:"disks"`
	NICs            []NIC  `json:"nics"`
	// Sections maps a section's name to the SHA-256 of its encoding, hex.
	Sections map[string]string `json:"sections"`
}

// Disk is one block device as the machine reported it. Name is for people only.
type Disk struct {
	Name            string `json:"name"`
	Serial          string `json:"serial"`
	WWN             string `json:"wwn"`
	Model           string `json:"model"`
	SizeBytes       uint64 `json:"size_bytes"`
	Candidate       bool   `json:"candidate"`
	ExcludedBecause string `json:"excluded_because"`
}

// NIC is one network interface as the machine reported it.
type NIC struct {
	Name   string `json:"name"`
	MAC    string `json:"mac"`
	Driver string `json:"driver"`
	Link   bool   `json:"link"`
}

// Workflow is one attempt to provision one machine.
type Workflow struct {
	ID         string `json:"id"`
	Generation uint64 `json:"generation"`
	Image      string `json:"image"`
	// ManifestSHA256 is the digest of the serialized signed manifest, hex.
	ManifestSHA256 string        `json:"manifest_sha256"`
	State          WorkflowState `json:"state"`
	PauseAfter     []string      `json:"pause_after"`
	Started        Time          `json:"started"`
	Ended          Time          `json:"ended"`
	Steps          []Step        `json:"steps"`
	// Trace is the id of its trace, hex. It is shown, not stored: it follows from ID.
	Trace string `json:"trace,omitempty"`
}

// Step is one step of a workflow.
type Step struct {
	Name     string    `json:"name"`
	State    StepState `json:"state"`
	Why      string    `json:"why"`
	Start    Time      `json:"start"`
	End      Time      `json:"end"`
	Waiting  *Waiting  `json:"waiting"`
	Commands []Command `json:"commands"`
}

// Command is one signed command of a step.
type Command struct {
	ID   string `json:"id"`
	Kind string `json:"kind"`
	// KeyID is the thumbprint of the worker key that signed it.
	KeyID  string `json:"key_id"`
	Issued Time   `json:"issued"`
	Ended  Time   `json:"ended"`
	// State is "pending" (stored, not handed to a session yet), "sent", "acked", "running", "succeeded", "failed", "rejected" or "cancelled".
	State   CommandState `json:"state"`
	Message string       `json:"message"`
	// Attested says whether its result came with a valid report by the machine's own key.
	Attested bool      `json:"attested"`
	Progress *Progress `json:"progress"`
}

// CommandState is a command's state in one word.
type CommandState string

// The states of a command.
const (
	CommandPending   CommandState = "pending"
	CommandSent      CommandState = "sent"
	CommandAcked     CommandState = "acked"
	CommandRunning   CommandState = "running"
	CommandSucceeded CommandState = "succeeded"
	CommandFailed    CommandState = "failed"
	CommandRejected  CommandState = "rejected"
	CommandCancelled CommandState = "cancelled"
)

// Ended says whether the command is over.
func (s CommandState) Ended() bool {
	return s == CommandSucceeded || s == CommandFailed || s == CommandRejected || s == CommandCancelled
}

// rank orders the states of a command: an update never takes one back.
func (s CommandState) rank() int {
	switch s {
	case CommandPending:
		return 0
	case CommandSent:
		return 1
	case CommandAcked:
		return 2
	case CommandRunning:
		return 3
	}
	return 4
}

// Before says whether a command may go from s to next: forwards only, and never out of an end. Running to running is progress.
func (s CommandState) Before(next CommandState) bool {
	return !s.Ended() && (s.rank() < next.rank() || s == CommandRunning && next == CommandRunning)
}

// Progress is how far a command is.
type Progress struct {
	What  string `json:"what"`
	Done  uint64 `json:"done"`
	Total uint64 `json:"total"`
	Unit  string `json:"unit"`
}

// Event is one thing that happened, as `firstlight events` prints it.
type Event struct {
	// Seq grows over all events of this appliance.
	Seq  uint64 `json:"seq"`
	Time Time   `json:"time"`
	// Machine is the machine's name; empty when the event is about none.
	Machine  string `json:"machine"`
	NodeID   string `json:"node_id"`
	Workflow string `json:"workflow"`
	// Source is "control" or the node id of the agent that sent it.
	Source string `json:"source"`
	Kind   string `json:"kind"`
	// Fields are texts from the wire: data, never markup.
	Fields  map[string]string `json:"fields"`
	Message string            `json:"message"`
}
