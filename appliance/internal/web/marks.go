package web

import (
	"html/template"

	"firstlight/appliance/internal/fleet"
)

// The five tones. Each has a colour, a shape and, beside it, a word: none of the three alone.
const (
	toneNeutral = "neutral"
	toneBlue    = "blue"
	toneGreen   = "green"
	toneAmber   = "amber"
	toneRed     = "red"
)

func drawn(class, inner string) template.HTML {
	return template.HTML(`<svg class="mark m-` + class + `" viewBox="0 0 16 16" aria-hidden="true">` + inner + `</svg>`)
}

const (
	ring    = `<circle cx="8" cy="8" r="6.250" fill="none" stroke="currentColor" stroke-width="1.500"/>`
	half    = ring + `<path d="M8 3.500a4.500 4.500 0 0 1 0 9z" fill="currentColor"/>`
	tick    = `<circle cx="8" cy="8" r="7" fill="currentColor"/><path d="M4.800 8.200l2.200 2.200 4.200-4.600" class="in" fill="none" stroke="var(--card)" stroke-width="1.700" stroke-linecap="round" stroke-linejoin="round"/>`
	warning = `<path d="M8 1.200l7.200 13.100H.8z" fill="currentColor" stroke="currentColor" stroke-linejoin="round"/><path d="M8 5.800v4M8 11.900v.2" stroke="var(--card)" stroke-width="1.600" stroke-linecap="round"/>`
	cross   = `<path d="M5 .8h6L15.200 5v6L11 15.200H5L.8 11V5z" fill="currentColor"/><path d="M5.500 5.500l5 5m0-5l-5 5" stroke="var(--card)" stroke-width="1.700" stroke-linecap="round"/>`
	dash    = `<circle cx="8" cy="8" r="6.250" fill="none" stroke="currentColor" stroke-width="1.500"/><path d="M5.500 8h5" stroke="currentColor" stroke-width="1.500" stroke-linecap="round"/>`
	paused  = `<circle cx="8" cy="8" r="6.250" fill="none" stroke="currentColor" stroke-width="1.500"/><path d="M6.400 5.700v4.600M9.600 5.700v4.600" stroke="currentColor" stroke-width="1.500" stroke-linecap="round"/>`
)

var marks = map[string]template.HTML{
	toneNeutral: drawn(toneNeutral, ring), toneBlue: drawn(toneBlue, half), toneGreen: drawn(toneGreen, tick),
	toneAmber: drawn(toneAmber, warning), toneRed: drawn(toneRed, cross),
}

var stepMarks = map[fleet.StepState]template.HTML{
	fleet.StepPending: drawn(toneNeutral, ring), fleet.StepRunning: drawn(toneBlue, half), fleet.StepDone: drawn(toneGreen, tick),
	fleet.StepFailed: drawn(toneRed, cross), fleet.StepSkipped: drawn(toneNeutral, dash), fleet.StepCancelled: drawn(toneNeutral, dash),
	fleet.StepPaused: drawn(toneAmber, paused),
}

// look is a state as it is shown.
type look struct{ Tone, Word string }

func lookOf(state fleet.MachineState, need bool) look {
	l := look{toneNeutral, string(state)}
	switch state {
	case fleet.MachineNew:
		l = look{toneNeutral, "Ready"}
	case fleet.MachineProvisioning:
		l = look{toneBlue, "Working"}
	case fleet.MachinePaused:
		l = look{toneAmber, "Paused"}
	case fleet.MachineActive:
		l = look{toneGreen, "Running"}
	case fleet.MachineFailed:
		l = look{toneRed, "Failed"}
	case fleet.MachineCancelling:
		l = look{toneBlue, "Cancelling"}
	case fleet.MachineCancelled:
		l = look{toneNeutral, "Cancelled"}
	case fleet.MachineAdopted:
		l = look{toneGreen, "Adopted"}
	case fleet.MachineDiscovered:
		l = look{toneNeutral, "Discovered"}
	}
	if need && l.Tone != toneRed {
		l.Tone = toneAmber
	}
	return l
}

// chips are the states of a fleet in the order in which they are shown; "need" and "working" are the roster's own.
var chips = []struct{ Key, Word, Tone string }{
	{"", "All", ""}, {"need", "Need you", toneAmber}, {"working", "Working", toneBlue}, {"new", "Ready", toneNeutral}, {"active", "Running", toneGreen},
	{"adopted", "Adopted", toneGreen}, {"failed", "Failed", toneRed}, {"paused", "Paused", toneAmber}, {"cancelled", "Cancelled", toneNeutral}, {"discovered", "Discovered", toneNeutral},
}
