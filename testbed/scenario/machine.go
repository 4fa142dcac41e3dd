package scenario

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"firstlight/testbed/bmcsim"
	"firstlight/testbed/netlab"
	"firstlight/testbed/qemu"
)

// machineName is what the machine is called in the appliance; the second one is only ever a record.
const (
	machineName = "rack1-node1"
	otherName   = "rack1-node2"
)

// diskSize is the machine's disk, in bytes.
const diskSize = 512 << 20

// box is the machine behind the BMC: one QEMU process per power-on.
type box struct {
	mu  sync.Mutex
	cfg qemu.Config
	vms []*qemu.VM
}

// PowerOn implements bmcsim.Host.
func (b *box) PowerOn(ctx context.Context, boot string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.powered() {
		return nil
	}
	cfg := b.cfg
	cfg.BootFirst = boot
	vm, err := qemu.Start(ctx, cfg)
	if err != nil {
		return err
	}
	b.vms = append(b.vms, vm)
	return nil
}

// PowerOff implements bmcsim.Host.
func (b *box) PowerOff(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.powered() {
		return nil
	}
	return b.vms[len(b.vms)-1].Stop(ctx)
}

// Powered implements bmcsim.Host.
func (b *box) Powered() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.powered()
}

func (b *box) powered() bool {
	if len(b.vms) == 0 {
		return false
	}
	select {
	case <-b.vms[len(b.vms)-1].Done():
		return false
	default:
		return true
	}
}

// vm is the machine's present QEMU process; nil while it is off.
func (b *box) vm() *qemu.VM {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.powered() {
		return nil
	}
	return b.vms[len(b.vms)-1]
}

// powerOns counts the power-ons so far.
func (b *box) powerOns() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.vms)
}

// events are the QMP events of that name since from, over all power-ons.
func (b *box) events(name string, from time.Time) []qemu.Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []qemu.Event
	for _, vm := range b.vms {
		for _, e := range vm.Events() {
			if e.Name == name && !e.Time.Before(from) {
				out = append(out, e)
			}
		}
	}
	return out
}

func (b *box) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	return b.PowerOff(ctx)
}

// shell is a machine that has a BMC and nothing behind it.
type shell struct {
	mu sync.Mutex
	on bool
}

func (s *shell) set(on bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on = on
	return nil
}

// PowerOn implements bmcsim.Host.
func (s *shell) PowerOn(context.Context, string) error { return s.set(true) }

// PowerOff implements bmcsim.Host.
func (s *shell) PowerOff(context.Context) error { return s.set(false) }

// Powered implements bmcsim.Host.
func (s *shell) Powered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.on
}

// controller is a machine's BMC on its network.
type controller struct {
	server   *bmcsim.Server
	address  string
	user     string
	password string
}

// startBMC puts a BMC for host on the BMC network.
func (r *run) startBMC(host bmcsim.Host, port int) (*controller, error) {
	c := &controller{address: net.JoinHostPort(netlab.BMCAddress, fmt.Sprint(port)), user: "operator", password: randomHex(12)}
	var err error
	if c.server, err = bmcsim.New(bmcsim.Config{Username: c.user, Password: c.password, Host: host, Log: r.log}); err != nil {
		return nil, fmt.Errorf("start bmc: %w", err)
	}
	ln, err := r.lab.Listen(netlab.BMC, "tcp", c.address)
	if err != nil {
		return nil, fmt.Errorf("start bmc: %w", err)
	}
	go func() {
		if err := c.server.Serve(ln); err != nil && !errors.Is(err, net.ErrClosed) {
			r.log.Error("bmc ended", "err", err)
		}
	}()
	r.onClose("bmc", func() error { c.server.Close(); ln.Close(); return nil })
	return c, nil
}
