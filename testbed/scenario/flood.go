package scenario

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
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
// nothing behind it; how many goroutines there are the appliance's own metrics say.
func floodScenario() Scenario {
	return Scenario{Name: "flood", What: "100,000 valid, malformed and foreign packets: a client is served throughout, memory and goroutines do not grow",
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
		Usage:      func() (flood.Usage, error) { return flood.ReadUsage(pid) },
		Goroutines: r.goroutines,
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

// goroutines asks the appliance itself, by its metrics on the unix socket.
func (r *run) goroutines(ctx context.Context) (int, error) {
	t := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", r.serve.Socket)
	}}
	defer t.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://appliance/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("read metrics: the appliance answers %s", resp.Status)
	}
	return flood.Goroutines(resp.Body)
}
