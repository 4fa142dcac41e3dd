//go:build linux

package disk

// OpenName opens a device by name without choosing it first: for tests on loop devices, which are never candidates.
func OpenName(name string) (Device, error) { return Linux{}.defaults().open(name) }
