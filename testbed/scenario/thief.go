package scenario

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/gateway-client/session"
	"firstlight/testbed/judge"
	"firstlight/testbed/netlab"
	"firstlight/testbed/peer"
)

// revokedLimit bounds how long a thief's session may outlive the machine's own join.
const revokedLimit = time.Minute

// stolenScriptScenario has a thief take a machine's boot. He copies its MAC and its IP address, so the site cannot tell them apart;
// what must hold is that the machine's own join gives him away and that he gained nothing.
func stolenScriptScenario() Scenario {
	t := &theft{}
	return Scenario{Name: "stolen-script", What: "a thief with the machine's MAC and IP fetches its script and joins first: alarm, his certificate is revoked, no secret leaves",
		Firmware: []string{UEFI}, outcome: OutcomeFailed, drive: t.drive, judge: t.judge}
}

// theft is what a thief did and what came of it.
type theft struct {
	boot    *peer.Boot
	id      *session.Identity
	session *peer.Session
	// secret is the broker's answer to him.
	secret string
}

func (t *theft) drive(ctx context.Context, r *run) error {
	if err := r.order(ctx, r.machine); err != nil {
		return err
	}
	return r.follow(ctx, r.machine, following{step: func(ctx context.Context, rec *judge.Record) error {
		switch {
		case t.boot == nil && rec.Over("script"):
			return t.still(ctx, r, t.fetch)
		case t.boot != nil && t.id == nil:
			// The machine has everything that boots and has not joined: now the thief is the faster one.
			if loaded, err := r.loaded(); err != nil || !loaded {
				return err
			}
			return t.still(ctx, r, t.join)
		}
		return nil
	}})
}

// loaded says whether the machine was given the last file of its boot, from the packets at its own port.
func (r *run) loaded() (bool, error) {
	trace, err := judge.ReadTrace(r.pcap, gatewayPort, httpPort)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(trace.HTTP, func(h *judge.HTTP) bool { return strings.HasSuffix(h.Path, "/boot.cpio") && h.Status == 200 }), nil
}

// still does something while the machine stands still.
func (t *theft) still(ctx context.Context, r *run, do func(context.Context, *run) error) error {
	vm := r.rack.VM()
	if vm == nil {
		return errors.New("machine is off")
	}
	if err := vm.Pause(ctx); err != nil {
		return err
	}
	return errors.Join(do(ctx, r), vm.Resume(ctx))
}

// fetch takes the machine's place on the segment and fetches its boot a second time.
func (t *theft) fetch(ctx context.Context, r *run) (err error) {
	s, trace, err := r.trace(ctx, r.machine)
	if err != nil {
		return err
	}
	scripts := s.Scripts(trace)
	if len(scripts) == 0 {
		return errors.New("no script was asked for on the wire")
	}
	last := scripts[len(scripts)-1]
	own, err := r.lab.Command(ctx, netlab.Peer, "cat", "/sys/class/net/eth0/address").Output()
	if err != nil {
		return err
	}
	if err := r.disguise(ctx, r.mac, last.Client.Addr().String()); err != nil {
		return err
	}
	// The link goes down in between: the bridge then forgets where it saw the machine's address.
	defer func() {
		err = errors.Join(err, r.disguise(ctx, strings.TrimSpace(string(own)), netlab.PeerAddress))
	}()
	t.boot, err = r.peer.FetchBoot(ctx, "http://"+r.serve.Boot.HTTPAdvertise+last.Path)
	if err != nil {
		return fmt.Errorf("thief at %s: %w", last.Client.Addr(), err)
	}
	r.out.say("           a thief fetched the machine's boot as %s, %s", r.mac, last.Client.Addr())
	return nil
}

// disguise gives the peer another MAC and IP address.
func (r *run) disguise(ctx context.Context, mac, ip string) error {
	if _, err := net.ParseMAC(mac); err != nil {
		return err
	}
	for _, args := range [][]string{{"link", "set", "eth0", "down"}, {"addr", "flush", "dev", "eth0"}, {"link", "set", "eth0", "address", mac},
		{"link", "set", "eth0", "up"}, {"addr", "add", ip + "/24", "dev", "eth0"}} {
		if out, err := r.lab.Command(ctx, netlab.Peer, "ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("disguise the peer: ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// join joins in the machine's name, holds a session and asks for what a deploy would get.
func (t *theft) join(ctx context.Context, r *run) (err error) {
	if t.id, err = r.peer.JoinDiscovery(ctx, t.boot, &commonv1.HardwareClaims{SystemUuid: r.uuid, Macs: []string{r.mac}}); err != nil {
		return fmt.Errorf("thief: %w", err)
	}
	if t.session, err = r.peer.OpenSession(ctx, t.boot.Anchors, t.id); err != nil {
		return fmt.Errorf("thief: %w", err)
	}
	r.onClose("thief's session", t.session.Close)
	workflow := r.record.Workflow.ID
	if t.secret, err = t.session.AskSecret(ctx, "secret://provisioned/"+workflow, workflow, "deploy"); err != nil {
		return fmt.Errorf("thief: %w", err)
	}
	r.out.say("           the thief joined as %s, holds a session, asked for the deploy's secret: %s", t.id.NodeID, t.secret)
	return nil
}

var (
	twoMachinesSaid = regexp.MustCompile(`(?i)consumed already.*another key.*two machines`)
	revokedSaid     = regexp.MustCompile(`(?i)revoked`)
)

func (t *theft) judge(ctx context.Context, r *run) error {
	if t.session == nil {
		r.add(judge.Fail("the thief was first", "he fetched: %v, he joined: %v", t.boot != nil, t.id != nil))
		return nil
	}
	r.add(judge.Of("the thief was first", string(t.id.NodeID) == r.record.NodeID, "he joined as %s, the machine is %s", t.id.NodeID, r.record.NodeID))
	alarms := []string{}
	for _, a := range r.record.Alarms {
		alarms = append(alarms, a.Text)
	}
	r.add(judge.Of("the machine's own join raises an alarm", twoMachinesSaid.MatchString(strings.Join(alarms, "\n")), "alarms: %q", alarms))
	failed := "none"
	if s := r.record.FirstFailed(); s != nil {
		failed = s.Name
	}
	r.add(judge.Of("the workflow ends", r.record.State == "failed" && failed != "none" && twoMachinesSaid.MatchString(r.record.Cause()),
		"machine is %s, step %s failed: %s", r.record.State, failed, r.record.Cause()))
	f := r.record.Failure
	r.add(judge.Of("it says what to do next", f != nil && regexp.MustCompile(`(?i)other machine.*boot segment.*provision`).MatchString(f.Next), "%s", next(f)))
	end, over := t.session.Ended(ctx, revokedLimit)
	r.add(judge.Of("the thief's session was ended", over && end != nil && revokedSaid.MatchString(end.Error()), "ended: %v, with: %v", over, end))
	_, again := r.peer.OpenSession(ctx, t.boot.Anchors, t.id)
	r.add(judge.Of("his certificate opens no other", again != nil && revokedSaid.MatchString(again.Error()), "a second session: %v", again))
	r.add(judge.Of("no secret had left", t.secret != "", "the broker's answer to the thief: %q", t.secret))
	if err := r.pause(ctx); err != nil {
		return err
	}
	r.add(r.untouched(ctx)...)
	return nil
}
