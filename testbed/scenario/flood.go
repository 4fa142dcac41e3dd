package scenario

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"firstlight/testbed/fixtures"
	"firstlight/testbed/flood"
	"firstlight/testbed/netlab"
)

// outcomeServed is how a flood ends that kept nobody from booting.
const outcomeServed = "served"

// floodScenario drowns the site in packets. The machine that boots meanwhile is the peer, in the name of a record whose BMC has
// nothing behind it; how many goroutines there are is for a test inside the site's own process.
func floodScenario() Scenario {
	return Scenario{Name: "flood", What: "100,000 valid, malformed and foreign packets: a client is served throughout, memory does not grow",
		Core: true, Firmware: []string{UEFI}, machines: []box{{disks: []drive{{size: 1 << 20}}}}, outcome: outcomeServed, drive: drown,
		judge: func(context.Context, *run) error { return nil }}
}

func drown(ctx context.Context, r *run) error {
	c, err := r.startBMC(&shell{}, bmcPort+1)
	if err != nil {
		return err
	}
	mac, err := net.ParseMAC(r.lab.MAC(1))
	if err != nil {
		return err
	}
	if err := r.addMachine(ctx, otherName, mac.String(), newUUID(), "FLT"+randomHex(4)+"7", c); err != nil {
		return err
	}
	if _, err := r.firstlight(ctx, "provision", otherName, "--image", imageName); err != nil {
		return err
	}
	var sources []string
	for i := range 8 {
		a := fmt.Sprintf("10.77.0.%d", 30+i)
		out, err := r.lab.Command(ctx, netlab.Peer, "ip", "addr", "add", a+"/24", "dev", "eth0").CombinedOutput()
		if err != nil {
			return fmt.Errorf("give the peer address %s: %w: %s", a, err, strings.TrimSpace(string(out)))
		}
		sources = append(sources, a)
	}
	pid, seed := r.appliance.cmd.Process.Pid, rand.Uint64()
	r.out.say("flood with seed %d", seed)
	res, err := flood.Run(ctx, flood.Config{
		Network: flood.Network{ListenPacket: r.peer.ListenPacket, Dial: r.peer.Dial, FloodDial: r.lab.DialContextFrom(netlab.Peer, sources[0]),
			Site: netlab.SiteAddress, HTTP: siteHTTP, Client: netlab.PeerAddress, Flood: sources},
		MAC: mac, Program: fixtures.UEFIProgram, Seed: seed, Say: r.out.say,
		Usage: func() (flood.Usage, error) { return flood.ReadUsage(pid) },
		UDP: func() (string, error) {
			net := filepath.Join("/proc", strconv.Itoa(pid), "net")
			four, err := os.ReadFile(filepath.Join(net, "udp"))
			if err != nil {
				return "", err
			}
			six, err := os.ReadFile(filepath.Join(net, "udp6"))
			return string(four) + string(six), err
		},
	})
	if err != nil {
		return err
	}
	r.ended = outcomeServed
	r.add(res.Checks()...)
	return nil
}
