package demo

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// pollEvery is how often the appliance is asked and a terminal drawn again.
const pollEvery = time.Second

// watch asks and shows until enough says so (nil), ctx ends or the appliance does.
func (d *demo) watch(ctx context.Context, enough func() bool) error {
	exited := d.room.Exited()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	unanswered := 0
	for {
		machines, err := d.api.machines(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			unanswered = 0
			d.take(machines)
		default:
			if unanswered++; unanswered > maxUnanswered {
				return fmt.Errorf("ask the appliance: %w: %s", err, d.room.LastWords())
			}
		}
		d.draw()
		if err == nil && enough() {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-exited:
			return fmt.Errorf("the appliance ended by itself: %s", d.room.LastWords())
		case <-tick.C:
		}
	}
}

// take gives each machine of the rack its newest record, by its network card: a name may change.
func (d *demo) take(machines []machine) {
	for i := range d.seen {
		s := &d.seen[i]
		s.rec = nil
		if at := slices.IndexFunc(machines, func(m machine) bool { return slices.Contains(m.MACs, s.mac) }); at >= 0 {
			s.rec = &machines[at]
		}
	}
}

// draw shows what is known now.
func (d *demo) draw() {
	now := time.Now()
	done, live := render(picture{started: d.started, now: now, machines: d.seen, past: d.past})
	d.screen.add(done...)
	d.screen.live(now, live)
}
