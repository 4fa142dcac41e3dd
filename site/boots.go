package site

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"firstlight/gateway-client/envelope"
	"firstlight/site/internal/discovery"
	"firstlight/site/internal/httpboot"
	"firstlight/site/internal/lease"
	"firstlight/site/internal/proxydhcp"
	"firstlight/site/internal/tftp"
)

// boots is the boot services' one source of decisions: the lease table. It implements what each of them asks for.
type boots struct {
	site     discovery.Site
	leases   *lease.Table
	firmware *os.Root
	events   *events
	signer   atomic.Pointer[envelope.Signer]
	now      func() time.Time
	log      *slog.Logger

	mu sync.Mutex
	// assertions holds the newest boot overlay of each lease, so that HEAD and GET see one length.
	assertions map[string]assertion
}

type assertion struct {
	overlay []byte
	end     time.Time
}

var (
	_ proxydhcp.Boots = (*boots)(nil)
	_ tftp.Events     = tftpEvents{}
	_ httpboot.Boots  = (*boots)(nil)
)

// Find implements proxydhcp.Boots. Firmware is answered only while a lease is open; iPXE also for a while after the lease's
// end, so that its script can say on the screen why nothing boots.
func (b *boots) Find(c proxydhcp.Client) (string, bool) {
	mac := c.MAC.String()
	l, ok := b.leases.ByMAC(mac)
	if !ok || l.State != lease.Open && !(c.IPXE && b.now().Before(l.Ended.Add(lease.Explain))) {
		b.log.Debug("boot request of a machine without a lease", "mac", mac)
		return "", false
	}
	file := b.site.ScriptURL(l.Token)
	if !c.IPXE {
		name, shipped, ok := proxydhcp.Firmware(c.Arch)
		if !ok || !shipped && !b.has(name) {
			return "", false
		}
		file = "t/" + l.Token + "/" + name
	}
	if err := b.leases.Saw(l.ID, mac, c.UUID); err != nil {
		b.log.Error("boot request not noted", "lease", l.ID, "error", err)
	}
	return file, true
}

func (b *boots) has(firmware string) bool {
	info, err := b.firmware.Stat(firmware)
	return err == nil && info.Mode().IsRegular()
}

// Offered implements proxydhcp.Boots.
func (b *boots) Offered(c proxydhcp.Client, _ string) {
	l, _ := b.leases.ByMAC(c.MAC.String())
	stage, file := "ipxe", discovery.ScriptFile
	if !c.IPXE {
		stage = "firmware"
		file, _, _ = proxydhcp.Firmware(c.Arch)
	}
	arch := "unknown"
	if c.KnownArch {
		arch = strconv.Itoa(int(c.Arch))
	}
	b.events.emit(l, "boot.dhcp.offered", fmt.Sprintf("offered %s to %s (architecture %s)", file, c.MAC, arch),
		map[string]string{"mac": c.MAC.String(), "arch": arch, "stage": stage, "file": file})
}

// tftpEvents is boots as TFTP sees it.
type tftpEvents struct{ *boots }

// Served implements tftp.Events.
func (b tftpEvents) Served(t tftp.Transfer) {
	l, _ := b.leases.ByToken(t.Token)
	b.events.emit(l, "boot.tftp.served", fmt.Sprintf("%s fetched %s by TFTP, %d bytes", t.Client.Addr(), t.File, t.Bytes),
		map[string]string{"file": t.File, "bytes": strconv.FormatInt(t.Bytes, 10), "client": t.Client.String()})
}

// Failed implements tftp.Events.
func (b tftpEvents) Failed(t tftp.Transfer, reason string) {
	l, _ := b.leases.ByToken(t.Token)
	b.events.emit(l, "boot.tftp.failed", fmt.Sprintf("%s did not get %s by TFTP: %s", t.Client.Addr(), t.File, reason),
		map[string]string{"file": t.File, "reason": reason, "client": t.Client.String()})
}

// Script implements httpboot.Boots.
func (b *boots) Script(token string, client netip.AddrPort) ([]byte, error) {
	l, ok, err := b.leases.Admit(token, client.Addr())
	if !ok {
		return nil, httpboot.ErrUnknown
	}
	if refusal := (*lease.Refusal)(nil); errors.As(err, &refusal) {
		b.log.Warn("boot script refused", "lease", l.ID, "client", client.String(), "reason", refusal.Reason)
		b.events.emit(l, "boot.script.refused", fmt.Sprintf("%s did not get its boot script: %s", client.Addr(), refusal.Reason),
			map[string]string{"reason": refusal.Reason, "client": client.String()})
		return nil, &httpboot.Refused{Reason: refusal.Reason}
	}
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	delete(b.assertions, l.ID)
	b.mu.Unlock()
	return b.site.Script(l)
}

// Overlay implements httpboot.Boots.
func (b *boots) Overlay(token, name string) ([]byte, error) {
	l, ok := b.leases.ByToken(token)
	if !ok {
		return nil, httpboot.ErrUnknown
	}
	if refusal := (*lease.Refusal)(nil); errors.As(l.Serving(), &refusal) {
		b.log.Warn("boot overlay refused", "lease", l.ID, "file", name, "reason", refusal.Reason)
		return nil, &httpboot.Refused{Reason: refusal.Reason}
	}
	if name == discovery.SiteFile {
		return discovery.SiteOverlay(l.Anchors)
	}
	return b.assertion(l)
}

// assertion returns the boot's overlay, a new one where the last is too old or was made before a restart.
func (b *boots) assertion(l lease.Lease) ([]byte, error) {
	signer := b.signer.Load()
	if signer == nil {
		return nil, errors.New("assertion: this agent has no identity yet")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	if a, ok := b.assertions[l.ID]; ok && now.Before(a.end.Add(-discovery.Fresh)) {
		return a.overlay, nil
	}
	overlay, end, err := b.site.BootOverlay(l, *signer, now)
	if err != nil {
		return nil, err
	}
	if b.assertions == nil || len(b.assertions) >= lease.MaxLeases {
		b.assertions = map[string]assertion{}
	}
	b.assertions[l.ID] = assertion{overlay, end}
	return overlay, nil
}

// Report implements httpboot.Boots.
func (b *boots) Report(token, text string, client netip.AddrPort) error {
	l, ok := b.leases.ByToken(token)
	if !ok {
		return httpboot.ErrUnknown
	}
	if !b.events.reports.allow(l.ID, reportsPerSecond, reportBurst) {
		return httpboot.ErrTooMany
	}
	b.log.Warn("machine reports", "lease", l.ID, "client", client.String(), "text", text)
	b.events.emit(l, "boot.report", fmt.Sprintf("%s says: %s", client.Addr(), text), map[string]string{"text": text, "client": client.String()})
	return nil
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
	if name == discovery.ScriptFile {
		b.events.emit(l, "boot.script.served", fmt.Sprintf("%s fetched its boot script", client.Addr()),
			map[string]string{"mac": l.BootMAC, "client": client.String()})
		return
	}
	if word, ok := names[name]; ok {
		b.events.emit(l, "boot.file.served", fmt.Sprintf("%s fetched the file %s", client.Addr(), word),
			map[string]string{"name": word, "client": client.String()})
	}
}
