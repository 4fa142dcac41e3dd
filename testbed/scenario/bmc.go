package scenario

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"sync"

	"firstlight/testbed/bmcsim"
	"firstlight/testbed/netlab"
	"firstlight/testbed/rack"
)

// bmcPort is where the first machine's BMC serves HTTPS; each further one is a port higher.
const bmcPort = 443

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

// certificateHex is a BMC's certificate digest as the command line takes it.
func (c *controller) certificateHex() string { return hex.EncodeToString(c.server.CertificateSHA256()) }

// bmcModes are the firmware modes of a machine's BMC: a virtual machine has the firmware that it was started with, and no other.
func bmcModes(firmware string) []string {
	if firmware == BIOS {
		return []string{"Legacy"}
	}
	return []string{"UEFI"}
}

// startBMC puts a BMC for host on the BMC network.
func (r *run) startBMC(host bmcsim.Host, port int) (*controller, error) {
	c := &controller{address: net.JoinHostPort(netlab.BMCAddress, fmt.Sprint(port)), user: "operator", password: randomHex(12)}
	var modes []string
	if m, ok := host.(*rack.Machine); ok {
		modes = bmcModes(m.Firmware())
	}
	var err error
	if c.server, err = bmcsim.New(bmcsim.Config{Username: c.user, Password: c.password, Host: host, Modes: modes, Log: r.log}); err != nil {
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
