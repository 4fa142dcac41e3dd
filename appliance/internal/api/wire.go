// Package api is how the command on the same host talks to the appliance: HTTP and JSON over a unix socket, where the kernel says
// who is on the other side. Both halves are here.
//
// It is for appliance (which serves) and its command. It is not for the network and knows no log-in: root and the user that the
// appliance runs as may do everything, everybody else nothing. Whoever it lets in is a person at this host, so a directory may be
// named by its path.
//
//	GET  /v1/machines                    []Machine      POST /v1/machines                   AddMachine → Machine
//	GET  /v1/machines/{name}             Machine        POST /v1/machines/{name}/provision  Provision  → Machine
//	GET  /v1/images                      []Image        POST /v1/machines/{name}/resume     –          → Machine
//	GET  /v1/events?machine=M&limit=N    []Event        POST /v1/images                     AddImage   → Image
//	POST /v1/machines/{name}/preview     Provision → executor.Preview
//	POST /v1/machines/{name}/cancel      Reason    → Machine, when the workflow is over
//	POST /v1/machines/{name}/protect     Reason    → Machine
//	POST /v1/machines/{name}/unprotect   –         → Machine
//	POST /v1/stop                        Reason    → Stopped
//	POST /v1/resume                      –         → Stopped
//
// A refusal is a status from 400 up with {"error": fault.Error}.
package api

import (
	"net/http"
	"time"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
)

// Bounds of the protocol.
const (
	// maxRequest bounds a request's body, maxAnswer an answer's, in bytes.
	maxRequest = 256 << 10
	maxAnswer  = 64 << 20
	// maxRequests bounds the requests at one time.
	maxRequests = 64
	// MaxEvents bounds one answer of events; it is also the default.
	MaxEvents = 1000
	// headerTimeout bounds how long a client may take to ask.
	headerTimeout = 10 * time.Second
	idleTimeout   = time.Minute
	// cancelTimeout bounds the wait for a cancelled workflow's end; the executor's own bound is below it, but for restarts.
	cancelTimeout = 150 * time.Second
	// maxReason bounds a reason that a person gives, in bytes.
	maxReason = 512
)

// AddMachine is what a person says about a new machine.
type AddMachine struct {
	Name        string   `json:"name"`
	MACs        []string `json:"macs"`
	UUID        string   `json:"uuid,omitempty"`
	DiskSerials []string `json:"disk_serials"`
	BMCURL      string   `json:"bmc_url"`
	BMCUser     string   `json:"bmc_user"`
	// BMCPassword crosses the socket and goes into the store encrypted; nothing prints it.
	BMCPassword string `json:"bmc_password"`
	// BMCCertificateSHA256 is hex.
	BMCCertificateSHA256 string `json:"bmc_certificate_sha256"`
	// Firmware is "uefi" or "bios"; empty leaves the machine's mode as it is.
	Firmware string `json:"firmware,omitempty"`
	// Adopt: the machine runs and is protected from the start.
	Adopt bool `json:"adopt,omitempty"`
	// From is the discovered machine that becomes this one.
	From string `json:"from,omitempty"`
	// Place is where people find it: rack and unit.
	Place string `json:"place,omitempty"`
}

// String hides the password.
func (a AddMachine) String() string { return "machine " + a.Name }

// GoString hides the password.
func (a AddMachine) GoString() string { return a.String() }

// Provision orders a workflow. PauseAfter names steps after which it waits for resume.
type Provision struct {
	Image      string   `json:"image"`
	PauseAfter []string `json:"pause_after,omitempty"`
	// Reinstall: an active or adopted machine may be wiped and installed again.
	Reinstall bool `json:"reinstall,omitempty"`
	// Disks is the number of disks that will be wiped, as a person typed it; nil is refused but from this host's own command.
	Disks *int `json:"disks,omitempty"`
	// Version is Machine.Version as it was shown; empty for no matter what.
	Version string `json:"version,omitempty"`
}

// Reason is why a person orders something; it may be empty. Version is Machine.Version as it was shown.
type Reason struct {
	Reason  string `json:"reason"`
	Version string `json:"version,omitempty"`
}

// Stopped says which workflows were stopped or let go on, and where they are. Stop is nil when everything goes on.
type Stopped struct {
	Stop      *fleet.Stop       `json:"stop"`
	Workflows []executor.Frozen `json:"workflows"`
}

// AddImage names a directory on the appliance's host, as an absolute path.
type AddImage struct {
	Name string `json:"name"`
	Dir  string `json:"dir"`
}

// refusal is the body of every answer that is not 200.
type refusal struct {
	Error *fault.Error `json:"error"`
}

func status(k fault.Kind) int {
	switch k {
	case fault.Usage, fault.Invalid:
		return http.StatusBadRequest
	case fault.Denied:
		return http.StatusForbidden
	case fault.NotFound:
		return http.StatusNotFound
	case fault.Conflict:
		return http.StatusConflict
	case fault.Unavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}
