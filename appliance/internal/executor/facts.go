package executor

import (
	"time"

	"firstlight/appliance/internal/fleet"
)

// Fact is something that was observed about a workflow: one of the types below. At is when; zero means now.
type Fact interface{ isFact() }

// SiteEvent is an event of the site agent about this workflow's boot. Kinds that mean nothing to a workflow change nothing.
type SiteEvent struct {
	Kind   string
	Fields map[string]string
	// Text is the event's sentence for people.
	Text string
	At   time.Time
}

// Joined: an agent of this workflow got its certificate for the key with this thumbprint.
type Joined struct {
	// Role is "ramdisk" or "node".
	Role  string
	KeyID string
	At    time.Time
}

// Refused: a join that belongs to this workflow was refused, or an agent of it must not be trusted any more.
type Refused struct {
	// Step is fleet.StepJoin or fleet.StepNodeJoin.
	Step string
	// Cause is for people: what was wrong.
	Cause string
	// Next is what to do; empty for the step's own advice.
	Next string
	// Contest: two keys presented this boot's assertion, so that nothing the first one did counts, whatever the step.
	Contest bool
}

// SessionUp: an agent of this workflow opened its session.
type SessionUp struct {
	// Role is "ramdisk" or "node".
	Role string
	// Epoch grows from session to session of a machine.
	Epoch uint64
	// KeyID is the session's key: a RAM disk's that is not the one that joined for this workflow is one of an earlier boot, whose
	// session may outlive its workflow. Empty is not judged.
	KeyID string
	At    time.Time
}

// SessionDown: the session of that epoch ended.
type SessionDown struct {
	// Role is "ramdisk" or "node".
	Role  string
	Epoch uint64
	// Why is for people.
	Why string
	At  time.Time
}

// Section: a section of the RAM disk's inventory arrived whole. KeyID is as in SessionUp.
type Section struct {
	Name  string
	KeyID string
	At    time.Time
}

// Resumed: a person lets a paused workflow go on.
type Resumed struct{ By string }

// Cancelled: a person ends the workflow.
type Cancelled struct{ By, Reason string }

// Stopped: a person stops everything.
type Stopped struct{ Stop fleet.Stop }

// Thawed: a person lets everything go on.
type Thawed struct{ By string }

// Forbidden: the machine was protected before a command that writes to its disks was handed over.
type Forbidden struct {
	CommandID string
	Mark      fleet.Protection
}

// Report is an agent's verified update on a command.
type Report struct {
	CommandID string
	// Node and Role are the reporting session's.
	Node, Role string
	State      fleet.CommandState
	// Reject is the reason of a rejection in one word, such as "UNTRUSTED_KEY".
	Reject  string
	Message string
	// Result is the serialized result message of the kind.
	Result []byte
	// Attested: a valid report by the agent's key covers this result of AttestedKind; otherwise AttestError says why not.
	Attested     bool
	AttestedKind string
	AttestError  string
	Progress     *fleet.Progress
}

func (SiteEvent) isFact()   {}
func (Joined) isFact()      {}
func (Refused) isFact()     {}
func (SessionUp) isFact()   {}
func (SessionDown) isFact() {}
func (Section) isFact()     {}
func (Resumed) isFact()     {}
func (Cancelled) isFact()   {}
func (Stopped) isFact()     {}
func (Thawed) isFact()      {}
func (Forbidden) isFact()   {}
func (Report) isFact()      {}

// Names of stored facts.
const (
	factOffered    = "offered"
	factTFTP       = "tftp"
	factScript     = "script"
	factFile       = "file:"
	factJoined     = "joined:"
	factSession    = "session:"
	factSection    = "section:"
	roleRAMDisk    = "ramdisk"
	roleNode       = "node"
	lastBootFile   = "boot"
	kindOffered    = "boot.dhcp.offered"
	kindTFTP       = "boot.tftp.served"
	kindTFTPFail   = "boot.tftp.failed"
	kindScript     = "boot.script.served"
	kindScriptDeny = "boot.script.refused"
	kindFileDeny   = "boot.file.refused"
	kindFile       = "boot.file.served"
	kindReport     = "boot.report"
	kindIgnored    = "boot.ignored"
)

// Sections are the inventory sections that a machine must send before anything happens to it.
func Sections() []string { return []string{"system", "cpu", "memory", "disks", "nics"} }
