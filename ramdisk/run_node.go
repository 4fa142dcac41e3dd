package ramdisk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"firstlight/gateway-client/link"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/gateway-client/sealed"
	"firstlight/gateway-client/session"
	"firstlight/ramdisk/internal/identity"
	"firstlight/ramdisk/internal/inventory"
	"firstlight/ramdisk/internal/nodeconf"
)

// ErrNotProvisioned: the node has no identity and no secret to get one with.
var ErrNotProvisioned = errors.New("this system has neither an identity nor a join secret: provision the machine again")

// runNode joins once in the system's life and then holds the session.
func (a *Agent) runNode(ctx context.Context) error {
	a.found = a.p.now().UTC()
	conf, err := a.nodeConfig()
	if err != nil {
		return err
	}
	store, err := openState(a.cfg.StateDir)
	if err != nil {
		return err
	}
	a.claims = inventory.ReadClaims(a.p.sys, a.p.proc)
	a.plausibleClock(store)
	id, err := a.nodeIdentity(ctx, store, conf)
	if err != nil {
		return err
	}
	if err := a.forgetSecret(conf); err != nil {
		return err
	}
	if a.cfg.JoinOnly {
		return nil
	}
	heard := func(server time.Time) {
		if err := store.SaveClock(server); err != nil {
			a.say("node agent: %v", err)
		}
	}
	c := session.Config{Identity: id, JoinSigningKey: conf.JoinSigning, Link: a.nodeLink(conf), Handlers: a.nodeHandlers()}
	return a.hold(ctx, c, heard)
}

// plausibleClock decides by which clock the gateway is judged (SEC-04). A clock before the moment at which the gateway was last
// heard, or after the node's own certificate ends, is not believed: the last heard time plus the time since start takes its place
// in this agent, with every check left on, until a verified Welcome says the time. The machine's clock is not touched before that.
func (a *Agent) plausibleClock(store *identity.Store) {
	floor := store.Clock()
	if st, err := os.Stat(a.cfg.ConfigFile); err == nil && st.ModTime().After(floor) {
		floor = st.ModTime()
	}
	now := a.p.now()
	late := false
	if id, err := store.Load(); err == nil {
		late = now.After(id.Chain[0].NotAfter) && floor.Before(id.Chain[0].NotAfter)
	}
	if !late && !now.Before(floor) {
		return
	}
	a.offset.Store(int64(floor.Sub(now)))
	a.say("clock found %s is not believed; counting on from %s, when the gateway was last heard", now.UTC().Format(time.RFC3339), floor.UTC().Format(time.RFC3339))
}

func (a *Agent) nodeConfig() (*nodeconf.Config, error) {
	st, err := os.Stat(a.cfg.ConfigFile)
	if err != nil {
		return nil, fmt.Errorf("node agent: %w", err)
	}
	if st.Size() > nodeconf.MaxFile {
		return nil, fmt.Errorf("node agent: %s has %d bytes, want at most %d", a.cfg.ConfigFile, st.Size(), nodeconf.MaxFile)
	}
	b, err := os.ReadFile(a.cfg.ConfigFile)
	if err != nil {
		return nil, fmt.Errorf("node agent: %w", err)
	}
	conf, err := nodeconf.Decode(b)
	if err != nil {
		return nil, fmt.Errorf("node agent: %w", err)
	}
	return conf, nil
}

// nodeIdentity loads the identity, or joins with the deploy's secret until it works, is refused for good, or ctx ends.
func (a *Agent) nodeIdentity(ctx context.Context, store *identity.Store, conf *nodeconf.Config) (*session.Identity, error) {
	id, err := store.Load()
	if err == nil {
		if id.NodeID != conf.Node || id.Role != commonv1.AgentRole_AGENT_ROLE_NODE {
			return nil, fmt.Errorf("node agent: the identity is of %s, the configuration of %s", id.NodeID, conf.Node)
		}
		a.say("node agent %s: identity of %s found", a.cfg.Version, id.NodeID)
		return id, nil
	}
	if !errors.Is(err, identity.ErrNone) {
		return nil, fmt.Errorf("node agent: %w", err)
	}
	if len(conf.JoinSecret) == 0 {
		return nil, fmt.Errorf("node agent: %w", ErrNotProvisioned)
	}
	key, err := store.Key()
	if err != nil {
		return nil, fmt.Errorf("node agent: %w", err)
	}
	last := ""
	for delay := RetryMin; ; delay = min(2*delay, RetryMax) {
		a.say("node agent %s: joining %s as %s", a.cfg.Version, conf.GatewayURL, conf.Node)
		if id, err = a.joinProvisioned(ctx, conf, session.JoinParams{Key: key}); err == nil {
			if err := store.Save(id); err != nil {
				return nil, fmt.Errorf("node agent: %w", err)
			}
			if err := store.SaveClock(id.ServerTime); err != nil {
				return nil, fmt.Errorf("node agent: %w", err)
			}
			a.correctClock(id.ServerTime)
			a.say("node agent: joined as %s", id.NodeID)
			return id, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err.Error() != last {
			a.say("node agent: %v", err)
			last = err.Error()
		}
		if errors.Is(err, errRefused) {
			return nil, fmt.Errorf("node agent: %w", err)
		}
		wait(ctx, delay)
	}
}

func (a *Agent) joinProvisioned(ctx context.Context, conf *nodeconf.Config, p session.JoinParams) (*session.Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, JoinTimeout)
	defer cancel()
	p.Link, p.JoinSigningKey, p.Role, p.Attestor = a.nodeLink(conf), conf.JoinSigning, commonv1.AgentRole_AGENT_ROLE_NODE, "provisioned"
	p.Hardware, p.NodeID, p.Version, p.Now = claimsMessage(a.claims, time.Time{}), conf.Node, a.cfg.Version, a.now
	p.Evidence = func(csr []byte) ([]byte, error) {
		s, err := sealed.Seal(conf.JoinEncryption, sealed.TypJoin, sealed.JoinClaims{Secret: conf.JoinSecret, CSRSHA256: csr})
		return []byte(s), err
	}
	id, err := session.Join(ctx, p)
	if err != nil {
		return nil, joinError(err)
	}
	return id, nil
}

func (a *Agent) nodeLink(conf *nodeconf.Config) link.Config {
	return link.Config{URL: conf.GatewayURL, ServerName: conf.ServerName, SPKIPins: conf.Pins, Now: a.now}
}

// forgetSecret removes the used secret from the configuration, once the identity is safe on the disk.
func (a *Agent) forgetSecret(conf *nodeconf.Config) error {
	if len(conf.JoinSecret) == 0 {
		return nil
	}
	used := *conf
	used.JoinSecret = nil
	b, err := used.Encode()
	if err != nil {
		return fmt.Errorf("node agent: %w", err)
	}
	if err := identity.WriteFile(a.cfg.ConfigFile, b); err != nil {
		return fmt.Errorf("node agent: remove the used join secret: %w", err)
	}
	return nil
}
