package judge

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Stages are the steps of a provisioning, in their order.
var Stages = []string{"power-on", "dhcp", "tftp", "script", "kernel", "join", "inventory", "wipe", "diag", "deploy", "kexec", "node-join", "active"}

// Record is what `firstlight machine show --json` prints, as far as the judge reads it.
type Record struct {
	Name        string      `json:"name"`
	NodeID      string      `json:"node_id"`
	State       string      `json:"state"`
	MACs        []string    `json:"macs"`
	UUID        string      `json:"uuid"`
	DiskSerials []string    `json:"disk_serials"`
	Waiting     *Waiting    `json:"waiting"`
	Failure     *Failure    `json:"failure"`
	NodeKeyID   string      `json:"node_key_id"`
	Connected   *Connection `json:"connected"`
	Hardware    *Hardware   `json:"hardware"`
	Workflow    *Workflow   `json:"workflow"`
	Workflows   int         `json:"workflows"`
	Alarms      []Alarm     `json:"alarms"`
	DiskState   []DiskState `json:"disk_state"`
}

// Waiting is what a state waits for.
type Waiting struct {
	For  string `json:"for"`
	Next string `json:"next"`
}

// Failure is the cause of an end that nobody wanted.
type Failure struct {
	Step string `json:"step"`
	What string `json:"what"`
	Why  string `json:"why"`
	Next string `json:"next"`
}

// Connection is the machine's open session.
type Connection struct {
	Role   string    `json:"role"`
	BootID string    `json:"boot_id"`
	Since  time.Time `json:"since"`
}

// Hardware is the last inventory in short.
type Hardware struct {
	Manufacturer string `json:"manufacturer"`
	Product      string `json:"product"`
	Serial       string `json:"serial"`
	UUID         string `json:"uuid"`
	NICs         []struct {
		MAC string `json:"mac"`
	} `json:"nics"`
	Disks []struct {
		Serial    string `json:"serial"`
		SizeBytes int64  `json:"size_bytes"`
	} `json:"disks"`
}

// Workflow is one attempt to provision a machine.
type Workflow struct {
	ID             string   `json:"id"`
	Generation     uint64   `json:"generation"`
	Image          string   `json:"image"`
	ManifestSHA256 string   `json:"manifest_sha256"`
	State          string   `json:"state"`
	PauseAfter     []string `json:"pause_after"`
	Steps          []Step   `json:"steps"`
}

// Step is one step of a workflow.
type Step struct {
	Name     string     `json:"name"`
	State    string     `json:"state"`
	Why      string     `json:"why"`
	Start    *time.Time `json:"start"`
	End      *time.Time `json:"end"`
	Waiting  *Waiting   `json:"waiting"`
	Commands []Command  `json:"commands"`
}

// Command is one signed command.
type Command struct {
	ID       string     `json:"id"`
	Kind     string     `json:"kind"`
	KeyID    string     `json:"key_id"`
	Issued   *time.Time `json:"issued"`
	Ended    *time.Time `json:"ended"`
	State    string     `json:"state"`
	Message  string     `json:"message"`
	Attested bool       `json:"attested"`
	Progress *struct {
		What  string `json:"what"`
		Done  uint64 `json:"done"`
		Total uint64 `json:"total"`
		Unit  string `json:"unit"`
	} `json:"progress"`
}

// DiskState is what a disk holds, as far as the control plane knows.
type DiskState struct {
	Serial string `json:"serial"`
	Holds  string `json:"holds"`
	Why    string `json:"why"`
}

// Alarm is something that a person must look at.
type Alarm struct {
	Text string `json:"text"`
}

// Step returns the step of that name; nil when there is none.
func (r *Record) Step(name string) *Step {
	if r == nil || r.Workflow == nil {
		return nil
	}
	for i := range r.Workflow.Steps {
		if r.Workflow.Steps[i].Name == name {
			return &r.Workflow.Steps[i]
		}
	}
	return nil
}

// Reached says whether the step was begun.
func (r *Record) Reached(name string) bool {
	s := r.Step(name)
	return s != nil && s.Start != nil && s.State != "pending" && s.State != "paused"
}

// Over says whether the step is done, failed or skipped.
func (r *Record) Over(name string) bool {
	s := r.Step(name)
	return s != nil && slices.Contains([]string{"done", "failed", "skipped"}, s.State)
}

// FirstFailed returns the first failed step; nil when there is none.
func (r *Record) FirstFailed() *Step {
	for _, name := range Stages {
		if s := r.Step(name); s != nil && s.State == "failed" {
			return s
		}
	}
	return nil
}

// Commands lists the ids of all commands, in the order of steps.
func (r *Record) Commands() []string {
	var out []string
	if r.Workflow == nil {
		return out
	}
	for _, s := range r.Workflow.Steps {
		for _, c := range s.Commands {
			out = append(out, c.ID)
		}
	}
	return out
}

// machineKinds are the commands that a machine must have answered, in the order of the chain, and whether it vouches for the answer.
var machineKinds = []struct {
	step, kind string
	attested   bool
}{
	{"wipe", "disk.wipe", true}, {"diag", "diag.nvml", true}, {"diag", "diag.dcgm", true}, {"deploy", "deploy.image", true}, {"kexec", "boot.kexec", false},
}

// Active checks that the record says active, with every step's commands, keys and times.
func Active(r *Record) []Check {
	return []Check{recordState(r), recordSteps(r), recordCommands(r), recordDiag(r)}
}

func recordState(r *Record) Check {
	const name = "record: active"
	if r.Workflow == nil {
		return Fail(name, "machine is %s and has no workflow", r.State)
	}
	role := "none"
	if r.Connected != nil {
		role = r.Connected.Role
	}
	ok := r.State == "active" && r.Workflow.State == "done" && role == "node" && r.NodeKeyID != "" && r.Failure == nil
	return Of(name, ok, "machine %s, workflow %s, session as %s, node key %s", r.State, r.Workflow.State, role, r.NodeKeyID)
}

func recordSteps(r *Record) Check {
	const name = "record: every step with its times"
	var previous time.Time
	for _, stage := range Stages {
		s := r.Step(stage)
		switch {
		case s == nil:
			return Fail(name, "step %s is missing", stage)
		case s.State != "done" && s.State != "skipped":
			return Fail(name, "step %s is %s", stage, s.State)
		case s.State == "skipped" && s.Why == "":
			return Fail(name, "step %s is skipped and does not say why", stage)
		case s.Start == nil || s.End == nil || s.End.Before(*s.Start):
			return Fail(name, "step %s has start %v and end %v", stage, s.Start, s.End)
		case s.End.Before(previous):
			return Fail(name, "step %s ended at %s, before the step that comes first", stage, s.End)
		}
		previous = *s.End
	}
	return Pass(name, "%d steps, ended in order", len(Stages))
}

func recordCommands(r *Record) Check {
	const name = "record: signed commands"
	at, ids := 0, map[string]bool{}
	for _, stage := range Stages {
		s := r.Step(stage)
		if s == nil {
			continue
		}
		for _, c := range s.Commands {
			if c.ID == "" || ids[c.ID] || c.KeyID == "" || c.Issued == nil || c.Ended == nil || c.State != "succeeded" {
				return Fail(name, "command %q (%s) of step %s: state %s, key %q, issued %v, ended %v", c.ID, c.Kind, stage, c.State, c.KeyID, c.Issued, c.Ended)
			}
			ids[c.ID] = true
			if at < len(machineKinds) && machineKinds[at].kind == c.Kind {
				if want := machineKinds[at]; want.step != stage || want.attested && !c.Attested {
					return Fail(name, "command %s: step %s, attested %v; want step %s, attested %v", c.Kind, stage, c.Attested, want.step, want.attested)
				}
				at++
			}
		}
	}
	if at < len(machineKinds) {
		return Fail(name, "no %s at its place among %d commands", machineKinds[at].kind, len(ids))
	}
	refresh := false
	for _, stage := range []string{"node-join", "active"} {
		if s := r.Step(stage); s != nil {
			refresh = refresh || slices.ContainsFunc(s.Commands, func(c Command) bool { return c.Kind == "inventory.refresh" })
		}
	}
	return Of(name, refresh, "%d commands, each with id, key and times; disk.wipe, diag.nvml, diag.dcgm, deploy.image, boot.kexec in this order; node answered inventory.refresh: %v",
		len(ids), refresh)
}

// recordDiag checks that a machine without a GPU never counts as one that passed.
func recordDiag(r *Record) Check {
	const name = "record: no GPU is skipped, never passed"
	s := r.Step("diag")
	if s == nil {
		return Fail(name, "no step diag")
	}
	said := []string{s.Why}
	for _, c := range s.Commands {
		said = append(said, c.Message)
	}
	text := strings.Join(said, "; ")
	return Of(name, s.State == "skipped" && strings.Contains(text, "no GPU"), "step diag is %s: %s", s.State, text)
}

// Cause is the record's failure in one line.
func (r *Record) Cause() string {
	f := r.Failure
	if f == nil {
		if s := r.FirstFailed(); s != nil {
			return fmt.Sprintf("%s: %s", s.Name, s.Why)
		}
		return ""
	}
	line := f.Step + ": " + f.What
	if f.Why != "" && !strings.Contains(f.What, f.Why) {
		line += ": " + f.Why
	}
	return line
}
