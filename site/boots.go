package site

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
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

// boots is the boot services' one source of decisions: the lease table. It implements what each of them asks for; what it tells
// the control plane of it is in tell.go.
type boots struct {
	site     discovery.Site
	leases   *lease.Table
	firmware *os.Root
	// segment is the network whose machines may ask by MAC.
	segment netip.Prefix
	events  *events
	signer  atomic.Pointer[envelope.Signer]
	now     func() time.Time
	log     *slog.Logger
	unused  offers

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

// Find implements proxydhcp.Boots.
func (b *boots) Find(c proxydhcp.Client) (string, bool) {
	mac := c.MAC.String()
	l, _ := b.leases.ByMAC(mac)
	name := b.firstStage(c, l.Arch)
	a, err := b.leases.Boot(lease.Boot{MAC: mac, UUID: c.UUID, IPXE: c.IPXE, Firmware: name != ""})
	if err != nil {
		b.log.Error("boot request not answered", "mac", mac, "error", err)
	}
	switch {
	case a.Verdict == lease.Script:
		return b.site.ScriptURL(a.Lease.Token), true
	case a.Verdict == lease.First && c.HTTP:
		return b.site.FileURL(a.Lease.Token, name), true
	case a.Verdict == lease.First:
		return firstStagePath + a.Lease.Token + "/" + name, true
	case a.Verdict == lease.Ignored || a.Verdict == lease.Refused:
		b.left(c, a)
	}
	return "", false
}

// firstStagePath begins the TFTP name of a file that belongs to a boot.
const firstStagePath = "t/"

// firstStage returns the first-stage file for a client, pin being its operator's word on what it is; empty where there is none.
func (b *boots) firstStage(c proxydhcp.Client, pin string) string {
	name, pinned := proxydhcp.Pins[pin]
	if !pinned && c.KnownArch {
		name, _, _ = proxydhcp.Firmware(c.Arch)
	}
	// The second question is for the disk, and this is asked for every request.
	if name != "" && (!c.HTTP && proxydhcp.Shipped(name) || b.has(name)) {
		return name
	}
	return ""
}

func (b *boots) has(firmware string) bool {
	info, err := b.firmware.Stat(firmware)
	return err == nil && info.Mode().IsRegular()
}

// Token implements httpboot.Boots. Only the segment's own machines may ask: elsewhere nobody can know a token, and a MAC is easily
// guessed.
func (b *boots) Token(mac string, client netip.AddrPort) (string, error) {
	mac, err := lease.ParseMAC(mac)
	if err != nil || !b.segment.Contains(client.Addr()) {
		return "", httpboot.ErrUnknown
	}
	l, ok := b.leases.ByMAC(mac)
	if !ok {
		return "", httpboot.ErrUnknown
	}
	return l.Token, nil
}

// Script implements httpboot.Boots.
func (b *boots) Script(token string, client netip.AddrPort) ([]byte, error) {
	l, ok, err := b.leases.Script(token, client.Addr())
	if !ok {
		return nil, httpboot.ErrUnknown
	}
	if err != nil {
		return nil, b.refused("boot.script.refused", "its boot script", l, client, err)
	}
	b.mu.Lock()
	delete(b.assertions, l.ID)
	b.mu.Unlock()
	return b.site.Script(l)
}

// Firmware implements httpboot.Boots.
func (b *boots) Firmware(token, name string) error {
	l, ok := b.leases.ByToken(token)
	if !ok || !proxydhcp.IsFirmware(name) {
		return httpboot.ErrUnknown
	}
	if refusal := (*lease.Refusal)(nil); errors.As(l.Over(), &refusal) {
		return &httpboot.Refused{Reason: refusal.Reason}
	}
	return nil
}

// Overlay implements httpboot.Boots.
func (b *boots) Overlay(token, name string, client netip.AddrPort) ([]byte, error) {
	l, ok, err := b.leases.Files(token, client.Addr())
	if !ok {
		return nil, httpboot.ErrUnknown
	}
	if err != nil {
		return nil, b.refused("boot.file.refused", "the file "+name, l, client, err)
	}
	if name == discovery.SiteFile {
		return discovery.SiteOverlay(l.Anchors)
	}
	return b.assertion(l)
}

// refused tells that something of a boot was refused, and returns the service's error for it.
func (b *boots) refused(kind, what string, l lease.Lease, client netip.AddrPort, err error) error {
	refusal := (*lease.Refusal)(nil)
	if !errors.As(err, &refusal) {
		return err
	}
	fields := map[string]string{"reason": refusal.Reason, "client": client.String()}
	if b.events.emit(of(l), kind, fmt.Sprintf("%s did not get %s: %s", client.Addr(), what, refusal.Reason), fields) {
		b.log.Warn("boot refused", "lease", l.ID, "client", client.String(), "what", what, "reason", refusal.Reason)
	}
	return &httpboot.Refused{Reason: refusal.Reason}
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

// Report implements httpboot.Boots. Only the address that fetched the boot's script reports on it.
func (b *boots) Report(token, text string, client netip.AddrPort) error {
	l, ok := b.leases.ByToken(token)
	if !ok {
		return httpboot.ErrUnknown
	}
	if err := l.Reporting(client.Addr()); err != nil {
		// They have an allowance of their own, so that strangers do not take the machine's.
		if !b.events.reports.allow(l.ID+" refused", reportsPerSecond, reportBurst) {
			return httpboot.ErrTooMany
		}
		return b.refused("boot.report.refused", "its report taken", l, client, err)
	}
	if !b.events.reports.allow(l.ID, reportsPerSecond, reportBurst) {
		return httpboot.ErrTooMany
	}
	b.log.Warn("machine reports", "lease", l.ID, "client", client.String(), "text", text)
	b.events.emit(of(l), "boot.report", fmt.Sprintf("%s says: %s", client.Addr(), text), map[string]string{"text": text, "client": client.String()})
	return nil
}

// chained notes that a machine has the site's own iPXE now: a first-stage file of its boot arrived.
func (b *boots) chained(token, file string) {
	if !proxydhcp.IsFirmware(file) {
		return
	}
	if err := b.leases.Transferred(token); err != nil {
		b.log.Error("transfer not noted", "file", file, "error", err)
	}
}

// isFirstStage says whether a boot file's name or address is that of a first-stage file.
func isFirstStage(file string) bool { return proxydhcp.IsFirmware(lastName(file)) }

// lastName is what a boot file's name or address ends with.
func lastName(file string) string { return file[strings.LastIndex(file, "/")+1:] }
