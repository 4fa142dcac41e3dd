// Package planner turns a machine's record, an image and the time into the complete plan of a provisioning workflow.
//
// It is pure: no store, no network, no randomness; the same input gives the same plan, byte for byte. It is for the executor,
// which makes no choices of its own. It does not say when a step is over: that is the executor's reading of facts.
package planner

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"firstlight/appliance/internal/fleet"
	"firstlight/gateway-client/ident"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
)

// Deadlines of the steps. They are generous: software emulation and slow firmware are still the same machine at work.
const (
	PowerOnDeadline   = 5 * time.Minute
	DHCPDeadline      = 6 * time.Minute
	TFTPDeadline      = 5 * time.Minute
	ScriptDeadline    = 6 * time.Minute
	KernelDeadline    = 10 * time.Minute
	JoinDeadline      = 10 * time.Minute
	InventoryDeadline = 5 * time.Minute
	WipeDeadline      = 30 * time.Minute
	DiagDeadline      = 10 * time.Minute
	DeployDeadline    = 30 * time.Minute
	KexecDeadline     = 10 * time.Minute
	NodeJoinDeadline  = 15 * time.Minute
	ActiveDeadline    = 5 * time.Minute
)

var (
	// ErrProtected: the machine's disks are protected.
	ErrProtected = errors.New("machine is protected")
	// ErrNotEnrolled: the machine was discovered and belongs to nobody yet.
	ErrNotEnrolled = errors.New("machine is not enrolled")
)

// diagLevel is dcgmi's -r: the quick one, as part of every provisioning.
const diagLevel = 1

// Image is what the planner must know of an image.
type Image struct {
	Name string
	// ManifestSHA256 is the digest of the serialized signed manifest, and its name among the blobs.
	ManifestSHA256 [32]byte
	// RawSize is the image's size on a disk, in bytes.
	RawSize int64
}

// Site is what the planner must know of the appliance's site.
type Site struct {
	// NodeID is the site agent's.
	NodeID ident.NodeID
	// HTTPBase is the URL of the site's HTTP server without a slash at its end, such as "http://10.77.0.2:8080".
	HTTPBase string
	// Anchors are the trust anchors that the RAM disk gets; the deployed node is seeded with the same.
	Anchors *sitev1.TrustAnchors
}

// Input is everything that a plan depends on.
type Input struct {
	Machine *fleet.Record
	Image   Image
	Site    Site
	// PauseAfter are names of steps after which the workflow waits for a person.
	PauseAfter []string
	WorkflowID string
	LeaseID    string
	Now        time.Time
}

// BMCPasswordRef is the reference to the password of a machine's management controller.
func BMCPasswordRef(machine string) string { return "secret://bmc/" + machine }

// JoinSecretRef is the reference to the join secret of a workflow's deploy.
func JoinSecretRef(workflow string) string { return "secret://provisioned/" + workflow }

// Plan returns the plan, or why there can be none.
func Plan(in Input) (fleet.Plan, error) {
	if err := check(in); err != nil {
		return fleet.Plan{}, err
	}
	m := in.Machine
	p := fleet.Plan{LeaseID: in.LeaseID, LeaseExpires: fleet.At(in.Now.Add(PowerOnDeadline + DHCPDeadline + TFTPDeadline +
		ScriptDeadline + KernelDeadline + JoinDeadline))}
	b := builder{in: in, expires: p.LeaseExpires}
	onSite := "see that the site agent is running and that it reaches the BMC at " + m.BMC.URL
	onMachine := "look at the machine's console: the agent says there what it does"
	p.Steps = []fleet.PlannedStep{
		{Name: fleet.StepPowerOn, Deadline: fleet.Duration(PowerOnDeadline),
			For: "the site agent to open the boot lease and the BMC at " + m.BMC.URL + " to power-cycle the machine into a network boot", Next: onSite,
			Remedy: onSite + b.modeRemedy(),
			Commands: []fleet.PlannedCommand{
				waits("the site agent to open the boot lease for "+m.Name, b.site("boot.prepareRamdisk", b.prepare())),
				waits("the BMC at "+m.BMC.URL+" to take the network boot for the next start", b.bmc("bmc.bootOverride", b.override())),
				waits("the BMC at "+m.BMC.URL+" to switch the machine off and on again", b.bmc("bmc.power", b.power())),
			}},
		{Name: fleet.StepDHCP, Deadline: fleet.Duration(DHCPDeadline),
			For:  fmt.Sprintf("the machine's firmware to ask for a network boot from one of %v", m.MACs),
			Next: "check the cable and switch port of that network card, and that the firmware boots from the network"},
		{Name: fleet.StepTFTP, Deadline: fleet.Duration(TFTPDeadline),
			For:  "the machine's firmware to fetch its boot file over TFTP",
			Next: "check that UDP port 69 and the transfer's ports pass between the machine and the appliance"},
		{Name: fleet.StepScript, Deadline: fleet.Duration(ScriptDeadline),
			For:  "iPXE to fetch this boot's script over HTTP",
			Next: "look at the machine's console: iPXE says there what it cannot do"},
		{Name: fleet.StepKernel, Deadline: fleet.Duration(KernelDeadline),
			For:  "iPXE to fetch the kernel and its initrds over HTTP",
			Next: "look at the machine's console: iPXE shows there how far each file is"},
		{Name: fleet.StepJoin, Deadline: fleet.Duration(JoinDeadline),
			For: "the RAM disk to start and to join", Next: onMachine + " and why it cannot join",
			After: []fleet.PlannedCommand{b.site("boot.cleanUp", b.cleanUp(sitev1.CleanUpBoot_REASON_CONSUMED))}},
		{Name: fleet.StepInventory, Deadline: fleet.Duration(InventoryDeadline),
			For: "the RAM disk to open its session and to send its inventory", Next: onMachine},
		{Name: fleet.StepWipe, Deadline: fleet.Duration(WipeDeadline),
			For: fmt.Sprintf("the RAM disk to wipe the disks with serial %v and to read them back", m.DiskSerials), Next: onMachine,
			Remedy:   "compare the serials in this message with those of firstlight machine show " + m.Name + ": only a disk that the record names is ever written. Correct the record or replace the disk, then begin again with firstlight provision",
			Commands: []fleet.PlannedCommand{b.ramdisk("disk.wipe", laneControl, true, b.wipe())}},
		{Name: fleet.StepDiag, Deadline: fleet.Duration(DiagDeadline),
			For: "the RAM disk to test the GPUs", Next: onMachine,
			Remedy: "see which GPU and which test the message names; a machine whose diagnosis failed is not installed",
			Commands: []fleet.PlannedCommand{
				b.ramdisk("diag.nvml", laneControl, true, b.nvml()),
				b.ramdisk("diag.dcgm", laneBulk, true, b.dcgm()),
			}},
		{Name: fleet.StepDeploy, Deadline: fleet.Duration(DeployDeadline),
			For: fmt.Sprintf("the RAM disk to write image %q to the disk with serial %s and to read it back", in.Image.Name, m.DiskSerials[0]), Next: onMachine,
			Remedy:   "if the message says that the disk is too small, use a larger disk or a smaller image; otherwise see that the image is whole (firstlight image list) and that nothing between the appliance and the machine changes HTTP traffic; then begin again with firstlight provision, which wipes the disk first",
			Commands: []fleet.PlannedCommand{b.deploy()}},
		{Name: fleet.StepKexec, Deadline: fleet.Duration(KexecDeadline),
			For: "the RAM disk to load the installed system's kernel and to enter it", Next: onMachine,
			Remedy:   "use an image whose boot entry on its EFI system partition names a kernel and an initrd that are there; then begin again with firstlight provision",
			Commands: []fleet.PlannedCommand{b.ramdisk("boot.kexec", laneControl, false, b.kexec())}},
		{Name: fleet.StepNodeJoin, Deadline: fleet.Duration(NodeJoinDeadline),
			For: "the installed system to start and its node agent to join", Next: onMachine},
		{Name: fleet.StepActive, Deadline: fleet.Duration(ActiveDeadline),
			For: "the node agent to open its session and to answer a signed inventory.refresh", Next: onMachine,
			Commands: []fleet.PlannedCommand{b.node("inventory.refresh", b.refresh())}},
	}
	p.OnCancel = []fleet.PlannedCommand{b.site("boot.cleanUp", b.cleanUp(sitev1.CleanUpBoot_REASON_CANCELLED))}
	return p, b.err
}

func check(in Input) error {
	m := in.Machine
	bad := func(format string, args ...any) error {
		return fmt.Errorf("plan machine %q: "+format, append([]any{m.Name}, args...)...)
	}
	switch {
	case m.Protected != nil:
		return bad("%w: it is %s", ErrProtected, m.Protected)
	case !m.Discovered.IsZero():
		return bad("%w", ErrNotEnrolled)
	case m.BMC.URL == "":
		return bad("its record names no management controller: correct the record")
	case len(m.MACs) == 0:
		return bad("its record has no MAC")
	case len(m.DiskSerials) == 0:
		return bad("its record names no disk by serial number")
	case in.Image.Name == "" || in.Image.RawSize <= 0:
		return bad("image %q of %d bytes is not an image", in.Image.Name, in.Image.RawSize)
	case in.Site.NodeID == "" || in.Site.HTTPBase == "" || in.Site.Anchors == nil:
		return bad("the site is not configured")
	}
	for _, s := range in.PauseAfter {
		if !slices.Contains(fleet.StepNames(), s) {
			return bad("cannot pause after %q: want one of %v", s, fleet.StepNames())
		}
		if s == fleet.StepActive {
			return bad("nothing comes after %q", s)
		}
	}
	return nil
}
