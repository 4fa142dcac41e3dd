package power_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"firstlight/bmc"
	"firstlight/bmc/bmctest"
	"firstlight/bmc/redfish"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
	"firstlight/gateway-client/session"
	"firstlight/site/internal/power"
)

func target() *sitev1.BMCTarget {
	return &sitev1.BMCTarget{Url: "https://10.78.0.1", Username: "admin", PasswordRef: "secret://bmc/m1", CertificateSha256: make([]byte, 32)}
}

func call(m proto.Message) *session.Call {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return &session.Call{Payload: b, Secret: func(_ context.Context, ref string) ([]byte, error) {
		if ref != "secret://bmc/m1" {
			return nil, &session.SecretError{Ref: ref, Code: "not-found"}
		}
		return []byte("hunter2"), nil
	}}
}

// opener answers with twin after failing with each of errs; it counts calls and keeps the newest configuration.
type opener struct {
	twin  *bmctest.Twin
	errs  []error
	calls int
	cfg   redfish.Config
}

func (o *opener) open(_ context.Context, cfg redfish.Config) (bmc.Controller, error) {
	o.calls++
	o.cfg = cfg
	if o.calls <= len(o.errs) {
		return nil, o.errs[o.calls-1]
	}
	return o.twin, nil
}

func TestPowerIsReadBack(t *testing.T) {
	for _, c := range []struct {
		action sitev1.BMCPower_Action
		state  string
	}{{sitev1.BMCPower_ACTION_ON, "on"}, {sitev1.BMCPower_ACTION_OFF, "off"}, {sitev1.BMCPower_ACTION_CYCLE, "on"}} {
		o := &opener{twin: &bmctest.Twin{}}
		got, err := power.Power(o.open)(t.Context(), call(&sitev1.BMCPower{Target: target(), Action: c.action}))
		if err != nil || got.(*sitev1.BMCPowerResult).State != c.state {
			t.Errorf("%s: got %v, %v, want %s", c.action, got, err, c.state)
		}
		if o.cfg.URL != "https://10.78.0.1" || o.cfg.Username != "admin" || string(o.cfg.Password) != "hunter2" {
			t.Errorf("%s: got configuration for %s", c.action, o.cfg.URL)
		}
	}
}

func TestPowerThatStaysIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &opener{twin: &bmctest.Twin{}}
		o.twin.SetFaults(bmctest.Faults{IgnorePower: true})
		_, err := power.Power(o.open)(t.Context(), call(&sitev1.BMCPower{Target: target(), Action: sitev1.BMCPower_ACTION_ON}))
		if !errors.Is(err, bmc.ErrNotConfirmed) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %v, want ErrNotConfirmed without the password", err)
		}
	})
}

func TestBootOverrideIsReadBack(t *testing.T) {
	o := &opener{twin: &bmctest.Twin{}}
	got, err := power.BootOverride(o.open)(t.Context(), call(&sitev1.BMCBootOverride{Target: target(), Device: "pxe", Once: true, Uefi: true}))
	if r, _ := got.(*sitev1.BMCBootOverrideResult); err != nil || r.Device != "pxe" || !r.Once || !r.Uefi {
		t.Errorf("got %v, %v, want pxe once by UEFI", got, err)
	}
}

// The mode is ordered only where the order says one; an order of a sender that does not know the field keeps its meaning.
func TestBootOverrideMode(t *testing.T) {
	for _, c := range []struct {
		mode string
		uefi bool
		want string
	}{
		{"uefi", false, "uefi"}, {"bios", true, "bios"}, {"keep", false, "uefi"}, {"", true, "uefi"}, {"", false, "bios"},
	} {
		o := &opener{twin: &bmctest.Twin{}} // its machine is in UEFI mode
		got, err := power.BootOverride(o.open)(t.Context(), call(&sitev1.BMCBootOverride{Target: target(), Device: "pxe", Once: true, Mode: c.mode, Uefi: c.uefi}))
		if r, _ := got.(*sitev1.BMCBootOverrideResult); err != nil || r.Device != "pxe" || r.Mode != c.want || r.Uefi != (c.want == "uefi") {
			t.Errorf("mode %q, uefi %t: got %v, %v, want %s", c.mode, c.uefi, got, err, c.want)
		}
	}
	o := &opener{twin: &bmctest.Twin{}}
	if _, err := power.BootOverride(o.open)(t.Context(), call(&sitev1.BMCBootOverride{Target: target(), Device: "pxe", Mode: "csm"})); !errors.Is(err, session.ErrInvalidPayload) {
		t.Errorf("got %v for mode csm, want it refused", err)
	}
}

func TestRefusedPayloads(t *testing.T) {
	bare, plain, short := target(), target(), target()
	bare.PasswordRef = ""
	plain.Url = "http://10.78.0.1"
	short.CertificateSha256 = []byte{1}
	for name, c := range map[string]*session.Call{
		"garbage":      {Payload: []byte{0xff}},
		"no target":    call(&sitev1.BMCPower{Action: sitev1.BMCPower_ACTION_ON}),
		"no action":    call(&sitev1.BMCPower{Target: target()}),
		"no password":  call(&sitev1.BMCPower{Target: bare, Action: sitev1.BMCPower_ACTION_ON}),
		"plain http":   call(&sitev1.BMCPower{Target: plain, Action: sitev1.BMCPower_ACTION_ON}),
		"short digest": call(&sitev1.BMCPower{Target: short, Action: sitev1.BMCPower_ACTION_ON}),
	} {
		o := &opener{}
		if _, err := power.Power(o.open)(t.Context(), c); !errors.Is(err, session.ErrInvalidPayload) || o.calls != 0 {
			t.Errorf("%s: got %v after %d calls, want ErrInvalidPayload before any", name, err, o.calls)
		}
	}
	o := &opener{}
	if _, err := power.BootOverride(o.open)(t.Context(), call(&sitev1.BMCBootOverride{Target: target(), Device: "floppy"})); !errors.Is(err, session.ErrInvalidPayload) {
		t.Errorf("floppy: got %v, want ErrInvalidPayload", err)
	}
}

func TestControllerThatDoesNotAnswerIsCalledAgain(t *testing.T) {
	silent := errors.New("connection refused")
	for _, c := range []struct {
		name  string
		errs  []error
		calls int
		ok    bool
	}{
		{"reboots", []error{silent, silent}, 3, true},
		{"gone", []error{silent, silent, silent, silent, silent}, 5, false},
		{"wrong password", []error{bmc.ErrCredentials}, 1, false},
		{"other certificate", []error{redfish.ErrCertificate}, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &opener{twin: &bmctest.Twin{}, errs: c.errs}
				_, err := power.Power(o.open)(t.Context(), call(&sitev1.BMCPower{Target: target(), Action: sitev1.BMCPower_ACTION_ON}))
				if (err == nil) != c.ok || o.calls != c.calls {
					t.Errorf("got %v after %d calls, want success %v after %d", err, o.calls, c.ok, c.calls)
				}
			})
		})
	}
}

func TestUnknownSecretIsNamed(t *testing.T) {
	tg := target()
	tg.PasswordRef = "secret://bmc/other"
	_, err := power.Power((&opener{}).open)(t.Context(), call(&sitev1.BMCPower{Target: tg, Action: sitev1.BMCPower_ACTION_ON}))
	if se := (*session.SecretError)(nil); !errors.As(err, &se) || se.Code != "not-found" {
		t.Errorf("got %v, want the broker's refusal", err)
	}
}
