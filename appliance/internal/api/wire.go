// Package api is the one API of the appliance: HTTP and JSON, with both halves here. The command calls it over a unix socket, where the
// kernel says who is on the other side; programs call it over TLS with a token; the page calls it in the same process, as whoever is
// signed in. So who may do what, what is written to the audit log and how a refusal reads is decided in this package and nowhere else.
//
// It is for appliance, its command and its page. [Server] answers, [Client] asks; the table of routes (routes.go) is the list of what
// can be asked, each with the permission that it takes, and GET /v1/openapi.json is its description, made of the same table. Package
// auth says what a role may; roster answers lists and streams; everything that changes a machine goes to fleet and executor.
//
// An order names the version of the machine that its person saw; when the machine is another one by then, or does something else, the
// order is refused. A request with an Idempotency-Key is done once, and answered the same way again for a day. Streams are
// server-sent events that go on from Last-Event-ID.
//
// A refusal is a status from 400 up with {"error": fault.Error}: 400 what was asked is wrong, 401 nobody known asks, 403 that role may
// not, 404 there is none, 409 not now, 503 the appliance cannot now. A directory may be named only over the unix socket.
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
	// maxRequests bounds the requests at one time, maxStreams what is followed, maxBlobs the blobs of uploads that come.
	maxRequests = 64
	maxStreams  = 256
	maxBlobs    = 4
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
