package redfish_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"firstlight/bmc"
	"firstlight/bmc/bmctest"
	"firstlight/bmc/redfish"
	"firstlight/testbed/bmcsim"
)

const (
	user     = "operator"
	password = "correct horse"
)

// host is a machine without anything in it; it remembers its boots.
type host struct {
	mu    sync.Mutex
	on    bool
	boots []string
}

func (h *host) PowerOn(_ context.Context, boot string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.on = true
	h.boots = append(h.boots, boot)
	return nil
}

func (h *host) PowerOff(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.on = false
	return nil
}

func (h *host) Powered() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.on
}

// simulate starts a BMC on the loopback; modes are the machine's, both when there are none.
func simulate(t *testing.T, modes ...string) (*bmcsim.Server, *host, redfish.Config) {
	t.Helper()
	h := &host{}
	s, err := bmcsim.New(bmcsim.Config{Username: user, Password: password, Host: h, Modes: modes, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s, h, redfish.Config{
		URL: "https://" + ln.Addr().String(), Username: user, Password: password,
		CertificateSHA256: s.CertificateSHA256(),
	}
}

func open(t *testing.T, cfg redfish.Config) *redfish.Controller {
	t.Helper()
	c, err := redfish.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func TestConformance(t *testing.T) {
	t.Parallel()
	bmctest.Run(t, func(t *testing.T) bmc.Controller {
		s, _, cfg := simulate(t)
		c := open(t, cfg)
		t.Cleanup(func() {
			if st := s.Stats(); st.Sessions > 1 || st.MostSessions > 1 {
				t.Errorf("sessions: got %d open, %d at most; want never more than 1", st.Sessions, st.MostSessions)
			}
		})
		return c
	})
}

// RF-02 (c): a controller without the mode property never gets it.
func TestRF02_NoModeProperty(t *testing.T) {
	t.Parallel()
	s, h, cfg := simulate(t)
	s.SetFaults(bmcsim.Faults{NoMode: true})
	c := open(t, cfg)
	if _, err := bmc.SetBootOverride(t.Context(), c, bmc.Override{Device: bmc.BootPXE, Once: true, Mode: bmc.ModeUEFI}); err != nil {
		t.Fatal(err)
	}
	if _, err := bmc.SetPower(t.Context(), c, bmc.ActionOn); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(h.boots); got != "[pxe]" {
		t.Errorf("boots: got %s, want [pxe]", got)
	}
}

// RF-02: a mode that nobody ordered is not sent, stays what it was, and is set back where the controller loses it.
func TestRF02_ModeStaysAsItIs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		faults  bmcsim.Faults
		order   bmc.FirmwareMode
		mode    string
		patches int
	}{
		{bmcsim.Faults{}, bmc.ModeAsIs, "UEFI", 0},
		{bmcsim.Faults{}, bmc.ModeUEFI, "UEFI", 1},
		{bmcsim.Faults{}, bmc.ModeBIOS, "Legacy", 1},
		{bmcsim.Faults{ResetsMode: true}, bmc.ModeAsIs, "UEFI", 1},
		{bmcsim.Faults{ResetsMode: true}, bmc.ModeUEFI, "UEFI", 1},
	} {
		s, _, cfg := simulate(t)
		s.SetFaults(c.faults)
		want := bmc.Override{Device: bmc.BootPXE, Once: true, Mode: c.order}
		got, err := bmc.SetBootOverride(t.Context(), open(t, cfg), want)
		if err != nil || !got.Meets(want) || s.Mode() != c.mode || s.Stats().ModePatches != c.patches {
			t.Errorf("%+v, order %q: got %s, %v, mode %s after %d orders of one; want %s after %d", c.faults, c.order, got, err, s.Mode(), s.Stats().ModePatches, c.mode, c.patches)
		}
	}
}

// A mode that the machine does not have is refused in the controller's words.
func TestRF02_ModeThatTheMachineLacks(t *testing.T) {
	t.Parallel()
	_, _, cfg := simulate(t, "Legacy")
	c := open(t, cfg)
	_, err := bmc.SetBootOverride(t.Context(), c, bmc.Override{Device: bmc.BootPXE, Once: true, Mode: bmc.ModeUEFI})
	if err == nil || !strings.Contains(err.Error(), "BootSourceOverrideMode") {
		t.Errorf("got %v, want the refusal", err)
	}
	if _, err := bmc.SetBootOverride(t.Context(), c, bmc.Override{Device: bmc.BootPXE, Once: true}); err != nil {
		t.Errorf("without a mode: %v", err)
	}
}

// RF-01 as far as the header form: the tag that GET gave is sent with PATCH.
func TestRF01_IfMatch(t *testing.T) {
	t.Parallel()
	s, _, cfg := simulate(t)
	s.SetFaults(bmcsim.Faults{NeedIfMatch: true})
	want := bmc.Override{Device: bmc.BootPXE, Once: true, Mode: bmc.ModeUEFI}
	if got, err := bmc.SetBootOverride(t.Context(), open(t, cfg), want); err != nil || !got.Same(want) {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
}

func TestOverrideOnceDecidesOneBoot(t *testing.T) {
	t.Parallel()
	_, h, cfg := simulate(t)
	c := open(t, cfg)
	if _, err := bmc.SetBootOverride(t.Context(), c, bmc.Override{Device: bmc.BootPXE, Once: true, Mode: bmc.ModeUEFI}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := bmc.SetPower(t.Context(), c, bmc.ActionCycle); err != nil {
			t.Fatal(err)
		}
	}
	if got := fmt.Sprint(h.boots); got != "[pxe disk]" {
		t.Errorf("boots: got %s, want [pxe disk]", got)
	}
}

func TestLyingControllerIsNotBelieved(t *testing.T) {
	t.Parallel()
	s, _, cfg := simulate(t)
	s.SetFaults(bmcsim.Faults{LieBootOverride: true, IgnorePower: true})
	c := open(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := bmc.SetBootOverride(ctx, c, bmc.Override{Device: bmc.BootPXE, Once: true, Mode: bmc.ModeUEFI})
	if !errors.Is(err, bmc.ErrNotConfirmed) || !strings.Contains(err.Error(), "wanted pxe (once, UEFI), found no override") {
		t.Errorf("override: got %v, want %v with both values", err, bmc.ErrNotConfirmed)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	state, err := bmc.SetPower(ctx, c, bmc.ActionOn)
	if !errors.Is(err, bmc.ErrNotConfirmed) || state != bmc.PowerOff {
		t.Errorf("power: got %q, %v; want %q and %v", state, err, bmc.PowerOff, bmc.ErrNotConfirmed)
	}
}

func TestRefusalsShowTheControllersWords(t *testing.T) {
	t.Parallel()
	s, _, cfg := simulate(t)
	c := open(t, cfg)
	s.SetFaults(bmcsim.Faults{RefusePower: true, RefuseBootOverride: true})
	for what, err := range map[string]error{
		"internal service error":    c.SetPower(t.Context(), bmc.ActionOn),
		"is a read only property":   c.SetBootOverride(t.Context(), bmc.Override{Device: bmc.BootPXE}),
		"the controller answered 4": c.SetBootOverride(t.Context(), bmc.Override{Device: bmc.BootPXE}),
	} {
		if err == nil || !strings.Contains(err.Error(), what) || strings.Contains(err.Error(), "{") {
			t.Errorf("got %v, want one sentence with %q", err, what)
		}
	}
}

// RF-05: the session is given back, whatever happened before.
func TestRF05_SessionsAreGivenBack(t *testing.T) {
	t.Parallel()
	s, _, cfg := simulate(t)
	for i := range 12 {
		c, err := redfish.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		switch i % 4 {
		case 0:
			c.PowerState(ctx)
		case 1:
			cancel()
			c.PowerState(ctx)
		case 2:
			s.ExpireSessions()
			if _, err := c.PowerState(ctx); err != nil {
				t.Errorf("after the controller forgot the session: %v", err)
			}
		case 3:
			s.ExpireSessions()
		}
		if err := c.Close(ctx); err != nil {
			t.Errorf("close %d: %v", i, err)
		}
		cancel()
		if st := s.Stats(); st.Sessions != 0 {
			t.Fatalf("round %d: %d sessions left, want 0", i, st.Sessions)
		}
	}
	if st := s.Stats(); st.MostSessions != 1 {
		t.Errorf("most sessions at once: got %d, want 1", st.MostSessions)
	}
}

func TestWrongPasswordNeverReachesTheErrorText(t *testing.T) {
	t.Parallel()
	s, _, cfg := simulate(t)
	cfg.Password = "wrong and secret"
	_, err := redfish.Open(t.Context(), cfg)
	if !errors.Is(err, bmc.ErrCredentials) {
		t.Errorf("got %v, want %v", err, bmc.ErrCredentials)
	}
	for _, text := range []string{fmt.Sprint(err), fmt.Sprintf("%v %+v %#v %s %q", cfg, cfg, cfg, cfg.Password, cfg.Password)} {
		if strings.Contains(text, "wrong") {
			t.Errorf("the password shows in %q", text)
		}
	}
	if st := s.Stats(); st.Refusals != 1 || st.Sessions != 0 {
		t.Errorf("got %d log-ins tried, %d sessions; want 1 and 0", st.Refusals, st.Sessions)
	}
}

func TestOtherCertificateIsRefusedBeforeTheLogin(t *testing.T) {
	t.Parallel()
	s, _, cfg := simulate(t)
	cfg.CertificateSHA256 = make([]byte, 32)
	_, err := redfish.Open(t.Context(), cfg)
	if !errors.Is(err, redfish.ErrCertificate) {
		t.Errorf("got %v, want %v", err, redfish.ErrCertificate)
	}
	if st := s.Stats(); st.Logins+st.Refusals != 0 {
		t.Errorf("got %+v, want no log-in tried", st)
	}
}

func TestOpenRefusesBadConfig(t *testing.T) {
	t.Parallel()
	pin := make([]byte, 32)
	for _, cfg := range []redfish.Config{
		{URL: "http://10.78.0.1", CertificateSHA256: pin},
		{URL: "10.78.0.1", CertificateSHA256: pin},
		{URL: "https://", CertificateSHA256: pin},
		{URL: "https://user:pw@10.78.0.1", CertificateSHA256: pin},
		{URL: "https://10.78.0.1/redfish/v1", CertificateSHA256: pin},
		{URL: "https://10.78.0.1", CertificateSHA256: pin[:20]},
		{URL: "https://10.78.0.1"},
	} {
		if c, err := redfish.Open(t.Context(), cfg); err == nil {
			c.Close(t.Context())
			t.Errorf("open %+v: got no error", cfg)
		}
	}
}

func TestPausedControllerEndsWithTheContext(t *testing.T) {
	t.Parallel()
	s, _, cfg := simulate(t)
	c := open(t, cfg)
	pause := make(chan struct{})
	s.SetFaults(bmcsim.Faults{Pause: pause})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.PowerState(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
	}
	close(pause)
	if _, err := c.PowerState(t.Context()); err != nil {
		t.Errorf("after the pause: %v", err)
	}
}
