package doctor

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Network is the host's network.
type Network interface {
	Interface(name string) (Interface, error)
	// Route is the name of the interface by which packets to an address leave.
	Route(to netip.Addr) (string, error)
}

// Interface is one network interface. Carrier says that a cable is in it and something is at the other end.
type Interface struct {
	Up, Carrier bool
	MAC         net.HardwareAddr
	Addresses   []netip.Prefix
}

type hostNetwork struct{}

func (hostNetwork) Interface(name string) (Interface, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return Interface{}, err
	}
	out := Interface{Up: i.Flags&net.FlagUp != 0, Carrier: i.Flags&net.FlagRunning != 0, MAC: i.HardwareAddr}
	all, err := i.Addrs()
	for _, a := range all {
		if p, perr := netip.ParsePrefix(a.String()); perr == nil {
			out.Addresses = append(out.Addresses, p)
		}
	}
	return out, err
}

func (hostNetwork) Route(to netip.Addr) (string, error) {
	routes, err := netlink.RouteGet(to.AsSlice())
	if err != nil {
		return "", err
	}
	if len(routes) == 0 {
		return "", fmt.Errorf("no route to %s", to)
	}
	l, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", err
	}
	return l.Attrs().Name, nil
}

func (c Config) networkChecks() []Check {
	const link, address, route = "network: boot interface", "network: address", "network: route"
	b := c.File.Boot
	if !b.Enabled {
		return []Check{skipped(link, noBoot), skipped(address, noBoot), skipped(route, noBoot)}
	}
	i, err := c.Network.Interface(b.Interface)
	if err != nil {
		return []Check{bad(Fail, link, "", fmt.Sprintf("%s: %v", b.Interface, err), "name an interface of this host in boot.interface; ip link lists them"),
			skipped(address, "there is no interface"), skipped(route, "there is no interface")}
	}
	out := make([]Check, 0, 3)
	what := fmt.Sprintf("%s, MAC %s", b.Interface, i.MAC)
	switch {
	case !i.Up:
		out = append(out, bad(Fail, link, what, "it is down", "ip link set "+b.Interface+" up"))
	case !i.Carrier:
		out = append(out, bad(Fail, link, what+", up", "nothing is at the other end of its cable", "look at the cable and the switch's port"))
	default:
		out = append(out, well(link, what+", up"))
	}
	for _, p := range i.Addresses {
		if p.Addr() == b.Address {
			out = append(out, well(address, fmt.Sprintf("%s has %s", b.Interface, p)))
			return append(out, c.routeCheck(route, p))
		}
	}
	out = append(out, bad(Fail, address, fmt.Sprintf("%s has %v", b.Interface, i.Addresses), fmt.Sprintf("%s is not on it", b.Address),
		fmt.Sprintf("ip addr add %s/24 dev %s, or correct boot.address", b.Address, b.Interface)))
	return append(out, skipped(route, "the address is missing"))
}

// routeCheck asks for the way to a machine of the segment: another interface with the same network may take the answers.
func (c Config) routeCheck(name string, p netip.Prefix) Check {
	if p.Bits() >= p.Addr().BitLen()-1 {
		return skipped(name, fmt.Sprintf("%s has no other address", p.Masked()))
	}
	to := p.Masked().Addr().Next()
	if to == p.Addr() {
		to = to.Next()
	}
	by, err := c.Network.Route(to)
	what := fmt.Sprintf("packets to %s leave by %s", to, by)
	switch {
	case err != nil:
		return bad(Fail, name, "", err.Error(), "look at ip route and at the interface's state")
	case by != c.File.Boot.Interface:
		return bad(Fail, name, what, "another interface takes what is meant for the boot segment", "give the two interfaces different networks; ip route shows them")
	}
	return well(name, what)
}
