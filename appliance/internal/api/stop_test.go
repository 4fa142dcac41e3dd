package api

import (
	"context"
	"testing"

	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/fleet"
)

// Who stopped everything is told wherever the fleet or its health is shown.
func TestStopIsTold(t *testing.T) {
	t.Parallel()
	l := ready(t, func(l *lab) {
		l.config.Health = func(context.Context) (Health, error) { return Health{State: "ok"}, nil }
	})
	c, _ := l.as(anna(auth.RoleViewer))
	look := func() (*fleet.Stop, *fleet.Stop) {
		page, err := c.Page(t.Context(), Query{})
		if err != nil {
			t.Fatal(err)
		}
		health, err := c.Health(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return page.Stop, health.Stop
	}
	if page, health := look(); page != nil || health != nil {
		t.Errorf("got %+v and %+v, want no stop", page, health)
	}
	repo := fleet.NewRepo(l.store)
	if _, err := repo.SetStop(t.Context(), &fleet.Stop{By: "ben", Reason: "smoke", Since: fleet.At(now)}); err != nil {
		t.Fatal(err)
	}
	page, health := look()
	if page == nil || health == nil || page.By != "ben" || page.Reason != "smoke" || *page != *health {
		t.Errorf("got %+v and %+v, want ben's", page, health)
	}
}
