// Package redfish drives a management controller over Redfish (DMTF DSP0266),
// with gofish as its client.
//
// It is for the site agent: power and boot override of one machine per
// connection. It is not an inventory client and does not retry; wrappers and
// the read-back of package bmc do that. It imports package bmc only; packages
// of rank 2 and higher may import it.
package redfish

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/stmcginnis/gofish"
	"github.com/stmcginnis/gofish/common"
	"github.com/stmcginnis/gofish/redfish"

	"firstlight/bmc"
)

// logoutLimit bounds giving the session back, which happens also after the
// caller's context has ended.
const logoutLimit = 10 * time.Second

// Config names one management controller.
type Config struct {
	// URL is the controller's base address, https://host or https://host:port.
	// Plain http is refused: the password would travel readable.
	URL      string
	Username string
	Password bmc.Secret
	// CertificateSHA256 is the SHA-256 of the controller's TLS leaf certificate
	// in DER, 32 bytes. The connection is refused to any other certificate;
	// names and system roots do not count, because controllers are self-signed.
	CertificateSHA256 []byte
}

// Controller is a connection that holds one Redfish session. It implements
// bmc.Controller and bmc.BootOverrider. Calls are made one at a time.
type Controller struct {
	cfg    Config
	client *http.Client

	// mu guards what follows and is held during every exchange, so that there
	// is never more than one session of ours at the controller.
	mu      sync.Mutex
	session *gofish.Session
	closed  bool
}

var (
	_ bmc.Controller    = (*Controller)(nil)
	_ bmc.BootOverrider = (*Controller)(nil)
)

// Open logs in and checks that the controller shows a machine that we can act
// on. The session is given back by Close, and also when Open fails. An error
// wraps bmc.ErrCredentials if the controller refused the log-in, and
// ErrCertificate if it showed another certificate than the pinned one.
func Open(ctx context.Context, cfg Config) (*Controller, error) {
	base, client, err := pinnedClient(cfg)
	if err != nil {
		return nil, fmt.Errorf("open redfish %s: %w", cfg.URL, err)
	}
	cfg.URL = base
	c := &Controller{cfg: cfg, client: client}
	err = c.do(ctx, "find the system", func(*redfish.ComputerSystem) error { return nil })
	if err != nil {
		return nil, errors.Join(err, c.Close(ctx))
	}
	return c, nil
}

// PowerState reads the machine's power state. A machine on its way counts as
// what it leaves: "PoweringOn" is off, "PoweringOff" is on.
func (c *Controller) PowerState(ctx context.Context) (bmc.PowerState, error) {
	var state bmc.PowerState
	err := c.do(ctx, "read the power state", func(s *redfish.ComputerSystem) (err error) {
		state, err = powerState(s.PowerState)
		return err
	})
	return state, err
}

// SetPower sends the reset type that fits the action and the present state,
// chosen from those that the controller advertises.
func (c *Controller) SetPower(ctx context.Context, action bmc.PowerAction) error {
	return c.do(ctx, "set power "+string(action), func(s *redfish.ComputerSystem) error {
		state, err := powerState(s.PowerState)
		if err != nil {
			return err
		}
		t, err := resetType(action, state, s.SupportedResetTypes)
		if err != nil || t == "" {
			return err
		}
		return s.Reset(t)
	})
}

// BootOverride reads the boot override.
func (c *Controller) BootOverride(ctx context.Context) (bmc.Override, error) {
	var o bmc.Override
	err := c.do(ctx, "read the boot override", func(s *redfish.ComputerSystem) error {
		o = fromBoot(s.Boot)
		return nil
	})
	return o, err
}

// SetBootOverride changes the boot override; it does not restart the machine.
// Nothing is sent when the controller already shows the wanted override. A mode
// that is to stay as it is and does not, because the controller falls back to
// another one when none is sent (RF-02), is set back, once.
func (c *Controller) SetBootOverride(ctx context.Context, o bmc.Override) error {
	var before redfish.BootSourceOverrideMode
	patch := func(s *redfish.ComputerSystem) error {
		if fromBoot(s.Boot).Meets(o) {
			return nil
		}
		b, err := toBoot(o, s.Boot)
		if err != nil {
			return err
		}
		before = s.Boot.BootSourceOverrideMode
		return s.SetBoot(b)
	}
	if err := c.do(ctx, "set the boot override", patch); err != nil || o.Mode != bmc.ModeAsIs || before == "" {
		return err
	}
	return c.do(ctx, "set the boot mode back to what it was", func(s *redfish.ComputerSystem) error {
		if s.Boot.BootSourceOverrideMode == before {
			return nil
		}
		b, err := toBoot(o, s.Boot)
		if err != nil {
			return err
		}
		b.BootSourceOverrideMode = before
		return s.SetBoot(b)
	})
}

// Close gives the session back, with up to ten seconds of its own when ctx has
// already ended. A second Close does nothing.
func (c *Controller) Close(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	defer c.client.CloseIdleConnections()
	return c.logout(ctx)
}

// logout deletes the session, if there is one. c.mu is held.
func (c *Controller) logout(ctx context.Context) error {
	if c.session == nil {
		return nil
	}
	id := c.session.ID
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), logoutLimit)
	defer cancel()
	api, err := c.connect(ctx)
	if err == nil {
		err = api.Service.DeleteSession(id)
	}
	c.session = nil
	if err != nil && !isStatus(err, http.StatusNotFound, http.StatusUnauthorized) {
		return fmt.Errorf("redfish %s: give back the session: %w", c.cfg.URL, explain(err))
	}
	return nil
}

// do runs f with the freshly read system. A session that the controller forgot
// (it expired or the controller restarted) is replaced, once.
func (c *Controller) do(ctx context.Context, what string, f func(*redfish.ComputerSystem) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("redfish %s: %s: %w", c.cfg.URL, what, bmc.ErrClosed)
	}
	had := c.session != nil
	err := c.attempt(ctx, f)
	if had && isStatus(err, http.StatusUnauthorized) {
		c.session = nil
		err = c.attempt(ctx, f)
	}
	if err != nil {
		return fmt.Errorf("redfish %s: %s: %w", c.cfg.URL, what, explain(err))
	}
	return nil
}

func (c *Controller) attempt(ctx context.Context, f func(*redfish.ComputerSystem) error) error {
	api, err := c.connect(ctx)
	if err != nil {
		return err
	}
	system, err := hostSystem(api)
	if err != nil {
		return err
	}
	return f(system)
}

// connect binds gofish, which keeps one context per client, to ctx and to the
// session that we hold; without a session it logs in. c.mu is held.
func (c *Controller) connect(ctx context.Context) (*gofish.APIClient, error) {
	api, err := gofish.ConnectContext(ctx, gofish.ClientConfig{
		Endpoint:   c.cfg.URL,
		HTTPClient: c.client,
		Session:    c.session,
	})
	if err != nil || c.session != nil {
		return api, err
	}
	token, err := api.Service.CreateSession(c.cfg.Username, string(c.cfg.Password))
	if err != nil {
		if isStatus(err, http.StatusUnauthorized, http.StatusForbidden) {
			return nil, bmc.ErrCredentials
		}
		return nil, fmt.Errorf("log in: %w", err)
	}
	c.session = &gofish.Session{ID: token.Session, Token: token.Token}
	if token.Token == "" || token.Session == "" {
		return nil, errors.New("log in: the answer has no X-Auth-Token or no Location")
	}
	return gofish.ConnectContext(ctx, gofish.ClientConfig{
		Endpoint:   c.cfg.URL,
		HTTPClient: c.client,
		Session:    c.session,
	})
}

// isStatus reports whether err is the controller's answer with one of these
// HTTP status codes.
func isStatus(err error, codes ...int) bool {
	var e *common.Error
	if !errors.As(err, &e) {
		return false
	}
	for _, code := range codes {
		if e.HTTPReturnedStatusCode == code {
			return true
		}
	}
	return false
}
