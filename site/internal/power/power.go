// Package power runs the site's two commands for management controllers: bmc.power and bmc.bootOverride.
//
// It is for the site agent. A connection lives for one command, the password is fetched for it and kept nowhere, and success is
// what was read back. How a controller is spoken to is package bmc's matter.
package power

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"google.golang.org/protobuf/proto"

	"firstlight/bmc"
	"firstlight/bmc/redfish"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
	"firstlight/gateway-client/session"
)

const (
	// limit bounds one command, log-in and reading back included.
	limit = 6 * time.Minute
	// attempts and pause bound how often a controller that does not answer is called: they reboot, and come back in minutes.
	attempts, pause = 5, 3 * time.Second
)

// Open connects to a management controller.
type Open func(ctx context.Context, cfg redfish.Config) (bmc.Controller, error)

// Power runs bmc.power.
func Power(open Open) func(context.Context, *session.Call) (proto.Message, error) {
	return func(ctx context.Context, c *session.Call) (proto.Message, error) {
		var p sitev1.BMCPower
		if err := proto.Unmarshal(c.Payload, &p); err != nil {
			return nil, fmt.Errorf("%w: %w", session.ErrInvalidPayload, err)
		}
		action, ok := actions[p.Action]
		if !ok {
			return nil, fmt.Errorf("%w: power action %s", session.ErrInvalidPayload, p.Action)
		}
		var result sitev1.BMCPowerResult
		err := with(ctx, c, open, p.Target, func(ctx context.Context, ctl bmc.Controller) error {
			state, err := bmc.SetPower(ctx, ctl, action)
			result.State = string(state)
			return err
		})
		if err != nil {
			return nil, err
		}
		return &result, nil
	}
}

var actions = map[sitev1.BMCPower_Action]bmc.PowerAction{
	sitev1.BMCPower_ACTION_ON:    bmc.ActionOn,
	sitev1.BMCPower_ACTION_OFF:   bmc.ActionOff,
	sitev1.BMCPower_ACTION_CYCLE: bmc.ActionCycle,
}

// BootOverride runs bmc.bootOverride.
func BootOverride(open Open) func(context.Context, *session.Call) (proto.Message, error) {
	return func(ctx context.Context, c *session.Call) (proto.Message, error) {
		var p sitev1.BMCBootOverride
		if err := proto.Unmarshal(c.Payload, &p); err != nil {
			return nil, fmt.Errorf("%w: %w", session.ErrInvalidPayload, err)
		}
		mode, err := mode(&p)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", session.ErrInvalidPayload, err)
		}
		want := bmc.Override{Device: bmc.BootDevice(p.Device), Once: p.Once, Mode: mode}
		switch want.Device {
		case bmc.BootNone, bmc.BootPXE, bmc.BootDisk, bmc.BootCD:
		default:
			return nil, fmt.Errorf("%w: boot device %q", session.ErrInvalidPayload, p.Device)
		}
		var result sitev1.BMCBootOverrideResult
		err = with(ctx, c, open, p.Target, func(ctx context.Context, ctl bmc.Controller) error {
			got, err := bmc.SetBootOverride(ctx, ctl, want)
			result.Device, result.Once, result.Uefi, result.Mode = string(got.Device), got.Once, got.Mode == bmc.ModeUEFI, string(got.Mode)
			return err
		})
		if err != nil {
			return nil, err
		}
		return &result, nil
	}
}

// mode is the firmware mode that is ordered; a sender that does not know the field orders one of the two.
func mode(p *sitev1.BMCBootOverride) (bmc.FirmwareMode, error) {
	switch p.Mode {
	case "uefi":
		return bmc.ModeUEFI, nil
	case "bios":
		return bmc.ModeBIOS, nil
	case "keep":
		return bmc.ModeAsIs, nil
	case "":
		if p.Uefi {
			return bmc.ModeUEFI, nil
		}
		return bmc.ModeBIOS, nil
	}
	return "", fmt.Errorf("firmware mode %q", p.Mode)
}

// with runs act on a fresh connection and gives the connection back.
func with(ctx context.Context, c *session.Call, open Open, target *sitev1.BMCTarget, act func(context.Context, bmc.Controller) error) error {
	if err := check(target); err != nil {
		return fmt.Errorf("%w: %w", session.ErrInvalidPayload, err)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	password, err := c.Secret(ctx, target.PasswordRef)
	if err != nil {
		return fmt.Errorf("password of management controller %s: %w", target.Url, err)
	}
	cfg := redfish.Config{URL: target.Url, Username: target.Username, Password: bmc.Secret(password), CertificateSHA256: target.CertificateSha256}
	ctl, err := dial(ctx, open, cfg)
	if err != nil {
		return fmt.Errorf("management controller %s: %w", target.Url, err)
	}
	// What was read back stands even where the log-out fails; the controller ends idle sessions itself.
	defer ctl.Close(ctx)
	if err := act(ctx, ctl); err != nil {
		return fmt.Errorf("management controller %s: %w", target.Url, err)
	}
	return nil
}

// dial calls again where a controller does not answer. Wrong credentials (which lock accounts), another certificate and what is
// not supported are final at once.
func dial(ctx context.Context, open Open, cfg redfish.Config) (bmc.Controller, error) {
	for n := 1; ; n++ {
		ctl, err := open(ctx, cfg)
		if err == nil || n == attempts || errors.Is(err, bmc.ErrCredentials) || errors.Is(err, redfish.ErrCertificate) || errors.Is(err, bmc.ErrUnsupported) {
			return ctl, err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, err
		}
	}
}

func check(t *sitev1.BMCTarget) error {
	if t == nil {
		return errors.New("management controller is missing")
	}
	u, err := url.Parse(t.Url)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
		return errors.New("management controller's address: want https://host")
	}
	if t.Username == "" || t.PasswordRef == "" || len(t.CertificateSha256) != 32 {
		return fmt.Errorf("management controller %s: want user name, password reference and a certificate digest of 32 bytes", t.Url)
	}
	return nil
}
