package appliance

import (
	"context"
	"os"
	"sync"
	"time"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/doctor"
	"firstlight/appliance/internal/fleet"
)

// healthFor is how long the doctor's word is good: it asks the boot segment, and a page may be looked at by many.
const healthFor = 15 * time.Second

// lastHealth is the newest examination. The mutex is held while one is made, so that there is one at a time.
type lastHealth struct {
	mu  sync.Mutex
	now api.Health
}

// health runs the doctor for the API.
func (p *parts) health(ctx context.Context) (api.Health, error) {
	h := &p.lastHealth
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := p.cfg.Now(); len(h.now.Checks) > 0 && now.Sub(h.now.Checked.Time) < healthFor {
		return h.now, nil
	}
	checks := doctor.Run(ctx, doctor.Config{File: p.cfg.File, Process: os.Getpid(), Built: doctor.Built(), Space: p.store.Space})
	if err := ctx.Err(); err != nil {
		return api.Health{}, err
	}
	out := api.Health{State: string(doctor.Worst(checks)), Checked: fleet.At(p.cfg.Now())}
	for _, c := range checks {
		out.Checks = append(out.Checks, api.HealthCheck{Name: c.Name, State: string(c.State), What: c.What, Why: c.Why, Next: c.Next})
	}
	h.now = out
	return out, nil
}
