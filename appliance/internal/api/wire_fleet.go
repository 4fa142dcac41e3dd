package api

import (
	"firstlight/appliance/internal/fleet"
)

// Bounds of lists.
const (
	// MaxPage bounds the machines of one page of rows, MaxFull that of whole machines; DefaultPage is used when none is given.
	MaxPage     = 500
	MaxFull     = 200
	DefaultPage = 50
	// MaxNeedYou bounds the machines that need a person in one page; Counts has their true number.
	MaxNeedYou = 50
	// MaxTimeline bounds one page of a timeline and of a log.
	MaxTimeline = 500
	// MaxQuery bounds a search text, in bytes.
	MaxQuery = 256
)

// Views of a page of machines.
const (
	ViewRow  = "row"
	ViewFull = "full"
)

// Query asks for one page of machines. Its zero value is the first page of all, by name.
type Query struct {
	// Q is found in serial, MAC (in any notation), name, place, image, state, UUID or node id.
	Q string
	// State is a state's word, or "need" (needs a person) or "working" (a workflow is open); several separated by commas.
	State string
	// View is ViewRow or ViewFull; empty is ViewRow.
	View string
	// Sort is name, place, state, since, image or changed, with "-" before it for descending; empty is name.
	Sort string
	// Limit is 1 to MaxPage (MaxFull); zero is DefaultPage.
	Limit int
	// Cursor is MachinePage.Next of the page before; empty is the first page.
	Cursor string
}

// MachineRow is a machine in one line.
type MachineRow struct {
	Name   string `json:"name"`
	NodeID string `json:"node_id"`
	// Serial is what the last inventory says, Place what a person said; both are text from outside.
	Serial string             `json:"serial"`
	Place  string             `json:"place"`
	State  fleet.MachineState `json:"state"`
	// Line says what it does, with its object and its clock.
	Line string `json:"line"`
	// Since is when that began, Until when it must be over; null where there is no such bound.
	Since fleet.Time `json:"since"`
	Until fleet.Time `json:"until"`
	// Percent and LeftS (seconds) are of the command that runs, null when that is not known.
	Percent *int     `json:"percent"`
	LeftS   *int64   `json:"left_s"`
	Image   string   `json:"image"`
	MACs    []string `json:"macs"`
	// Changed is the newest moment in the machine's record and workflow.
	Changed fleet.Time `json:"changed"`
	// Need: a person must do something. Why and Next say what and are empty otherwise.
	Need      bool   `json:"need"`
	Why       string `json:"why"`
	Next      string `json:"next"`
	Protected bool   `json:"protected"`
	// Disks are the serials of the disks that a workflow would write.
	Disks []string `json:"disks"`
	// Version stands for what a person decides by: an order that names another version is refused.
	Version string `json:"version"`
}

// MachinePage is a page of machines.
type MachinePage struct {
	// Rows is filled in ViewRow, Machines in ViewFull; the other is empty.
	Rows     []MachineRow    `json:"rows"`
	Machines []fleet.Machine `json:"machines"`
	// Total counts the machines that match.
	Total int `json:"total"`
	// Counts has the machines of the whole fleet by state, and "all", "need" and "working".
	Counts map[string]int `json:"counts"`
	// NeedYou are those of the whole fleet that need a person, longest first, at most MaxNeedYou.
	NeedYou []MachineRow `json:"need_you"`
	// Next is the cursor of the next page, empty on the last.
	Next string `json:"next"`
	// Rev is the moment of this page for Watch: what happens after it comes with a greater id.
	Rev int64 `json:"rev"`
	// Stop says who stopped everything and when; null while everything goes on.
	Stop *fleet.Stop `json:"stop"`
}

// Machine is one machine with everything that is shown of it.
type Machine struct {
	fleet.Machine
	// Version stands for what a person decides by: an order that names another version is refused.
	Version string `json:"version"`
	// Line says what it does, with its object and its clock.
	Line string     `json:"line"`
	Row  MachineRow `json:"row"`
}

// Act is an order without anything to say but what was seen: Version is Machine.Version as it was shown, empty for no matter what.
type Act struct {
	Version string `json:"version,omitempty"`
}

// SetMachine changes what a person said about a machine; what is nil stays.
type SetMachine struct {
	Version     string    `json:"version,omitempty"`
	Place       *string   `json:"place,omitempty"`
	MACs        *[]string `json:"macs,omitempty"`
	UUID        *string   `json:"uuid,omitempty"`
	DiskSerials *[]string `json:"disk_serials,omitempty"`
	// Firmware is "uefi" or "bios"; empty leaves the mode as it is.
	Firmware *string `json:"firmware,omitempty"`
	BMCURL   *string `json:"bmc_url,omitempty"`
	BMCUser  *string `json:"bmc_user,omitempty"`
	// BMCPassword crosses the wire and goes into the store encrypted; nothing prints it.
	BMCPassword *string `json:"bmc_password,omitempty"`
	// BMCCertificateSHA256 is hex.
	BMCCertificateSHA256 *string `json:"bmc_certificate_sha256,omitempty"`
}

// String hides the password.
func (SetMachine) String() string { return "changes of a machine" }

// GoString hides the password.
func (s SetMachine) GoString() string { return s.String() }

// Adopt takes over a machine that runs: it is protected from then on. A discovered one needs the name that it gets.
type Adopt struct {
	Name    string `json:"name,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Version string `json:"version,omitempty"`
}

// Retry begins the newest workflow's order again, with its image and options.
type Retry struct {
	// Disks is the number of disks that will be wiped, as a person typed it.
	Disks   *int   `json:"disks,omitempty"`
	Version string `json:"version,omitempty"`
}

// Removed says what was removed.
type Removed struct {
	Name string `json:"name"`
}

// What an entry of a timeline is about.
const (
	TimelineEvent = "event"
	TimelineStep  = "step"
	TimelineAlarm = "alarm"
)

// TimelineEntry is one thing that happened to a machine. Text and Fields may come from a wire: text, never markup.
type TimelineEntry struct {
	Time fleet.Time `json:"time"`
	// Of is TimelineEvent, TimelineStep or TimelineAlarm.
	Of string `json:"of"`
	// Kind is the event's, or the step's name.
	Kind string `json:"kind"`
	// State is the step's then; empty otherwise.
	State    string            `json:"state"`
	Text     string            `json:"text"`
	Source   string            `json:"source"`
	Workflow string            `json:"workflow"`
	Fields   map[string]string `json:"fields"`
}

// TimelinePage is part of a timeline, newest first.
type TimelinePage struct {
	Entries []TimelineEntry `json:"entries"`
	// Before continues it; empty at its beginning.
	Before string `json:"before"`
}

// LogLine is one line of what a machine's agents and its site's agent said about it.
type LogLine struct {
	Seq    uint64            `json:"seq"`
	Time   fleet.Time        `json:"time"`
	Source string            `json:"source"`
	Kind   string            `json:"kind"`
	Text   string            `json:"text"`
	Fields map[string]string `json:"fields"`
}

// Kinds of a Change.
const (
	ChangeMachine = "machine"
	ChangeGone    = "gone"
	ChangeEvent   = "event"
	// ChangeReset: what happened meanwhile is not known here any more: ask for the page again.
	ChangeReset = "reset"
	// ChangeBeat says only that the stream lives.
	ChangeBeat = "beat"
)

// Change is one change that a watch tells.
type Change struct {
	// ID is the stream's: WatchFrom.After of a later watch.
	ID   int64  `json:"id"`
	Kind string `json:"kind"`
	// Name is the machine's; empty for an event that is about none.
	Name  string       `json:"name"`
	Row   *MachineRow  `json:"row,omitempty"`
	Event *fleet.Event `json:"event,omitempty"`
}

// WatchFrom says what to watch. Its zero value is everything from now on.
type WatchFrom struct {
	// Machine names one machine; empty is all of them.
	Machine string
	// After is MachinePage.Rev or the ID of the last change that was seen; zero is now.
	After int64
}
