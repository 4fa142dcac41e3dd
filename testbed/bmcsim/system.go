package bmcsim

import (
	"context"
	"fmt"
	"net/http"
	"slices"
)

// override is ComputerSystem.Boot, in Redfish's own words (DSP0268). Mode is the machine's and outlives an override.
type override struct{ Enabled, Mode, Target string }

// legacy is how Redfish calls a BIOS boot.
const legacy = "Legacy"

// Values that this controller knows.
var (
	resetTypes     = []string{"On", "ForceOff", "ForceRestart", "PowerCycle"}
	overrideStates = []string{"Disabled", "Once", "Continuous"}
	// hostBoot maps a target to the host's word; without an override the
	// machine starts from its disk.
	hostBoot = map[string]string{"None": "disk", "Pxe": "pxe", "Hdd": "disk", "Cd": "cd"}
)

func targets() []string { return []string{"None", "Pxe", "Hdd", "Cd"} }

func (s *Server) getSystem(w http.ResponseWriter, _ *http.Request) {
	power := "Off"
	if s.cfg.Host.Powered() {
		power = "On"
	}
	s.mu.Lock()
	o, tag, noMode := s.override, s.tag(), s.faults.NoMode
	s.mu.Unlock()
	boot := object{
		"BootSourceOverrideEnabled":                         o.Enabled,
		"BootSourceOverrideEnabled@Redfish.AllowableValues": overrideStates,
		"BootSourceOverrideTarget":                          o.Target,
		"BootSourceOverrideTarget@Redfish.AllowableValues":  targets(),
	}
	if !noMode {
		boot["BootSourceOverrideMode"] = o.Mode
		boot["BootSourceOverrideMode@Redfish.AllowableValues"] = s.cfg.Modes
	}
	w.Header().Set("ETag", tag)
	reply(w, 200, object{
		"@odata.id": systemPath, "@odata.type": "#ComputerSystem.v1_13_0.ComputerSystem", "@odata.etag": tag,
		"Id": "1", "Name": "System", "SystemType": "Physical", "PowerState": power,
		"Status": object{"State": "Enabled", "Health": "OK"},
		"Boot":   boot,
		"Actions": object{"#ComputerSystem.Reset": object{
			"target": resetPath, "ResetType@Redfish.AllowableValues": resetTypes,
		}},
	})
}

// tag is the entity tag of the system; s.mu is held.
func (s *Server) tag() string { return fmt.Sprintf(`"%d"`, s.etag) }

func (s *Server) patchSystem(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Boot *struct {
			BootSourceOverrideEnabled, BootSourceOverrideMode, BootSourceOverrideTarget *string
		}
	}
	if err := decodeBody(r.Body, &in); err != nil || in.Boot == nil {
		fail(w, http.StatusBadRequest, "MalformedJSON", "The request body must be a JSON object with Boot.")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	match := r.Header.Get("If-Match")
	switch {
	case match == "" && s.faults.NeedIfMatch:
		fail(w, http.StatusPreconditionRequired, "PreconditionRequired", "A precondition header is required to change this resource.")
		return
	case match != "" && match != s.tag() && match != "*":
		fail(w, http.StatusPreconditionFailed, "PreconditionFailed", "The ETag supplied did not match the ETag of the resource.")
		return
	case s.faults.RefuseBootOverride:
		fail(w, http.StatusBadRequest, "PropertyNotWritable", "The property Boot is a read only property and cannot be assigned a value.")
		return
	case s.faults.NoMode && in.Boot.BootSourceOverrideMode != nil:
		fail(w, http.StatusBadRequest, "PropertyUnknown", "The property BootSourceOverrideMode is not in the list of valid properties for the resource.")
		return
	}
	next := s.override
	for _, p := range []struct {
		name    string
		value   *string
		allowed []string
		field   *string
	}{
		{"BootSourceOverrideEnabled", in.Boot.BootSourceOverrideEnabled, overrideStates, &next.Enabled},
		{"BootSourceOverrideMode", in.Boot.BootSourceOverrideMode, s.cfg.Modes, &next.Mode},
		{"BootSourceOverrideTarget", in.Boot.BootSourceOverrideTarget, targets(), &next.Target},
	} {
		if p.value == nil {
			continue
		}
		if !slices.Contains(p.allowed, *p.value) {
			fail(w, http.StatusBadRequest, "PropertyValueNotInList", fmt.Sprintf("The value %.40q for the property %s is not in the list of acceptable values.", *p.value, p.name))
			return
		}
		*p.field = *p.value
	}
	if s.faults.ResetsMode && in.Boot.BootSourceOverrideMode == nil {
		next.Mode = legacy
	}
	if !s.faults.LieBootOverride {
		s.setOverride(next)
	}
	s.stats.OverridePatches++
	if in.Boot.BootSourceOverrideMode != nil {
		s.stats.ModePatches++
	}
	w.WriteHeader(http.StatusNoContent)
}

// setOverride keeps an override in its one form; s.mu is held.
func (s *Server) setOverride(o override) {
	if o.Enabled == "Disabled" || o.Target == "None" {
		o.Enabled, o.Target = "Disabled", "None"
	}
	s.override = o
	s.etag++
}

// postReset accepts a reset and does it in the background: as on real
// controllers, the answer says nothing about the new state.
func (s *Server) postReset(w http.ResponseWriter, r *http.Request) {
	var in struct{ ResetType string }
	if err := decodeBody(r.Body, &in); err != nil || !slices.Contains(resetTypes, in.ResetType) {
		fail(w, http.StatusBadRequest, "ActionParameterNotSupported", fmt.Sprintf("The parameter ResetType with the value %.40q is not supported.", in.ResetType))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults.RefusePower {
		fail(w, http.StatusInternalServerError, "InternalError", "The request failed due to an internal service error.")
		return
	}
	if !s.faults.IgnorePower {
		select {
		case s.queue <- func(ctx context.Context) { s.reset(ctx, in.ResetType) }:
		default:
			w.Header().Set("Retry-After", "1")
			fail(w, http.StatusServiceUnavailable, "ServiceTemporarilyUnavailable", "The service is temporarily unavailable. Retry in 1 seconds.")
			return
		}
	}
	s.stats.Resets++
	w.WriteHeader(http.StatusNoContent)
}

// reset acts on the host, in the worker.
func (s *Server) reset(ctx context.Context, typ string) {
	log := s.cfg.Log.With("reset", typ)
	on := s.cfg.Host.Powered()
	switch {
	case typ == "On" && on, typ == "ForceOff" && !on:
		log.Info("nothing to do")
		return
	}
	if on {
		if err := s.cfg.Host.PowerOff(ctx); err != nil {
			log.Error("power off", "error", err)
			return
		}
		s.count(func(st *Stats) { st.PowerOffs++ })
	}
	if typ == "ForceOff" {
		log.Info("powered off")
		return
	}
	boot := s.consumeOverride()
	if err := s.cfg.Host.PowerOn(ctx, boot); err != nil {
		log.Error("power on", "boot", boot, "error", err)
		return
	}
	s.count(func(st *Stats) { st.PowerOns++ })
	log.Info("powered on", "boot", boot)
}

// consumeOverride gives the host's word for the next boot. An override that
// holds once is spent from here on.
func (s *Server) consumeOverride() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	boot := hostBoot[s.override.Target]
	if s.override.Enabled == "Once" {
		s.setOverride(override{Enabled: "Disabled", Mode: s.override.Mode})
	}
	return boot
}

func (s *Server) count(f func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.stats)
}
