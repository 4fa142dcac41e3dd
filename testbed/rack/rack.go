// Package rack is the machines of a rack in a box: a Machine keeps its disks,
// UEFI variables, serial log and history over power cycles, and is the host of
// a simulated management controller.
//
// It is for testbed scenarios and tests of the testbed. Each power-on is a new
// QEMU process, because the boot order is a start argument; a reset from
// inside the guest keeps the process and its order. Nothing in production
// imports it.
package rack

import (
	"context"
	"fmt"
	"sync"

	"firstlight/testbed/bmcsim"
	"firstlight/testbed/qemu"
)

// maxPowerOns bounds how many power-ons one machine remembers; a machine that
// was started more often refuses.
const maxPowerOns = 1000

// Machine is one server. It starts powered off. Its methods may be called from
// several goroutines.
type Machine struct {
	cfg qemu.Config

	// power is held by the power action in progress.
	power sync.Mutex

	// mu guards what follows; it is never held while QEMU starts or stops.
	mu  sync.Mutex
	vms []*qemu.VM // every power-on, oldest first
}

var _ bmcsim.Host = (*Machine)(nil)

// New declares a machine; nothing runs yet. BootFirst of cfg has no meaning:
// each power-on says what comes first.
func New(cfg qemu.Config) *Machine { return &Machine{cfg: cfg} }

// Firmware is what the machine was declared with.
func (m *Machine) Firmware() string { return m.cfg.Firmware }

// PowerOn starts the machine from boot, "pxe" or "disk"; it does nothing if the
// machine is on.
func (m *Machine) PowerOn(ctx context.Context, boot string) error {
	m.power.Lock()
	defer m.power.Unlock()
	if m.Powered() {
		return nil
	}
	if m.PowerOns() >= maxPowerOns {
		return fmt.Errorf("power on %s: more than %d power-ons", m.cfg.Name, maxPowerOns)
	}
	cfg := m.cfg
	cfg.BootFirst = boot
	vm, err := qemu.Start(ctx, cfg)
	if err != nil {
		return fmt.Errorf("power on: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.vms = append(m.vms, vm)
	return nil
}

// PowerOff cuts the power; it does nothing if the machine is off.
func (m *Machine) PowerOff(ctx context.Context) error {
	m.power.Lock()
	defer m.power.Unlock()
	vm := m.VM()
	if vm == nil {
		return nil
	}
	if err := vm.Stop(ctx); err != nil {
		return fmt.Errorf("power off: %w", err)
	}
	return nil
}

// Powered is false also when the guest turned itself off.
func (m *Machine) Powered() bool { return m.VM() != nil }

// VM is the present power-on; nil while the machine is off.
func (m *Machine) VM() *qemu.VM {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.vms) == 0 {
		return nil
	}
	vm := m.vms[len(m.vms)-1]
	select {
	case <-vm.Done():
		return nil
	default:
		return vm
	}
}

// PowerOns counts the power-ons so far.
func (m *Machine) PowerOns() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.vms)
}

// Events lists the QEMU events of every power-on, oldest first. A restart of
// the machine inside one power-on is a RESET; kexec makes none.
func (m *Machine) Events() []qemu.Event {
	m.mu.Lock()
	vms := append([]*qemu.VM(nil), m.vms...)
	m.mu.Unlock()
	var events []qemu.Event
	for _, vm := range vms {
		events = append(events, vm.Events()...)
	}
	return events
}
