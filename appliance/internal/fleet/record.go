package fleet

import (
	"fmt"
	"slices"
	"time"
	"unicode"
)

// Bounds of a record.
const (
	// MaxMachines bounds the fleet of one appliance.
	MaxMachines = 16384
	// MaxAlarms bounds the alarms kept per machine.
	MaxAlarms = 32
	// MaxRevoked bounds the revoked keys kept per machine; a certificate lives 24 hours, so older ones are dead anyway.
	MaxRevoked = 32
	// MaxText bounds a text from the wire in a record, in bytes.
	MaxText = 2048
)

// Record is a machine as stored, key machines/<name>.
type Record struct {
	Name        string   `json:"name"`
	NodeID      string   `json:"node_id"`
	MACs        []string `json:"macs"`
	UUID        string   `json:"uuid"`
	DiskSerials []string `json:"disk_serials"`
	BMC         BMC      `json:"bmc"`
	// Firmware is the machine's firmware mode as a person gave it, FirmwareUEFI or FirmwareBIOS; empty when nobody did.
	Firmware string `json:"firmware,omitempty"`
	// Place is where people find it, such as rack and unit; text from a person.
	Place string `json:"place,omitempty"`
	// BMCCertificateSHA256 is the digest of the controller's leaf certificate, 32 bytes.
	BMCCertificateSHA256 []byte `json:"bmc_certificate_sha256"`
	Added                Time   `json:"added"`
	// Workflow is the id of the newest workflow: whoever writes it by compare-and-swap owns the machine until that workflow ends.
	Workflow  string `json:"workflow"`
	Workflows int    `json:"workflows"`
	NodeKeyID string `json:"node_key_id"`
	// PreviousKeyID is the key before a renewal, good until the new one was seen.
	PreviousKeyID string `json:"previous_key_id"`
	// RevokedKeys are thumbprints whose certificates open no session any more.
	RevokedKeys []string    `json:"revoked_keys"`
	Connected   *Connection `json:"connected"`
	// Epoch is the session epoch of Connected.
	Epoch    uint64    `json:"epoch"`
	Hardware *Hardware `json:"hardware"`
	Alarms   []Alarm   `json:"alarms"`
	// Protected is nil unless a person protects the machine.
	Protected *Protection `json:"protected,omitempty"`
	// Adopted: it was running before this appliance knew it, and was never provisioned by it.
	Adopted bool `json:"adopted,omitempty"`
	// Discovered is when it first joined as an unknown machine; null for a machine that a person enrolled.
	Discovered Time `json:"discovered,omitzero"`
	// Discovery is the newest join as an unknown machine, nil for none.
	Discovery *Discovery `json:"discovery,omitempty"`
}

// FirmwareMode is the machine's firmware mode: a person's word, else what its last inventory says; empty where it is not known.
func (r *Record) FirmwareMode() string {
	if r.Firmware != "" || r.Hardware == nil {
		return r.Firmware
	}
	if m := r.Hardware.FirmwareMode; m == FirmwareUEFI || m == FirmwareBIOS {
		return m
	}
	return ""
}

// Discovery is a join with an assertion that names no machine.
type Discovery struct {
	// Lease is the site's, good for one join: the same request again gets Response again.
	Lease     string `json:"lease"`
	At        Time   `json:"at"`
	CSRSHA256 []byte `json:"csr_sha256"`
	Response  []byte `json:"response"`
	KeyID     string `json:"key_id"`
	// Serial is the system serial number that it claimed.
	Serial string `json:"serial"`
}

// Alarm appends an alarm; the same text again within an hour is the same alarm, and then it returns false.
func (r *Record) Alarm(now time.Time, text string) bool {
	text = Clip(text)
	for _, a := range r.Alarms {
		if a.Text == text && now.Sub(a.Time.Time) < time.Hour {
			return false
		}
	}
	r.Alarms = append(r.Alarms, Alarm{Time: At(now), Text: text})
	if n := len(r.Alarms) - MaxAlarms; n > 0 {
		r.Alarms = slices.Delete(r.Alarms, 0, n)
	}
	return true
}

// Revoke adds a key to the revoked ones.
func (r *Record) Revoke(keyID string) {
	if keyID == "" || slices.Contains(r.RevokedKeys, keyID) {
		return
	}
	r.RevokedKeys = append(r.RevokedKeys, keyID)
	if n := len(r.RevokedKeys) - MaxRevoked; n > 0 {
		r.RevokedKeys = slices.Delete(r.RevokedKeys, 0, n)
	}
}

// Clip bounds a text from the wire to MaxText bytes and valid UTF-8 without control characters.
func Clip(s string) string {
	out := make([]rune, 0, min(len(s), MaxText))
	n := 0
	for _, c := range s {
		if unicode.IsControl(c) {
			c = ' '
		}
		if n += len(string(c)); n > MaxText {
			break
		}
		out = append(out, c)
	}
	return string(out)
}

// Run is a workflow as stored, key workflows/<id>: what is shown, the plan, and the journal of intents and facts.
type Run struct {
	Workflow
	Machine string `json:"machine"`
	NodeID  string `json:"node_id"`
	// By is who ordered it, for people.
	By      string   `json:"by"`
	Failure *Failure `json:"failure"`
	Plan    Plan     `json:"plan"`
	// Facts are what was observed, by name; the set of names is fixed. Facts are only ever added.
	Facts map[string]Fact `json:"facts"`
	// Sent is the journal of commands by id: written before the command is handed to a session, resent byte for byte.
	Sent map[string]*Sent `json:"sent"`
	// RAMDiskKeyID and NodeKeyID are the keys that joined in this workflow.
	RAMDiskKeyID string `json:"ramdisk_key_id"`
	NodeKeyID    string `json:"node_key_id"`
	// Resumed lists the steps after which a person let it go on.
	Resumed []string `json:"resumed"`
	// Cancel is nil unless a person ended it.
	Cancel *Cancel `json:"cancel,omitempty"`
	// Stopped is nil unless everything was stopped and this workflow not resumed; Thawed is when it last was.
	Stopped *Stop `json:"stopped,omitempty"`
	Thawed  Time  `json:"thawed,omitzero"`
	// Lost is nil while the RAM disk's session is open, and before the first. Epoch is that of its newest session.
	Lost  *Lost  `json:"lost,omitempty"`
	Epoch uint64 `json:"epoch,omitempty"`
	// BootAsked is when the machine's firmware last asked for a network boot after its RAM disk had joined; null when it did not.
	BootAsked Time `json:"boot_asked,omitzero"`
	// Moved is when a command in hand last said that it got further; null when none did.
	Moved Time `json:"moved,omitzero"`
	// Disks is what the machine's disks hold; a workflow begins with what the one before left.
	Disks []DiskState `json:"disks"`
	// Closed: over, and everything that had to be told to others is told.
	Closed bool `json:"closed"`
	// CloseBy ends the telling after the workflow's end.
	CloseBy Time `json:"close_by"`
}

// Lost says since when a session is lost, and how it ended.
type Lost struct {
	Since Time   `json:"since"`
	Why   string `json:"why"`
}

// Stop says who stopped everything.
type Stop struct {
	By     string `json:"by"`
	Reason string `json:"reason"`
	Since  Time   `json:"since"`
}

func (s *Stop) String() string {
	out := fmt.Sprintf("everything is stopped since %s by %s", s.Since, s.By)
	if s.Reason != "" {
		out += ": " + s.Reason
	}
	return out
}

// Hold notes what a disk holds from now on. What it holds already keeps its time; a disk that the list does not name is added.
func (r *Run) Hold(now time.Time, serial, holds, why string) {
	why = Clip(why)
	for i := range r.Disks {
		d := &r.Disks[i]
		if d.Serial != serial {
			continue
		}
		if d.Holds != holds {
			d.Since = At(now)
		}
		d.Holds, d.Why = holds, why
		return
	}
	r.Disks = append(r.Disks, DiskState{Serial: serial, Holds: holds, Since: At(now), Why: why})
}

// Fact is one observation.
type Fact struct {
	At   Time   `json:"at"`
	Text string `json:"text"`
}

// Sent is one command's intent.
type Sent struct {
	Step string `json:"step"`
	// Node and Role are the session that it goes to.
	Node string `json:"node"`
	Role string `json:"role"`
	// Wire is the serialized signed Command.
	Wire []byte `json:"wire"`
	// Background: nobody waits for it, so it is delivered even after its step is over.
	Background bool `json:"background"`
	// Refs are the secret references that its runner may ask for while it is not over.
	Refs []string `json:"refs"`
	// Attested: only a valid report by the machine's key makes its result true.
	Attested bool `json:"attested"`
	// NotAfter is the end of its validity.
	NotAfter Time `json:"not_after"`
	// Reject is why its agent rejected it, in one word such as "UNTRUSTED_KEY"; empty otherwise.
	Reject string `json:"reject,omitempty"`
}

// Holds says whether the agent has a command in hand, in the running step, whose runner may ask for ref.
func (r *Run) Holds(node, role, step, ref string) bool {
	s := r.Step(step)
	if s == nil || s.State != StepRunning || r.State != WorkflowRunning {
		return false
	}
	for _, c := range s.Commands {
		sent := r.Sent[c.ID]
		if sent != nil && !c.State.Ended() && sent.Node == node && sent.Role == role && slices.Contains(sent.Refs, ref) {
			return true
		}
	}
	return false
}

// Step returns the named step, nil when there is none.
func (r *Run) Step(name string) *Step {
	for i := range r.Steps {
		if r.Steps[i].Name == name {
			return &r.Steps[i]
		}
	}
	return nil
}

// Current returns the first step that is not over, nil when all are.
func (r *Run) Current() *Step {
	for i := range r.Steps {
		if !r.Steps[i].State.Ended() {
			return &r.Steps[i]
		}
	}
	return nil
}

// Command returns the shown half of a command, nil when there is none with this id.
func (r *Run) Command(id string) *Command {
	for i := range r.Steps {
		for j := range r.Steps[i].Commands {
			if c := &r.Steps[i].Commands[j]; c.ID == id {
				return c
			}
		}
	}
	return nil
}

// Plan is what a workflow will do, decided before it begins. It names no command id: those are minted with the command.
type Plan struct {
	LeaseID      string        `json:"lease_id"`
	LeaseExpires Time          `json:"lease_expires"`
	Steps        []PlannedStep `json:"steps"`
	// OnCancel is told to the site when the workflow ends with its lease still open.
	OnCancel []PlannedCommand `json:"on_cancel"`
}

// Step returns the named planned step; a zero one when there is none.
func (p *Plan) Step(name string) PlannedStep {
	for _, s := range p.Steps {
		if s.Name == name {
			return s
		}
	}
	return PlannedStep{}
}

// PlannedStep is one step of a plan.
type PlannedStep struct {
	Name string `json:"name"`
	// For and Next are the words of its Waiting; Next is also what a failure by time advises.
	For  string `json:"for"`
	Next string `json:"next"`
	// Remedy is what to do when one of the step's commands fails; empty for Next.
	Remedy string `json:"remedy,omitempty"`
	// Deadline bounds the step from its start.
	Deadline Duration         `json:"deadline"`
	Commands []PlannedCommand `json:"commands"`
	// After are commands issued when the step is done; the next step does not wait for them.
	After []PlannedCommand `json:"after"`
}

// PlannedCommand is one command of a plan.
type PlannedCommand struct {
	// For is what is waited for while its agent has it, for people; empty for what the step waits for.
	For  string `json:"for,omitempty"`
	Kind string `json:"kind"`
	Node string `json:"node"`
	// Role is the audience's role in one word.
	Role string `json:"role"`
	// Lane is "control" or "bulk".
	Lane string `json:"lane"`
	// Payload is the serialized payload of the kind.
	Payload  []byte   `json:"payload"`
	Attested bool     `json:"attested"`
	Refs     []string `json:"refs"`
}

// Duration is a time.Duration that reads as text such as "5m0s" in JSON.
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// LeaseState is a boot lease's state: open → consumed or cancelled, both final.
type LeaseState string

// The states of a lease. An open lease past its expiry is as good as cancelled.
const (
	LeaseOpen      LeaseState = "open"
	LeaseConsumed  LeaseState = "consumed"
	LeaseCancelled LeaseState = "cancelled"
)

// Lease is a boot lease, key leases/<id>: the right of one machine to join once as RAM disk.
type Lease struct {
	ID       string     `json:"id"`
	Workflow string     `json:"workflow"`
	Machine  string     `json:"machine"`
	NodeID   string     `json:"node_id"`
	State    LeaseState `json:"state"`
	Expires  Time       `json:"expires"`
	Consumed Time       `json:"consumed"`
	// CSRSHA256 binds the consumption to one request; the same one again gets Response again.
	CSRSHA256 []byte `json:"csr_sha256"`
	Response  []byte `json:"response"`
	KeyID     string `json:"key_id"`
	// Claims are the hardware claims of the join.
	Claims Claims `json:"claims"`
}

// Claims are hardware claims: what a machine says of itself.
type Claims struct {
	UUID string   `json:"uuid"`
	MACs []string `json:"macs"`
}

// NodeSecret is the join secret of the newest deploy of a machine, key provisioned/<node id>. Its value is nowhere.
type NodeSecret struct {
	NodeID   string `json:"node_id"`
	Machine  string `json:"machine"`
	Workflow string `json:"workflow"`
	// Hash is the SHA-256 of the value. A new request by the same RAM disk replaces it while it is unused.
	Hash    []byte `json:"hash"`
	Expires Time   `json:"expires"`
	// Claims are those of the RAM disk's join: the same hardware must present the secret.
	Claims Claims `json:"claims"`
	// Used is when it was presented first; the rest says by whom.
	Used      Time   `json:"used"`
	UsedFrom  string `json:"used_from"`
	CSRSHA256 []byte `json:"csr_sha256"`
	Response  []byte `json:"response"`
	KeyID     string `json:"key_id"`
	// Void is why nobody can use it any more, empty while somebody may.
	Void string `json:"void,omitempty"`
}

// PolicyMark is the newest boot policy of the site, key settings/boot-policy.
type PolicyMark struct {
	Generation uint64 `json:"generation"`
	// SHA256 is over the policy without its generation.
	SHA256 []byte `json:"sha256"`
}

// Agent is an agent that belongs to no machine (the site agent), key agents/<node id>, with its newest one-time join token.
type Agent struct {
	NodeID string `json:"node_id"`
	// Role is the only role that the token may join as.
	Role      string `json:"role"`
	TokenHash []byte `json:"token_hash"`
	Expires   Time   `json:"expires"`
	Used      Time   `json:"used"`
	CSRSHA256 []byte `json:"csr_sha256"`
	Response  []byte `json:"response"`
	// KeyID is the key whose certificate may open a session; PreviousKeyID the one before a renewal, good until the new one was seen.
	KeyID         string `json:"key_id"`
	PreviousKeyID string `json:"previous_key_id"`
}

// Cursor is how far an agent's events are stored, key cursors/<node id>.
type Cursor struct {
	JournalID string `json:"journal_id"`
	Sequence  uint64 `json:"sequence"`
}
