package site

import "firstlight/site/internal/tftp"

// Meter is told what the boot services do, for whoever counts it. Its methods are called from many goroutines, must not wait, and
// get words of fixed lists only: nothing that a machine sent.
type Meter interface {
	// DHCP tells of one boot request: "offered", "silent" (an answer was not due), "malformed" or "unsent".
	DHCP(result string)
	// TFTP tells of one transfer's end, "served" or "failed", and of its bytes.
	TFTP(result string, bytes int64)
	// HTTP tells of one answer to its end. File is "script", "kernel", "ramdisk", "site", "boot", "firmware", "image", "report" or
	// "other".
	HTTP(file string, status int, bytes int64)
}

// noMeter counts nothing.
type noMeter struct{}

func (noMeter) DHCP(string)             {}
func (noMeter) TFTP(string, int64)      {}
func (noMeter) HTTP(string, int, int64) {}

// meteredTFTP tells a meter what TFTP does, too.
type meteredTFTP struct {
	tftp.Events
	meter Meter
}

// Served implements tftp.Events.
func (m meteredTFTP) Served(t tftp.Transfer) {
	m.meter.TFTP("served", t.Bytes)
	m.Events.Served(t)
}

// Failed implements tftp.Events.
func (m meteredTFTP) Failed(t tftp.Transfer, reason string) {
	m.meter.TFTP("failed", t.Bytes)
	m.Events.Failed(t, reason)
}
