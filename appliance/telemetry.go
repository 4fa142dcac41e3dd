package appliance

import (
	"context"
	"time"

	"firstlight/appliance/internal/roster"
	"firstlight/appliance/internal/telemetry"
)

const (
	// followStart bounds the wait for the follower at start: numbers may miss something, the site must not wait for them.
	followStart = 5 * time.Second
	// flushTimeout bounds sending the last spans at the end.
	flushTimeout = 2 * time.Second
)

// openTelemetry makes what counts and traces; it is first, because it is put around other parts.
func (p *parts) openTelemetry(ctx context.Context) (err error) {
	p.metrics = telemetry.NewMetrics(p.cfg.Version)
	if to := p.cfg.File.Telemetry.OTLPEndpoint; to != "" {
		p.traces, err = telemetry.NewTraces(ctx, telemetry.TraceConfig{Endpoint: to, Site: p.cfg.File.SiteID, Version: p.cfg.Version, Log: p.log("telemetry")})
	}
	return err
}

// machineCounts is how many machines there are in each state, and how many need a person.
func (p *parts) machineCounts() (map[string]int, int) {
	page, err := p.roster.Page(roster.Query{Limit: 1}, 0)
	if err != nil {
		p.log("telemetry").Warn("count machines", "err", err)
	}
	return page.Counts, page.Counts[roster.Need]
}

// follow counts and traces what the workflows do until ctx ends. What it returns waits for that and sends what is left.
func (p *parts) follow(ctx context.Context) (end func()) {
	log := p.log("telemetry")
	f := telemetry.NewFollower(telemetry.FollowerConfig{Fleet: p.fleet, Metrics: p.metrics, Traces: p.traces, SiteNode: string(p.siteNode), Log: log})
	ready, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		f.Run(ctx, func() { close(ready) })
	}()
	select {
	case <-ready:
	case <-ctx.Done():
	case <-time.After(followStart):
		log.Warn("telemetry does not follow the store yet", "after", followStart)
	}
	return func() {
		<-done
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		if err := p.traces.Close(flush); err != nil {
			log.Warn("last traces not sent", "err", err)
		}
	}
}
