package web

import (
	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/fleet"
)

// everywhere is what every page says of the whole fleet. Its zero value says nothing: what it stands for could not be read, which
// takes no page away.
type everywhere struct {
	Need int
	Stop *fleet.Stop
}

func everywhereOf(p api.MachinePage) *everywhere { return &everywhere{p.Counts["need"], p.Stop} }

// everywhere reads it, unless the page has just done so.
func (v *visit) everywhere() (everywhere, error) {
	if v.all == nil {
		page, err := v.s.cfg.API.Page(v.ctx(), api.Query{Limit: 1})
		if err != nil {
			return everywhere{}, err
		}
		v.all = everywhereOf(page)
	}
	return *v.all, nil
}

// everywhereToo adds what every page has to the parts of a stream.
func everywhereToo(build parts) parts {
	return func(v *visit) ([]part, string, error) {
		v.all = nil
		all, machine, err := build(v)
		if err != nil {
			return nil, machine, err
		}
		e, err := v.everywhere()
		return append(all, part{id: "needs", tmpl: "needs", data: e}, part{id: "stopped", tmpl: "stopped", data: e}), machine, err
	}
}
