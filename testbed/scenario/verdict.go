package scenario

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"firstlight/bmc"
	"firstlight/bmc/redfish"
	"firstlight/testbed/fixtures"
	"firstlight/testbed/judge"
	"firstlight/testbed/netlab"
	"firstlight/testbed/qemu"
)

// Bounds of what follows when a machine is active.
const (
	serialLimit  = 2 * time.Minute
	captureLag   = 500 * time.Millisecond // netlab's capture writes what it holds more often than that
	comebackTime = 10 * time.Minute
	sessionTime  = 5 * time.Minute
)

// segment is what the judge of packets knows.
func (r *run) segment(m *machine) (judge.Segment, error) {
	mac, err := net.ParseMAC(m.mac)
	if err != nil {
		return judge.Segment{}, err
	}
	site := netip.MustParseAddr(netlab.SiteAddress)
	gateway, err := netip.ParseAddrPort(r.serve.Gateway.Advertise)
	if err != nil {
		return judge.Segment{}, err
	}
	http, err := netip.ParseAddrPort(r.serve.Boot.HTTPAdvertise)
	if err != nil {
		return judge.Segment{}, err
	}
	out := judge.Segment{Machine: mac, Site: site, HTTP: http, Gateway: gateway, GatewayName: serverName}
	switch {
	case m.box.firmware == UEFI:
		out.Program = fixtures.UEFIProgram
	case r.scenario.appliance.replaceROM:
		out.Program = fixtures.BIOSProgram
	}
	out.ProgramSize = r.programs[out.Program]
	for _, o := range r.machines {
		other, err := net.ParseMAC(o.mac)
		if err != nil {
			return judge.Segment{}, err
		}
		if o != m && !o.box.unknown {
			out.Others = append(out.Others, other)
		}
	}
	return out, nil
}

func (r *run) trace(ctx context.Context, m *machine) (judge.Segment, *judge.Trace, error) {
	s, err := r.segment(m)
	if err != nil {
		return s, nil, err
	}
	select {
	case <-time.After(captureLag):
	case <-ctx.Done():
		return s, nil, ctx.Err()
	}
	t, err := judge.ReadTrace(m.pcap, gatewayPort, httpPort)
	return s, t, err
}

// judgeActive looks at everything that a machine leaves on its way to being a node.
func (r *run) judgeActive(ctx context.Context, m *machine) error {
	r.add(judge.Active(m.record)...)
	r.add(m.judgeMode())
	if m.box.firmware == BIOS && !r.scenario.appliance.replaceROM {
		r.add(judge.Skipped(m.record, "tftp", "iPXE"))
	}
	if err := r.judgeSerial(ctx, m); err != nil {
		return err
	}
	s, t, err := r.trace(ctx, m)
	if err != nil {
		return err
	}
	r.add(s.Boot(t)...)
	return nil
}

// judgeMode looks at what the BMC was told of the firmware mode: only what the record says.
func (m *machine) judgeMode() judge.Check {
	st, mode := m.bmc.server.Stats(), m.bmc.server.Mode()
	told := 0
	if m.box.saysFirmware {
		told = st.OverridePatches
	}
	return judge.Of("bmc: firmware mode is ordered only where it is known", st.OverridePatches > 0 && st.ModePatches == told && mode == bmcModes(m.box.firmware)[0],
		"%d boot overrides, %d of them with a mode; the machine is in mode %s", st.OverridePatches, st.ModePatches, mode)
}

// judgeSerial reads the serial line: the clock, the deployed system's line, and that no reset lies between.
func (r *run) judgeSerial(ctx context.Context, m *machine) error {
	serial, err := judge.ReadSerial(m.serialPath())
	if err != nil {
		return err
	}
	r.add(judge.Clock(serial, m.box.year, time.Now(), r.Timeout))
	waiting, cancel := context.WithTimeout(ctx, serialLimit)
	defer cancel()
	words, _, err := qemu.WaitSerial(waiting, m.serialPath(), judge.OSLine, 0)
	if err != nil {
		r.add(judge.Fail("serial: deployed system", "%v", err))
		return ctx.Err()
	}
	os, err := judge.ParseOS(words)
	if err != nil {
		return err
	}
	r.add(judge.Of("serial: deployed system", os.Nonce == r.image.Nonce && os.DiskSerial == m.disk().serial,
		"nonce %s (image has %s), root on disk %s (ours is %s), boot %s, %s s after its start", os.Nonce, r.image.Nonce, os.DiskSerial, m.disk().serial, os.BootID, os.Uptime))
	r.add(judge.Of("record: session of the boot on the serial line", m.record.Connected != nil && m.record.Connected.BootID == os.BootID,
		"serial line says boot %s, the session %s", os.BootID, bootOf(m.record)))
	deployed := m.record.Step("deploy")
	if deployed == nil || deployed.End == nil {
		return fmt.Errorf("record has no end of step deploy")
	}
	resets := m.resets(*deployed.End)
	r.add(judge.Of("entered by kexec", resets == 0 && m.rack.PowerOns() == 1,
		"%d RESET events since the deploy, %d power-ons in all", resets, m.rack.PowerOns()))
	return nil
}

func bootOf(rec *judge.Record) string {
	if rec.Connected == nil {
		return "(none)"
	}
	return rec.Connected.BootID
}

// powerCycle restarts an active machine through its BMC, with a one-time network boot set, so that the firmware asks the network
// first. It must come back from its disk as the same node, and nobody may install it again.
func (r *run) powerCycle(ctx context.Context, m *machine) error {
	before := m.record
	serial, err := judge.ReadSerial(m.serialPath())
	if err != nil {
		return err
	}
	first, err := judge.ParseOS(judge.OSLine.FindStringSubmatch(serial))
	if err != nil {
		return err
	}
	r.out.say("power cycle through the BMC, one network boot asked for")
	from := time.Now()
	if err := r.cycle(ctx, m); err != nil {
		return fmt.Errorf("power cycle: %w", err)
	}
	waiting, cancel := context.WithTimeout(ctx, comebackTime)
	defer cancel()
	words, _, err := qemu.WaitSerial(waiting, m.serialPath(), judge.OSLine, int64(len(serial)))
	if err != nil {
		r.add(judge.Fail("power cycle: back from its disk", "%v", err))
		return ctx.Err()
	}
	again, err := judge.ParseOS(words)
	if err != nil {
		return err
	}
	r.add(judge.Of("power cycle: back from its disk", again.Nonce == first.Nonce && again.DiskSerial == first.DiskSerial && again.BootID != first.BootID,
		"nonce %s, disk %s, boot %s after boot %s", again.Nonce, again.DiskSerial, again.BootID, first.BootID))
	if err := r.awaitSession(ctx, m, again.BootID); err != nil {
		return err
	}
	r.add(m.sameNode(before, again.BootID)...)
	s, t, err := r.trace(ctx, m)
	if err != nil {
		return err
	}
	r.add(s.Silence(t, from)...)
	return nil
}

// cycle is what an operator's own Redfish client would do. The BMC network is reached through a port of this host.
func (r *run) cycle(ctx context.Context, m *machine) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer ln.Close()
	go forward(ctx, ln, r.lab.DialContext(netlab.Site), m.bmc.address)
	c, err := redfish.Open(ctx, redfish.Config{URL: "https://" + ln.Addr().String(), Username: m.bmc.user, Password: bmc.Secret(m.bmc.password),
		CertificateSHA256: m.bmc.server.CertificateSHA256()})
	if err != nil {
		return err
	}
	defer c.Close(context.WithoutCancel(ctx))
	if _, err := bmc.SetBootOverride(ctx, c, bmc.Override{Device: bmc.BootPXE, Once: true}); err != nil {
		return err
	}
	_, err = bmc.SetPower(ctx, c, "cycle")
	return err
}

// awaitSession waits until the machine's node agent is back with that boot. A session that does not come is a check, not an error.
func (r *run) awaitSession(ctx context.Context, m *machine, boot string) error {
	waiting, cancel := context.WithTimeout(ctx, sessionTime)
	defer cancel()
	for {
		rec, err := r.show(ctx, m)
		if err != nil {
			return err
		}
		if rec.Connected != nil && rec.Connected.Role == "node" && rec.Connected.BootID == boot {
			return nil
		}
		select {
		case <-waiting.Done():
			return ctx.Err()
		case <-time.After(pollEvery):
		}
	}
}

// sameNode compares the record with the one before the power cycle: a new boot of the same node, and nothing else.
func (m *machine) sameNode(before *judge.Record, boot string) []judge.Check {
	now := m.record
	role := "none"
	if now.Connected != nil {
		role = now.Connected.Role
	}
	return []judge.Check{
		judge.Of("power cycle: session is back", role == "node" && bootOf(now) == boot, "session as %s of boot %s, serial line says %s", role, bootOf(now), boot),
		judge.Of("power cycle: same identity", now.NodeKeyID == before.NodeKeyID && now.NodeKeyID != "" && now.NodeID == before.NodeID,
			"node %s with key %s, before %s", now.NodeID, now.NodeKeyID, before.NodeKeyID),
		judge.Of("power cycle: not installed again", now.State == "active" && now.Workflows == 1 && slices.Equal(now.Commands(), before.Commands()),
			"machine %s, %d workflows, %d commands before and %d after", now.State, now.Workflows, len(before.Commands()), len(now.Commands())),
	}
}
