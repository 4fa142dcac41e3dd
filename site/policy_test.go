package site

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
)

func (r *rig) policy(generation uint64, edit func(*sitev1.BootPolicy)) *sitev1.BootPolicy {
	p := &sitev1.BootPolicy{Generation: generation, Anchors: r.gateway.Anchors()}
	if edit != nil {
		edit(p)
	}
	return p
}

// count is how many events of a kind came so far.
func (r *rig) count(kind string) int {
	n := 0
	for _, e := range r.gateway.Events() {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

func TestUnknownMachineIsRefusedInWords(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.succeed("boot.policy", r.policy(1, nil))
	for range 3 {
		r.discover(false)
	}
	e := r.gateway.WaitEvent("boot.refused")
	f := e.Fields
	if f["mac"] != machineMAC.String() || f["uuid"] != "12345678-1234-5678-9abc-010203040506" || f["arch"] != "7" ||
		f["reason"] != "no machine has this MAC and discovery is off" || !strings.Contains(f["next"], "firstlight machine add") || e.NodeId != "" {
		t.Errorf("got %v", e)
	}
	// One at a time and in order: the first answer of all is this other machine's, the three got silence.
	other := r.lease("lease-1")
	other.Macs = []string{"52:54:00:77:00:02"}
	r.succeed("boot.prepareRamdisk", other)
	r.offer(r.ask(dhcpv4.WithHwAddr(net.HardwareAddr{0x52, 0x54, 0, 0x77, 0, 2})))
	if n := r.count("boot.refused"); n != 1 {
		t.Errorf("got %d events for one machine, want one", n)
	}
}

func TestKnownMachineWithoutLeaseIsLeftAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.succeed("boot.policy", r.policy(1, func(p *sitev1.BootPolicy) {
		p.Discovery = true
		p.Known = []*sitev1.KnownMachine{{NodeId: "node-1", Macs: []string{"52-54-00-77-00-01"}, MachineName: "rack1-u7"}}
	}))
	r.discover(false)
	e := r.gateway.WaitEvent("boot.ignored")
	if e.NodeId != "node-1" || e.Fields["reason"] != "machine rack1-u7 is not being provisioned" || e.Fields["mac"] != machineMAC.String() || e.WorkflowId != "" {
		t.Errorf("got %v", e)
	}
}

// A machine that starts over in the middle of its workflow is told of, also soon after the one before.
func TestMachineThatStartsOverIsToldOfOncePerLease(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	for i, id := range []string{"lease-1", "lease-2"} {
		r.succeed("boot.prepareRamdisk", r.lease(id))
		r.succeed("boot.cleanUp", &sitev1.CleanUpBoot{LeaseId: id, Reason: sitev1.CleanUpBoot_REASON_CONSUMED})
		r.discover(false)
		r.gateway.WaitEvent("boot.ignored")
		for range i {
			r.discover(false)
		}
	}
	// One at a time and in order: what was asked before this offer is told of before it.
	other := r.lease("lease-3")
	other.Macs = []string{"52:54:00:77:00:02"}
	r.succeed("boot.prepareRamdisk", other)
	r.offer(r.ask(dhcpv4.WithHwAddr(net.HardwareAddr{0x52, 0x54, 0, 0x77, 0, 2})))
	r.gateway.WaitEvent("boot.dhcp.offered")
	if n := r.count("boot.ignored"); n != 2 {
		t.Errorf("got %d events, want one for each lease", n)
	}
}

func TestUnknownMachineIsDiscovered(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.succeed("boot.policy", r.policy(1, func(p *sitev1.BootPolicy) { p.Discovery = true }))
	if file := r.offer(r.discover(false)); !strings.HasSuffix(file, "/snponly.efi") {
		t.Fatalf("got file %q", file)
	}
	script := r.offer(r.discover(true))
	status, body := r.get(script)
	if status != 200 || !strings.Contains(string(body), "unknown machine 52:54:00:77:00:01 at site") {
		t.Fatalf("script: got %d %q", status, body)
	}
	a := r.assertion(body)
	if a.NodeId != "" || a.WorkflowId != "" || a.LeaseId == "" || a.Macs[0] != machineMAC.String() || a.SystemUuid != "12345678-1234-5678-9abc-010203040506" {
		t.Errorf("got assertion %v, want one without node and workflow", a)
	}
	if e := r.gateway.WaitEvent("boot.script.served"); e.NodeId != "" || e.WorkflowId != "" || e.Fields["lease"] != a.LeaseId {
		t.Errorf("got %v", e)
	}
	r.succeed("boot.cleanUp", &sitev1.CleanUpBoot{LeaseId: a.LeaseId, Reason: sitev1.CleanUpBoot_REASON_CONSUMED})
	if status, body := r.get(script); status != http.StatusGone || !strings.Contains(string(body), "used up") {
		t.Errorf("script of a used lease: got %d %q", status, body)
	}
}

func TestPolicyIsKeptAndOnlyGrows(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	two := r.policy(2, func(p *sitev1.BootPolicy) { p.Discovery = true })
	r.succeed("boot.policy", two)
	r.succeed("boot.policy", two)
	for name, p := range map[string]*sitev1.BootPolicy{
		"is older than":      r.policy(1, nil),
		"with other content": r.policy(2, nil),
	} {
		if u := r.run("boot.policy", p); u.State != commonv1.CommandState_COMMAND_STATE_FAILED || !strings.Contains(u.Message, name) {
			t.Errorf("%s: got %s %q", name, u.State, u.Message)
		}
	}
	for name, edit := range map[string]func(*sitev1.BootPolicy){
		"no generation": func(p *sitev1.BootPolicy) { p.Generation = 0 },
		"no anchors":    func(p *sitev1.BootPolicy) { p.Anchors, p.Discovery = nil, true },
		"other site":    func(p *sitev1.BootPolicy) { p.Anchors.SiteId = "site-b" },
		"MAC":           func(p *sitev1.BootPolicy) { p.Known = []*sitev1.KnownMachine{{NodeId: "n", Macs: []string{"x"}}} },
		"node":          func(p *sitev1.BootPolicy) { p.Known = []*sitev1.KnownMachine{{NodeId: "N N"}} },
	} {
		if u := r.run("boot.policy", r.policy(3, edit)); u.RejectReason != commonv1.CommandRejectReason_COMMAND_REJECT_REASON_INVALID_PAYLOAD {
			t.Errorf("%s: got %s %s %q, want INVALID_PAYLOAD", name, u.State, u.RejectReason, u.Message)
		}
	}
	r.stop()
	r.gateway.WaitDisconnected(siteNode, role) // else the next command may go to the session that is ending
	r.start()
	if file := r.offer(r.discover(false)); file == "" {
		t.Error("after a restart: got no discovery, want the policy kept")
	}
	if u := r.run("boot.policy", r.policy(1, nil)); u.State != commonv1.CommandState_COMMAND_STATE_FAILED {
		t.Errorf("older policy after a restart: got %s", u.State)
	}
}

func TestPolicyFileThatIsNotReadableStopsTheAgent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	must(t, os.MkdirAll(r.cfg.StateDir, 0o700))
	must(t, os.WriteFile(filepath.Join(r.cfg.StateDir, policyFile), []byte("\xff"), 0o600))
	a, err := New(r.cfg)
	must(t, err)
	a.ports = ports{offers: r.nic.LocalAddr().(*net.UDPAddr).AddrPort()}
	if err := a.Run(t.Context()); err == nil || r.tokens != 0 {
		t.Errorf("got %v after %d tokens, want an error before any", err, r.tokens)
	}
}

func TestROMThatIsIPXE(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.succeed("boot.prepareRamdisk", r.lease("lease-1"))
	if file := r.offer(r.discover(true)); !strings.HasSuffix(file, "/script.ipxe") {
		t.Errorf("setting off: got %q, want the script at once", file)
	}
	if f := r.event("boot.dhcp.offered"); f["stage"] != "ipxe" || f["rom"] != "iPXE" {
		t.Errorf("got %v, want it said that the ROM is iPXE", f)
	}
	r.succeed("boot.policy", r.policy(1, func(p *sitev1.BootPolicy) { p.ReplaceRomIpxe = true }))
	file := r.offer(r.discover(true))
	if !strings.HasPrefix(file, "t/") || !strings.HasSuffix(file, "/snponly.efi") {
		t.Fatalf("setting on: got %q, want the site's iPXE", file)
	}
	if got, err := r.tftp(file); err != nil || !bytes.Equal(got, firmware) {
		t.Fatalf("tftp: got %d bytes, %v", len(got), err)
	}
	r.event("boot.tftp.served")
	script := r.offer(r.discover(true))
	if status, _ := r.get(script); status != 200 {
		t.Errorf("after the transfer: got %q with status %d, want the script", script, status)
	}
	if file := r.offer(r.discover(true)); !strings.HasSuffix(file, "/snponly.efi") {
		t.Errorf("next boot: got %q, want the site's iPXE again", file)
	}
}

func TestDHCP02_OperatorOverrulesTheAnnouncedArchitecture(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	must(t, os.WriteFile(filepath.Join(r.cfg.FirmwareDir, "snponly-arm64.efi"), firmware, 0o644))
	r.start()
	l := r.lease("lease-1")
	l.ClientArchitecture = "arm64"
	r.succeed("boot.prepareRamdisk", l)
	bios := dhcpv4.WithGeneric(dhcpv4.OptionClientSystemArchitectureType, []byte{0, 0})
	if file := r.offer(r.ask(bios)); !strings.HasSuffix(file, "/snponly-arm64.efi") {
		t.Errorf("got %q, want what the operator said", file)
	}
	if f := r.event("boot.dhcp.offered"); f["arch"] != "0" || f["file"] != "snponly-arm64.efi" {
		t.Errorf("got %v", f)
	}
	bad := r.lease("lease-2")
	bad.ClientArchitecture = "sparc"
	if u := r.run("boot.prepareRamdisk", bad); u.RejectReason != commonv1.CommandRejectReason_COMMAND_REJECT_REASON_INVALID_PAYLOAD {
		t.Errorf("unknown name: got %s %q", u.State, u.Message)
	}
}

func TestArchitectureWithoutFileIsToldOf(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.succeed("boot.prepareRamdisk", r.lease("lease-1"))
	r.ask(dhcpv4.WithGeneric(dhcpv4.OptionClientSystemArchitectureType, []byte{0, 11}))
	if f := r.event("boot.refused"); f["arch"] != "11" || !strings.Contains(f["reason"], "no boot file for its architecture") {
		t.Errorf("got %v", f)
	}
}

func httpBoot() []dhcpv4.Modifier {
	return []dhcpv4.Modifier{
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier("HTTPClient:Arch:00016:UNDI:003001")),
		dhcpv4.WithGeneric(dhcpv4.OptionClientSystemArchitectureType, []byte{0, 16}),
	}
}

func TestDHCP03_FirmwareBootsByHTTP(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.succeed("boot.prepareRamdisk", r.lease("lease-1"))
	url := r.offer(r.ask(httpBoot()...))
	if resp, err := http.Head(url); err != nil || resp.ContentLength != int64(len(firmware)) {
		t.Fatalf("HEAD %s: got %v, %v", url, resp, err)
	}
	if status, body := r.get(url); status != 200 || !bytes.Equal(body, firmware) {
		t.Fatalf("%s: got %d, %d bytes, want the firmware", url, status, len(body))
	}
	if f := r.event("boot.file.served"); f["name"] != "firmware" {
		t.Errorf("got %v", f)
	}
	// What was loaded by HTTP is the site's iPXE as well.
	r.succeed("boot.policy", r.policy(1, func(p *sitev1.BootPolicy) { p.ReplaceRomIpxe = true }))
	if script := r.offer(r.discover(true)); !strings.HasSuffix(script, "/script.ipxe") {
		t.Errorf("got %q, want the script", script)
	}
	// A file that is not there is not offered: unlike a TFTP transfer, nobody would hear of it.
	must(t, os.Remove(filepath.Join(r.cfg.FirmwareDir, "snponly.efi")))
	r.ask(httpBoot()...)
	if f := r.event("boot.refused"); !strings.Contains(f["reason"], "no boot file") {
		t.Errorf("got %v", f)
	}
}

func TestHTTP05_AddressesAreLiterals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.succeed("boot.prepareRamdisk", r.lease("lease-1"))
	script := r.offer(r.discover(true))
	_, body := r.get(script)
	urls := append(strings.Fields(string(body)), script, r.offer(r.ask(httpBoot()...)))
	n := 0
	for _, u := range urls {
		rest, ok := strings.CutPrefix(u, "http://")
		if !ok {
			continue
		}
		host, path, _ := strings.Cut(rest, "/")
		if name, _, err := net.SplitHostPort(host); err != nil || net.ParseIP(name) == nil {
			t.Errorf("%s: want an address literal as host", u)
		}
		if n++; strings.Trim(strings.ReplaceAll(path, "${image}", ""), "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._~/-") != "" {
			t.Errorf("%s: want no character that needs encoding", u)
		}
	}
	if n < 6 {
		t.Errorf("got %d addresses, want the script's, its images' and the firmware's", n)
	}
}

func TestDHCP11_OffersNotAccepted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.succeed("boot.prepareRamdisk", r.lease("lease-1"))
	xid := dhcpv4.TransactionID{1, 2, 3, 4}
	var first string
	for i, secs := range []uint16{0, 4, 12, 28} {
		file := r.offer(r.ask(dhcpv4.WithTransactionID(xid), func(d *dhcpv4.DHCPv4) { d.NumSeconds = secs }))
		if first == "" {
			first = file
		}
		if file != first {
			t.Errorf("offer %d: got %q, want %q", i+1, file, first)
		}
	}
	f := r.event("boot.dhcp.unused")
	if !strings.HasPrefix(f["reason"], "offers not accepted") || !strings.Contains(f["next"], "option 67") || f["mac"] != machineMAC.String() {
		t.Errorf("got %v", f)
	}
	// A machine that goes on is none of those.
	other := dhcpv4.TransactionID{4, 3, 2, 1}
	for range 4 {
		if _, err := r.tftp(r.offer(r.ask(dhcpv4.WithTransactionID(other)))); err != nil {
			t.Fatal(err)
		}
	}
	if n := r.count("boot.dhcp.unused"); n != 1 {
		t.Errorf("got %d events, want one", n)
	}
}

func TestIPXE04_ScriptByAnyCardInAnySpelling(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	l := r.lease("lease-1")
	l.Macs = []string{"52:54:00:77:00:aa", "52:54:00:77:00:ab", "52-54-00-77-00-01"}
	r.succeed("boot.prepareRamdisk", l)
	r.offer(r.discover(true))
	base := "http://" + r.running.http.Addr().String() + "/m/"
	var want []byte
	for _, mac := range []string{"52-54-00-77-00-01", "52:54:00:77:00:01", "52540077_", "525400770001", "52:54:00:77:00:AB"} {
		status, body := r.get(base + mac + "/script.ipxe")
		if strings.Contains(mac, "_") {
			if status != http.StatusNotFound {
				t.Errorf("%s: got %d, want 404", mac, status)
			}
			continue
		}
		if want == nil {
			want = body
		}
		if status != 200 || !bytes.Equal(body, want) || !strings.Contains(string(body), "BOOTIF=01-${netX/mac:hexhyp}") {
			t.Errorf("%s: got %d %q", mac, status, body)
		}
	}
	if a := r.assertion(want); a.Macs[0] != machineMAC.String() || len(a.Macs) != 3 {
		t.Errorf("got MACs %v, want the booted card's first", a.Macs)
	}
}

// from is an HTTP client with another address of loopback.
func from(host string) *http.Client {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		return d.DialContext(ctx, network, addr)
	}, DisableKeepAlives: true}}
}

func TestFetchedScriptIsItsFetchersAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.succeed("boot.prepareRamdisk", r.lease("lease-1"))
	script := r.offer(r.discover(true))
	if status, _ := r.get(script); status != 200 {
		t.Fatalf("got %d", status)
	}
	for _, url := range []string{script, strings.Replace(script, "script.ipxe", "boot.cpio", 1)} {
		resp, err := from("127.0.0.66").Get(url)
		must(t, err)
		resp.Body.Close()
		if resp.StatusCode != http.StatusGone {
			t.Errorf("%s from another address: got %d, want 410", url, resp.StatusCode)
		}
	}
	if f := r.event("boot.script.refused"); !strings.Contains(f["reason"], "fetched by 127.0.0.1") || !strings.HasPrefix(f["client"], "127.0.0.66:") {
		t.Errorf("got %v", f)
	}
	if f := r.event("boot.file.refused"); !strings.Contains(f["reason"], "are not for 127.0.0.66") {
		t.Errorf("got %v", f)
	}
	if status, _ := r.get(script); status != 200 {
		t.Errorf("its own machine again: got %d, want 200", status)
	}
}

func TestOnlyTheMachineReportsOnItsBoot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.succeed("boot.prepareRamdisk", r.lease("lease-1"))
	script := r.offer(r.discover(true))
	report := func(by *http.Client, ending string) int {
		t.Helper()
		url := strings.Replace(script, "script.ipxe", ending, 1)
		resp, err := by.Get(url)
		if ending == "report" {
			resp, err = by.Post(url, "text/plain", strings.NewReader("all is well"))
		}
		must(t, err)
		resp.Body.Close()
		return resp.StatusCode
	}
	if status := report(http.DefaultClient, "report"); status != http.StatusGone {
		t.Errorf("before the script was fetched: got %d, want 410", status)
	}
	if f := r.event("boot.report.refused"); !strings.Contains(f["reason"], "was not fetched yet") || f["lease"] != "lease-1" {
		t.Errorf("got %v", f)
	}
	if status, _ := r.get(script); status != 200 {
		t.Fatalf("script: got %d", status)
	}
	stranger := from("127.0.0.66")
	for _, ending := range []string{"report", "failed/kernel"} {
		if status := report(stranger, ending); status != http.StatusGone {
			t.Errorf("%s from another address: got %d, want 410", ending, status)
		}
	}
	answers := map[int]int{}
	for answers[http.StatusTooManyRequests] == 0 && answers[http.StatusGone] < 10*reportBurst {
		answers[report(stranger, "report")]++
	}
	if len(answers) != 2 || answers[http.StatusTooManyRequests] != 1 {
		t.Errorf("stranger that goes on: got %v, want 410 and at last 429", answers)
	}
	if status := report(http.DefaultClient, "report"); status != http.StatusNoContent {
		t.Errorf("the machine itself: got %d, want 204", status)
	}
	if f := r.event("boot.report"); f["text"] != "all is well" || !strings.HasPrefix(f["client"], "127.0.0.1:") {
		t.Errorf("got %v", f)
	}
	refused := 0
	for _, e := range r.gateway.Events() {
		if e.Kind == "boot.report.refused" {
			refused++
			if strings.Contains(fmt.Sprint(e.Fields, e.Message), "all is well") {
				t.Errorf("got a stranger's words in %v", e)
			}
		}
	}
	if want := 3 + answers[http.StatusGone]; refused != want {
		t.Errorf("got %d events of refused reports, want %d: one for each", refused, want)
	}
	r.succeed("boot.cleanUp", &sitev1.CleanUpBoot{LeaseId: "lease-1", Reason: sitev1.CleanUpBoot_REASON_CONSUMED})
	if status := report(http.DefaultClient, "report"); status != http.StatusNoContent {
		t.Errorf("the machine itself after the lease: got %d, want 204", status)
	}
}

func TestOffersAreCountedForABoundedNumberOfMachines(t *testing.T) {
	var o offers
	for i := range 5 * maxWatched {
		if o.made(fmt.Sprint(i), [4]byte{1}) {
			t.Fatal("got an event after one offer")
		}
	}
	if len(o.m) > maxWatched {
		t.Errorf("got %d machines, want at most %d", len(o.m), maxWatched)
	}
}
