// Package netup gives the RAM disk a network: it finds the card that booted, or any Ethernet card with a link, and asks for an IPv4
// address by DHCP.
//
// It is for ramdisk's RAM disk role. The protocol is u-root's dhclient over insomniacslk/dhcp. Everything is bounded and said aloud:
// a person at the console sees which card, which address, or why not.
package netup

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/u-root/u-root/pkg/dhclient"
	"github.com/vishvananda/netlink"

	"firstlight/ramdisk/internal/inventory"
)

// Bounds.
const (
	// LinkTimeout is how long a card may take to have a link.
	LinkTimeout = 15 * time.Second
	// RequestTimeout is one DHCP exchange's patience; Requests is how many.
	RequestTimeout = 5 * time.Second
	Requests       = 4
	// MinRenew is the shortest pause between renewals, whatever the lease says.
	MinRenew = 30 * time.Second
)

// Say tells a person.
type Say func(format string, args ...any)

// ErrNoCard: the machine has no Ethernet card that the kernel drives.
var ErrNoCard = errors.New("no Ethernet card was found: is its driver in this RAM disk?")

// Network is a configured card.
type Network struct {
	Card    string
	MAC     string
	Address *net.IPNet
	lease   time.Duration
	link    netlink.Link
}

// BootMAC returns the MAC address that the boot loader names by BOOTIF= on the kernel's command line (pxelinux form
// 01-52-54-00-00-00-01, or with colons); empty without one.
func BootMAC(cmdline string) string {
	for _, w := range strings.Fields(cmdline) {
		v, ok := strings.CutPrefix(w, "BOOTIF=")
		if !ok {
			continue
		}
		v = strings.ReplaceAll(v, "-", ":")
		if len(v) == 20 {
			v = strings.TrimPrefix(v, "01:")
		}
		if mac, err := net.ParseMAC(v); err == nil && len(mac) == 6 {
			return mac.String()
		}
	}
	return ""
}

// Order returns the cards to try, in two rounds: the one that booted alone, then all. Without a known boot card there is one round.
func Order(nics []inventory.NIC, bootMAC string) [][]inventory.NIC {
	for _, n := range nics {
		if bootMAC != "" && n.MAC == bootMAC {
			if len(nics) == 1 {
				return [][]inventory.NIC{nics}
			}
			return [][]inventory.NIC{{n}, nics}
		}
	}
	if len(nics) == 0 {
		return nil
	}
	return [][]inventory.NIC{nics}
}

// Up configures the first card that gets an address.
func Up(ctx context.Context, nics []inventory.NIC, bootMAC string, say Say) (*Network, error) {
	if lo, err := netlink.LinkByName("lo"); err == nil {
		netlink.LinkSetUp(lo)
	}
	rounds := Order(nics, bootMAC)
	if len(rounds) == 0 {
		return nil, fmt.Errorf("network: %w", ErrNoCard)
	}
	var problems []error
	for _, round := range rounds {
		var names []string
		for _, n := range round {
			names = append(names, fmt.Sprintf("%s (%s)", n.Name, n.MAC))
		}
		say("network: asking for an address by DHCP on %s", strings.Join(names, ", "))
		n, err := first(ctx, round, nil)
		if err == nil {
			say("network: %s has address %s", n.Card, n.Address)
			return n, nil
		}
		problems = append(problems, err)
	}
	return nil, fmt.Errorf("network: %w", errors.Join(problems...))
}

func first(ctx context.Context, nics []inventory.NIC, keep net.IP) (*Network, error) {
	ctx, cancel := context.WithTimeout(ctx, LinkTimeout+Requests*RequestTimeout+5*time.Second)
	defer cancel()
	var links []netlink.Link
	for _, n := range nics {
		l, err := netlink.LinkByName(n.Name)
		if err != nil {
			return nil, fmt.Errorf("card %s: %w", n.Name, err)
		}
		links = append(links, l)
	}
	mods := []dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptClassIdentifier("firstlight-ramdisk"))}
	if keep != nil {
		mods = append(mods, dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(keep)))
	}
	results := dhclient.SendRequests(ctx, links, true, false, dhclient.Config{Timeout: RequestTimeout, Retries: Requests, Modifiers4: mods}, LinkTimeout)
	var problems []error
	for r := range results {
		if r.Err != nil {
			problems = append(problems, fmt.Errorf("card %s: no DHCP server answered: %w", r.Interface.Attrs().Name, r.Err))
			continue
		}
		if err := r.Lease.Configure(); err != nil {
			problems = append(problems, fmt.Errorf("card %s: %w", r.Interface.Attrs().Name, err))
			continue
		}
		m, _ := r.Lease.Message()
		return &Network{Card: r.Interface.Attrs().Name, MAC: r.Interface.Attrs().HardwareAddr.String(),
			Address: &net.IPNet{IP: m.YourIPAddr, Mask: m.SubnetMask()}, lease: m.IPAddressLeaseTime(time.Hour), link: r.Interface}, nil
	}
	if len(problems) == 0 {
		problems = append(problems, fmt.Errorf("no card had a link within %s: is the cable plugged in?", LinkTimeout))
	}
	return nil, errors.Join(problems...)
}

// Keep renews the address at half of its lease until ctx ends. An erase takes hours; an address that lapses may be given away.
func (n *Network) Keep(ctx context.Context, say Say) {
	for {
		t := time.NewTimer(max(n.lease/2, MinRenew))
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		again, err := first(ctx, []inventory.NIC{{Name: n.Card}}, n.Address.IP)
		if err != nil {
			say("network: the address %s could not be renewed: %v", n.Address, err)
			continue
		}
		if !again.Address.IP.Equal(n.Address.IP) {
			say("network: the address changed from %s to %s", n.Address, again.Address)
			netlink.AddrDel(n.link, &netlink.Addr{IPNet: n.Address})
		}
		n.Address, n.lease = again.Address, again.lease
	}
}
