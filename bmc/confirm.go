package bmc

import (
	"context"
	"fmt"
	"time"
)

// Bounds of the reading back. A server takes up to about a minute from the
// accepted action to the new state; a setting is visible at once or within a
// few seconds.
const (
	powerLimit    = 2 * time.Minute
	overrideLimit = 20 * time.Second
	pollFirst     = 50 * time.Millisecond
	pollMax       = 2 * time.Second
)

// SetPower does action and reads the power state back until it is reached, for
// at most two minutes or until ctx ends. It returns the state last read; the
// error wraps ErrNotConfirmed if the action was accepted and the state was not
// reached, and names both states.
//
// A cycle of a running machine is made of two confirmed steps, off and on: one
// "on" after a cycle cannot be told from an action that was ignored.
func SetPower(ctx context.Context, c Controller, action PowerAction) (PowerState, error) {
	ctx, cancel := context.WithTimeout(ctx, powerLimit)
	defer cancel()
	now, err := c.PowerState(ctx)
	if err != nil {
		return "", fmt.Errorf("power %s: read the state first: %w", action, err)
	}
	switch action {
	case ActionOn:
		return reach(ctx, c, now, PowerOn)
	case ActionOff:
		return reach(ctx, c, now, PowerOff)
	case ActionCycle:
		if now, err = reach(ctx, c, now, PowerOff); err != nil {
			return now, fmt.Errorf("power cycle: %w", err)
		}
		return reach(ctx, c, now, PowerOn)
	}
	return now, fmt.Errorf("power %q: %w", string(action), ErrUnsupported)
}

// reach brings the machine from the state now to want; it sends nothing if it
// is there already.
func reach(ctx context.Context, c Controller, now, want PowerState) (PowerState, error) {
	if now == want {
		return now, nil
	}
	action := ActionOn
	if want == PowerOff {
		action = ActionOff
	}
	if err := c.SetPower(ctx, action); err != nil {
		return now, fmt.Errorf("power %s: %w", action, err)
	}
	got, err := poll(ctx, func(ctx context.Context) (PowerState, bool, error) {
		s, err := c.PowerState(ctx)
		return s, s == want, err
	})
	if err != nil {
		if got == "" {
			got = now
		}
		return got, fmt.Errorf("power %s: wanted state %q, found %q: %w", action, want, got, err)
	}
	return got, nil
}

// SetBootOverride sets o and reads it back, for at most 20 seconds or until
// ctx ends. It returns the override last read. A controller without the
// ability gives an error that wraps ErrUnsupported; one that accepts the
// change and does not show it, ErrNotConfirmed with what was wanted and found.
// The mode is looked at only where o orders one.
func SetBootOverride(ctx context.Context, c Controller, o Override) (Override, error) {
	b, ok := c.(BootOverrider)
	if !ok {
		return Override{}, fmt.Errorf("boot override %s: %w", o, ErrUnsupported)
	}
	ctx, cancel := context.WithTimeout(ctx, overrideLimit)
	defer cancel()
	if err := b.SetBootOverride(ctx, o); err != nil {
		return Override{}, fmt.Errorf("boot override %s: %w", o, err)
	}
	got, err := poll(ctx, func(ctx context.Context) (Override, bool, error) {
		got, err := b.BootOverride(ctx)
		return got, got.Meets(o), err
	})
	if err != nil {
		return got, fmt.Errorf("boot override: wanted %s, found %s: %w", o, got, err)
	}
	return got, nil
}

// poll calls read with growing pauses until it is done, fails or ctx ends. When
// ctx ends after a successful read, the error wraps ErrNotConfirmed and the
// context's error, and the last value read is returned.
func poll[T any](ctx context.Context, read func(context.Context) (T, bool, error)) (T, error) {
	var last T
	seen := false
	for pause := pollFirst; ; pause = min(2*pause, pollMax) {
		v, done, err := read(ctx)
		switch {
		case err == nil && done:
			return v, nil
		case err == nil:
			last, seen = v, true
		case ctx.Err() == nil || !seen:
			return last, err
		}
		select {
		case <-ctx.Done():
			return last, fmt.Errorf("%w (%w)", ErrNotConfirmed, ctx.Err())
		case <-time.After(pause):
		}
	}
}
