package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
)

// againAfter is how long a stream that was lost is left alone.
const againAfter = 2 * time.Second

type logs struct {
	Name   string `arg:"" help:"Name of the machine."`
	Follow bool   `short:"f" help:"Go on with what its agents say, until interrupted."`
	Limit  int    `help:"How many of the newest lines." default:"200"`
}

// Run implements the command.
func (l *logs) Run(c *call) error {
	if !l.Follow {
		lines, err := c.client.Log(c.ctx, l.Name, l.Limit)
		if err != nil {
			return err
		}
		return c.print(lines, func(w io.Writer) {
			for _, x := range lines {
				showLine(w, x)
			}
			if len(lines) == 0 {
				fmt.Fprintln(w, "its agents said nothing yet")
			}
		})
	}
	var last uint64
	return c.keep(func() error {
		return c.client.FollowLog(c.ctx, l.Name, l.Limit, func(x api.LogLine) error {
			if x.Seq <= last {
				return nil
			}
			last = x.Seq
			return c.each(x, func(w io.Writer) { showLine(w, x) })
		})
	})
}

func showLine(w io.Writer, x api.LogLine) {
	fmt.Fprintf(w, "%s  %s  %s  %s\n", day(x.Time), plain(x.Source), plain(x.Kind), plain(x.Text))
}

// keep follows a stream until the context ends; when it is lost that is said at once, and it is taken up again.
func (c *call) keep(follow func() error) error {
	for {
		err := follow()
		if c.ctx.Err() != nil {
			return nil
		}
		if f, ok := errors.AsType[*fault.Error](err); !ok || f.Kind != fault.Unavailable {
			return err
		}
		fmt.Fprintf(c.Stderr, "firstlight: %s; trying again\n", plain(err.Error()))
		timer := time.NewTimer(againAfter)
		select {
		case <-timer.C:
		case <-c.ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// each prints one thing of a stream: a line of JSON, or what people gives.
func (c *call) each(v any, people func(io.Writer)) error {
	if !c.json {
		people(c.Stdout)
		return nil
	}
	e := json.NewEncoder(c.Stdout)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fault.Of(err, "print the answer", "")
	}
	return nil
}

// followEvents prints the newest events and then every further one.
func (c *call) followEvents(machine string, limit int) error {
	var seen uint64
	var after int64
	tell := func(e fleet.Event) error {
		if e.Seq <= seen {
			return nil
		}
		seen = e.Seq
		return c.each(e, func(w io.Writer) {
			fmt.Fprintf(w, "%s  %s  %s  %s\n", day(e.Time), dash(plain(e.Machine)), plain(e.Kind), plain(e.Message))
		})
	}
	return c.keep(func() error {
		if after == 0 {
			var err error
			if after, err = c.missed(machine, limit, tell); err != nil {
				return err
			}
		}
		return c.client.Watch(c.ctx, api.WatchFrom{Machine: machine, After: after}, func(x api.Change) error {
			switch after = x.ID; {
			case x.Kind == api.ChangeReset:
				_, err := c.missed(machine, api.MaxEvents, tell)
				return err
			case x.Event != nil:
				return tell(*x.Event)
			}
			return nil
		})
	})
}

// missed tells what was there before a watch, and from where the watch goes on.
func (c *call) missed(machine string, limit int, tell func(fleet.Event) error) (int64, error) {
	page, err := c.client.Page(c.ctx, api.Query{Limit: 1})
	if err != nil {
		return 0, err
	}
	all, err := c.client.Events(c.ctx, machine, limit)
	if err != nil {
		return 0, err
	}
	for _, e := range all {
		if err := tell(e); err != nil {
			return 0, err
		}
	}
	return page.Rev, nil
}
