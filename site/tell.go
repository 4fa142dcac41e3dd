package site

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"firstlight/site/internal/discovery"
	"firstlight/site/internal/lease"
	"firstlight/site/internal/proxydhcp"
	"firstlight/site/internal/tftp"
)

// quiet is how long the site says nothing more of one MAC that it left alone, or of one whose boot lease is over: firmware asks
// again and again.
const quiet = 10 * time.Minute

// left tells people that a machine was left alone, and why.
func (b *boots) left(c proxydhcp.Client, a lease.Answer) {
	mac := c.MAC.String()
	kind := "boot.refused"
	who := of(a.Lease)
	if a.Verdict == lease.Ignored {
		kind = "boot.ignored"
		who = subject{node: a.Known.NodeID, allowance: a.Known.NodeID}
	}
	newest, _ := b.leases.ByMAC(mac)
	if !b.events.seldom.allow(kind+" "+mac+" "+newest.ID, b.now(), quiet) {
		return
	}
	fields := map[string]string{"mac": mac, "uuid": c.UUID, "arch": archText(c), "reason": a.Reason, "next": a.Next}
	if b.events.emit(who, kind, fmt.Sprintf("%s asked to boot and got no answer: %s", mac, a.Reason), fields) {
		b.log.Info("machine left alone", "mac", mac, "verdict", a.Verdict, "reason", a.Reason)
	}
}

// archText is the architecture as events say it.
func archText(c proxydhcp.Client) string {
	if !c.KnownArch {
		return "unknown"
	}
	return strconv.Itoa(int(c.Arch))
}

// Offered implements proxydhcp.Boots.
func (b *boots) Offered(c proxydhcp.Client, file string, p proxydhcp.Port) {
	mac := c.MAC.String()
	l, _ := b.leases.ByMAC(mac)
	b.events.emitWhat(of(l), "boot.dhcp.offered", func() (string, map[string]string) { return offered(c, l, file) })
	switch {
	case p == proxydhcp.PortPXE || c.IPXE:
		b.unused.taken(mac)
	case b.unused.made(mac, c.XID):
		b.events.emit(of(l), "boot.dhcp.unused",
			fmt.Sprintf("%s was offered %s %d times and does not fetch it: offers not accepted", mac, lastName(file), maxUnused),
			map[string]string{"mac": mac, "arch": archText(c), "file": lastName(file), "reason": "offers not accepted: firmware that does not " +
				"merge the address offer of the network's DHCP server with this site's file offer", "next": b.remedy(l, c)})
	}
}

// offered says what was offered to a machine with the lease.
func offered(c proxydhcp.Client, l lease.Lease, file string) (message string, fields map[string]string) {
	fields = map[string]string{"mac": c.MAC.String(), "arch": archText(c), "stage": "ipxe", "file": lastName(file)}
	note := ""
	switch first := isFirstStage(file); {
	case first:
		fields["stage"] = "firmware"
		if c.IPXE {
			fields["rom"], note = "iPXE", ": its own ROM is iPXE and is replaced"
		}
	case l.State.Live() && l.Chained.IsZero():
		fields["rom"], note = "iPXE", ": its own ROM is iPXE, it loads nothing by TFTP"
	}
	return fmt.Sprintf("offered %s to %s (architecture %s)%s", fields["file"], fields["mac"], fields["arch"], note), fields
}

// remedy says what to do for firmware that does not merge two offers.
func (b *boots) remedy(l lease.Lease, c proxydhcp.Client) string {
	return fmt.Sprintf("set on the network's DHCP server option 66 to %s and option 67 to %s, then for user class iPXE to %s; "+
		"or boot the machine by HTTP, or from virtual media",
		b.host(), b.firstStage(c, l.Arch), "http://"+b.site.HTTP+"/m/${netX/mac:hexhyp}/"+discovery.ScriptFile)
}

func (b *boots) host() string {
	a, err := netip.ParseAddrPort(b.site.HTTP)
	if err != nil {
		return b.site.HTTP
	}
	return a.Addr().String()
}

// tftpEvents is boots as TFTP sees it.
type tftpEvents struct{ *boots }

// Served implements tftp.Events.
func (b tftpEvents) Served(t tftp.Transfer) {
	b.chained(t.Token, t.File)
	l, _ := b.leases.ByToken(t.Token)
	b.unused.taken(l.BootMAC)
	b.events.emit(of(l), "boot.tftp.served", fmt.Sprintf("%s fetched %s by TFTP, %d bytes", t.Client.Addr(), t.File, t.Bytes),
		map[string]string{"file": t.File, "bytes": strconv.FormatInt(t.Bytes, 10), "client": t.Client.String()})
}

// Failed implements tftp.Events.
func (b tftpEvents) Failed(t tftp.Transfer, reason string) {
	l, _ := b.leases.ByToken(t.Token)
	b.unused.taken(l.BootMAC)
	b.events.emit(of(l), "boot.tftp.failed", fmt.Sprintf("%s did not get %s by TFTP: %s", t.Client.Addr(), t.File, reason),
		map[string]string{"file": t.File, "reason": reason, "client": t.Client.String()})
}

// names are the words by which events call the files of a boot.
var names = map[string]string{
	discovery.KernelFile: "kernel", discovery.RAMDiskFile: "ramdisk", discovery.SiteFile: "site", discovery.BootFile: "boot",
}

// Served implements httpboot.Boots. Images are not told of: their chunks are thousands.
func (b *boots) Served(token, name string, client netip.AddrPort) {
	l, _ := b.leases.ByToken(token)
	if token == "" {
		l, _ = b.leases.ByClient(client.Addr())
	}
	word, ok := names[name]
	switch {
	case name == discovery.ScriptFile:
		b.events.emit(of(l), "boot.script.served", fmt.Sprintf("%s fetched its boot script", client.Addr()),
			map[string]string{"mac": l.BootMAC, "client": client.String()})
		return
	case proxydhcp.IsFirmware(name):
		b.chained(token, name)
		b.unused.taken(l.BootMAC)
		word, ok = "firmware", true
	}
	if ok {
		b.events.emit(of(l), "boot.file.served", fmt.Sprintf("%s fetched the file %s", client.Addr(), word),
			map[string]string{"name": word, "client": client.String()})
	}
}
