package ramdisk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"firstlight/gateway-client/link"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/gateway-client/session"
	"firstlight/ramdisk/internal/identity"
	"firstlight/ramdisk/internal/inventory"
	"firstlight/ramdisk/internal/netup"
	"firstlight/ramdisk/internal/trust"
)

// Bounds of a RAM disk that cannot go on.
const (
	// GiveUp is how long the agent tries, and leaves its reason on the screen, before it restarts the machine or turns it off.
	GiveUp = 10 * time.Minute
	// RetryMin and RetryMax bound the pause between tries; it doubles.
	RetryMin = 2 * time.Second
	RetryMax = 30 * time.Second
	// JoinTimeout bounds one try to join, deferrals included.
	JoinTimeout = 5 * time.Minute
)

// errRefused: trying again will not help; a person must act.
var errRefused = errors.New("trying again will not help")

// refusal is a reason, in words for a person, that wraps errRefused and its cause.
type refusal struct {
	text  string
	cause error
}

func refuse(cause error, format string, args ...any) error {
	return &refusal{fmt.Sprintf(format, args...), cause}
}

func (r *refusal) Error() string   { return r.text }
func (r *refusal) Unwrap() []error { return []error{errRefused, r.cause} }

// boot is what one boot of the RAM disk knows of where it is.
type boot struct {
	anchors   *trust.Anchors
	assertion *trust.Assertion
	reportURL string
	online    bool
	told      string
}

// runRAMDisk goes the way of one boot: modules, clock, network, join, session. It ends in a jump, in a restart, or with the machine off.
func (a *Agent) runRAMDisk(ctx context.Context) error {
	a.found = a.p.now().UTC()
	sys := inventory.ReadSystem(a.p.sys, a.p.proc)
	a.say("machine agent %s in the RAM disk, %s %s, kernel %s, %s firmware", a.cfg.Version, sys.Manufacturer, sys.Product, sys.KernelRelease, sys.FirmwareMode)
	a.modules()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b := &boot{}
	err := a.goOn(ctx, b)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return a.giveUp(ctx, err)
}

func (a *Agent) modules() {
	loaded, problems := a.p.loadModules()
	a.say("drivers: %d kernel modules loaded", len(loaded))
	for _, p := range problems {
		a.say("drivers: %v", p)
	}
}

// goOn repeats what may come right by itself until GiveUp; it returns the last reason.
func (a *Agent) goOn(ctx context.Context, b *boot) error {
	start, delay := time.Now(), RetryMin
	for {
		err := a.attempt(ctx, b)
		if err == nil || ctx.Err() != nil {
			return err
		}
		left := GiveUp - time.Since(start)
		a.tell(ctx, b, err)
		final := errors.Is(err, errRefused)
		if final {
			delay = max(left, 0)
		}
		if left > 0 {
			wait(ctx, min(delay, left))
		}
		if final || left <= 0 || ctx.Err() != nil {
			return err
		}
		delay = min(2*delay, RetryMax)
	}
}

// tell says a reason at the console and to the site, each reason once.
func (a *Agent) tell(ctx context.Context, b *boot, err error) {
	if err.Error() == b.told {
		return
	}
	b.told = err.Error()
	a.say("%v", err)
	if b.reportURL == "" || !b.online {
		return
	}
	text := fmt.Sprintf("machine with MAC %s: %v", strings.Join(a.claims.MACs, ", "), err)
	if err := a.p.report(ctx, b.reportURL, text); err != nil {
		a.say("the site could not be told: %v", err)
	}
}

// giveUp ends the boot: off when a person must act, since the next boot would end the same way, else a restart.
func (a *Agent) giveUp(ctx context.Context, err error) error {
	if errors.Is(err, errRefused) {
		a.say("turning the machine off: %v", err)
		return errors.Join(err, a.p.powerOff())
	}
	a.say("restarting the machine: %v", err)
	return errors.Join(err, a.p.restart())
}

// attempt goes the way as far as it leads. nil means that the session ended as it should.
func (a *Agent) attempt(ctx context.Context, b *boot) error {
	overlay := a.overlay(b)
	if err := a.connect(ctx, b); err != nil {
		return errors.Join(overlay, err)
	}
	if overlay != nil {
		return overlay
	}
	id, err := a.joinDiscovery(ctx, b)
	if err != nil {
		return err
	}
	c := session.Config{Identity: id, JoinSigningKey: b.anchors.JoinSigning, Link: a.link(b.anchors), Handlers: a.ramdiskHandlers(id)}
	if err := a.hold(ctx, c, func(time.Time) {}); err != nil {
		if errors.Is(err, session.ErrRefused) {
			return refuse(err, "session: %v", err)
		}
		return fmt.Errorf("session: %w", err)
	}
	return nil
}

// overlay reads and verifies the two files once, and sets the clock from the assertion.
func (a *Agent) overlay(b *boot) error {
	if b.assertion != nil {
		return nil
	}
	raw, err := a.file("assertion.binpb")
	if err == nil {
		b.reportURL = trust.ReportURL(raw)
	}
	anchors, anchorsErr := a.file("trust.binpb")
	if anchorsErr != nil {
		return refuse(anchorsErr, "the network boot did not bring the site's trust anchors (site.cpio): %v", anchorsErr)
	}
	if err != nil {
		return refuse(err, "the network boot did not bring the site's assertion (boot.cpio): %v", err)
	}
	if b.anchors, err = trust.DecodeAnchors(anchors); err != nil {
		return refuse(err, "%v", err)
	}
	as, err := b.anchors.Verify(raw)
	if err != nil {
		return refuse(err, "%v", err)
	}
	b.assertion, b.reportURL = as, as.ReportURL
	return a.clock(as)
}

func (a *Agent) file(name string) ([]byte, error) {
	path := filepath.Join(a.cfg.OverlayDir, name)
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.Size() > trust.MaxFile {
		return nil, fmt.Errorf("%s has %d bytes, want at most %d", path, st.Size(), trust.MaxFile)
	}
	return os.ReadFile(path)
}

// clock takes the time from the assertion, whatever the machine's own clock says.
func (a *Agent) clock(as *trust.Assertion) error {
	found, want := a.p.now().UTC(), as.Clock(a.p.uptime()).UTC()
	if err := a.p.setClock(want); err != nil {
		return fmt.Errorf("clock found %s: %w", found.Format(time.RFC3339), err)
	}
	a.say("clock found %s, set to %s from the site's assertion", found.Format(time.RFC3339), want.Format(time.RFC3339))
	return nil
}

// connect brings up the network once, and reads the claims: a card counts once its driver is there.
func (a *Agent) connect(ctx context.Context, b *boot) error {
	if b.online {
		return nil
	}
	nics := inventory.ReadNICs(a.p.sys)
	a.claims = inventory.ReadClaims(a.p.sys, a.p.proc)
	line, _ := fs.ReadFile(a.p.proc, "cmdline")
	if err := a.p.network(ctx, nics, netup.BootMAC(string(line)), a.say); err != nil {
		return err
	}
	b.online = true
	return nil
}

func (a *Agent) link(anchors *trust.Anchors) link.Config {
	return link.Config{URL: anchors.GatewayURL, ServerName: anchors.ServerName, SPKIPins: anchors.Pins, Now: a.now}
}

// joinDiscovery returns the identity of this boot: the one that an agent before this one got, or a new one.
func (a *Agent) joinDiscovery(ctx context.Context, b *boot) (*session.Identity, error) {
	store, err := openState(a.cfg.StateDir)
	if err != nil {
		return nil, err
	}
	id, err := store.Load()
	if err == nil {
		a.say("join: this boot has already joined as %s", id.NodeID)
		return id, nil
	}
	if !errors.Is(err, identity.ErrNone) {
		return nil, err
	}
	key, err := store.Key()
	if err != nil {
		return nil, err
	}
	as := b.assertion
	if !as.Mine(a.claims.MACs) {
		a.say("join: the site's assertion is for machine %s (MAC %s), this machine has MAC %s", as.Node, strings.Join(as.MACs, ", "), strings.Join(a.claims.MACs, ", "))
	}
	a.say("join: asking the gateway %s for an identity", b.anchors.GatewayURL)
	joinCtx, cancel := context.WithTimeout(ctx, JoinTimeout)
	defer cancel()
	id, err = session.Join(joinCtx, session.JoinParams{Link: a.link(b.anchors), JoinSigningKey: b.anchors.JoinSigning, Key: key,
		Role: commonv1.AgentRole_AGENT_ROLE_RAMDISK, Attestor: "discovery", Evidence: func([]byte) ([]byte, error) { return as.Raw, nil },
		Hardware: claimsMessage(a.claims, a.found), NodeID: as.Node, Version: a.cfg.Version, Now: a.now})
	if err != nil {
		return nil, joinError(err)
	}
	a.correctClock(id.ServerTime)
	if err := store.Save(id); err != nil {
		return nil, err
	}
	a.say("join: accepted as %s", id.NodeID)
	return id, nil
}

// joinError says whether trying again may help.
func joinError(err error) error {
	switch code, _ := status.FromError(err); code.Code() {
	case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.FailedPrecondition, codes.NotFound, codes.AlreadyExists:
		return refuse(err, "join: the gateway refused this machine: %s", reason(err))
	}
	return err
}

// reason is what a gateway said, without the words of the transport around it.
func reason(err error) string {
	var g interface{ GRPCStatus() *status.Status }
	if errors.As(err, &g) && g.GRPCStatus().Message() != "" {
		return g.GRPCStatus().Message()
	}
	return err.Error()
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
